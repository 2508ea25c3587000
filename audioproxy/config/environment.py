"""Parser of environment variables: returns one `Config`, or reports every problem in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from audioproxy.config.model import Config
from audioproxy.config.problems import ConfigError, Problem
from audioproxy.config.settings import S3Config
from audioproxy.config.source_headers import InvalidHeaders
from audioproxy.config.values import listed, quote
from audioproxy.errors import InvalidValue
from audioproxy.grammar.signing_secrets import MIN_KEY_BYTES, MIN_SALT_BYTES
from audioproxy.grammar.sources import parse_https

# Fields of S3Config. In capitals and after a prefix, they are names of variables.
_ENDPOINT_FIELDS = ("endpoint", "addressing", "ca_bundle")
_IDENTITY_FIELDS = ("access_key_id", "secret_access_key", "session_token", "region")


def _parsers() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Yield each variable with its parser, in the order in which problems are reported."""
    s3 = {row.name: row.metadata["parse"] for row in fields(S3Config)}
    for row in fields(Config):
        if "parse" in row.metadata:
            yield f"AP_{row.name.upper()}", row.metadata["parse"]
        elif row.name == "source_s3":
            for names, prefixes in (
                (_ENDPOINT_FIELDS, ("AP_S3_", "AP_VARIANT_S3_")),
                (_IDENTITY_FIELDS, ("AWS_", "AP_VARIANT_S3_")),
            ):
                for prefix in prefixes:
                    yield from ((prefix + name.upper(), s3[name]) for name in names)


_PARSERS = dict(_parsers())
# The second name of AWS_REGION, which is used only if the first is unset.
_DEFAULT_REGION = "AWS_DEFAULT_REGION"

#: All variables that are read.
VARIABLES = (*_PARSERS, _DEFAULT_REGION)

# Variables that are set together or not at all.
_SHARED_IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
_VARIANT_IDENTITY = tuple(name.replace("AWS_", "AP_VARIANT_S3_") for name in _SHARED_IDENTITY)
_NAME = re.compile(r"\w+", re.ASCII)
# An allowlist entry that can match a name. No name contains a slash, bracket, blank or port.
_MATCHABLE = re.compile(r"(?![^:]*:\d+\Z)(?:\*|[^*/\[\]\s]+\*?|\*\.[^*/\[\]\s]+)")
# A key and a salt that `Config` accepts, to check the other settings with.
_ACCEPTABLE = {"AP_KEY": bytes(MIN_KEY_BYTES), "AP_SALT": bytes(MIN_SALT_BYTES)}
_PREVIOUS = ("AP_PREVIOUS_KEY", "AP_PREVIOUS_SALT")


def load(environ: Mapping[str, str]) -> tuple[Config, tuple[Problem, ...]]:
    """Read and check all settings; return them with the warnings to log at boot.

    An empty value counts as unset, except for AP_SOURCE_ALLOWLIST: an empty value must not allow
    every bucket (D49).

    :raises ConfigError: with every problem found, not only the first.
    """
    present: set[str] = set()
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, parse in _PARSERS.items():
        without_region = name == "AWS_REGION" and not environ.get(name)
        variable = _DEFAULT_REGION if without_region else name
        if environ.get(variable) or (name == "AP_SOURCE_ALLOWLIST" and name in environ):
            present.add(name)
            try:
                values[name] = parse(environ[variable])
            except InvalidValue as error:
                problems.append(Problem.of(variable, error))
            except InvalidHeaders as error:
                problems += [Problem.of(variable, mistake) for mistake in error.mistakes]
    failed = present - values.keys()
    # A key and a salt that are already reported, or that an unreadable AP_ALLOW_INSECURE may make
    # unnecessary, are not reported as missing.
    values |= {name: _ACCEPTABLE[name] for name in failed & _ACCEPTABLE.keys()}
    if "AP_ALLOW_INSECURE" in failed and values.keys().isdisjoint(_ACCEPTABLE):
        values |= _ACCEPTABLE
    if not failed.isdisjoint(_PREVIOUS):
        # The entries of the other list would be reported as too many.
        values = _without(values, _PREVIOUS)
    try:
        config = _assemble(values)
    except ConfigError as error:
        problems += error.problems
        config = _assemble(_without(values, _PREVIOUS) | _ACCEPTABLE)
    problems += _incomplete(present)
    # A value that could not be parsed is already reported. A conflict of the default that replaces
    # it would be misleading.
    problems += [
        conflict
        for conflict in _conflicts(config, present)
        if failed.isdisjoint((conflict.variable, *conflict.related))
    ]
    warnings = (*_unknown_variables(environ), *_warnings(config))
    if problems:
        raise ConfigError(problems, warnings)
    return config, warnings


def _assemble(values: Mapping[str, Any]) -> Config:
    shared_identity = _pick(values, "AWS_", _IDENTITY_FIELDS)
    own_identity = _pick(values, "AP_VARIANT_S3_", _IDENTITY_FIELDS)
    shared = S3Config(**_pick(values, "AP_S3_", _ENDPOINT_FIELDS), **shared_identity)
    own = _pick(values, "AP_VARIANT_S3_", _ENDPOINT_FIELDS)
    inherited: dict[str, Any] = {"ca_bundle": shared.ca_bundle}
    if "endpoint" not in own:
        # If the variant store has an endpoint of its own, its addressing follows from that
        # endpoint.
        inherited |= {"endpoint": shared.endpoint, "addressing": shared.addressing}
    # A token is inherited together with its identity, never alone.
    variant = S3Config(**inherited | own, **(own_identity or shared_identity))
    plain = _pick(values, "AP_", (row.name for row in fields(Config)))
    return Config(source_s3=shared, variant_s3=variant, **plain)


