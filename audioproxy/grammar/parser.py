"""The parser of option segments, for all option classes, which returns `VariantOptions`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.options import (
    PEAKS_DEFAULTS,
    Fade,
    LoudnessTargets,
    Trim,
    VariantOptions,
    refusals,
)
from audioproxy.grammar.values import percent_decode, read_decimal, read_integer

# The largest number of seconds in an option, and the last second of the year 9999 (D6).
_LONGEST = 999_999_999
_LAST_SECOND = 253_402_300_799
_TEXT_LIMIT = 255
# The most characters of a segment that are quoted, so that no message is longer than its request.
_QUOTE_LIMIT = 80


def read_options(segments: Iterable[bytes]) -> tuple[VariantOptions, int | None]:
    """Parse option segments in any order.

    :returns: the variant options and ``exp`` (Unix seconds, or None).
    :raises InvalidOptions: for the first segment that is unknown, repeated, empty, without a value,
        out of bounds or in conflict with another segment.
    """
    raw: dict[str, bytes] = {}
    values: dict[str, Any] = {}
    for segment in segments:
        key, value = _read_segment(segment)
        if key in raw:
            raise _refusal(segment, f"{key} may be given only once")
        raw[key] = segment
        values[key] = value
    exp = values.pop("exp", None)
    options = VariantOptions(**values)
    for key, why in refusals(options):
        raise _refusal(raw[key], why)
    if options.f == "peaks":
        options = replace(options, **{k: v for k, v in PEAKS_DEFAULTS.items() if k not in values})
    return options, exp


def read_expiry(segments: Iterable[bytes]) -> int | None:
    """Return the ``exp`` of the segments if exactly one is present and well formed, else None.

    It is parsed before everything else: an expired URL is a 410 even if its other segments are
    invalid.
    """
    found = [segment for segment in segments if segment.startswith(b"exp:")]
    if len(found) != 1:
        return None
    try:
        return int(_read_segment(found[0])[1])
    except InvalidOptions:
        return None


def refuse_options(segments: Sequence[bytes]) -> None:
    """Refuse the option segments of an info URL, which accepts none.

    :raises InvalidOptions: quoting the first segment.
    """
    if segments:
        raise _refusal(segments[0], "an info document has no options")


def _read_segment(segment: bytes) -> tuple[str, Any]:
    if not segment:
        raise InvalidOptions("An option segment is empty; each is spelled key:value.")
    name, colon, text = segment.partition(b":")
    key = name.decode("latin-1")
    if key not in _READERS:
        raise _refusal(segment, f"the options are {', '.join(sorted(_READERS))}")
    if not colon or not text:
        raise _refusal(segment, f"{key} needs a value, spelled {key}:value")
    try:
        return key, _READERS[key](text)
    except ValueError as error:
        raise _refusal(segment, str(error)) from None


def _refusal(segment: bytes, why: str) -> InvalidOptions:
    quoted = segment.decode("ascii", "backslashreplace")
    if len(quoted) > _QUOTE_LIMIT:
        quoted = quoted[:_QUOTE_LIMIT] + "..."
    return InvalidOptions(f'"{quoted}" is not accepted: {why}.')


def _choice(*accepted: str) -> Callable[[bytes], str]:
    def read(text: bytes) -> str:
        value = text.decode("latin-1")
        if value not in accepted:
            raise ValueError(f"{' or '.join(accepted)} is expected")
        return value

    return read


def _integer(low: int, high: int) -> Callable[[bytes], int]:
    return lambda text: read_integer(text, low, high)


def _seconds(text: bytes) -> Decimal:
    return read_decimal(text, 0, _LONGEST)


def _trim(text: bytes) -> Trim:
    start, *rest = _parts(text, "start[:duration]", 1, 2)
    if not rest:
        return Trim(_seconds(start))
    duration = _seconds(rest[0])
    if not duration:
        raise ValueError("a duration longer than 0 is expected")
    return Trim(_seconds(start), duration)


def _fade(text: bytes) -> Fade:
    return Fade(*map(_seconds, _parts(text, "in[:out]", 1, 2)))


# D6: the bounds of ffmpeg's loudnorm filter.
_LOUDNESS_BOUNDS = ((-70, -5), (-9, 0), (1, 50))


def _norm(text: bytes) -> LoudnessTargets:
    name, *targets = _parts(text, "ebu[:I[:TP[:LRA]]]", 1, 4)
    if name != b"ebu":
        raise ValueError("ebu is expected")
    return LoudnessTargets(
        *(
            read_decimal(target, low, high)
            for target, (low, high) in zip(targets, _LOUDNESS_BOUNDS, strict=False)
        )
    )


def _parts(text: bytes, shape: str, low: int, high: int) -> list[bytes]:
    parts = text.split(b":")
    if not low <= len(parts) <= high:
        raise ValueError(f"{shape} is expected")
    return parts


def _filename(text: bytes) -> str:
    try:
        name = _opaque(text).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("a UTF-8 file name is expected") from None
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c in "/\\" for c in name):
        raise ValueError("a file name without control characters, / or \\ is expected")
    return name


def _opaque(text: bytes) -> bytes:
    value = percent_decode(text)
    if len(value) > _TEXT_LIMIT:
        raise ValueError(f"at most {_TEXT_LIMIT} bytes are expected")
    return value


_READERS: dict[str, Callable[[bytes], Any]] = {
    "f": _choice(*FORMATS),
    # The bounds of `br` and `q` depend on the format, so `refusals` checks them.
    "br": read_integer,
    "q": read_decimal,
    "sr": _integer(1000, 384_000),
    "ch": lambda text: int(_choice("1", "2")(text)),
    "bd": _choice("16", "24", "32f"),
    "t": _trim,
    "fade": _fade,
    "gain": lambda text: read_decimal(text, -60, 60, plus=True),
    "norm": _norm,
    "enhance": _choice("voice"),
    "pts": _integer(1, 65_536),
    "pk_fmt": _choice("json", "dat"),
    "pk_bits": lambda text: int(_choice("8", "16")(text)),
    "dl": _filename,
    "cb": _opaque,
    "exp": _integer(0, _LAST_SECOND),
}
