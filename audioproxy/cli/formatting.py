"""Amounts as people read them."""

from __future__ import annotations


def bytes_in_words(count: float) -> str:
    """Return a number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"


def listed_number(count: int, noun: str) -> str:
    """Return a number and what it counts: ``1 URL``, ``2 URLs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
