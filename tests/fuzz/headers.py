"""Range, If-Range and If-None-Match, compared with simple reference parsers."""

from __future__ import annotations

from decimal import Decimal

from audioproxy.errors import RangeNotSatisfiable
from audioproxy.web.conditions import matches, range_applies, read_range
from tests.fuzz.outcomes import outcome
from tests.web.test_conditions import DATE, TAG

#: What inputs contain in place of the ETag of the requested variant, and of its Last-Modified: a
#: fuzzer finds short words sooner.
TAG_WORD, DATE_WORD = b"TAG", b"DATE"

SIZES = (0, 1, 2, 10, 1000, 65_536, 10**9, 10**15)


def check_range(size: int, header: bytes) -> None:
    """Assert that a Range header selects the bytes that RFC 9110, 14 specifies.

    :param size: the size of the variant.
    """
    found = outcome(lambda: read_range(header, size), RangeNotSatisfiable)
    expected = _stretch(header, size)
    if expected == "unsatisfiable":
        assert isinstance(found, RangeNotSatisfiable), f"{header!r} of {size}: {found}"
        assert found.size == size
    else:
        assert found == expected, f"{header!r} of {size}: {found}, not {expected}"


def check_conditions(data: bytes) -> None:
    """Assert that If-None-Match matches a list with the ETag, and If-Range only a whole validator.

    Validators are the ETag, and the Last-Modified of a variant that has one.
    """
    header = data.replace(TAG_WORD, TAG).replace(DATE_WORD, DATE)
    found = matches(header, TAG)
    tags = _entity_tags(header)
    if tags is not None:
        assert found == (TAG in tags), f"{header!r}: {found}"
    else:
        assert not found or TAG in header, f"{header!r} does not contain the ETag"
    for validators in ((TAG, None), (TAG, DATE)):
        assert range_applies(header, *validators) == (header.strip() in validators), header


def _stretch(header: bytes, size: int) -> tuple[int, int] | str | None:
    unit, _, spec = header.partition(b"=")
    first, dash, last = spec.strip(b" \t").partition(b"-")
    if unit.lower() != b"bytes" or not dash or not (first or last):
        return None
    if not all(part.isdigit() or not part for part in (first, last)):
        return None
    # Python limits the digits that int() parses; Decimal has no such limit.
    low, high = (Decimal(part.decode()) if part else None for part in (first, last))
    if low is None:
        assert high is not None
        return (max(0, size - int(min(high, size))), size) if high and size else "unsatisfiable"
    if high is not None and high < low:
        return None
    if low >= size:
        return "unsatisfiable"
    return int(low), size if high is None else int(min(high, size - 1)) + 1


def _entity_tags(header: bytes) -> list[bytes] | None:
    """Return the opaque tags of a list, without W/; None if the list is malformed."""
    tags = []
    rest = header.strip(b" \t")
    while rest:
        if rest.startswith(b","):
            rest = rest[1:].lstrip(b" \t")
            continue
        opening, tag, rest = rest.removeprefix(b"W/").partition(b'"')
        opaque, closing, rest = rest.partition(b'"')
        if opening or not tag or not closing or any(c < 0x21 or c == 0x7F for c in opaque):
            return None
        tags.append(b'"' + opaque + b'"')
        rest = rest.lstrip(b" \t")
        if rest and not rest.startswith(b","):
            return None
    return tags
