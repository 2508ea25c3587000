"""The log: every event as one line of text (contract: Request log)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from twisted.logger import ILogObserver, LogEvent, LogLevel, eventAsText
from zope.interface import implementer

#: The values of AP_LOG_LEVEL, and what each lets through at the least.
LEVELS = {
    "debug": LogLevel.debug,
    "info": LogLevel.info,
    "warning": LogLevel.warn,
    "error": LogLevel.error,
}

_NAMES = {LogLevel.warn: "warning", LogLevel.critical: "error"}

# Seconds for which lines of requests wait for others, and how many of them do. To write and flush
# one costs more than to serve a small file.
_BATCH_SECONDS = 0.05
_BATCH_LINES = 500


class Record(Protocol):
    """What the log says of one request."""

    @property
    def request_id(self) -> str: ...  # noqa: D102
    @property
    def level(self) -> Any: ...  # noqa: D102


@implementer(ILogObserver)
class LineObserver:
    """Writes events to a stream.

    twistd puts a log of its own in the place of ``sys.stdout``; the stream given here is the
    real one.
    """

    def __init__(
        self,
        stream: TextIO,
        level: str,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """Write to a stream what is of a level or above it.

        :param later: calls something in so many seconds: lines of requests are written in batches
            then. None writes each at once.
        """
        self._stream = stream
        self._shown = {each for each in LogLevel.iterconstants() if each >= LEVELS[level]}
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._later = later
        self._waiting: list[str] = []
        self._expected = False
        self._stamped = (0, "")

    def __call__(self, event: LogEvent) -> None:
        """Write one event, unless it is below the level."""
        level = event.get("log_level", LogLevel.info)
        if level not in self._shown:
            return
        request_id = f"request_id={event['request_id']} " if "request_id" in event else ""
        # Only an event begins at the start of a line, whatever its text is made of.
        text = "\n    ".join(
            eventAsText(event, includeTimestamp=False, includeSystem=False).splitlines()
        )
        stamp = self._stamp(event.get("log_time", 0.0))
        self._waiting.append(f"{stamp} {request_id}[{_name(level)}] {text}\n")
        self.flush()

    def request(self, record: Record) -> None:
        """Write the line of a request: soon, and at once for one that is worth a warning.

        It is the one that an event of the same words would have, without the detour.
        """
        level = record.level
        if level not in self._shown:
            return
        stamp = self._stamp(time.time())
        self._waiting.append(f"{stamp} request_id={record.request_id} [{_name(level)}] {record}\n")
        # Who looks for an error finds it with what was said of it before.
        at_once = self._later is None or level is not LogLevel.info
        if at_once or len(self._waiting) >= _BATCH_LINES:
            self.flush()
        elif not self._expected and self._later is not None:
            self._expected = True
            self._later(_BATCH_SECONDS, self._flush_as_expected)

    def settle(self) -> None:
        """Write what waits, and every line at once from now on: the end may come at any moment."""
        self._later = None
        self.flush()

    def flush(self) -> None:
        """Write what waits. What a stream does not take, on a full disk say, is lost."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        # What a stream cannot spell would cost the whole line, and twisted.logger hides the error.
        text = "".join(waiting).encode(self._encoding, "backslashreplace").decode(self._encoding)
        # A request is not to fail for its line. A closed stream is a ValueError.
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _flush_as_expected(self) -> None:
        self._expected = False
        self.flush()

    def _stamp(self, seconds: float) -> str:
        milliseconds = int(seconds * 1000)
        if milliseconds != self._stamped[0]:
            text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
            self._stamped = (milliseconds, text.replace("+00:00", "Z"))
        return self._stamped[1]


def _name(level: Any) -> str:
    return _NAMES.get(level) or str(level.name)
