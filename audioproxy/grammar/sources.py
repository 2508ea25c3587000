"""The schemes of sources: syntax, canonical string and allowlist of each (Source forms)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self
from urllib.parse import unquote_to_bytes

from audioproxy.errors import NotFound
from audioproxy.grammar.allowlist import allows_bucket, allows_host
from audioproxy.grammar.values import percent_decode

_MAX_PATH_BYTES = 1024
_MAX_PATH_COMPONENTS = 64
_MAX_BUCKET_BYTES = 63
_MAX_KEY_BYTES = 1024
_MAX_URL_BYTES = 2048
_MAX_HOST_BYTES = 253

_BUCKET = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]*")
_SCHEME = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
# RFC 3986, 3: authority, path, query, fragment. Only printable ASCII is accepted.
_URL_PARTS = re.compile(rb"([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?")
_PRINTABLE = re.compile(rb"[!-~]*")
_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_HTTPS_PORT = 443
# Names of parameters that sign or authorize one URL: those of AWS, Google Cloud, Alibaba Cloud,
# Tencent Cloud and others (such as X-Amz-Signature, Signature and q-signature), of Azure (sig), of
# CloudFront (Key-Pair-Id), and of Akamai (hdnea, hdnts).
_PRESIGNED = re.compile(
    r"[?&](?:(?:x-[a-z]+-|q-)?signature|sig|key-pair-id|hdn(?:ea|ts))=", re.IGNORECASE
)

# Bytes that a log line percent-encodes: every byte outside visible ASCII, and the % sign, so that
# two sources never look alike. An https URL is not encoded again: its percent-encoding is part of
# its spelling.
_ESCAPED = re.compile(rb"[^!-$&-~]")
_QUERY_DIGITS = 8


class Source(ABC):
    """A source of one scheme. A subclass is a row of the table of schemes.

    :cvar scheme: what a source of this kind starts with, before ``://``.
    :cvar form: how people write a source of this kind.
    :cvar is_url: the scheme is that of a URL: it is case-insensitive, and percent-encoding is part
        of the spelling.
    """

    __slots__ = ()
    scheme: ClassVar[str]
    form: ClassVar[str]
    is_url: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def parse(cls, rest: bytes) -> Self:
        """Parse what follows ``scheme://``, already decoded; raise ValueError for other text."""

    @property
    @abstractmethod
    def canonical(self) -> bytes: ...

    @property
    def address(self) -> bytes:
        """The canonical source without the parts that may hold a credential."""
        return self.canonical

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the source is, for messages; without its name."""

    @property
    def remote_name(self) -> bytes:
        """The name of the source at its place; empty for a local one."""
        return b""

    @property
    def is_presigned(self) -> bool:
        """Whether the source seems to have a signature, which is new each time."""
        return False

    def path_below(self, root: bytes) -> bytes | None:
        """Return the path of a local source below AP_LOCAL_ROOT; None of any other."""
        return None

    @staticmethod
    def log_name(canonical: bytes) -> str:
        return _ESCAPED.sub(lambda match: b"%%%02X" % match[0][0], canonical).decode("ascii")

    @abstractmethod
    def is_allowed(self, allowlist: Iterable[str]) -> bool:
        """Return whether an entry of AP_SOURCE_ALLOWLIST matches the source (Source allowlist)."""


@dataclass(frozen=True, slots=True)
class LocalSource(Source):
    """A file below AP_LOCAL_ROOT; ``path`` is relative, in bytes."""

    scheme = "local"
    form = "local://PATH"
    path: bytes

    @classmethod
    def parse(cls, rest: bytes) -> Self:
        if not rest or rest.startswith(b"/") or b"\0" in rest:
            raise ValueError("a local path is relative, not empty, and has no NUL")
        if len(rest) > _MAX_PATH_BYTES or rest.count(b"/") >= _MAX_PATH_COMPONENTS:
            raise ValueError(
                f"a local path has at most {_MAX_PATH_COMPONENTS} components"
                f" and {_MAX_PATH_BYTES} bytes"
            )
        if leaves_root(rest):
            raise ValueError("the path leaves the root")
        return cls(rest)

    @property
    def canonical(self) -> bytes:
        """The source without the root, so that variants survive a move of the root."""
        return b"local://" + self.path

    @property
    def place(self) -> str:
        return "the disk of AP_LOCAL_ROOT"

    def path_below(self, root: bytes) -> bytes:
        return root.removesuffix(b"/") + b"/" + self.path

    def is_allowed(self, allowlist: Iterable[str]) -> bool:
        # Local files are confined by their root alone.
        return True


@dataclass(frozen=True, slots=True)
class S3Source(Source):
    """An object; the key is raw decoded bytes."""

    scheme = "s3"
    form = "s3://BUCKET/KEY"
    bucket: str
    key: bytes

    @classmethod
    def parse(cls, rest: bytes) -> Self:
        bucket, _, key = rest.partition(b"/")
        if len(bucket) > _MAX_BUCKET_BYTES or _BUCKET.fullmatch(bucket) is None:
            raise ValueError("a bucket is 1 to 63 letters, digits, dots, hyphens and underscores")
        if not 1 <= len(key) <= _MAX_KEY_BYTES:
            raise ValueError(f"a key has 1 to {_MAX_KEY_BYTES} bytes")
        return cls(bucket.decode("ascii"), key)

    @property
    def canonical(self) -> bytes:
        return f"{self.scheme}://{self.bucket}/".encode("ascii") + self.key

    @property
    def place(self) -> str:
        return f"the bucket {self.bucket}"

    @property
    def remote_name(self) -> bytes:
        return self.key

    def is_allowed(self, allowlist: Iterable[str]) -> bool:
        return allows_bucket(allowlist, self.bucket)


@dataclass(frozen=True, slots=True)
class HttpsSource(Source):
    """An https URL in canonical spelling, and its host without brackets or port."""

    scheme = "https"
    form = "an https URL"
    is_url = True
    url: str
    host: str

    @classmethod
    def parse(cls, rest: bytes) -> Self:
        if len(b"https://" + rest) > _MAX_URL_BYTES or _PRINTABLE.fullmatch(rest) is None:
            raise ValueError(f"a URL has at most {_MAX_URL_BYTES} bytes, all printable ASCII")
        match = _URL_PARTS.fullmatch(rest)
        assert match is not None
        authority, path, query = match.groups()
        parts = _AUTHORITY.fullmatch(authority)
        if parts is None:
            raise ValueError("a URL has a plain host, an optional port and no user information")
        host, bracketed = _normalize_host(parts[1].decode("ascii"))
        port = int(parts[2] or _HTTPS_PORT)
        if not 1 <= port <= 65535:
            raise ValueError("a port is 1 to 65535")
        shown_port = "" if port == _HTTPS_PORT else f":{port}"
        shown_query = "" if query in (None, b"?") else query.decode("ascii")
        url = f"https://{bracketed}{shown_port}{path.decode('ascii') or '/'}{shown_query}"
        return cls(url, host)

    @property
    def canonical(self) -> bytes:
        return self.url.encode("ascii")

    @property
    def place(self) -> str:
        return f"the origin {self.host}"

    @property
    def remote_name(self) -> bytes:
        return unquote_to_bytes(self.address)

    @property
    def authority(self) -> str:
        """The host as it stands in the URL, and the port, unless that is 443."""
        return self.url.split("/", 3)[2]

    @property
    def is_presigned(self) -> bool:
        return _PRESIGNED.search(self.url) is not None

    @property
    def address(self) -> bytes:
        """The URL without its query (D47)."""
        return self.canonical.partition(b"?")[0]

    @staticmethod
    def log_name(canonical: bytes) -> str:
        """Return the URL, with the first 8 hexadecimal digits of the query's SHA-256 for the query.

        The query can contain a credential under any name (D47).
        """
        address, mark, query = canonical.partition(b"?")
        digest = hashlib.sha256(query).hexdigest()[:_QUERY_DIGITS] if mark else ""
        return (address + mark).decode("ascii") + digest

    def is_allowed(self, allowlist: Iterable[str]) -> bool:
        return allows_host(allowlist, self.host)


#: The table of schemes. Each has an opener too, in `audioproxy.engine.parts`, what the log says
#: where its setting is missing, in `audioproxy.sources.dispatcher`, and a function in
#: `audioproxy.urls`.
SCHEMES: dict[str, type[Source]] = {
    kind.scheme: kind for kind in (LocalSource, S3Source, HttpsSource)
}
#: How people write sources, as a part of a sentence.
FORMS = " or ".join(", ".join(kind.form for kind in SCHEMES.values()).rsplit(", ", 1))
_LISTED_SCHEMES = " or ".join(", ".join(f"{scheme}://" for scheme in SCHEMES).rsplit(", ", 1))


def read_source(form: bytes, raw: bytes) -> Source:
    """Parse the part of a raw path after ``plain/`` or ``enc/``. It is decoded exactly once.

    :raises NotFound: for every refusal (D16); ``reason`` says why.
    """
    try:
        return parse_source(_decode_base64url(raw) if form == b"enc" else percent_decode(raw))
    except ValueError as error:
        raise NotFound(str(error)) from None


def parse_source(text: bytes) -> Source:
    if (match := _SCHEME.match(text)) is None:
        raise ValueError(f"a source starts with {_LISTED_SCHEMES}")
    scheme = match[1].decode("ascii")
    kind = SCHEMES.get(scheme.lower())
    if kind is None or not (kind.is_url or scheme == kind.scheme):
        raise ValueError(f"a source is {_LISTED_SCHEMES}")
    return kind.parse(text[match.end() :])


def parse_https(url: bytes) -> HttpsSource:
    """Parse an https URL, such as the target of a redirect; raise ValueError for other text."""
    if url[:8].lower() != b"https://":
        raise ValueError("a URL starts with https://")
    return HttpsSource.parse(url[8:])


def log_name(canonical: bytes) -> str:
    """Return a canonical source as a log line shows it: one word of visible ASCII (D28)."""
    scheme = canonical.partition(b"://")[0].decode("latin-1")
    return SCHEMES.get(scheme, Source).log_name(canonical)


def _decode_base64url(raw: bytes) -> bytes:
    # D15: unpadded or correctly padded, with a canonical final character. A round trip is
    # the shortest proof of both.
    try:
        decoded = base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("the source is not base64url") from None
    padded = base64.urlsafe_b64encode(decoded)
    if raw not in (padded, padded.rstrip(b"=")):
        raise ValueError("the source is not canonical base64url")
    return decoded


def leaves_root(path: bytes) -> bool:
    """Return whether a relative path leaves its start directory at any point."""
    depth = 0
    for component in path.split(b"/"):
        depth += {b"..": -1, b".": 0, b"": 0}.get(component, 1)
        if depth < 0:
            return True
    return False


def format_ipv6(address: ipaddress.IPv6Address) -> str:
    """Return an address as browsers spell it."""
    if address.ipv4_mapped is None:
        return address.compressed
    # Python 3.13 and later print these with dots. A cache key must not depend on that.
    mapped = int(address.ipv4_mapped)
    return f"::ffff:{mapped >> 16:x}:{mapped & 0xFFFF:x}"


def _normalize_host(host: str) -> tuple[str, str]:
    """Return the normalized host twice: without brackets, and as it stands in a URL."""
    if host.startswith("["):
        normalized = format_ipv6(ipaddress.IPv6Address(host[1:-1]))
        return normalized, f"[{normalized}]"
    normalized = host.lower().removesuffix(".")
    labels = normalized.split(".")
    if len(normalized) > _MAX_HOST_BYTES or not all(1 <= len(label) <= 63 for label in labels):
        raise ValueError(f"a host has at most {_MAX_HOST_BYTES} bytes, in labels of 1 to 63")
    return normalized, normalized
