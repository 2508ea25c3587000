"""The settings of one service as one frozen value: name, parser and default of each."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from audioproxy.config.problems import ConfigError, Problem
from audioproxy.config.settings import (
    DERIVED,
    BucketStore,
    FileStore,
    Limits,
    S3Config,
    SourceSettings,
    StoreSettings,
    setting,
    variant_store,
)
from audioproxy.config.source_headers import (
    InvalidHeaders,
    SourceHeaders,
    check_source_headers,
    read_source_headers,
)
from audioproxy.config.values import (
    allowed_origin,
    allowlist,
    bind_address,
    cache_tag_header,
    choice,
    ip_literal,
    readable_directory,
    switch,
    whole_number,
)
from audioproxy.errors import InvalidValue
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.signing_secrets import (
    MIN_KEY_BYTES,
    MIN_SALT_BYTES,
    check_length,
    describe_secret,
    secret_list_parser,
    secret_parser,
)

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


def cpu_count() -> int:
    """Return the number of CPUs that this process may use."""
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
    :ivar previous_key: further keys, and ``previous_salt`` the salt of each. Such a pair verifies
        signatures after ``key`` and ``salt``, and never signs (D55).
    :ivar port: 0 means any free port.
    :ivar bind: an address, or ``unix:`` and the path of a socket; None for every interface.
    :ivar serve_mode: ``redirect`` or ``proxy``; a `FileStore` is served in ``proxy`` mode.
    :ivar variant_s3: the variant store's own configuration; when omitted, that of the sources.
    :ivar source_headers_file: headers by name, by the host of the origin and its port unless that
        is 443; or None.
    :ivar allow_origin: ``*``, one origin in a browser's spelling, or None for no CORS.
    :ivar cache_tag_header: the response header with the tag of the source, in lower case, or None.
    :ivar max_variant_bytes: a render with more output is stopped; when omitted, ``max_src_bytes``.
    :ivar max_child_memory: bytes, see `ChildLimits`.
    :ivar max_concurrency: simultaneous renders; when omitted, the number of CPUs.
    :ivar max_probe_concurrency: simultaneous probes; when omitted, four times ``max_concurrency``.
    :ivar ready_queue_threshold: waiting renders that make the node not ready; 0 means never.
    :ivar render_timeout: seconds for a render, and for the wait before it.
    :ivar drain_timeout: seconds that a stop waits for renders and responses (D39).
    :ivar probe_timeout: seconds for a probe; when omitted, 10, or half of ``render_timeout`` where
        that is 10 or less (D50).
    :raises ConfigError: for a key or a salt that is too short or not bytes, and for a missing one,
        unless both are missing, ``allow_insecure`` is set and ``cache_tag_header`` is not.
    """

    key: bytes | None = setting(secret_parser(MIN_KEY_BYTES), secret=True)
    salt: bytes | None = setting(secret_parser(MIN_SALT_BYTES), secret=True)
    previous_key: tuple[bytes, ...] = setting(secret_list_parser(MIN_KEY_BYTES), (), secret=True)
    previous_salt: tuple[bytes, ...] = setting(secret_list_parser(MIN_SALT_BYTES), (), secret=True)
    allow_insecure: bool = setting(switch, False)
    port: int = setting(whole_number(0, 65_535), 4000)
    bind: str | None = setting(bind_address)
    local_root: str | None = setting(readable_directory)
    variant_store: FileStore | BucketStore | None = setting(variant_store)
    variant_store_max_bytes: int | None = setting(whole_number(1, _MAX_BYTES))
    serve_mode: str = setting(choice("redirect", "proxy"), "redirect")
    presign_ttl: int = setting(whole_number(1, _MAX_PRESIGN_SECONDS), 300)
    source_s3: S3Config = S3Config()
    variant_s3: S3Config = DERIVED
    source_allowlist: tuple[str, ...] | None = setting(allowlist)
    source_headers_file: SourceHeaders | None = setting(read_source_headers, secret=True)
    source_deny_private: bool = setting(switch, False)
    allow_origin: str | None = setting(allowed_origin)
    cache_tag_header: str | None = setting(cache_tag_header)
    log_level: str = setting(choice("debug", "info", "warning", "error"), "info")
    metrics_bind: str = setting(ip_literal, "127.0.0.1")
    metrics_port: int = setting(whole_number(0, 65_535), 9568)
    max_src_bytes: int = setting(whole_number(1, _MAX_BYTES), 2_000_000_000)
    max_variant_bytes: int = setting(whole_number(1, _MAX_BYTES), DERIVED)
    max_child_memory: int = setting(whole_number(_MIN_CHILD_MEMORY, _MAX_BYTES), 1 << 30)
    require_cell: bool = setting(switch, False)
    warm_programs: bool = setting(switch, True)
    max_concurrency: int = setting(whole_number(1, _MAX_RENDERS), DERIVED)
    max_probe_concurrency: int = setting(whole_number(1, _MAX_PROBES), DERIVED)
    queue_size: int = setting(whole_number(0, _MAX_QUEUE), 32)
    ready_queue_threshold: int = setting(whole_number(0, _MAX_QUEUE), DERIVED)
    render_timeout: int = setting(whole_number(1, _MAX_SECONDS), 300)
    drain_timeout: float = setting(whole_number(0, _MAX_SECONDS), 30)
    probe_timeout: float = setting(whole_number(1, _MAX_SECONDS), DERIVED)

    def __post_init__(self) -> None:
        problems = [
            *_signing_problems(self.key, self.salt, self.allow_insecure),
            *_previous_problems(self.key, self.previous_key, self.previous_salt),
        ]
        if self.cache_tag_header is not None and self.salt is None:
            fault = "set without AP_SALT, under which tags are computed"
            wanted = "set AP_KEY and AP_SALT"
            problems.append(Problem("AP_CACHE_TAG_HEADER", fault, wanted, ("AP_SALT",)))
        if self.source_headers_file is not None:
            try:
                headers = check_source_headers(self.source_headers_file)
                object.__setattr__(self, "source_headers_file", headers)
            except InvalidHeaders as error:
                problems += [Problem.of("AP_SOURCE_HEADERS_FILE", it) for it in error.mistakes]
        if problems:
            raise ConfigError(problems)
        for name, derive in _DERIVED_DEFAULTS.items():
            if getattr(self, name) is DERIVED:
                object.__setattr__(self, name, derive(self))

    @property
    def signing_pairs(self) -> tuple[tuple[bytes, bytes], ...]:
        """The pairs of key and salt that verify signatures, the current one first."""
        if self.key is None or self.salt is None:
            return ()
        previous = zip(self.previous_key, self.previous_salt, strict=True)
        return ((self.key, self.salt), *previous)

    @property
    def cache_tag(self) -> CacheTagHeader | None:
        """The header with the tag of the source, or None."""
        if self.cache_tag_header is None or self.salt is None:
            return None
        return CacheTagHeader(self.cache_tag_header, self.salt)

    @property
    def socket_path(self) -> str | None:
        """The path of the Unix socket that the service listens on, or None for a port."""
        _, unix, path = (self.bind or "").partition("unix:")
        return path if unix else None

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the service's own listener."""
        if self.bind is None:
            return False
        return self.socket_path is not None or ipaddress.ip_address(self.bind).is_loopback

    @property
    def has_outbound_requests(self) -> bool:
        """Whether sources or variants are read over HTTP."""
        return (
            self.source_allowlist is not None
            or self.source_s3.configured
            or (self.variant_store is not None and self.variant_store.bucket is not None)
        )

    @property
    def store(self) -> StoreSettings | None:
        """The settings of the variant store; None for no store."""
        where, own, shared = self.variant_store, self.variant_s3, self.source_s3
        if where is None:
            return None
        same_endpoint = (own.endpoint, own.addressing) == (shared.endpoint, shared.addressing)
        # A folder has no URLs for redirects, so `serve_mode` has no effect on it.
        redirects = self.serve_mode == "redirect" and where.bucket is not None
        return StoreSettings(
            where,
            self.variant_store_max_bytes,
            self.presign_ttl if redirects else None,
            own,
            "AP_S3" if same_endpoint else "AP_VARIANT_S3",
            "AP_S3" if own.ca_bundle == shared.ca_bundle else "AP_VARIANT_S3",
        )

    @property
    def sources(self) -> SourceSettings:
        """The settings of sources."""
        return SourceSettings(
            self.local_root,
            self.source_s3,
            self.source_allowlist,
            self.source_headers_file or {},
            self.source_deny_private,
        )

    @property
    def limits(self) -> Limits:
        """The limits of renders and probes."""
        return Limits(**{row.name: getattr(self, row.name) for row in fields(Limits)})


