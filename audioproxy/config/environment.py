"""Parser of environment variables: returns one `Config`, or reports every problem in them.

Nothing here reads ``os.environ``: the variables are an argument. Whether a store is writable is
tested elsewhere, by writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from typing import Any

from audioproxy.config.model import BucketStore, Config, ConfigError, FileStore, S3Config
from audioproxy.config.values import (
    allowed_origin,
    allowlist,
    bucket,
    can_match,
    choice,
    credential,
    endpoint,
    ip_literal,
    listed,
    missing_beside,
    quote,
    readable_directory,
    readable_file,
    region,
    signing_problems,
    switch,
    unknown_variables,
    whole_number,
    writable_directory,
)
from audioproxy.grammar.signing_secrets import MIN_KEY_BYTES, MIN_SALT_BYTES, secret_reader

# Bounds that catch typing mistakes: a petabyte, a day, and numbers of children and waiting renders
# that no node can have. SigV4 limits the lifetime of a presigned URL to seven days.
_MAX_BYTES = 10**15
# So much is needed by no render of an ordinary source: eight channels at 192 kHz with `norm` and
# `enhance`, on 64 CPUs. Filters of ffmpeg that lack memory may drop audio without an error.
_MIN_CHILD_MEMORY = 384 << 20
_MAX_SECONDS = 86_400
_MAX_RENDERS = 4_096
_MAX_PROBES = 65_536
_MAX_QUEUE = 1_000_000
_MAX_PRESIGN_SECONDS = 604_800


def _variant_store(text: str) -> FileStore | BucketStore:
    if text.startswith("s3://"):
        return BucketStore(bucket(text.removeprefix("s3://")))
    if text.startswith("file:///"):
        # The path is not percent-decoded: a % is a %.
        return FileStore(writable_directory(text.removeprefix("file://")))
    fault = (
        "a host, or no path, after file://" if text.startswith("file://") else "an unknown scheme"
    )
    raise ValueError(f"{fault}; file:///<absolute path> or s3://<bucket> is required")


_READERS: dict[str, Callable[[str], Any]] = {
    "AP_KEY": secret_reader(MIN_KEY_BYTES),
    "AP_SALT": secret_reader(MIN_SALT_BYTES),
    "AP_ALLOW_INSECURE": switch,
    "AP_PORT": whole_number(0, 65_535),
    "AP_LOCAL_ROOT": readable_directory,
    "AP_VARIANT_STORE": _variant_store,
    "AP_SERVE_MODE": choice("redirect", "proxy"),
    "AP_PRESIGN_TTL": whole_number(1, _MAX_PRESIGN_SECONDS),
    "AP_S3_ENDPOINT": endpoint,
    "AP_S3_ADDRESSING": choice("virtual", "path"),
    "AP_S3_CA_BUNDLE": readable_file,
    "AP_VARIANT_S3_ENDPOINT": endpoint,
    "AP_VARIANT_S3_ADDRESSING": choice("virtual", "path"),
    "AP_VARIANT_S3_CA_BUNDLE": readable_file,
    "AWS_ACCESS_KEY_ID": credential,
    "AWS_SECRET_ACCESS_KEY": credential,
    "AWS_SESSION_TOKEN": credential,
    "AWS_REGION": region,
    "AWS_DEFAULT_REGION": region,
    "AP_VARIANT_S3_ACCESS_KEY_ID": credential,
    "AP_VARIANT_S3_SECRET_ACCESS_KEY": credential,
    "AP_VARIANT_S3_SESSION_TOKEN": credential,
    "AP_VARIANT_S3_REGION": region,
    "AP_SOURCE_ALLOWLIST": allowlist,
    "AP_ALLOW_ORIGIN": allowed_origin,
    "AP_LOG_LEVEL": choice("debug", "info", "warning", "error"),
    "AP_METRICS_BIND": ip_literal,
    "AP_METRICS_PORT": whole_number(0, 65_535),
    "AP_MAX_SRC_BYTES": whole_number(1, _MAX_BYTES),
    "AP_MAX_VARIANT_BYTES": whole_number(1, _MAX_BYTES),
    "AP_MAX_CHILD_MEMORY": whole_number(_MIN_CHILD_MEMORY, _MAX_BYTES),
    "AP_MAX_CONCURRENCY": whole_number(1, _MAX_RENDERS),
    "AP_MAX_PROBE_CONCURRENCY": whole_number(1, _MAX_PROBES),
    "AP_QUEUE_SIZE": whole_number(0, _MAX_QUEUE),
    "AP_READY_QUEUE_THRESHOLD": whole_number(0, _MAX_QUEUE),
    "AP_RENDER_TIMEOUT": whole_number(1, _MAX_SECONDS),
    "AP_PROBE_TIMEOUT": whole_number(1, _MAX_SECONDS),
}

#: All variables that are read.
VARIABLES = tuple(_READERS)

# Fields of S3Config. In capitals and after a prefix, they are names of variables.
_ENDPOINT_FIELDS = ("endpoint", "addressing", "ca_bundle")
_IDENTITY_FIELDS = ("access_key_id", "secret_access_key", "region", "session_token")

# The second name of the region's variable, which is used only if the first is unset.
_ALIASES = {"AWS_DEFAULT_REGION": "AWS_REGION"}

_SHARED_IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
_VARIANT_IDENTITY = (
    "AP_VARIANT_S3_ACCESS_KEY_ID",
    "AP_VARIANT_S3_SECRET_ACCESS_KEY",
    "AP_VARIANT_S3_REGION",
)
# A key and a salt that `Config` accepts, to check the other settings with.
_ACCEPTABLE = {"AP_KEY": bytes(MIN_KEY_BYTES), "AP_SALT": bytes(MIN_SALT_BYTES)}

# Variables that are set together or not at all.
_GROUPS = (_SHARED_IDENTITY, _VARIANT_IDENTITY)
# A session token belongs to the key pair that it was issued with, so it is never set alone.
_TOKENS = {
    "AWS_SESSION_TOKEN": _SHARED_IDENTITY,
    "AP_VARIANT_S3_SESSION_TOKEN": _VARIANT_IDENTITY,
}


def load(environ: Mapping[str, str]) -> tuple[Config, tuple[str, ...]]:
    """Read and check all settings; return them with the warnings to log at boot.

    An empty value counts as unset, except for AP_SOURCE_ALLOWLIST: an empty value must not allow
    every bucket (D49).

    :raises ConfigError: with every problem found, not only the first.
    """
    given = {
        name: environ[name]
        for name in _READERS
        if environ.get(name) or (name == "AP_SOURCE_ALLOWLIST" and name in environ)
    }
    if "AWS_REGION" in given:
        given.pop("AWS_DEFAULT_REGION", None)
    values: dict[str, Any] = {}
    problems = []
    for name, text in given.items():
        try:
            values[name] = _READERS[name](text)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    failed = given.keys() - values.keys()
    present = {_ALIASES.get(name, name) for name in given}
    values = {_ALIASES.get(name, name): value for name, value in values.items()}
    # A value that could not be parsed is already reported; an acceptable value replaces it here.
    to_check = values | {name: _ACCEPTABLE[name] for name in failed & _ACCEPTABLE.keys()}
    insecure = "AP_ALLOW_INSECURE" in failed or values.get("AP_ALLOW_INSECURE", False)
    signing_errors = [*signing_problems(to_check.get("AP_KEY"), to_check.get("AP_SALT"), insecure)]
    problems += signing_errors
    problems += _incomplete(present)
    # `Config` raises for an invalid key or salt. With acceptable ones, the other checks can run.
    signed = not signing_errors and failed.isdisjoint(("AP_KEY", "AP_SALT", "AP_ALLOW_INSECURE"))
    config = _assemble(values if signed else values | _ACCEPTABLE)
    for variables, conflict in _CONFLICTS:
        # A value that could not be parsed is already reported. A conflict of the default that
        # replaces it would be misleading.
        if failed.isdisjoint(variables):
            problems += conflict(config, present)
    warnings = (*unknown_variables(environ, _READERS), *_warnings(config))
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
    plain = {
        row.name: values[variable]
        for row in fields(Config)
        if (variable := f"AP_{row.name.upper()}") in values
    }
    return Config(source_s3=shared, variant_s3=variant, **plain)


def _pick(values: Mapping[str, Any], prefix: str, names: Iterable[str]) -> dict[str, Any]:
    variables = {name: prefix + name.upper() for name in names}
    return {name: values[variable] for name, variable in variables.items() if variable in values}


def _incomplete(present: AbstractSet[str]) -> Iterator[str]:
    for group in _GROUPS:
        if some := [name for name in group if name in present]:
            for name in [name for name in group if name not in present]:
                yield missing_beside(name, some, group)
    for token, group in _TOKENS.items():
        if token in present and present.isdisjoint(group):
            yield f"{token}: set on its own; it belongs to {listed(group)}"


def _same_port(config: Config, _present: AbstractSet[str]) -> Iterator[str]:
    # Port 0 means any free port, so two of them are different ports.
    if config.metrics_port == config.port != 0:
        yield (
            f"AP_METRICS_PORT: {config.metrics_port} is the port of the main listener, AP_PORT, "
            "as well; two different ports are required"
        )


def _cannot_presign(config: Config, present: AbstractSet[str]) -> Iterator[str]:
    if config.serve_mode == "redirect" and isinstance(config.variant_store, FileStore):
        default = "" if "AP_SERVE_MODE" in present else " (the default)"
        yield (
            f"AP_SERVE_MODE: redirect{default} cannot serve from the file:// store that "
            "AP_VARIANT_STORE names; set AP_SERVE_MODE to proxy, or name an s3:// store"
        )


def _no_identity(config: Config, present: AbstractSet[str]) -> Iterator[str]:
    # A group that is only partly set is already reported with the missing names.
    identities = (*_SHARED_IDENTITY, *_VARIANT_IDENTITY)
    if isinstance(config.variant_store, BucketStore) and present.isdisjoint(identities):
        yield (
            "AP_VARIANT_STORE: an s3:// store needs credentials, and none are set; set "
            f"{listed(_SHARED_IDENTITY)}, or {listed(_VARIANT_IDENTITY)}"
        )


def _threshold_above_queue(config: Config, _present: AbstractSet[str]) -> Iterator[str]:
    if config.ready_queue_threshold > config.queue_size:
        yield (
            f"AP_READY_QUEUE_THRESHOLD: {config.ready_queue_threshold} is more than AP_QUEUE_SIZE, "
            f"which is {config.queue_size}; a number up to AP_QUEUE_SIZE is required"
        )


def _probe_outlasts_render(config: Config, present: AbstractSet[str]) -> Iterator[str]:
    # The default adapts to a short AP_RENDER_TIMEOUT; an explicit value does not.
    if "AP_PROBE_TIMEOUT" in present and config.probe_timeout >= config.render_timeout:
        yield (
            f"AP_PROBE_TIMEOUT: {config.probe_timeout} is not shorter than AP_RENDER_TIMEOUT, "
            f"which is {config.render_timeout}; a shorter time is required"
        )


# Conflicts between settings that are valid separately. A row is checked only if each of its
# variables could be parsed.
_CONFLICTS: tuple[
    tuple[tuple[str, ...], Callable[[Config, AbstractSet[str]], Iterator[str]]], ...
] = (
    (("AP_METRICS_PORT", "AP_PORT"), _same_port),
    (("AP_SERVE_MODE", "AP_VARIANT_STORE"), _cannot_presign),
    (("AP_VARIANT_STORE",), _no_identity),
    (("AP_READY_QUEUE_THRESHOLD", "AP_QUEUE_SIZE"), _threshold_above_queue),
    (("AP_PROBE_TIMEOUT", "AP_RENDER_TIMEOUT"), _probe_outlasts_render),
)


def _warnings(config: Config) -> Iterator[str]:
    if config.allow_insecure:
        yield (
            "AP_ALLOW_INSECURE: on, so the word insecure is accepted in place of a signature "
            "and anyone can write URLs; turn it off where untrusted clients can reach the service"
        )
    if config.allow_insecure and config.key is None:
        yield (
            "AP_KEY: not set, and neither is AP_SALT; no signature is accepted, only the word "
            "insecure"
        )
    for entry in config.source_allowlist or ():
        if not can_match(entry):
            yield (
                f"AP_SOURCE_ALLOWLIST: {quote(entry)} matches nothing; write a bare name, "
                "prefix*, *.suffix or *"
            )
