"""What commands print: lines for people, JSON or CSV for programs, errors, and progress."""

from __future__ import annotations

import csv
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from enum import Enum
from io import StringIO
from threading import RLock
from typing import Any, TextIO


class Colour(Enum):
    """A colour of text, as a code of ECMA-48 (SGR)."""

    RED = "31"
    GREEN = "32"
    YELLOW = "33"


class Form(Enum):
    """A form of output; the value is that of ``--format``."""

    TEXT = "table"
    JSON = "json"
    CSV = "csv"


class Output:
    """The standard output of one command, in one form, and its errors.

    Everything is printed above the progress bar, and flushed. What belongs to another form is not
    printed.

    :ivar bar: the progress bar, if the command has one.
    """

    def __init__(self, form: Form = Form.TEXT, bar: Any = None) -> None:
        self.form = form
        self.bar = bar

    @classmethod
    def of(cls, arguments: Namespace, bar: Any = None) -> Output:
        return cls(Form.JSON if arguments.json else Form.TEXT, bar)

    def line(self, text: str, head: str = "", colour: Colour | None = None) -> None:
        """Print a line for people; its head is in a colour."""
        if self.form is Form.TEXT:
            self._print(paint(head, colour, sys.stdout) + printable(text))

    def row(self, values: Mapping[str, Any], *lines: str) -> None:
        """Print one item: its lines, a JSON object on one line, or a row of CSV."""
        if self.form is Form.JSON:
            self._print(_json(values))
        elif self.form is Form.CSV:
            self._print(_csv(values.values()))
        for line in lines:
            self.line(line)

    def headings(self, names: Iterable[str], line: str) -> None:
        if self.form is Form.CSV:
            self._print(_csv(names))
        self.line(line)

    def document(self, values: Mapping[str, Any]) -> None:
        if self.form is Form.JSON:
            self._print(_json(values, indent=2))

    def error(self, *lines: str) -> None:
        with self._above_bar():
            print_errors(*lines)

    def _print(self, text: str) -> None:
        with self._above_bar():
            print(text, flush=True)

    def _above_bar(self) -> AbstractContextManager[object]:
        return nullcontext() if self.bar is None else self.bar.external_write_mode()


def _json(values: Mapping[str, Any], indent: int | None = None) -> str:
    # Decimals become numbers.
    return json.dumps(values, default=float, indent=indent)


def _csv(values: Iterable[Any]) -> str:
    """Return a line of RFC 4180."""
    line = StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue().removesuffix("\n")


def progress_bar(unit: str, quiet: bool, total: int | None = None) -> Any:
    """Return a bar of tqdm on standard error, which is shown on terminals only."""
    # Importing it takes a tenth of a second.
    from tqdm import tqdm

    # tqdm's default lock is shared between processes. On Python 3.14, it starts a process.
    tqdm.set_lock(RLock())
    hidden = quiet or not sys.stderr.isatty()
    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=hidden, leave=False)


def print_errors(*lines: str) -> None:
    for line in lines:
        print(f"{paint('audioproxy:', Colour.RED, sys.stderr)} {printable(line)}", file=sys.stderr)


def paint(text: str, colour: Colour | None, stream: TextIO) -> str:
    """Return text in a colour if a stream is a terminal, and NO_COLOR is not set."""
    if colour is None or not stream.isatty():
        return text
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{colour.value}m{text}\x1b[0m"


def printable(text: str) -> str:
    """Return text as one line, with what no terminal or stdout shows escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return line.encode(encoding, "backslashreplace").decode(encoding)


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
