"""The log: every event as one line of text (Request log)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol, TextIO

from twisted.logger import ILogObserver, LogEvent, LogLevel, eventAsText
from zope.interface import implementer

from audioproxy.observe.access_log import AccessLogEntry

#: The values of AP_LOG_LEVEL, and the lowest level that each writes.
LEVELS = {
    "debug": LogLevel.debug,
    "info": LogLevel.info,
    "warning": LogLevel.warn,
    "error": LogLevel.error,
}

_NAMES = {LogLevel.warn: "warning", LogLevel.critical: "error"}

# Priorities of syslog(3), by which `journalctl -p` selects.
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}

# Access log lines are collected for so many seconds, and so many lines, at most. Writing and
# flushing one line costs more than serving a small file.
_BATCH_SECONDS = 0.05
_BATCH_LINES = 500


class LineStream(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


@implementer(ILogObserver)
class LineObserver:
    """Log observer that writes events to a stream.

    twistd replaces ``sys.stdout`` with a log of its own; the stream given here is the real one.

    :param level: the lowest level that is written.
    :param journal: the stream is systemd's journal, so each line begins with its priority.
    :param later: as ``callLater``, to write access log lines in batches; None for no batches.
    """

    def __init__(
        self,
        stream: LineStream,
        level: str,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        *,
        journal: bool = False,
    ) -> None:
        self._stream = stream
        # The start of a line, and the name of the level in it, for each level that is written.
        self._shown = {
            each: (journal_prefix(_name(each)) if journal else "", f"[{_name(each)}]")
            for each in LogLevel.iterconstants()
            if each >= LEVELS[level]
        }
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._later = later
        self._waiting: list[tuple[float, Any, AccessLogEntry]] = []
        self._flush_scheduled = False

    def __call__(self, event: LogEvent) -> None:
        level = event.get("log_level", LogLevel.info)
        if level not in self._shown:
            return
        request_id = f"request_id={event['request_id']} " if "request_id" in event else ""
        prefix, name = self._shown[level]
        # Continuation lines are indented, so that every line without indentation is an event.
        text = f"\n{prefix}    ".join(
            eventAsText(event, includeTimestamp=False, includeSystem=False).splitlines()
        )
        stamp = _stamp(event.get("log_time", 0.0))
        self.flush(f"{prefix}{stamp} {request_id}{name} {text}\n")

    def request(self, entry: AccessLogEntry) -> None:
        """Write an access log line: soon if its level is info, else at once.

        The line equals that of an event with the same text, but skips the event's formatting.
        """
        level = entry.level
        if level not in self._shown:
            return
        self._waiting.append((time.time(), level, entry))
        # An error is written at once, after the waiting lines, so that an operator finds it in the
        # log with all lines before it.
        at_once = self._later is None or level is not LogLevel.info
        if at_once or len(self._waiting) >= _BATCH_LINES:
            self.flush()
        elif not self._flush_scheduled and self._later is not None:
            self._flush_scheduled = True
            self._later(_BATCH_SECONDS, self._scheduled_flush)

    def write_through(self) -> None:
        """Write each line at once from now on: the process may end at any moment."""
        self._later = None
        self.flush()

    def flush(self, line: str = "") -> None:
        """Write the waiting lines, and then one more.

        Lines that the stream refuses, as on a full disk, are lost.
        """
        waiting, self._waiting = self._waiting, []
        if not (waiting or line):
            return
        # A character that the stream cannot encode would lose the whole line, and twisted.logger
        # hides the error.
        lines = [
            f"{prefix}{_stamp(seconds)} request_id={entry.request_id} {name} {entry}\n"
            for seconds, level, entry in waiting
            for prefix, name in (self._shown[level],)
        ]
        data = "".join((*lines, line)).encode(self._encoding, "backslashreplace")
        # A request must not fail because of its log line. A closed stream is a ValueError.
        with suppress(OSError, ValueError):
            self._stream.write(data.decode(self._encoding))
            self._stream.flush()

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush()


def lost_lines(count: int, *, journal: bool = False) -> str:
    """Return the line about lines that were lost, since they could not be written (D68)."""
    prefix, stamp = journal_prefix("warning") if journal else "", _stamp(time.time())
    return (
        f"{prefix}{stamp} [warning] {count} lines of the log could not be written, and are lost\n"
    )


def is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """Return whether a stream is systemd's journal, by the rule of systemd.exec(5) for it."""
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        # It may also be one of twistd, without a descriptor.
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def journal_prefix(level: str) -> str:
    """Return the start of a line that sd-daemon(3) has for its priority in the journal."""
    return f"<{_PRIORITIES[level]}>"


def _stamp(seconds: float) -> str:
    second, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{_format_second(second)}.{milliseconds:03}Z"


# A busy service writes many lines in one second.
@lru_cache(1)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")


def _name(level: Any) -> str:
    return _NAMES.get(level) or str(level.name)
