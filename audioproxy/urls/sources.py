"""Sources of `audioproxy.urls`, from the names that applications have."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import TypeVar
from urllib.parse import quote

from audioproxy import errors
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source, Source, parse_source

#: A source: its string without any encoding (``s3://masters/piece.wav``), or a value from `local`,
#: `s3`, `https` or `read_source`.
SourceLike = str | bytes | Source

S = TypeVar("S", bound=Source)

# RFC 3986, 3.3 and 3.4: the characters of a path and a query, and the marks between the parts.
_URL_CHARACTERS = "!$&'()*+,;=:@/?#%"
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_URL = re.compile(r"https://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


class NotFound(errors.NotFound, ValueError):
    """A malformed source. The service returns 404 for it. The text says why."""


def local(path: str | bytes | os.PathLike[str]) -> LocalSource:
    """Return the source that is a file below AP_LOCAL_ROOT.

    :param path: relative to the root, unencoded.
    :raises NotFound: for a path that cannot be a source.
    """
    require_type("path", path, (str, bytes, os.PathLike), "str, bytes or Path")
    try:
        # `as_posix` also turns the backslashes of Windows into slashes.
        raw = os.fsencode(path.as_posix() if isinstance(path, PurePath) else path)
    except UnicodeEncodeError as error:
        raise NotFound(str(error)) from None
    if raw.startswith(b"/"):
        raise NotFound(
            f"path: {os.fsdecode(raw)!r} is absolute; use the path relative to AP_LOCAL_ROOT, such"
            " as Path.relative_to returns"
        )
    return _parse(LocalSource, raw)


def s3(bucket: str, key: str | bytes) -> S3Source:
    """Return the source that is an object in a bucket.

    :param key: unencoded; text is encoded as UTF-8.
    :raises NotFound: for a bucket or a key that cannot be a source.
    """
    require_type("bucket", bucket, (str,), "str")
    require_type("key", key, (str, bytes), "str or bytes")
    if "/" in bucket:
        raise NotFound("a bucket name has no slash")
    text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    return _parse(S3Source, f"{bucket}/{text}")


def https(url: str) -> HttpsSource:
    """Return the source at an https URL, with every character escaped that a URL may not hold.

    ``https("https://example.com/Größe 1.wav")`` reads ``/Gr%C3%B6%C3%9Fe%201.wav``. Valid escapes
    such as ``%20`` stay as they are. ``?`` begins the query, and ``#`` the fragment, which is
    removed: escape these two, and ``%``, where they belong to a name
    (``urllib.parse.quote(name)``).

    :raises NotFound: for a URL that cannot be a source.
    """
    require_type("url", url, (str,), "str")
    match = _URL.fullmatch(url)
    if match is None:
        raise NotFound("a URL starts with https://")
    host, rest = match.groups()
    if not host.isascii():
        raise NotFound("a host is ASCII; write an international name in its xn-- form")
    try:
        raw = to_bytes(_LONE_PERCENT.sub("%25", rest))
    except UnicodeEncodeError as error:
        raise NotFound(str(error)) from None
    return _parse(HttpsSource, host + quote(raw, safe=_URL_CHARACTERS))


def read_source(text: SourceLike) -> Source:
    """Return the source of a string that begins with ``local://``, ``s3://`` or ``https://``.

    :param text: unencoded, except for encoding that is part of an https URL.
    :raises NotFound: for text that the service refuses as a source.
    """
    wanted = "str, bytes, or a value from local(), s3() or https()"
    require_type("source", text, (str, bytes, Source), wanted)
    try:
        raw = to_bytes(text) if isinstance(text, str | bytes) else text.canonical
        return parse_source(raw)
    except ValueError as error:
        raise NotFound(str(error)) from None


def to_bytes(text: str | bytes) -> bytes:
    """Return text in UTF-8; raise UnicodeEncodeError for a surrogate that stands for no byte."""
    # File names that are not UTF-8 come from `os` with surrogates.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def require_type(name: str, value: object, types: tuple[type, ...], accepted: str) -> None:
    """Raise TypeError for an argument of another type. A bool is no number."""
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(f"{name}: '{type(value).__name__}' is not accepted; use {accepted}")


def _parse(kind: type[S], rest: str | bytes) -> S:
    try:
        return kind.parse(to_bytes(rest))
    except ValueError as error:
        raise NotFound(str(error)) from None
