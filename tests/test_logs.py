"""The log on its stream: one line an event, in one shape."""

from __future__ import annotations

import io
import sys
from typing import Any

from twisted.logger import Logger, LogLevel, LogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.logs import LEVELS, LineObserver
from audioproxy.web.record import RequestRecord

# 2001-09-09 01:46:40 UTC and 123 milliseconds.
TIME = 1_000_000_000.1234
STAMP = "2001-09-09T01:46:40.123Z"


class LineObserverTests(SynchronousTestCase):
    """`LineObserver`"""

    def setUp(self) -> None:
        self.stream = io.StringIO()

    def observe(self, level: str = "debug", **event: Any) -> str:
        """Return what is written for an event."""
        LineObserver(self.stream, level)({"log_time": TIME, **event})
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text

    def test_shape(self) -> None:
        """Time in UTC with milliseconds and a Z, the level, the text (Request log, D28)."""
        self.assertEqual(
            f"{STAMP} [info] hello\n",
            self.observe(log_level=LogLevel.info, log_format="{word}", word="hello"),
        )

    def test_request(self) -> None:
        """A request's id stands ahead of the level (Request log)."""
        record = RequestRecord(
            "abc", "render", 404, "not_found", "f:mp3", b"local://a b\nc.mp3", None, 77, 5
        )
        self.assertEqual(
            f"{STAMP} request_id=abc [info] render 404 not_found opts=f:mp3"
            " src=local://a%20b%0Ac.mp3 77 bytes in 5ms\n",
            self.observe(
                log_level=record.level, log_format="{record}", record=record, request_id="abc"
            ),
        )

    def test_level_names(self) -> None:
        """Levels are spelled as AP_LOG_LEVEL spells them; there is nothing above error."""
        for level, name in (
            (LogLevel.debug, "debug"),
            (LogLevel.info, "info"),
            (LogLevel.warn, "warning"),
            (LogLevel.error, "error"),
            (LogLevel.critical, "error"),
        ):
            self.assertEqual(f"{STAMP} [{name}] x\n", self.observe(log_level=level, log_format="x"))

    def test_threshold(self) -> None:
        """Each AP_LOG_LEVEL lets through itself and what is above."""
        order = ["debug", "info", "warning", "error"]
        self.assertEqual(order, list(LEVELS))
        for least in order:
            for level in order:
                written = self.observe(least, log_level=LEVELS[level], log_format="x")
                self.assertEqual(order.index(level) >= order.index(least), bool(written))

    def test_event_without_level(self) -> None:
        """What comes by Twisted's older log is information."""
        self.assertEqual(f"{STAMP} [info] old\n", self.observe(log_format="old"))

    def test_text_is_no_format(self) -> None:
        """Braces and percent signs in a field are only text."""
        text = "{0} {record} %s"
        self.assertEqual(f"{STAMP} [info] {text}\n", self.observe(log_format="{text}", text=text))

    def test_several_lines(self) -> None:
        """No text makes a line that could be taken for an event of its own (D28)."""
        for end in ("\n", "\r\n", "\r", "\x0b", "\x85", "\u2028"):
            written = self.observe(log_format="{text}", text=f"x{end}{STAMP} [info] forged{end}")
            self.assertEqual(f"{STAMP} [info] x\n    {STAMP} [info] forged\n", written)

    def test_failure(self) -> None:
        """A crash is logged with its traceback, in one event."""
        try:
            raise ZeroDivisionError("by zero")
        except ZeroDivisionError:
            failure = Failure()
        written = self.observe(
            log_level=LogLevel.critical, log_format="a request crashed", log_failure=failure
        )
        self.assertTrue(written.startswith(f"{STAMP} [error] a request crashed"), written)
        self.assertIn("ZeroDivisionError: by zero", written)
        self.assertIn("test_failure", written)
        self.assertTrue(all(line.startswith("    ") for line in written.splitlines()[1:]))

    def test_given_stream(self) -> None:
        """It writes to the stream it was given, whatever twistd puts in the place of stdout."""
        observer = LineObserver(self.stream, "info")
        self.patch(sys, "stdout", io.StringIO())
        Logger(observer=LogPublisher(observer)).info("to the real one")
        self.assertTrue(self.stream.getvalue().endswith(" [info] to the real one\n"))
        self.assertEqual("", sys.stdout.getvalue())  # type: ignore[attr-defined]

    def test_text_that_the_stream_cannot_spell(self) -> None:
        """It is escaped: a line is never lost for a character, or for bytes that are no text."""
        for encoding, shown in (("ascii", "\\xe9 \\udc80"), ("utf-8", "é \\udc80")):
            raw = io.BytesIO()
            stream = io.TextIOWrapper(raw, encoding=encoding)
            LineObserver(stream, "info")(
                {"log_time": TIME, "log_format": "{text}", "text": "é \udc80"}
            )
            self.assertEqual(f"{STAMP} [info] {shown}\n", raw.getvalue().decode(encoding))
            stream.detach()

    def test_flushed(self) -> None:
        """A line is there as soon as its event is, for whoever follows the log."""
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, write_through=False)
        LineObserver(stream, "info")({"log_time": TIME, "log_format": "x"})
        self.assertEqual(f"{STAMP} [info] x\n".encode(), raw.getvalue())
        stream.detach()
