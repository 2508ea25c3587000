"""The values of options: their parsers, and their canonical spellings.

Each parser raises ``ValueError`` with a text that says what would be accepted, without a full stop.
The caller quotes the segment and completes the sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import quote, unquote_to_bytes

# D3: at most 9 integer digits and 3 fractional ones, no exponent.
_DECIMAL = re.compile(rb"([+-]?)(\d{1,9}(?:\.\d{1,3})?)")
_INTEGER = re.compile(rb"-?\d+")
_INTEGER_DIGITS = 9
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
# The largest number of seconds (D6).
_LONGEST = 999_999_999
_TEXT_LIMIT = 255
# D6: the bounds of ffmpeg's loudnorm filter.
_LOUDNESS_BOUNDS = ((-70, -5), (-9, 0), (1, 50))


def parse_decimal(
    text: bytes, low: int | None = None, high: int | None = None, *, plus: bool = False
) -> Decimal:
    """Parse a decimal from ``low`` to ``high`` inclusive; ``plus`` allows a leading ``+``."""
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


def parse_integer(text: bytes, low: int | None = None, high: int | None = None) -> int:
    # A bound with more than 9 digits, such as that of exp, determines the number of digits.
    longest = max(_INTEGER_DIGITS, len(str(high)))
    bounds = f" of at most {longest} digits" if low is None else f" from {low} to {high}"
    well_spelled = _INTEGER.fullmatch(text) and len(text.removeprefix(b"-")) <= longest
    if not well_spelled or not (low is None or high is None or low <= int(text) <= high):
        raise ValueError(f"a whole number{bounds} is expected")
    return int(text)


def integer(low: int, high: int) -> Callable[[bytes], int]:
    return lambda text: parse_integer(text, low, high)


def choice(*accepted: str) -> Callable[[bytes], str]:
    def parse(text: bytes) -> str:
        value = text.decode("latin-1")
        if value not in accepted:
            raise ValueError(f"{' or '.join(accepted)} is expected")
        return value

    return parse


def number_choice(*accepted: str) -> Callable[[bytes], int]:
    return lambda text: int(choice(*accepted)(text))


def percent_decode(text: bytes) -> bytes:
    """Decode percent-escapes exactly once; a ``%`` without two hex digits is an error."""
    if _BAD_ESCAPE.search(text):
        raise ValueError("every % must start an escape of two hexadecimal digits")
    return unquote_to_bytes(text)


def percent_encode(value: bytes) -> str:
    """Return the canonical percent-encoding: only unreserved characters of RFC 3986 are kept."""
    return quote(value, safe="")


def other_forms(name: bytes) -> dict[str, bytes]:
    """Return a name in the Unicode forms NFC and NFD, where they differ from it.

    Names are bytes, so the forms are different names, which look the same.
    """
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return {}
    forms = {"NFC": unicodedata.normalize("NFC", text), "NFD": unicodedata.normalize("NFD", text)}
    return {form: spelled.encode("utf-8") for form, spelled in forms.items() if spelled != text}


def parse_bytes(text: bytes) -> bytes:
    value = percent_decode(text)
    if len(value) > _TEXT_LIMIT:
        raise ValueError(f"at most {_TEXT_LIMIT} bytes are expected")
    return value


def parse_file_name(text: bytes) -> str:
    try:
        name = parse_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("a UTF-8 file name is expected") from None
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c in "/\\" for c in name):
        raise ValueError("a file name without control characters, / or \\ is expected")
    return name


@dataclass(frozen=True, slots=True)
class Trim:
    """A region of the source, in seconds. Without a duration it extends to the end."""

    start: Decimal
    duration: Decimal | None = None

    @classmethod
    def parse(cls, text: bytes) -> Trim:
        start, *rest = _parts(text, "start[:duration]")
        if not rest:
            return cls(_seconds(start))
        duration = _seconds(rest[0])
        if not duration:
            raise ValueError("a duration longer than 0 is expected")
        return cls(_seconds(start), duration)

    def __str__(self) -> str:
        return _join(self.start, self.duration)


@dataclass(frozen=True, slots=True)
class Fade:
    """Lengths of the fade-in and the fade-out, in seconds; 0 means no fade."""

    fade_in: Decimal
    fade_out: Decimal = Decimal(0)

    @classmethod
    def parse(cls, text: bytes) -> Fade:
        return cls(*map(_seconds, _parts(text, "in[:out]")))

    def __str__(self) -> str:
        return _join(self.fade_in, self.fade_out or None)


@dataclass(frozen=True, slots=True)
class LoudnessTargets:
    """Targets of EBU R 128 normalization: LUFS, dBTP and LU."""

    integrated: Decimal = Decimal(-16)
    true_peak: Decimal = Decimal("-1.5")
    loudness_range: Decimal = Decimal(11)

    @classmethod
    def parse(cls, text: bytes) -> LoudnessTargets:
        name, *targets = _parts(text, "ebu[:I[:TP[:LRA]]]")
        if name != b"ebu":
            raise ValueError("ebu is expected")
        bounded = zip(targets, _LOUDNESS_BOUNDS, strict=False)
        return cls(*(parse_decimal(target, low, high) for target, (low, high) in bounded))

    def __str__(self) -> str:
        return "ebu:" + _join(self.integrated, self.true_peak, self.loudness_range)


def spell(value: object) -> str:
    """Return the canonical spelling of a parsed value: the shortest one (D3)."""
    if isinstance(value, Decimal):
        return print_decimal(value)
    if isinstance(value, bytes):
        return percent_encode(value)
    # Of the text options only `dl` can contain a character that must be escaped.
    return percent_encode(value.encode()) if isinstance(value, str) else str(value)


def _seconds(text: bytes) -> Decimal:
    return parse_decimal(text, 0, _LONGEST)


def _parts(text: bytes, shape: str) -> list[bytes]:
    parts = text.split(b":")
    if len(parts) > 1 + shape.count(":"):
        raise ValueError(f"{shape} is expected")
    return parts


def _join(*parts: Decimal | None) -> str:
    return ":".join(print_decimal(part) for part in parts if part is not None)