_DERIVED_DEFAULTS: dict[str, Callable[[Config], object]] = {
    "variant_s3": lambda config: config.source_s3,
    "max_variant_bytes": lambda config: config.max_src_bytes,
    "max_concurrency": lambda config: cpu_count(),
    "max_probe_concurrency": lambda config: 4 * config.max_concurrency,
    # A queue size of 0 gives 0, which disables the check. A queue size of 1 gives 1.
    "ready_queue_threshold": lambda config: min(config.queue_size, max(1, config.queue_size // 2)),
    "probe_timeout": lambda config: 10 if config.render_timeout > 10 else config.render_timeout / 2,
}


def _signing_problems(key: Any, salt: Any, allow_insecure: Any) -> Iterator[Problem]:
    """Check which signatures are accepted: with an empty key, anyone can sign (D31, D32)."""
    if not isinstance(allow_insecure, bool):
        fault = type(allow_insecure).__name__
        yield Problem("AP_ALLOW_INSECURE", fault, "True or False is required")
    signing = {"AP_KEY": (key, MIN_KEY_BYTES), "AP_SALT": (salt, MIN_SALT_BYTES)}
    missing = [name for name, (value, _) in signing.items() if value is None]
    for name, (value, min_bytes) in signing.items():
        if value is None:
            if len(missing) == 1:
                yield Problem.missing(name, signing.keys() - {name}, signing)
            elif not allow_insecure:
                yield Problem(name, "not set", describe_secret(min_bytes))
        elif not isinstance(value, bytes):
            wanted = "bytes are required, such as bytes.fromhex returns for hexadecimal text"
            yield Problem(name, type(value).__name__, wanted)
        else:
            try:
                check_length(value, min_bytes)
            except InvalidValue as error:
                yield Problem.of(name, error)


def _previous_problems(key: Any, keys: Any, salts: Any) -> Iterator[Problem]:
    """Check the previous pairs of key and salt (D55)."""
    lists = {"AP_PREVIOUS_KEY": (keys, MIN_KEY_BYTES), "AP_PREVIOUS_SALT": (salts, MIN_SALT_BYTES)}
    for name, (secrets, min_bytes) in lists.items():
        if not isinstance(secrets, tuple) or not all(isinstance(item, bytes) for item in secrets):
            yield Problem(name, "not a tuple of bytes", "a tuple with bytes for each is required")
            return
        for number, secret in enumerate(secrets, 1):
            try:
                check_length(secret, min_bytes)
            except InvalidValue as error:
                yield Problem(
                    name, f"entry {number} of {len(secrets)}: {error.fault}", error.wanted
                )
    if len(keys) != len(salts):
        counts = f"AP_PREVIOUS_KEY has {len(keys)} and AP_PREVIOUS_SALT {len(salts)}"
        wanted = "each previous key needs its salt, at the same place of the list"
        yield Problem("AP_PREVIOUS_SALT", counts, wanted, ("AP_PREVIOUS_KEY",))
    elif keys and key is None:
        wanted = "set AP_KEY and AP_SALT to the current pair"
        yield Problem("AP_PREVIOUS_KEY", "set without AP_KEY", wanted, ("AP_KEY",))
