"""The Range header against a stored variant (RFC 9110, 14)."""

from __future__ import annotations

import re

from audioproxy.errors import RangeNotSatisfiable

_SINGLE = re.compile(rb"bytes=[ \t]*(\d*)-(\d*)[ \t]*", re.IGNORECASE)
# Longer than any offset; what is compared with a size need not be exact beyond it.
_DIGITS = 19


def read_range(header: bytes | None, size: int) -> tuple[int, int] | None:
    """Return the stretch of a variant of ``size`` bytes that a header asks for.

    :returns: the offset of the first byte and the one behind the last; None where the whole
        is to be sent: without a header, and for several ranges, other units and whatever is
        malformed, all of which are ignored.
    :raises RangeNotSatisfiable: for a well-formed range that no byte satisfies.
    """
    match = _SINGLE.fullmatch(header) if header is not None else None
    if match is None or match[0].count(b",") or not (match[1] or match[2]):
        return None
    if max(len(match[1]), len(match[2])) > _DIGITS:
        raise RangeNotSatisfiable(size)
    if not match[1]:
        suffix = int(match[2])
        if not suffix or not size:
            raise RangeNotSatisfiable(size)
        return max(0, size - suffix), size
    first = int(match[1])
    if match[2] and int(match[2]) < first:
        return None
    if first >= size:
        raise RangeNotSatisfiable(size)
    return first, min(int(match[2]) + 1, size) if match[2] else size
