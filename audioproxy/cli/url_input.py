"""URLs as people paste them: with a host, below the place where the resource is mounted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO
from urllib.parse import quote

from audioproxy.cli.exit_status import UsageError
from audioproxy.grammar.segments import SOURCE_FORMS, SignedPath, split_signature

_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_ORIGIN = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# A signature, in any of the spellings that are a slip, or the word in place of one.
_SIGNATURE = re.compile(rb"insecure|[A-Za-z0-9+_-]{43}={0,3}|[0-9A-Fa-f]{64}")


def read_address(text: str) -> SignedPath:
    """Find the signature and what it signs in a URL, or in a path alone.

    What stands ahead of the first segment that looks like a signature is where the resource is
    mounted; without one, the first segment is taken for it.

    :raises Misuse: for what has no two segments.
    """
    path = re.split("[?#]", _ORIGIN.sub("", text.strip()), maxsplit=1)[0]
    raw = as_sent(path).encode("ascii")
    segments = raw.split(b"/")
    end = next((i for i, part in enumerate(segments) if part in SOURCE_FORMS), len(segments))
    start = next((i for i in range(1, end) if _SIGNATURE.fullmatch(segments[i])), 1)
    found = split_signature(b"/" + b"/".join(segments[start:])) if raw.startswith(b"/") else None
    if found is None:
        raise UsageError(
            f"{text!r} is no URL of the service: /{{signature}}/{{options}}/{{source}}"
        )
    return found


def as_sent(text: str) -> str:
    """Return what clients send for a URL that is typed: what is no visible ASCII is encoded."""
    return quote(text, safe=_VISIBLE, errors="surrogateescape")


def read_lines(words: Iterable[str]) -> Iterator[str]:
    """Yield words, and in place of a ``-`` each line of the standard input that has any."""
    for word in words:
        if word == "-":
            yield from filter(None, map(str.strip, standard_input()))
        else:
            yield word


def standard_input() -> TextIO:
    """Return the standard input.

    :raises Misuse: where there is none.
    """
    if sys.stdin is None:
        raise UsageError("- reads the standard input, and there is none")
    return sys.stdin
