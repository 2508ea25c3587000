"""Types of command line arguments, and options of several commands."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from typing import Any

_DURATION = re.compile("([0-9]{1,10})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile("([0-9]{1,15})([kMGT]?)")
_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def duration(text: str) -> int:
    """Return the seconds of a duration such as ``90``, ``15m``, ``1h`` or ``7d``."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        wanted = "use seconds or a number with m, h or d"
        raise ArgumentTypeError(f"{text!r} is not a duration; {wanted}")
    return int(match[1]) * _SECONDS[match[2]]


def size(text: str) -> int:
    """Return the bytes of a size such as ``500G``; the units are powers of 1000."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size; use bytes or a number with k, M, G or T")
    return int(match[1]) * _BYTES[match[2]]


def integer_to(maximum: int) -> Callable[[str], int]:
    """Return the type of a whole number from 1 to ``maximum``."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= maximum:
            raise ArgumentTypeError(f"{text!r}; a whole number from 1 to {maximum} is required")
        return int(text)

    return read


def add_concurrency(parser: ArgumentParser, text: str) -> None:
    kind = integer_to(256)
    parser.add_argument("-c", "--concurrency", type=kind, default=4, metavar="N", help=text)


def add_repeatable(parser: ArgumentParser, *names: str, **settings: Any) -> None:
    """Add an option that may be given several times."""
    parser.add_argument(*names, action="append", default=[], **settings)


def add_quiet(parser: ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
