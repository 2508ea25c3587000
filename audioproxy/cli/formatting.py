"""Output of the commands: sizes, counts, times, printable lines, colours, JSON, error messages."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from enum import Enum
from typing import IO, TextIO


class Colour(Enum):
    """A colour of text, as a code of ECMA-48 (SGR)."""

    RED = "31"
    GREEN = "32"
    YELLOW = "33"


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


def printable(text: str) -> str:
    """Return text as one line, with what no terminal or stdout shows escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return line.encode(encoding, "backslashreplace").decode(encoding)


def paint(text: str, colour: Colour, stream: TextIO) -> str:
    """Return text in a colour if a stream is a terminal, and NO_COLOR is not set."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{colour.value}m{text}\x1b[0m"


def print_json(values: object, stream: IO[str] | None = None) -> None:
    """Print a JSON document on one line, by default to stdout; decimals become JSON numbers."""
    print(json.dumps(values, default=float), file=stream, flush=True)


def print_errors(*lines: str) -> None:
    """Print error messages to stderr, separate from the results on stdout."""
    for line in lines:
        name = paint("audioproxy:", Colour.RED, sys.stderr)
        print(f"{name} {printable(line)}", file=sys.stderr)
