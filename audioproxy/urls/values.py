"""Values of `audioproxy.urls` as URLs spell them: numbers, durations, times and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from audioproxy.grammar.values import percent_encode

#: A number of an option. URLs have 3 decimal places: a float is rounded to them, any other number
#: with more places is refused.
Number = int | float | Decimal | str

#: A number of seconds.
Seconds = Number | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Kind:
    """The Python values that an option accepts.

    :ivar types: of a value. The abstract classes of numbers include those of NumPy. Text is spelled
        as in a URL.
    :ivar description: of the types.
    :ivar several: a sequence of such values is accepted too.
    :ivar encoded: the URL has the value percent-encoded.
    :ivar prefix: precedes numbers in the URL.
    """

    types: tuple[type, ...]
    description: str
    several: bool = False
    encoded: bool = False
    prefix: str = ""

    def segment(self, name: str, value: Any) -> str:
        """Return the segment of an option. The parser refuses invalid values.

        :raises TypeError: for a value of a type that the option does not accept.
        :raises UnicodeEncodeError: for a lone surrogate in percent-encoded text.
        """
        single = (
            not self.several or isinstance(value, str | bytes) or not isinstance(value, Sequence)
        )
        parts = [self._spell(name, part) for part in ((value,) if single else value)]
        if self.prefix and not isinstance(value, str):
            parts.insert(0, self.prefix)
        return f"{name}:{':'.join(parts)}"

    def _spell(self, name: str, value: Any) -> str:
        require_type(name, value, self.types, self.description)
        if self.encoded:
            return percent_encode(to_bytes(value))
        if isinstance(value, str):
            # The value of a member of an enumeration, not its name.
            return str.__str__(value)
        if isinstance(value, Decimal):
            return format(value, "f")
        if isinstance(value, Integral):
            return str(int(value))
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        return format(float(seconds), ".3f")


_NUMBERS = "int, float, Decimal or str"
_SEVERAL = "or a tuple or list of them"

WORD = Kind((str,), "str")
TEXT = Kind((str,), "str", encoded=True)
BYTES = Kind((str, bytes), "str or bytes", encoded=True)
WHOLE = Kind((Integral, str), "int or str")
NUMBER = Kind((Real, Decimal, str), _NUMBERS)
LOUDNESS = Kind(NUMBER.types, f"{_NUMBERS}, {_SEVERAL}", several=True, prefix="ebu")
SECONDS = Kind((*NUMBER.types, timedelta), f"timedelta, {_NUMBERS}, {_SEVERAL}", several=True)


def seconds_from_now(value: int | timedelta) -> int:
    """Return ``expires_in`` in whole seconds; a fraction of a second is rounded up."""
    require_type("expires_in", value, (Integral, timedelta), "int (seconds) or timedelta")
    return _round_up(value) if isinstance(value, timedelta) else int(value)


def unix_seconds(value: int | datetime) -> int:
    """Return ``expires_at`` in whole Unix seconds; a fraction of a second is rounded up.

    :raises ValueError: for a datetime without a time zone.
    """
    require_type("expires_at", value, (Integral, datetime), "int (Unix seconds) or datetime")
    if not isinstance(value, datetime):
        return int(value)
    if value.utcoffset() is None:
        raise ValueError(
            f"expires_at: {value.isoformat()} has no time zone; add one, such as"
            " datetime.now(UTC) has"
        )
    return _round_up(value - _EPOCH)


def _round_up(span: timedelta) -> int:
    return -(-span // _SECOND)


def to_bytes(text: str | bytes) -> bytes:
    """Return text in UTF-8.

    :raises UnicodeEncodeError: for a lone surrogate that stands for no byte.
    """
    # File names that are not UTF-8 come from `os` with surrogates.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def require_type(name: str, value: object, types: tuple[type, ...], accepted: str) -> None:
    """Raise an error if an argument has another type. A bool is no number.

    :param accepted: the description of the types.
    :raises TypeError: with the name of the argument and its type.
    """
    if isinstance(value, bool) or not isinstance(value, types):
        raise TypeError(f"{name}: '{type(value).__name__}' is not accepted; use {accepted}")
