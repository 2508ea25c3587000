"""A URL taken apart: the verdict on it, what it means, and what a render of it would run."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from audioproxy.cli.environment import make_signer
from audioproxy.cli.exit_status import DONE, REFUSED, printable
from audioproxy.cli.option_help import meanings, unsaid
from audioproxy.cli.reactor import run
from audioproxy.cli.sign import judge, moment
from audioproxy.cli.url_input import read_address
from audioproxy.config import BucketStore, Config, ConfigError, FileStore, load
from audioproxy.errors import NotFound, Refusal
from audioproxy.grammar.cache_key import cache_key
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.parser import read_expiry, read_options, refuse_options
from audioproxy.grammar.segments import SignedPath, Target, split_target
from audioproxy.grammar.sources import HttpsSource, LocalSource, Source, read_source
from audioproxy.grammar.values import print_decimal
from audioproxy.media.diagnostics import without_secrets
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, local_input, remote_input
from audioproxy.media.probe import Probe
from audioproxy.render.preparation import Plan, arrange
from audioproxy.service import make_resource
from audioproxy.variants.files import variant_path


@dataclass(slots=True)
class Explanation:
    """What is known of a URL, in the order in which it is found out: a title, and what it heads."""

    parts: dict[str, str | list[str]] = field(default_factory=dict)

    def say(self, title: str, what: str | list[str]) -> None:
        """Add a part: one line, or several."""
        self.parts[title] = what

    def text(self) -> Iterator[str]:
        """Yield the lines of a table for people."""
        width = max(map(len, self.parts)) + 2
        for title, what in self.parts.items():
            for number, line in enumerate([what] if isinstance(what, str) else what):
                yield f"{'' if number else title:{width}}{printable(line)}"

    def document(self) -> str:
        """Return the same for programs."""
        return json.dumps(self.parts, indent=2)


def explain(url: str, environment: Mapping[str, str], *, probe: bool, as_json: bool) -> int:
    """Print a URL taken apart, and return the exit status.

    :param probe: look at the source, for the commands of a render.
    """
    explanation = Explanation()
    path = read_address(url)
    explanation.say("signed", path.signed.decode("ascii"))
    status = _explain_signature(explanation, path, environment)
    try:
        _explain_target(explanation, path, environment, probe=probe)
    except Refusal as refusal:
        explanation.say("refused", f"{refusal.status} {refusal.code}: {refusal}")
        status = max(status, REFUSED)
    print(explanation.document() if as_json else "\n".join(explanation.text()))
    return status


def _explain_signature(
    explanation: Explanation, path: SignedPath, environment: Mapping[str, str]
) -> int:
    if path.signature == b"insecure":
        explanation.say("signature", "none: only a service with AP_ALLOW_INSECURE=1 takes this")
        return DONE
    if not environment.get("AP_KEY"):
        explanation.say("signature", "not checked, since AP_KEY is not set")
        return DONE
    signer = make_signer(environment)
    status, verdict = judge(signer.key, signer.salt, path, time.time())
    explanation.say("signature", verdict)
    return status


def _explain_target(
    explanation: Explanation, path: SignedPath, environment: Mapping[str, str], *, probe: bool
) -> None:
    target = split_target(path.signed)
    if target is None:
        raise NotFound("plain/ or enc/ is expected, with a source behind it")
    options = None
    if target.info:
        refuse_options(target.options)
        explanation.say("asks for", "the info document")
    else:
        options = _explain_options(explanation, target)
    source = read_source(target.form, target.source)
    explanation.say("source", _show(source.canonical))
    config, problems = _read_config(environment)
    if options is not None:
        key = cache_key(options, source.canonical)
        explanation.say("cache key", key)
        _explain_place(explanation, config, key)
    if probe and not problems:
        _explain_commands(explanation, _look(config, options, source), config, source)
        return
    why = problems or ["the source was not looked at, as was asked for"]
    explanation.say("assumed", ["a stereo file of 44100 Hz and 16 bits, 180 s long, since", *why])
    _explain_commands(explanation, _assume(options, source), config, source)


def _explain_options(explanation: Explanation, target: Target) -> VariantOptions:
    exp = read_expiry(target.options)
    if exp is not None:
        left = exp - int(time.time())
        explanation.say("ends", f"{moment(exp)}, {f'in {left} s' if left >= 0 else 'has passed'}")
    options, _ = read_options(target.options)
    rows = list(meanings(options))
    width = max(len(segment) for segment, _ in rows) + 2
    explanation.say("options", [f"{segment:{width}}{meaning}" for segment, meaning in rows])
    if rest := list(unsaid(options)):
        explanation.say("and", "; ".join(rest))
    explanation.say("canonical", options.canonical())
    return options


def _explain_place(explanation: Explanation, config: Config, key: str) -> None:
    match config.variant_store:
        case FileStore(folder):
            explanation.say("stored as", variant_path(folder, key))
        case BucketStore(bucket):
            explanation.say("stored as", f"s3://{bucket}/{key}")


def _explain_commands(explanation: Explanation, plan: Plan, config: Config, source: Source) -> None:
    probe = plan.probe
    length = "?" if probe.duration is None else print_decimal(probe.duration)
    explanation.say(
        "read as",
        f"{probe.codec} in {probe.container}, {probe.sample_rate} Hz, channels: {probe.channels},"
        f" bits: {probe.bit_depth}, seconds: {length}",
    )
    given = f" {SOURCE_DESCRIPTOR}< FILE"
    if isinstance(source, LocalSource):
        path = os.path.join(os.fsencode(config.local_root or "AP_LOCAL_ROOT"), source.path)
        given = f" {SOURCE_DESCRIPTOR}< {shlex.quote(os.fsdecode(path))}"
    for title, command in (
        ("ffprobe", plan.ffprobe),
        ("measured by", plan.measure),
        ("ffmpeg", plan.ffmpeg),
    ):
        if command is not None:
            words = shlex.join(without_secrets(word) for word in command)
            fed = given if f"file:/dev/fd/{SOURCE_DESCRIPTOR}" in command else ""
            explanation.say(title, words + fed)


def _read_config(environment: Mapping[str, str]) -> tuple[Config, list[str]]:
    """Return the service's configuration, or the default one and why there is no other."""
    # Without a key nothing can be verified, and everything else can be told.
    relaxed = {} if environment.get("AP_KEY") else {"AP_ALLOW_INSECURE": "1"}
    try:
        return load({**environment, **relaxed})[0], []
    except ConfigError as error:
        return Config(allow_insecure=True), list(error.problems)


def _look(config: Config, options: VariantOptions | None, source: Source) -> Plan:
    async def look(reactor: Any) -> Plan:
        proxy = make_resource(config, reactor)
        try:
            return await proxy.plan(options, source)
        finally:
            await proxy.stopService()

    return run(look)


def _assume(options: VariantOptions | None, source: Source) -> Plan:
    probe = Probe("wav", "pcm_s16le", Decimal(180), exact=True, sample_rate=44100)
    if isinstance(source, LocalSource):
        seen = local_input()
    else:
        url = source.url if isinstance(source, HttpsSource) else "https://PRESIGNED-URL"
        seen = remote_input(url, "audioproxy")
    return arrange("ffprobe", "ffmpeg", seen, options, probe)


def _show(canonical: bytes) -> str:
    """Return a canonical source as printable text; what is not UTF-8 or prints nothing escaped."""
    return printable(canonical.decode("utf-8", "backslashreplace"))
