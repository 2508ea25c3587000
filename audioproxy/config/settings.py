"""The settings of each subsystem, and how the text of one setting is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from audioproxy.config.source_headers import SourceHeaders
from audioproxy.config.values import (
    bucket,
    choice,
    credential,
    endpoint,
    readable_file,
    region,
    writable_directory,
)
from audioproxy.errors import InvalidValue

#: Marks a default that is derived from other fields; no finished value contains it.
DERIVED: Any = object()


def setting(parse: Callable[[str], object], default: Any = None, *, secret: bool = False) -> Any:
    """Return the field of a setting.

    :param parse: returns the value for the text of the variable, or raises `InvalidValue`.
    :param secret: whether the value is left out of the ``repr``.
    """
    return field(default=default, repr=not secret, metadata={"parse": parse})


@dataclass(frozen=True, slots=True)
class FileStore:
    """A variant store in a directory: ``file:///<path>``."""

    path: str
    bucket: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class BucketStore:
    """A variant store in a bucket: ``s3://<bucket>``."""

    bucket: str
    path: ClassVar[None] = None


def variant_store(text: str) -> FileStore | BucketStore:
    """Parse the URL of a store."""
    if text.startswith("s3://"):
        return BucketStore(bucket(text.removeprefix("s3://")))
    if text.startswith("file:///"):
        # The path is not percent-decoded: a % is a %.
        return FileStore(writable_directory(text.removeprefix("file://")))
    fault = (
        "a host, or no path, after file://" if text.startswith("file://") else "an unknown scheme"
    )
    raise InvalidValue(fault, "file:///<absolute path> or s3://<bucket> is required")


@dataclass(frozen=True, slots=True)
class S3Config:
    """The endpoint of an object store, and the identity that signs requests to it.

    :ivar endpoint: an origin, or None for the default cloud provider.
    :ivar addressing: ``virtual`` or ``path``; when omitted, ``path`` where there is an endpoint.
    :ivar ca_bundle: a PEM file that replaces the system trust store.
    """

    endpoint: str | None = setting(endpoint)
    addressing: str = setting(choice("virtual", "path"), DERIVED)
    ca_bundle: str | None = setting(readable_file)
    access_key_id: str | None = setting(credential, secret=True)
    secret_access_key: str | None = setting(credential, secret=True)
    session_token: str | None = setting(credential, secret=True)
    region: str | None = setting(region)

    def __post_init__(self) -> None:
        if self.addressing is DERIVED:
            object.__setattr__(self, "addressing", "path" if self.endpoint else "virtual")

    @property
    def configured(self) -> bool:
        """Whether there is an identity. Without an identity no request can be signed."""
        return None not in (self.access_key_id, self.secret_access_key, self.region)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of the variant store.

    :ivar max_bytes: the bound of a folder.
    :ivar presign_ttl: seconds for which the URL of a redirect works; None where there is none.
    :ivar endpoint_prefix: of the variables that set the endpoint and the addressing.
    :ivar bundle_prefix: of the variable that sets the CA bundle.
    """

    where: FileStore | BucketStore
    max_bytes: int | None
    presign_ttl: int | None
    s3: S3Config
    endpoint_prefix: str
    bundle_prefix: str


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings of sources of every kind: see `Config`."""

    local_root: str | None
    s3: S3Config
    allowlist: tuple[str, ...] | None
    headers: SourceHeaders
    deny_private: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of renders and probes: see `Config`, whose fields have the same names."""

    max_src_bytes: int
    max_variant_bytes: int
    max_concurrency: int
    max_probe_concurrency: int
    queue_size: int
    ready_queue_threshold: int
    render_timeout: int
    drain_timeout: float
    probe_timeout: float
