"""Sizes, counts and times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def format_bytes(count: float) -> str:
    """Return a number of bytes with three significant digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"


def format_count(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 URL``, ``2 URLs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_time(seconds: int) -> str:
    """Return Unix seconds as a date and time in UTC (RFC 3339)."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
