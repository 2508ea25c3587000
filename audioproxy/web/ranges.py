"""The Range header against a stored variant (RFC 9110, 14)."""

from __future__ import annotations

import re

from audioproxy.errors import RangeNotSatisfiable

_SINGLE = re.compile(rb"bytes=[ \t]*(\d*)-(\d*)[ \t]*", re.IGNORECASE)
# No offset has more digits. Python refuses to convert numbers of some thousand digits.
_DIGITS = 19


def read_range(header: bytes | None, size: int) -> tuple[int, int] | None:
    """Return the range of a variant of ``size`` bytes that a header requests.

    :returns: the offset of the first byte and the offset after the last one. None for the whole
        variant: without a header, and for several ranges, other units and malformed values, all of
        which are ignored.
    :raises RangeNotSatisfiable: for a well-formed range that no byte satisfies.
    """
    match = _SINGLE.fullmatch(header) if header is not None else None
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


def length_headers(byte_range: tuple[int, int] | None, size: int) -> dict[bytes, bytes]:
    """Return the headers that state the length of a body.

    :param byte_range: for a range, the offset of its first byte and the offset after its last one.
    :param size: of the variant, in bytes.
    """
    if byte_range is None:
        return {b"content-length": b"%d" % size}
    start, stop = byte_range
    return {
        b"content-length": b"%d" % (stop - start),
        b"content-range": b"bytes %d-%d/%d" % (start, stop - 1, size),
    }


def _offset(digits: bytes) -> int:
    """Return the number exactly if a variant can have that offset, else a larger one."""
    return int(digits or b"0") if len(digits) <= _DIGITS else int(10**_DIGITS)
