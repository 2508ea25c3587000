"""The access log line of a request: its parts and its level."""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotFound
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.sources import read_source
from audioproxy.observe.access_log import AccessLogEntry
from audioproxy.observe.logs import LineObserver
from tests.support.service import PROJECT
from tests.support.strategies import DETERMINISTIC, encoded, option_segments, sources


def entry(**parts: Any) -> AccessLogEntry:
    """Return the entry of a request, with parts of its own."""
    plain = {
        "request_id": "abc",
        "endpoint": "render",
        "status": 200,
        "sent": 12,
        "milliseconds": 34,
        "cache": None,
        "error_code": None,
        "options": None,
        "source": None,
    }
    return AccessLogEntry(**plain | parts)


#: The part of the line after time, request id and level (Request log).
LINE_PATTERN = re.compile(
    r"(render|info|health|ready|metrics|preflight|unknown) [1-5]\d\d( [a-z_]+)?"
    r"(( opts=[!-~]*)? src=[!-~]*)?( cache=(MISS|COALESCED|HIT))?"
    r" \d+ bytes in \d+ms"
)


#: The patterns with which the pages search the log.
PATTERNS = re.findall(
    r"journalctl -t .*--grep '([^']+)'", (PROJECT / "docs/operations.md").read_text()
)
#: The texts of all events.
SOURCE = "".join(path.read_text() for path in (PROJECT / "audioproxy").rglob("*.py"))


class RunbookTests(SynchronousTestCase):
    """The searches of the log in the runbook"""

    def lines(self, **parts: Any) -> str:
        """Return the log of one request."""
        stream = io.StringIO()
        LineObserver(stream, "debug").request(entry(**parts))
        return stream.getvalue()

    def test_found(self) -> None:
        """Each search finds lines of requests, or other events."""
        self.assertGreater(len(PATTERNS), 9)
        log = [
            self.lines(status=status, error_code=code, cache=cache)
            for status, code, cache in (
                (200, None, "MISS"),
                (415, "undecodable_source", None),
                (429, "queue_full", None),
                (504, "render_timeout", None),
            )
        ]
        for pattern in PATTERNS:
            texts = [*log, SOURCE.replace('",\n', "\n")]
            self.assertTrue(any(re.search(pattern, text, re.M) for text in texts), pattern)

    @DETERMINISTIC
    @given(st.data())
    def test_not_forged(self, data: st.DataObject) -> None:
        """No search finds a hit for what its client has named a request or a source."""
        pattern = data.draw(st.sampled_from(PATTERNS))
        text = data.draw(
            st.from_regex(pattern, fullmatch=True, alphabet=st.characters(codec="ascii"))
        )
        word = "".join(c for c in text if "!" <= c <= "~")
        line = self.lines(
            request_id=word,
            options=f"cb:{word}",
            source=f"local://{text} {word}".encode(),
            cache="HIT",
            sent=429,
        )
        # journalctl ignores case where the pattern has none.
        self.assertIsNone(re.search(pattern, line, re.I if pattern == pattern.lower() else 0), line)


class AccessLogEntryTests(SynchronousTestCase):
    """`AccessLogEntry`"""

    def test_sources_distinct(self) -> None:
        """Spaces, controls, ``%`` and non-ASCII are encoded, so sources stay distinct (D28)."""
        for source, shown in (
            (b"local://a b\n\r\t\x00\x7f\xc3\xa9.mp3", "local://a%20b%0A%0D%09%00%7F%C3%A9.mp3"),
            (b"local://a b.wav", "local://a%20b.wav"),
            (b"local://a%20b.wav", "local://a%2520b.wav"),
            (b"s3://b/100%", "s3://b/100%25"),
            # In a URL, percent-encoding is a part of the source and stays as it is.
            (b"https://b.test/a%20b", "https://b.test/a%20b"),
        ):
            self.assertIn(f" src={shown} ", str(entry(source=source)))

    def test_queries(self) -> None:
        """The query of an https source is logged as a hash, whatever its parameters are (D47)."""
        for query in (
            *(b"v=2", b"X-Amz-Signature=s", b"x-oss-signature=s", b"X-Tos-Signature=s", b"hmac=s"),
            *(b"X-Obs-Security-Token=s", b"md5=s", b"access_key=s", b"client_secret=s", b"pwd=s"),
            *(b"s", b"?", b"a?b=s", b"a=b&c=s"),
        ):
            digest = hashlib.sha256(query).hexdigest()[:8]
            line = str(entry(source=b"https://b.test/k?" + query))
            self.assertEqual(f"render 200 src=https://b.test/k?{digest} 12 bytes in 34ms", line)
        for source in (b"https://b.test/sig=s", b"local://a?token=t", b"s3://b/k?sig=s"):
            self.assertIn(f" src={source.decode()} ", str(entry(source=source)))

    @settings(DETERMINISTIC, max_examples=25)
    @given(option_segments(), sources(), st.sampled_from((None, "MISS", "COALESCED", "HIT")))
    def test_one_request_one_line(
        self, segments: list[bytes], source: bytes, cache: str | None
    ) -> None:
        """No option and no source breaks the line into two lines or adds a field (D28)."""
        options, _ = parse_options(segments)
        try:
            canonical = read_source(b"enc", encoded(source)).canonical
        except NotFound:
            canonical = None
        known = None if canonical is None else options.canonical()
        record = entry(options=known, source=canonical, cache=cache)
        self.assertIsNotNone(LINE_PATTERN.fullmatch(str(record)), record)

    def test_levels(self) -> None:
        """5xx responses are warnings, except a 503 of ``/ready``, which is a debug event.

        So is a response that failed after its 200 (Request log). Other responses of health,
        readiness and metrics are debug events, and all others info events.
        """
        for level, endpoint, *statuses in (
            (LogLevel.info, "render", 200, 206, 304, 404, 429),
            *((LogLevel.info, "unknown", 404), (LogLevel.info, "preflight", 204)),
            *((LogLevel.warn, name, 500, 504) for name in ("render", "info", "unknown", "metrics")),
            *((LogLevel.debug, name, 200) for name in ("metrics", "health", "ready")),
            (LogLevel.debug, "ready", 503),
        ):
            for status in statuses:
                # Only the 503 of a node that is not ready has no error code.
                code = "some_code" if status >= 400 and endpoint != "ready" else None
                record = entry(endpoint=endpoint, status=status, error_code=code)
                self.assertIs(level, record.level, (endpoint, status))
        broken_off = entry(status=200, error_code="render_timeout")
        self.assertIs(LogLevel.warn, broken_off.level)
