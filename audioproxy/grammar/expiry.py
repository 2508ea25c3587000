"""The effect of ``exp`` on a request and on every lifetime in a response."""

from __future__ import annotations

import math


def expired(exp: int | None, now: float) -> bool:
    """Return whether a URL has expired.

    The second that ``exp`` names is still served (D14).

    :param now: Unix seconds.
    """
    return exp is not None and math.floor(now) > exp


def clamp(seconds: int, exp: int | None, now: float) -> int:
    """Return a lifetime in seconds that ends no later than ``exp``, and is never negative."""
    return seconds if exp is None else max(0, min(seconds, exp - math.floor(now)))
