"""URLs as clients send them, pasted with a host, with a mount point, or as a bare path."""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO
from urllib.parse import quote

from audioproxy.cli.exit_status import UsageError
from audioproxy.grammar.segments import MEDIA, SOURCE_FORMS, SignedPath, split_signature
from audioproxy.grammar.sources import Source, log_name

_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
# Characters with which a request line is a 400.
_RAW = re.compile(r"[^!-\x7F]")
_ORIGIN = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# A signature, correct or with a common mistake in its encoding, or the word "insecure".
_SIGNATURE = re.compile(rb"insecure|[A-Za-z0-9+_-]{43}={0,3}|[0-9A-Fa-f]{64}")


def parse_url(text: str) -> SignedPath:
    """Return the signature and the signed part of a URL or a bare path.

    The segments before the first one that looks like a signature are the mount point. If no segment
    does, or if one before it is empty, the first one is the signature. If the mount point ends in
    ``media``, the last segment is a file name, which the signature does not cover.
    """
    sent = _ORIGIN.sub("", text.strip(string.whitespace)).partition("#")[0]
    if (character := _RAW.search(sent)) is not None:
        raise UsageError(
            f"{text!r} is not a URL: sent as it is, it is a 400, since {character[0]!r} is not"
            f" percent-encoded; write {percent_encode_typed(character[0])}"
        )
    raw = sent.partition("?")[0].encode("ascii")
    segments = raw.split(b"/")
    end = next((i for i, part in enumerate(segments) if part in SOURCE_FORMS), len(segments))
    start = next((i for i in range(1, end) if _SIGNATURE.fullmatch(segments[i])), 1)
    if b"" in segments[1:start]:
        start = 1
    if segments[start - 1] == MEDIA:
        del segments[-1]
    found = split_signature(b"/" + b"/".join(segments[start:])) if raw.startswith(b"/") else None
    if found is None:
        form = "/{signature}/{options}/{source}"
        raise UsageError(f"{text!r} is not a URL of the service: {form}")
    return found


def percent_encode_typed(text: str) -> str:
    """Return a typed URL as clients send it: everything except visible ASCII is percent-encoded."""
    return quote(text, safe=_VISIBLE, errors="surrogateescape")


def describe_presigned(source: Source) -> str | None:
    """Return the warning of a source whose query is presigned."""
    if not source.is_presigned:
        return None
    return (
        f"{log_name(source.canonical)}: the query seems to be presigned, and each new query is"
        " another source: one render and one stored variant for each. Use the URL without it and"
        " name the credentials in AP_SOURCE_HEADERS_FILE, or use an s3:// source"
    )


def read_lines(words: Iterable[str]) -> Iterator[str]:
    """Yield each word; for the word ``-``, yield the non-blank lines of the standard input."""
    for word in words:
        if word == "-":
            yield from filter(None, map(str.strip, standard_input()))
        else:
            yield word


def standard_input() -> TextIO:
    if sys.stdin is None:
        raise UsageError("- reads the standard input, which is closed")
    return sys.stdin