def _without(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _pick(values: Mapping[str, Any], prefix: str, names: Iterable[str]) -> dict[str, Any]:
    variables = {name: prefix + name.upper() for name in names}
    return {name: values[variable] for name, variable in variables.items() if variable in values}


def _incomplete(present: AbstractSet[str]) -> Iterator[Problem]:
    identities = {"AWS_": _SHARED_IDENTITY, "AP_VARIANT_S3_": _VARIANT_IDENTITY}
    for group in identities.values():
        if some := [name for name in group if name in present]:
            for name in [name for name in group if name not in present]:
                yield Problem.missing(name, some, group)
    for prefix, group in identities.items():
        # It belongs to the key pair that it was issued with.
        token = f"{prefix}SESSION_TOKEN"
        if token in present and present.isdisjoint(group):
            yield Problem(token, "set on its own", f"it belongs to {listed(group)}", group)


def _conflicts(config: Config, present: AbstractSet[str]) -> Iterator[Problem]:
    # Port 0 means any free port, so two of them are different ports.
    if (port := config.metrics_port) == config.port != 0 and config.socket_path is None:
        fault = f"{port} is the port of the main listener, AP_PORT, as well"
        yield Problem("AP_METRICS_PORT", fault, "two different ports are required", ("AP_PORT",))
    where = config.variant_store
    folder, bucket = (None, None) if where is None else (where.path, where.bucket)
    if config.serve_mode == "redirect" and folder is not None:
        mode = "redirect" if "AP_SERVE_MODE" in present else "redirect (the default)"
        fault = f"{mode} cannot serve from the file:// store that AP_VARIANT_STORE names"
        wanted = "set AP_SERVE_MODE to proxy, or name an s3:// store"
        yield Problem("AP_SERVE_MODE", fault, wanted, ("AP_VARIANT_STORE",))
    if "AP_VARIANT_STORE_MAX_BYTES" in present and folder is None:
        fault = "set with an s3:// store"
        wanted = "unset it, and limit the bucket by its lifecycle rules"
        if bucket is None:
            fault = "set without a store"
            wanted = "unset it, or set AP_VARIANT_STORE to a file:// store"
        yield Problem("AP_VARIANT_STORE_MAX_BYTES", fault, wanted, ("AP_VARIANT_STORE",))
    # A group that is only partly set is already reported with the missing names.
    identities = (*_SHARED_IDENTITY, *_VARIANT_IDENTITY)
    if bucket is not None and present.isdisjoint(identities):
        fault = "an s3:// store needs credentials, and none are set"
        wanted = f"set {listed(_SHARED_IDENTITY)}, or {listed(_VARIANT_IDENTITY)}"
        yield Problem("AP_VARIANT_STORE", fault, wanted, identities)
    threshold, queue = config.ready_queue_threshold, config.queue_size
    if threshold > queue:
        fault = f"{threshold} is more than AP_QUEUE_SIZE, which is {queue}"
        wanted = "a number up to AP_QUEUE_SIZE is required"
        yield Problem("AP_READY_QUEUE_THRESHOLD", fault, wanted, ("AP_QUEUE_SIZE",))
    # The default adapts to a short AP_RENDER_TIMEOUT; an explicit value does not.
    probe, render = config.probe_timeout, config.render_timeout
    if "AP_PROBE_TIMEOUT" in present and probe >= render:
        fault = f"{probe} is not shorter than AP_RENDER_TIMEOUT, which is {render}"
        wanted = "a shorter time is required"
        yield Problem("AP_PROBE_TIMEOUT", fault, wanted, ("AP_RENDER_TIMEOUT",))


def _unknown_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Warn of AP_* variables that are no settings (D33)."""
    known = [name for name in _PARSERS if name.startswith("AP_")]
    for name, value in environ.items():
        if value and name.startswith("AP_") and name not in known:
            (nearest,) = get_close_matches(name, known, n=1, cutoff=0)
            shown = name if _NAME.fullmatch(name) else quote(name)
            wanted = f"the nearest known name is {nearest}"
            yield Problem(shown, "unknown, so it is ignored", wanted)


def _warnings(config: Config) -> Iterator[Problem]:
    if config.allow_insecure:
        fault = "on, so the word insecure is accepted in place of a signature"
        if config.is_local:
            wanted = "turn it off where untrusted clients can reach the service"
        else:
            fault += ", and anyone who reaches the service can write URLs"
            wanted = "turn it off, or let the service listen on 127.0.0.1 alone"
        yield Problem("AP_ALLOW_INSECURE", fault, wanted)
        if config.key is None:
            wanted = "no signature is accepted, only the word insecure"
            yield Problem("AP_KEY", "not set, and neither is AP_SALT", wanted)
    for entry in config.source_allowlist or ():
        if _MATCHABLE.fullmatch(entry) is None:
            wanted = "write a bare name, prefix*, *.suffix or *"
            yield Problem("AP_SOURCE_ALLOWLIST", f"{quote(entry)} matches nothing", wanted)
    if config.source_headers_file is not None and not config.source_headers_file:
        wanted = "write a line for each header, or unset the variable"
        yield Problem("AP_SOURCE_HEADERS_FILE", "the file has no header", wanted)
    for host in config.source_headers_file or ():
        source = parse_https(f"https://{host}".encode("ascii"))
        if not source.is_allowed(config.source_allowlist or ()):
            fault = f"the headers for {host} are never sent, since no source may be there"
            yield Problem("AP_SOURCE_HEADERS_FILE", fault, "add the host to AP_SOURCE_ALLOWLIST")
