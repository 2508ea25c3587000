"""The environment's text becomes one frozen `Config`, or every problem found in it at once.

Nothing here reads ``os.environ``: the text is an argument. Whether a store can be written to
is proved elsewhere, by writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Any

from audioproxy import settings
from audioproxy.grammar.signature import LEAST_KEY, LEAST_SALT
from audioproxy.config.values import choice, hexadecimal, listed, quote, whole_number

#: Stands for a default that follows from other fields; no finished value holds it.
DERIVED: Any = object()

# Bounds where a slip of the finger would hurt: a petabyte, a day, more children than a node has
# file descriptors for. SigV4 allows a presigned URL seven days.
_MAX_BYTES = 10**15
_MAX_SECONDS = 86_400
_MAX_RENDERS = 4_096
_MAX_PROBES = 65_536
_MAX_QUEUE = 1_000_000
_MAX_PRESIGN_SECONDS = 604_800


class ConfigError(Exception):
    """The environment cannot be used.

    :ivar problems: one line each, which starts with the variable's name and says what was wrong
        and what would be right.
    :ivar warnings: what `load` would have returned beside the configuration; a misspelt
        variable is often the cause of a missing one.
    """

    def __init__(self, problems: Iterable[str], warnings: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class S3Config:
    """How to reach an object store and who to be there.

    :ivar endpoint: an origin, or None for the default cloud provider.
    :ivar addressing: ``virtual`` or ``path``; left out, ``path`` where there is an endpoint.
    :ivar ca_bundle: a PEM file that replaces the system trust store.
    """

    endpoint: str | None = None
    addressing: str = DERIVED
    ca_bundle: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None

    def __post_init__(self) -> None:
        if self.addressing is DERIVED:
            object.__setattr__(self, "addressing", "path" if self.endpoint else "virtual")

    @property
    def configured(self) -> bool:
        """Whether there is an identity: without one no request can be signed."""
        return None not in (self.access_key_id, self.secret_access_key, self.region)


@dataclass(frozen=True, slots=True)
class FileStore:
    """Variants live below a directory: ``file:///<path>``."""

    path: str


@dataclass(frozen=True, slots=True)
class BucketStore:
    """Variants live in a bucket: ``s3://<bucket>``."""

    bucket: str


