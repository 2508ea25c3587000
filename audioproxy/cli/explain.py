"""``audioproxy explain``: print the verdict on a URL, its meaning and its commands."""

from __future__ import annotations

import os
import shlex
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.checks.settings import place_of_variants
from audioproxy.cli.env_file import load_config, read_keys
from audioproxy.cli.exit_status import REFUSED, SUCCESS
from audioproxy.cli.output import Colour, Output, format_time, printable
from audioproxy.cli.url_input import describe_presigned, parse_url
from audioproxy.cli.verify import verify_path
from audioproxy.config import Config, ConfigError
from audioproxy.engine import BootError, Engine, build
from audioproxy.errors import Refusal
from audioproxy.grammar.option_parser import parse_expiry, parse_options
from audioproxy.grammar.options import describe_defaults, describe_options
from audioproxy.grammar.request import INSECURE, InfoRequest, VariantRequest, parse_request
from audioproxy.grammar.segments import SignedPath, Target, split_target
from audioproxy.grammar.sources import Source
from audioproxy.grammar.values import print_decimal
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import encoder_arguments
from audioproxy.media.ffprobe import probe_arguments
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, local_input
from audioproxy.media.probe import AudioStream, Container, Probe
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.waveform_spec import PcmSamples
from audioproxy.variants.files import variant_path

DESCRIPTION = """\
Explain a URL: the verdict on its signature, each option with its meaning, the canonical options
and source, the cache key, and the commands that a render of it runs. To find the commands, the
source is probed as the service would probe it, with the service's settings. Nothing is rendered or
stored. In the commands, FILE stands for a source that the service reads from a network.

examples:
  audioproxy explain http://127.0.0.1:4000/insecure/f:opus/t:30:15/plain/local://piece.wav
  audioproxy explain --env-file /etc/audioproxy.env --json /Gx3k.../info/plain/local://piece.wav
  audioproxy explain --json /insecure/f:opus/plain/local://piece.wav | jq -c .ffmpeg

The exit status is that of `audioproxy verify`.
"""


class Fact(NamedTuple):
    """A fact about a URL: its title, its text for people, and its value for programs.

    :ivar text: one line or several; none for what the commands show to people.
    """

    title: str
    text: str | list[str]
    value: Any


class Commands(NamedTuple):
    """What is known about a source, and the commands of its render, by their titles.

    :ivar samples: those that a waveform needs no decoder for.
    """

    probe: Probe
    lines: dict[str, list[str] | None]
    samples: PcmSamples | None = None
    point: SeekPoint | None = None


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="a URL of the service, or its path")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--no-probe",
        action="store_true",
        help="do not read the source; show the commands for a stereo file of 44.1 kHz",
    )


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    path = parse_url(arguments.url)
    signed = path.signed.decode("ascii")
    status, signature = _check_signature(path, environment)
    facts = [Fact("signed", signed, signed), signature]
    try:
        for fact in _explain_target(path, environment, probe=not arguments.no_probe):
            facts.append(fact)
    except Refusal as refusal:
        text = f"{refusal.status} {refusal.code}: {refusal}"
        values = {"status": refusal.status, "error": refusal.code, "message": str(refusal)}
        facts.append(Fact("refused", text, values))
        status = max(status, REFUSED)
    output = Output.of(arguments)
    output.document({fact.title.replace(" ", "_"): fact.value for fact in facts})
    width = max(len(fact.title) for fact in facts) + 2
    for fact in facts:
        title, colour = fact.title, Colour.RED if fact.title == "refused" else None
        for line in [fact.text] if isinstance(fact.text, str) else fact.text:
            output.line(line, f"{title:{width}}", colour)
            title = ""
    return status


def _check_signature(path: SignedPath, environment: Mapping[str, str]) -> tuple[int, Fact]:
    if path.signature == INSECURE:
        text = "none: only a service with AP_ALLOW_INSECURE=1 accepts this"
        return SUCCESS, Fact("signature", text, {"verdict": "insecure"})
    if not environment.get("AP_KEY"):
        text = "not checked, since AP_KEY is not set"
        return SUCCESS, Fact("signature", text, {"verdict": "not checked"})
    found = verify_path(read_keys(environment), path)
    return found.status, Fact("signature", found.text, found.values)


def _explain_target(
    path: SignedPath, environment: Mapping[str, str], *, probe: bool
) -> Iterator[Fact]:
    """Yield the facts about a path; raise `Refusal` at the part that the service would refuse."""
    target = split_target(path.signed)
    if target is not None:
        yield from _explain_options(target)
    request = parse_request(path.signed, now=None)
    source = printable(request.source.canonical.decode("utf-8", "backslashreplace"))
    yield Fact("source", source, source)
    if (warning := describe_presigned(request.source)) is not None:
        yield Fact("warning", warning, warning)
    try:
        config, problems = load_config(environment), []
    except ConfigError as error:
        config, problems = Config(allow_insecure=True), list(map(str, error.problems))
    if isinstance(request, VariantRequest):
        yield Fact("cache key", request.key, request.key)
        folder, bucket = place_of_variants(config)
        if folder or bucket:
            key = request.key
            place = variant_path(folder, key) if folder else f"s3://{bucket}/{key}"
            yield Fact("stored as", place, place)
    commands = None
    if probe and not problems:
        try:
            commands = cli_reactor.run(
                lambda reactor: _commands_of_source(reactor, config, request)
            )
        except BootError as error:
            problems = [str(error)]
    if commands is None:
        reasons = problems or ["the source was not read, because of --no-probe"]
        assumed = "a stereo file of 44100 Hz and 16 bits, 180 s long, since"
        yield Fact("assumed", [assumed, *reasons], reasons)
        commands = _commands_of_assumed_source(request)
    if isinstance(request, VariantRequest):
        encoder = ENCODERS[request.options.f]
        if tags := encoder.written_tags(commands.probe.carried_tags):
            yield Fact("tags", tags, dict(tag.split("=", 1) for tag in tags))
    yield from _explain_commands(commands, config, request.source)


