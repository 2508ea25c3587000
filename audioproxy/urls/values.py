"""Arguments of `audioproxy.urls`: their types, times, and text as bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from numbers import Integral

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


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