def _cpu_count() -> int:
    # A container or taskset often leaves a process fewer CPUs than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # pragma: no cover


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one service. Each field is named as its AP_* variable is.

    It can be built in code with few arguments; what is left out gets the same default as an
    unset variable. Key, salt and ``allow_insecure`` are checked here, in every configuration. Of
    the other settings `load` checks the text, and which of them contradict each other.

    :ivar key: signs URLs, with ``salt``; None only where ``insecure`` alone is accepted.
    :ivar salt: put ahead of every path that is signed.
    :ivar allow_insecure: whether the word ``insecure`` is taken for a signature.
    :ivar port: of the service's own listener; 0 is any free one.
    :ivar local_root: directory of local sources, or None for no local sources.
    :ivar variant_store: where variants are kept, or None for nowhere.
    :ivar serve_mode: ``redirect`` or ``proxy``; a `FileStore` is served in ``proxy`` mode.
    :ivar variant_s3: the variant store's own configuration; left out, the sources'.
    :ivar source_allowlist: the entries, or None where the variable is unset.
    :ivar allow_origin: ``*``, one origin in a browser's spelling, or None for no CORS.
    :ivar max_src_bytes: larger sources are refused.
    :ivar max_variant_bytes: a render that puts out more is stopped; left out, as above.
    :ivar max_concurrency: renders at a time; left out, as many as there are CPUs.
    :ivar max_probe_concurrency: probes at a time; left out, four times the renders.
    :ivar queue_size: renders that may wait.
    :ivar ready_queue_threshold: waiting renders that make the node not ready; 0 is never.
    :ivar render_timeout: seconds for a render, and for the wait before it.
    :ivar probe_timeout: seconds for a probe; left out, 10, or half of ``render_timeout`` where
        that is 10 or less (D50).
    :raises ConfigError: for a key or a salt that is too short or not bytes, and for one that is
        missing where ``allow_insecure`` does not replace both.
    """

    key: bytes | None = field(default=None, repr=False)
    salt: bytes | None = field(default=None, repr=False)
    allow_insecure: bool = False
    port: int = 4000
    local_root: str | None = None
    variant_store: FileStore | BucketStore | None = None
    serve_mode: str = "redirect"
    presign_ttl: int = 300
    source_s3: S3Config = S3Config()
    variant_s3: S3Config = DERIVED
    source_allowlist: tuple[str, ...] | None = None
    allow_origin: str | None = None
    log_level: str = "info"
    metrics_bind: str = "127.0.0.1"
    metrics_port: int = 9568
    max_src_bytes: int = 2_000_000_000
    max_variant_bytes: int = DERIVED
    max_concurrency: int = field(default_factory=_cpu_count)
    max_probe_concurrency: int = DERIVED
    queue_size: int = 32
    ready_queue_threshold: int = DERIVED
    render_timeout: int = 300
    probe_timeout: float = DERIVED

    def __post_init__(self) -> None:
        if problems := list(settings.signing_problems(self.key, self.salt, self.allow_insecure)):
            raise ConfigError(problems)
        for name, derive in _DERIVED_DEFAULTS.items():
            if getattr(self, name) is DERIVED:
                object.__setattr__(self, name, derive(self))


_DERIVED_DEFAULTS: dict[str, Callable[[Config], object]] = {
    "variant_s3": lambda config: config.source_s3,
    "max_variant_bytes": lambda config: config.max_src_bytes,
    "max_probe_concurrency": lambda config: 4 * config.max_concurrency,
    # Half of no queue is no check; half of a short one is still one.
    "ready_queue_threshold": lambda config: min(config.queue_size, max(1, config.queue_size // 2)),
    "probe_timeout": lambda config: 10 if config.render_timeout > 10 else config.render_timeout / 2,
}


def _variant_store(text: str) -> FileStore | BucketStore:
    if text.startswith("s3://"):
        return BucketStore(settings.bucket(text.removeprefix("s3://")))
    if text.startswith("file:///"):
        # The path is literal: an operator's path with a % in it means that %.
        return FileStore(settings.writable_directory(text.removeprefix("file://")))
    fault = "a host or nothing after file://" if text.startswith("file://") else "an unknown scheme"
    raise ValueError(f"{fault}; file:///<absolute path> or s3://<bucket> is required")


_READERS: dict[str, Callable[[str], Any]] = {
    "AP_KEY": hexadecimal(LEAST_KEY),
    "AP_SALT": hexadecimal(LEAST_SALT),
    "AP_ALLOW_INSECURE": settings.switch,
    "AP_PORT": whole_number(0, 65_535),
    "AP_LOCAL_ROOT": settings.readable_directory,
    "AP_VARIANT_STORE": _variant_store,
    "AP_SERVE_MODE": choice("redirect", "proxy"),
    "AP_PRESIGN_TTL": whole_number(1, _MAX_PRESIGN_SECONDS),
    "AP_S3_ENDPOINT": settings.endpoint,
    "AP_S3_ADDRESSING": choice("virtual", "path"),
    "AP_S3_CA_BUNDLE": settings.readable_file,
    "AP_VARIANT_S3_ENDPOINT": settings.endpoint,
    "AP_VARIANT_S3_ADDRESSING": choice("virtual", "path"),
    "AP_VARIANT_S3_CA_BUNDLE": settings.readable_file,
    "AWS_ACCESS_KEY_ID": settings.credential,
    "AWS_SECRET_ACCESS_KEY": settings.credential,
    "AWS_SESSION_TOKEN": settings.credential,
    "AWS_REGION": settings.region,
    "AWS_DEFAULT_REGION": settings.region,
    "AP_VARIANT_S3_ACCESS_KEY_ID": settings.credential,
    "AP_VARIANT_S3_SECRET_ACCESS_KEY": settings.credential,
    "AP_VARIANT_S3_SESSION_TOKEN": settings.credential,
    "AP_VARIANT_S3_REGION": settings.region,
    "AP_SOURCE_ALLOWLIST": settings.allowlist,
    "AP_ALLOW_ORIGIN": settings.allowed_origin,
    "AP_LOG_LEVEL": choice("debug", "info", "warning", "error"),
    "AP_METRICS_BIND": settings.ip_literal,
    "AP_METRICS_PORT": whole_number(0, 65_535),
    "AP_MAX_SRC_BYTES": whole_number(1, _MAX_BYTES),
    "AP_MAX_VARIANT_BYTES": whole_number(1, _MAX_BYTES),
    "AP_MAX_CONCURRENCY": whole_number(1, _MAX_RENDERS),
    "AP_MAX_PROBE_CONCURRENCY": whole_number(1, _MAX_PROBES),
    "AP_QUEUE_SIZE": whole_number(0, _MAX_QUEUE),
    "AP_READY_QUEUE_THRESHOLD": whole_number(0, _MAX_QUEUE),
    "AP_RENDER_TIMEOUT": whole_number(1, _MAX_SECONDS),
    "AP_PROBE_TIMEOUT": whole_number(1, _MAX_SECONDS),
}

#: Every variable that is read.
VARIABLES = tuple(_READERS)

# Fields of S3Config; with a prefix and in capitals they are variables.
_REACH = ("endpoint", "addressing", "ca_bundle")
_IDENTITY = ("access_key_id", "secret_access_key", "region", "session_token")

# The region's second spelling; it counts only where the first is unset.
_ALIASES = {"AWS_DEFAULT_REGION": "AWS_REGION"}

_SHARED_IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
_VARIANT_IDENTITY = (
    "AP_VARIANT_S3_ACCESS_KEY_ID",
    "AP_VARIANT_S3_SECRET_ACCESS_KEY",
    "AP_VARIANT_S3_REGION",
)
# A key and a salt that `Config` accepts.
_ACCEPTABLE = {"AP_KEY": bytes(LEAST_KEY), "AP_SALT": bytes(LEAST_SALT)}

# Variables that are set together or not at all.
_GROUPS = (_SHARED_IDENTITY, _VARIANT_IDENTITY)
# A session token belongs to the key pair that it was issued with, so it never stands alone.
_TOKENS = {
    "AWS_SESSION_TOKEN": _SHARED_IDENTITY,
    "AP_VARIANT_S3_SESSION_TOKEN": _VARIANT_IDENTITY,
}


def load(environ: Mapping[str, str]) -> tuple[Config, tuple[str, ...]]:
    """Read and check all settings; return them with the warnings to log at boot.

    An empty value counts as unset, except for AP_SOURCE_ALLOWLIST: where a template left it empty,
    unset would allow every bucket (D49).

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
    # A value that could not be read has been reported; an acceptable one takes its place here.
    judged = values | {name: _ACCEPTABLE[name] for name in failed & _ACCEPTABLE.keys()}
    insecure = "AP_ALLOW_INSECURE" in failed or values.get("AP_ALLOW_INSECURE", False)
    unsigned = [*settings.signing_problems(judged.get("AP_KEY"), judged.get("AP_SALT"), insecure)]
    problems += unsigned
    problems += _incomplete(present)
    # `Config` raises for other values. An acceptable key and salt let the rest be checked.
    signed = not unsigned and failed.isdisjoint(("AP_KEY", "AP_SALT", "AP_ALLOW_INSECURE"))
    config = _assemble(values if signed else values | _ACCEPTABLE)
    for variables, conflict in _CONFLICTS:
        # A value that could not be read has been reported; the default in its place proves nothing.
        if failed.isdisjoint(variables):
            problems += conflict(config, present)
    warnings = (*settings.unknown(environ, _READERS), *_warnings(config))
    if problems:
        raise ConfigError(problems, warnings)
    return config, warnings


