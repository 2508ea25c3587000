"""The checks of a fault run detect wrong responses and wrong log lines."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from tests.soak.counters import alarms, entries, mismatches
from tests.soak.records import EXCUSES, ExpectedRequest, ExpectedResponse, RequestRecord
from tests.soak.verdicts import problems
from tests.support.http import Response

BODY = bytes(range(200))
WANTED = ExpectedResponse(
    frozenset({200, 206}), BODY, content_type="audio/mpeg", reads_store=True, etag='"key"'
)
MISS = {b"x-audio-proxy": b"MISS", b"content-type": b"audio/mpeg", b"etag": b'"key"'}
HIT = {**MISS, b"x-audio-proxy": b"HIT", b"accept-ranges": b"bytes", b"content-length": b"200"}
JOINED = {**MISS, b"x-audio-proxy": b"COALESCED"}
ERROR = b'{"error": "%s", "message": "A message."}'


def record(*causes: str, **changes: object) -> RequestRecord:
    """Return a record that expects `BODY`."""
    request = replace(ExpectedRequest(b"/x", WANTED), **changes)  # type: ignore[arg-type]
    return RequestRecord("a.1", "a", "test", request, set(causes))


def response(
    status: int = 200,
    body: bytes = BODY,
    complete: bool = True,
    headers: dict[bytes, bytes] = MISS,
) -> Response:
    """Return a response, by default a right MISS."""
    always = {b"x-request-id": b"a.1", b"cache-control": b"no-store"}
    lines = tuple({**always, **headers}.items())
    return Response(b"HTTP/1.1", status, lines, body, complete)


KILLED, LEFT = {"child killed"}, {"client left"}
WRONG = BODY[:77] + b"\0" + BODY[78:]
JSON = {b"content-type": b"application/json"}
RANGED = replace(WANTED, byte_range=(10, 20))
RANGE = {**HIT, b"content-range": b"bytes 10-19/200"}
REFUSED = ExpectedResponse(frozenset({404}), code="not_found")

#: Right responses: complete ones need no cause, and failures have a cause that permits them.
RIGHT = (
    (record(), response()),
    (record(), response(headers=HIT)),
    (record(*KILLED), response(body=BODY[:9], complete=False)),
    (record("node killed"), None),
    (record(*KILLED), response(500, ERROR % b"render_failed", headers=JSON)),
    (record(), response(429, ERROR % b"queue_full", headers={b"retry-after": b"8"})),
    (record(expected=RANGED), response(206, BODY[10:20], headers=RANGE)),
    (record(expected=REFUSED), response(404, ERROR % b"not_found")),
)

#: Wrong responses, each with words of its problem.
WRONG_RESPONSES = (
    # A truncated body that looks complete, whatever the cause.
    *(
        ("a complete body of 150", record(*causes), response(body=BODY[:150]))
        for causes in ((), KILLED, LEFT)
    ),
    # One wrong byte.
    ("from byte 77 on", record(), response(body=WRONG)),
    ("from byte 77 on", record(*KILLED), response(body=WRONG[:100], complete=False)),
    *(
        ("wrong from byte 0", record(cause), response(body=b"mixture", complete=False))
        for cause in EXCUSES
    ),
    # A response that is broken off, is missing or fails, without a cause that explains it.
    ("broken off", record(), response(body=BODY[:9], complete=False)),
    ("no response", record(), None),
    ("no response", record(*KILLED), None),
    ("unexpected 504", record(), response(504, ERROR % b"render_timeout", headers=JSON)),
    ("unexpected 504", record(*KILLED), response(504, ERROR % b"render_timeout", headers=JSON)),
    # A 429 whose Retry-After is not within bounds.
    *(
        ("Retry-After", record(), response(429, ERROR % b"queue_full", headers={b"retry-after": n}))
        for n in (b"", b"0", b"301", b"soon")
    ),
    # A 206 with other bytes than the requested range.
    ("a complete body of 10", record(expected=RANGED), response(206, BODY[11:21], headers=RANGE)),
    *(
        (words, record(), response(headers={**MISS, **changed}))
        for words, changed in (
            ("ETag", {b"etag": b'"other"'}),
            ("Content-Type", {b"content-type": b"audio/xpeg"}),
            ("request id", {b"x-request-id": b"a.2"}),
            ("X-Audio-Proxy", {b"x-audio-proxy": b"NONE"}),
            ("Content-Length", {b"content-length": b"200"}),
        )
    ),
    # A refusal with another status, with another code, or without an error document.
    ("unexpected 415", record(expected=REFUSED), response(415, ERROR % b"undecodable_source")),
    ("document says", record(expected=REFUSED), response(404, ERROR % b"expired")),
    ("document says", record(expected=REFUSED), response(404, b"<html>")),
)


class AnswerTests(SynchronousTestCase):
    """Verdicts on responses."""

    def test_right(self) -> None:
        """Complete, right responses and explained failures have no problem."""
        self.assertEqual([], [found for row in RIGHT for found in problems(*row)])

    def test_wrong(self) -> None:
        """Each wrong response has a problem that names what is wrong."""
        for words, made, got in WRONG_RESPONSES:
            found = list(problems(made, got))
            self.assertTrue(any(words in problem for problem in found), (words, made, found))

    def test_hung(self) -> None:
        """A response that does not end within the deadline is wrong."""
        made = record(*LEFT)
        made.hung = True
        self.assertIn("deadline", "".join(problems(made, response(complete=False))))


LINE = (
    "2026-01-01T00:00:00.000Z request_id={} [info] render 200 opts=f:mp3 src=local://x{}"
    " 9 bytes in 3ms"
)
ONE = LINE.format("a.1", "")

#: Logs, changes of a record of one request, and the number of differences between them.
LOGS: tuple[tuple[int, list[str], dict[str, object]], ...] = (
    # One line for each request, with and without a cache state.
    (0, [ONE], {}),
    (0, [LINE.format("a.1", " cache=MISS")], {}),
    # A missing line, unless the request may never have arrived.
    (1, [], {}),
    (0, [], {"certain": False}),
    # A second line.
    (1, [ONE, ONE], {}),
    (1, [ONE, ONE], {"certain": False}),
    # A line for a request whose headers were never complete.
    (0, [], {"unsent": True}),
    (1, [ONE], {"unsent": True}),
    # An id that belongs to no request, and a status that differs from the client's.
    (1, [ONE, LINE.format("a.9", "")], {}),
    (1, [ONE], {"status": 404}),
)


class LogTests(SynchronousTestCase):
    """Verdicts on the access log, which has one line for each request."""

    def test_lines(self) -> None:
        """Missing lines, second lines, strange lines and lines with other values are detected."""
        for wrong, lines, changes in LOGS:
            made = record()
            made.status = 200
            for name, value in changes.items():
                setattr(made, name, value)
            found = list(mismatches([made], entries("\n".join(lines))))
            self.assertEqual(wrong, len(found), (lines, changes, found))

    def test_alarms(self) -> None:
        """`alarms` returns log lines of crashes and errors, but no warning of a failed render."""
        self.assertEqual(1, len(alarms("T [error] a render crashed\nT [info] fine")))
        self.assertEqual(1, len(alarms("    Traceback (most recent call last):")))
        self.assertEqual([], alarms("T [warning] the encoder failed (ended by SIGKILL): "))
