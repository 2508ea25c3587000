"""The source forms, and the canonical string of each (Source forms)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
from dataclasses import dataclass

from audioproxy.errors import NotFound
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
_URL = re.compile(rb"https://([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
_PRINTABLE = re.compile(rb"[!-~]*")
_AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?")
_HTTPS_PORT = 443

# Bytes that a log line percent-encodes: every byte outside visible ASCII, and the % sign, so that
# two sources never look alike. An https URL is not encoded again: its percent-encoding is part of
# its spelling.
_ESCAPED = re.compile(rb"[^!-$&-~]")
_QUERY_DIGITS = 8


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A file below AP_LOCAL_ROOT; ``path`` is relative, in bytes."""

    path: bytes

    @property
    def canonical(self) -> bytes:
        """The source without the root, so that variants survive a move of the root."""
        return b"local://" + self.path


@dataclass(frozen=True, slots=True)
class S3Source:
    """An object; the key is raw decoded bytes."""

    bucket: str
    key: bytes

    @property
    def canonical(self) -> bytes:
        """The bucket and the raw key."""
        return b"s3://" + self.bucket.encode("ascii") + b"/" + self.key


@dataclass(frozen=True, slots=True)
class HttpsSource:
    """An https URL in canonical spelling, and its host without brackets or port."""

    url: str
    host: str

    @property
    def canonical(self) -> bytes:
        """The normalized URL."""
        return self.url.encode("ascii")


Source = LocalSource | S3Source | HttpsSource


def read_source(form: bytes, raw: bytes) -> Source:
    """Parse the part of a raw path after ``plain/`` or ``enc/``. It is decoded exactly once.

    :raises NotFound: for every refusal (D16); ``reason`` says why.
    """
    try:
        return parse_source(_decode_base64url(raw) if form == b"enc" else percent_decode(raw))
    except ValueError as error:
        raise NotFound(str(error)) from None


def log_name(canonical: bytes) -> str:
    """Return a canonical source as a log line shows it: one word of visible ASCII (D28).

    The query of an https source can contain a credential under any name, so the first 8 hexadecimal
    digits of its SHA-256 replace it (D47).
    """
    if canonical.startswith(b"https://"):
        address, mark, query = canonical.partition(b"?")
        digest = hashlib.sha256(query).hexdigest()[:_QUERY_DIGITS] if mark else ""
        return (address + mark).decode("ascii") + digest
    return _ESCAPED.sub(lambda match: b"%%%02X" % match[0][0], canonical).decode("ascii")


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


def parse_source(text: bytes) -> Source:
    """Parse a source string that is already decoded.

    :raises ValueError: for text that is not a source.
    """
    if (match := _SCHEME.match(text)) is None:
        raise ValueError("a source starts with local://, s3:// or https://")
    rest = text[match.end() :]
    # Only https is a URL scheme, and so case-insensitive.
    if match[1] == b"local":
        return _parse_local(rest)
    if match[1] == b"s3":
        return _parse_s3(rest)
    if match[1].lower() == b"https":
        return parse_https(text)
    raise ValueError("a source is local://, s3:// or https://")


def _parse_local(path: bytes) -> LocalSource:
    if not path or path.startswith(b"/") or b"\0" in path:
        raise ValueError("a local path is relative, not empty, and has no NUL")
    if len(path) > _MAX_PATH_BYTES or path.count(b"/") >= _MAX_PATH_COMPONENTS:
        raise ValueError(
            f"a local path has at most {_MAX_PATH_COMPONENTS} components"
            f" and {_MAX_PATH_BYTES} bytes"
        )
    if leaves_root(path):
        raise ValueError("the path leaves the root")
    return LocalSource(path)


def leaves_root(path: bytes) -> bool:
    """Return whether a relative path leaves its start directory at any point."""
    depth = 0
    for component in path.split(b"/"):
        depth += {b"..": -1, b".": 0, b"": 0}.get(component, 1)
        if depth < 0:
            return True
    return False


def _parse_s3(rest: bytes) -> S3Source:
    bucket, _, key = rest.partition(b"/")
    if len(bucket) > _MAX_BUCKET_BYTES or _BUCKET.fullmatch(bucket) is None:
        raise ValueError("a bucket is 1 to 63 letters, digits, dots, hyphens and underscores")
    if not 1 <= len(key) <= _MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {_MAX_KEY_BYTES} bytes")
    return S3Source(bucket.decode("ascii"), key)


def parse_https(url: bytes) -> HttpsSource:
    """Parse an https URL: a source, or the target of a redirect.

    :raises ValueError: for text that is not such a URL.
    """
    if len(url) > _MAX_URL_BYTES or _PRINTABLE.fullmatch(url) is None:
        raise ValueError(f"a URL has at most {_MAX_URL_BYTES} bytes, all printable ASCII")
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError("a URL starts with https://")
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
    normalized = f"https://{bracketed}{shown_port}{path.decode('ascii') or '/'}{shown_query}"
    return HttpsSource(normalized, host)


def _normalize_host(host: str) -> tuple[str, str]:
    """Return the normalized host twice: without brackets, and as it stands in a URL."""
    if host.startswith("["):
        address = ipaddress.IPv6Address(host[1:-1])
        normalized = _print_ipv6(address)
        return normalized, f"[{normalized}]"
    normalized = host.lower().removesuffix(".")
    labels = normalized.split(".")
    if len(normalized) > _MAX_HOST_BYTES or not all(1 <= len(label) <= 63 for label in labels):
        raise ValueError(f"a host has at most {_MAX_HOST_BYTES} bytes, in labels of 1 to 63")
    return normalized, normalized


def _print_ipv6(address: ipaddress.IPv6Address) -> str:
    # Python 3.13 and later print IPv4-mapped addresses with dots. A cache key must not depend on
    # the version of Python.
    if address.ipv4_mapped is not None:
        mapped = int(address.ipv4_mapped)
        return f"::ffff:{mapped >> 16:x}:{mapped & 0xFFFF:x}"
    return address.compressed
