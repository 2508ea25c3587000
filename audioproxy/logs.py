"""The log: every event as one line of text (contract: Request log)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

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


@implementer(ILogObserver)
class LineObserver:
    """Writes events to a stream.

    twistd puts a log of its own in the place of ``sys.stdout``; the stream given here is the
    real one.
    """

    def __init__(self, stream: TextIO, level: str) -> None:
        self._stream = stream
        self._level = LEVELS[level]
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def __call__(self, event: LogEvent) -> None:
        """Write one event, unless it is below the level."""
        level = event.get("log_level", LogLevel.info)
        if level < self._level:
            return
        seconds = event.get("log_time", 0.0)
        time = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
        request_id = f"request_id={event['request_id']} " if "request_id" in event else ""
        # Only an event begins at the start of a line, whatever its text is made of.
        text = "\n    ".join(
            eventAsText(event, includeTimestamp=False, includeSystem=False).splitlines()
        )
        name = _NAMES.get(level, level.name)
        line = f"{time.replace('+00:00', 'Z')} {request_id}[{name}] {text}\n"
        # What a stream cannot spell would cost the whole line, and twisted.logger hides the error.
        self._stream.write(line.encode(self._encoding, "backslashreplace").decode(self._encoding))
        self._stream.flush()
