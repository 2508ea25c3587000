"""What ``exp`` does to a request and to every lifetime that a response hands out."""

from __future__ import annotations

import math


def expired(exp: int | None, now: float) -> bool:
    """Tell whether a URL is refused at ``now`` (Unix seconds).

    The second that ``exp`` names is still served (D14).
    """
    return exp is not None and math.floor(now) > exp


def clamp(seconds: int, exp: int | None, now: float) -> int:
    """Return a lifetime in seconds that does not outlive ``exp``, never below 0."""
    return seconds if exp is None else max(0, min(seconds, exp - math.floor(now)))