def _assemble(values: Mapping[str, Any]) -> Config:
    shared_identity = _pick(values, "AWS_", _IDENTITY)
    own_identity = _pick(values, "AP_VARIANT_S3_", _IDENTITY)
    shared = S3Config(**_pick(values, "AP_S3_", _REACH), **shared_identity)
    own = _pick(values, "AP_VARIANT_S3_", _REACH)
    inherited: dict[str, Any] = {"ca_bundle": shared.ca_bundle}
    if "endpoint" not in own:
        # With an endpoint of its own the store's style follows from that one.
        inherited |= {"endpoint": shared.endpoint, "addressing": shared.addressing}
    # A token is inherited with the identity that it belongs to, never on its own.
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
                yield settings.missing_beside(name, some, group)
    for token, group in _TOKENS.items():
        if token in present and present.isdisjoint(group):
            yield f"{token}: set on its own; it belongs to {listed(group)}"


def _same_port(config: Config, _present: AbstractSet[str]) -> Iterator[str]:
    # Port 0 is any free one, so two of them are two ports.
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
    # A group that is set in part has been reported by the names that it lacks.
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
            f"which is {config.queue_size}; a number up to that is required"
        )


def _probe_outlasts_render(config: Config, present: AbstractSet[str]) -> Iterator[str]:
    # The default gives way to a short AP_RENDER_TIMEOUT; a value that was asked for does not.
    if "AP_PROBE_TIMEOUT" in present and config.probe_timeout >= config.render_timeout:
        yield (
            f"AP_PROBE_TIMEOUT: {config.probe_timeout} is not shorter than AP_RENDER_TIMEOUT, "
            f"which is {config.render_timeout}; a shorter time is required"
        )


# What settings that are well spelled one by one refuse of each other. A row is judged only
# when each of its variables could be read.
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
            "and anyone can write URLs; turn it off wherever strangers reach the service"
        )
    if config.allow_insecure and config.key is None:
        yield (
            "AP_KEY: not set, and neither is AP_SALT; no signature is accepted, only the word "
            "insecure"
        )
    for entry in config.source_allowlist or ():
        if not settings.can_match(entry):
            yield (
                f"AP_SOURCE_ALLOWLIST: {quote(entry)} matches nothing; write a bare name, "
                "prefix*, *.suffix or *"
            )
