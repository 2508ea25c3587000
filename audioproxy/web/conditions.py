"""Conditional requests and ranges, against a strong entity tag and a date (RFC 9110, 13 and 14)."""

from __future__ import annotations

import re
from typing import NamedTuple

from audioproxy.errors import RangeNotSatisfiable

_ENTITY_TAG = re.compile(rb'(?:W/)?("[^"]*")')
_SINGLE_RANGE = re.compile(rb"bytes=[ \t]*(\d*)-(\d*)[ \t]*", re.IGNORECASE)
# No offset has more digits. Python refuses to convert numbers of some thousand digits.
_DIGITS = 19


class Conditions(NamedTuple):
    method: bytes
    if_none_match: bytes | None = None
    if_range: bytes | None = None
    range: bytes | None = None


def matches(if_none_match: bytes | None, tag: bytes) -> bool:
    """Return whether a list of entity tags contains ``tag``, by weak comparison (RFC 9110, 13.1.2).

    ``*`` never matches here. It asks whether a representation exists, which only storage or a probe
    can show.
    """
    return if_none_match is not None and tag in _ENTITY_TAG.findall(if_none_match)


def range_applies(if_range: bytes | None, tag: bytes, last_modified: bytes | None) -> bool:
    """Return whether a Range applies: If-Range is absent or a validator (RFC 9110, 13.1.5).

    Dates are compared as text, for equality: an obsolete form of the same second is another text.
    """
    return if_range is None or if_range.strip() in (tag, last_modified)


def read_range(header: bytes | None, size: int) -> tuple[int, int] | None:
    """Return the offsets of the first byte and behind the last one that a Range header requests.

    :returns: None for the whole variant: without a header, and for several ranges, other units and
        malformed values, all of which are ignored.
    :raises RangeNotSatisfiable: for a well-formed range that no byte satisfies.
    """
    match = _SINGLE_RANGE.fullmatch(header) if header is not None else None
    if match is None or not (match[1] or match[2]):
        return None
    # Numbers without leading zeros are ordered by their lengths and then by their digits.
    first, last = (digits.lstrip(b"0") for digits in match.groups())
    if not match[1]:
        if not last or not size:
            raise RangeNotSatisfiable(size)
        return max(0, size - _offset(last)), size
    if match[2] and (len(last), last) < (len(first), first):
        return None
    if _offset(first) >= size:
        raise RangeNotSatisfiable(size)
    return _offset(first), min(_offset(last) + 1, size) if match[2] else size


def _offset(digits: bytes) -> int:
    """Return the number exactly if a variant can have that offset, else a larger one."""
    return int(digits or b"0") if len(digits) <= _DIGITS else int(10**_DIGITS)
