"""The settings of one service as one frozen value; fields have the names of the variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from audioproxy.config.values import signing_problems

#: Marks a default that is derived from other fields; no finished value contains it.
DERIVED: Any = object()


class ConfigError(Exception):
    """The environment variables are invalid.

    :ivar problems: one line each, which starts with the variable's name and says what was wrong and
        what would be right.
    :ivar warnings: warnings of the same kind as `load` returns with a valid configuration. A
        misspelled variable is often the cause of a missing one.
    """

    def __init__(self, problems: Iterable[str], warnings: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class S3Config:
    """The endpoint of an object store, and the identity that signs requests to it.

    :ivar endpoint: an origin, or None for the default cloud provider.
    :ivar addressing: ``virtual`` or ``path``; when omitted, ``path`` where there is an endpoint.
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
        """Whether there is an identity. Without an identity no request can be signed."""
        return None not in (self.access_key_id, self.secret_access_key, self.region)


@dataclass(frozen=True, slots=True)
class FileStore:
    """A variant store in a directory: ``file:///<path>``."""

    path: str


@dataclass(frozen=True, slots=True)
class BucketStore:
    """A variant store in a bucket: ``s3://<bucket>``."""

    bucket: str


def _cpu_count() -> int:
    # A container or taskset often gives a process fewer CPUs than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # pragma: no cover


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one service. Each field has the name of its AP_* variable.

    It can be constructed in code with few arguments; omitted arguments have the default of the
    unset variable. The constructor checks key, salt and ``allow_insecure`` in every configuration.
    `load` checks the text of the other settings and the conflicts between them.

    :ivar key: signs URLs, with ``salt``; None where only the word ``insecure`` is accepted.
    :ivar salt: prepended to every path that is signed.
    :ivar allow_insecure: whether the word ``insecure`` is accepted as a signature.
    :ivar port: of the service's own listener; 0 means any free port.
    :ivar local_root: directory of local sources, or None for no local sources.
    :ivar variant_store: where variants are stored, or None for no store.
    :ivar serve_mode: ``redirect`` or ``proxy``; a `FileStore` is served in ``proxy`` mode.
    :ivar variant_s3: the variant store's own configuration; when omitted, that of the sources.
    :ivar source_allowlist: the entries, or None where the variable is unset.
    :ivar allow_origin: ``*``, one origin in a browser's spelling, or None for no CORS.
    :ivar max_src_bytes: larger sources are refused.
    :ivar max_variant_bytes: a render with more output is stopped; when omitted, ``max_src_bytes``.
    :ivar max_child_memory: bytes of memory of one ffmpeg or ffprobe, see `ChildLimits`.
    :ivar max_concurrency: simultaneous renders; when omitted, the number of CPUs.
    :ivar max_probe_concurrency: simultaneous probes; when omitted, four times ``max_concurrency``.
    :ivar queue_size: renders that may wait.
    :ivar ready_queue_threshold: waiting renders that make the node not ready; 0 means never.
    :ivar render_timeout: seconds for a render, and for the wait before it.
    :ivar probe_timeout: seconds for a probe; when omitted, 10, or half of ``render_timeout`` where
        that is 10 or less (D50).
    :raises ConfigError: for a key or a salt that is too short or not bytes, and for a missing one,
        unless both are missing and ``allow_insecure`` is set.
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
    max_child_memory: int = 1 << 30
    max_concurrency: int = field(default_factory=_cpu_count)
    max_probe_concurrency: int = DERIVED
    queue_size: int = 32
    ready_queue_threshold: int = DERIVED
    render_timeout: int = 300
    probe_timeout: float = DERIVED

    def __post_init__(self) -> None:
        if problems := list(signing_problems(self.key, self.salt, self.allow_insecure)):
            raise ConfigError(problems)
        for name, derive in _DERIVED_DEFAULTS.items():
            if getattr(self, name) is DERIVED:
                object.__setattr__(self, name, derive(self))


_DERIVED_DEFAULTS: dict[str, Callable[[Config], object]] = {
    "variant_s3": lambda config: config.source_s3,
    "max_variant_bytes": lambda config: config.max_src_bytes,
    "max_probe_concurrency": lambda config: 4 * config.max_concurrency,
    # A queue size of 0 gives 0, which disables the check. A queue size of 1 gives 1.
    "ready_queue_threshold": lambda config: min(config.queue_size, max(1, config.queue_size // 2)),
    "probe_timeout": lambda config: 10 if config.render_timeout > 10 else config.render_timeout / 2,
}
