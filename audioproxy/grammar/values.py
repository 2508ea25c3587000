"""The spellings of option values: decimals, integers, percent-encoded bytes.

Each parser raises ``ValueError`` with a text that says what would be accepted, without a full stop.
The caller quotes the segment and completes the sentence.
"""

from __future__ import annotations

import re
from decimal import Decimal
from urllib.parse import quote, unquote_to_bytes

# D3: at most 9 integer digits and 3 fractional ones, no exponent.
_DECIMAL = re.compile(rb"([+-]?)(\d{1,9}(?:\.\d{1,3})?)")
_INTEGER = re.compile(rb"-?\d+")
_INTEGER_DIGITS = 9
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def read_decimal(
    text: bytes, low: int | None = None, high: int | None = None, *, plus: bool = False
) -> Decimal:
    """Parse a decimal from ``low`` to ``high`` inclusive, or without bounds.

    :param plus: whether a leading ``+`` is legal.
    """
    bounds = "" if low is None else f" from {low} to {high}"
    match = _DECIMAL.fullmatch(text)
    if match is None or (match[1] == b"+" and not plus):
        raise ValueError(f"a plain decimal{bounds} with at most 3 fractional digits is expected")
    value = Decimal(text.decode("ascii"))
    if low is not None and high is not None and not low <= value <= high:
        raise ValueError(f"a number{bounds} is expected")
    return value


def print_decimal(value: Decimal) -> str:
    """Return the shortest spelling: ``1.50`` is ``1.5``, ``30.0`` is ``30``, ``-0`` is ``0``."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def read_integer(text: bytes, low: int | None = None, high: int | None = None) -> int:
    """Parse a whole number from ``low`` to ``high`` inclusive, or without bounds."""
    # A bound with more than 9 digits, such as that of exp, determines the number of digits.
    longest = max(_INTEGER_DIGITS, len(str(high)))
    bounds = f" of at most {longest} digits" if low is None else f" from {low} to {high}"
    well_spelled = _INTEGER.fullmatch(text) and len(text.removeprefix(b"-")) <= longest
    outside = low is not None and high is not None and well_spelled and not low <= int(text) <= high
    if not well_spelled or outside:
        raise ValueError(f"a whole number{bounds} is expected")
    return int(text)


def percent_decode(text: bytes) -> bytes:
    """Decode percent-escapes exactly once; a ``%`` without two hex digits is an error."""
    if _BAD_ESCAPE.search(text):
        raise ValueError("every % must start an escape of two hexadecimal digits")
    return unquote_to_bytes(text)


def percent_encode(value: bytes) -> str:
    """Return the canonical percent-encoding: only unreserved characters of RFC 3986 are kept."""
    return quote(value, safe="")