def _explain_options(target: Target) -> Iterator[Fact]:
    if target.info:
        if not target.options:
            yield Fact("asks for", "the info document", "info")
        return
    # The service checks nothing more once a URL has expired; this command still explains the rest.
    if (exp := parse_expiry(target.options)) is not None:
        left = exp - int(time.time())
        text = f"{format_time(exp)}, {f'in {left} s' if left >= 0 else 'has passed'}"
        yield Fact("ends", text, exp)
    try:
        options, _ = parse_options(target.options)
    except Refusal:
        return
    rows = list(describe_options(options))
    width = max(len(segment) for segment, _ in rows) + 2
    lines = [f"{segment:{width}}{meaning}" for segment, meaning in rows]
    yield Fact("options", lines, dict(segment.split(":", 1) for segment, _ in rows))
    if defaults := list(describe_defaults(options)):
        yield Fact("defaults", "; ".join(defaults), defaults)
    yield Fact("canonical", options.canonical(), options.canonical())


def _explain_commands(commands: Commands, config: Config, source: Source) -> Iterator[Fact]:
    probe, lines, samples, point = commands
    length = "?" if probe.duration is None else print_decimal(probe.duration)
    values = {
        "codec": probe.codec,
        "container": probe.container,
        "sample_rate": probe.sample_rate,
        "channels": probe.channels,
        "bit_depth": probe.audio.bit_depth,
        "seconds": None if probe.duration is None else float(probe.duration),
    }
    yield Fact(
        "read as",
        "{codec} in {container}, {sample_rate} Hz, channels: {channels}, bits: {bit_depth},"
        " seconds: {length}".format(**values, length=length),
        values,
    )
    if (text := probe.audio.choice) is not None:
        marked = {"audio_streams": probe.audio.streams, "marked": probe.audio.marked}
        yield Fact("stream", text, {"rendered": 1, **marked})
    path = os.fsdecode(
        source.path_below(os.fsencode(config.local_root or "AP_LOCAL_ROOT")) or "FILE"
    )
    if point is not None:
        text = f"byte {point.offset} on, which is sample {point.sample}"
        if point.head:
            text += f"; ffmpeg reads a copy of that, behind {len(point.head)} bytes of headers"
        place = {"offset": point.offset, "sample": point.sample, "head": len(point.head)}
        yield Fact("decoded from", text, place)
    # Part of the commands, for people.
    yield Fact("descriptors", [], {SOURCE_DESCRIPTOR: path})
    opened = local_input().url
    for title, command in lines.items():
        if command is not None:
            is_copied = title == "ffmpeg" and point is not None and bool(point.head)
            read = "COPY" if is_copied else shlex.quote(path)
            redirection = f" {SOURCE_DESCRIPTOR}< {read}" if opened in command else ""
            yield Fact(title, shlex.join(command) + redirection, command)
    if samples is not None:
        text = f"{samples.frames} frames from byte {samples.offset} on, read without ffmpeg"
        yield Fact("samples", text, {"frames": samples.frames, "offset": samples.offset})


async def _commands_of_source(
    reactor: Any, config: Config, request: VariantRequest | InfoRequest
) -> Commands:
    engine = Engine(build(config, reactor))
    ffprobe = engine.programs.ffprobe
    try:
        if isinstance(request, InfoRequest):
            probe, opened = await engine.probe(request.source)
            return Commands(probe, {"ffprobe": probe_arguments(ffprobe, opened)})
        job = await engine.prepare_job(request)
        probe = job.source.probe
        lines = {
            "ffprobe": probe_arguments(ffprobe, probe.open_with(job.input)),
            "measured by": job.measure,
            "ffmpeg": None if job.samples else job.pipeline.encoder,
        }
        return Commands(probe, lines, job.samples, job.point)
    finally:
        await engine.close()


def _commands_of_assumed_source(request: VariantRequest | InfoRequest) -> Commands:
    probe = Probe(
        Container("wav"), AudioStream("pcm_s16le", 44100, 2, 16, 16), duration=None, exact=False
    )
    probe = probe.with_length(SourceLength(180 * 44100))
    opened = local_input()
    lines: dict[str, list[str] | None] = {"ffprobe": probe_arguments("ffprobe", opened)}
    if isinstance(request, VariantRequest):
        lines["ffmpeg"] = encoder_arguments("ffmpeg", opened, request.options, probe)
    return Commands(probe, lines)
