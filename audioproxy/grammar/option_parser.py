"""The parser of option segments, for all option classes, which returns `VariantOptions`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import OPTIONS, PEAKS_DEFAULTS, VariantOptions, refusals
from audioproxy.grammar.values import integer

# The last second of the year 9999 (D6).
_LAST_SECOND = 253_402_300_799
# The most characters of a segment that are quoted, so that no message is longer than its request.
_QUOTE_LIMIT = 80

_PARSERS = {key: row.parse for key, row in OPTIONS.items()} | {"exp": integer(0, _LAST_SECOND)}


def parse_options(segments: Iterable[bytes]) -> tuple[VariantOptions, int | None]:
    """Return the options of segments in any order, and ``exp`` (Unix seconds, or None).

    :raises InvalidOptions: for the first segment that is malformed, or in conflict with another.
    """
    raw: dict[str, bytes] = {}
    values: dict[str, Any] = {}
    for segment in segments:
        key, value = _parse_segment(segment)
        if key in raw:
            raise _refusal(segment, f"{key} may be given only once")
        raw[key] = segment
        values[key] = value
    exp = values.pop("exp", None)
    if values.get("f") == "peaks":
        values = PEAKS_DEFAULTS | values
    options = VariantOptions(**values)
    for key, why in refusals(options):
        raise _refusal(raw[key], why)
    return options, exp


def parse_expiry(segments: Iterable[bytes]) -> int | None:
    """Return the ``exp`` of the segments if exactly one is present and well formed, else None.

    Expired URLs return 410 even if their other segments are invalid.
    """
    found = [segment for segment in segments if segment.startswith(b"exp:")]
    if len(found) != 1:
        return None
    try:
        return int(_parse_segment(found[0])[1])
    except InvalidOptions:
        return None


def refuse_options(segments: Sequence[bytes]) -> None:
    if segments:
        raise _refusal(segments[0], "an info document has no options")


def _parse_segment(segment: bytes) -> tuple[str, Any]:
    if not segment:
        raise InvalidOptions("An option segment is empty; each is spelled key:value.")
    name, colon, text = segment.partition(b":")
    key = name.decode("latin-1")
    if key not in _PARSERS:
        raise _refusal(segment, f"the options are {', '.join(sorted(_PARSERS))}")
    if not colon or not text:
        raise _refusal(segment, f"{key} needs a value, spelled {key}:value")
    try:
        return key, _PARSERS[key](text)
    except ValueError as error:
        raise _refusal(segment, str(error)) from None


def _refusal(segment: bytes, why: str) -> InvalidOptions:
    quoted = segment.decode("ascii", "backslashreplace")
    if len(quoted) > _QUOTE_LIMIT:
        quoted = quoted[:_QUOTE_LIMIT] + "..."
    return InvalidOptions.of(quoted, why)
