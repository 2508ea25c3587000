"""The checks of a fault run detect wrong responses and wrong log lines."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from tests.soak import journal
from tests.soak.checks import check_answers
from tests.soak.counters import alarms, entries, mismatches
from tests.soak.journal import Journal
from tests.soak.limits import TimeLimits
from tests.soak.records import EXCUSES, ExpectedRequest, ExpectedResponse, RequestRecord
from tests.soak.verdicts import problems
from tests.support.http import Response

BODY = bytes(range(200))
WANTED = ExpectedResponse(
    frozenset({200, 206}), (BODY,), content_type="audio/mpeg", reads_store=True, etag='"key"'
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


LATE, LATE_PROBE = (
    response(504, ERROR % code, headers={}) for code in (b"render_timeout", b"probe_timeout")
)


KILLED, LEFT, CHANGED = {"child killed"}, {"client left"}, {"source changed"}
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
    (record(*CHANGED), response(body=b"mixture", complete=False)),
    (record("node killed"), None),
    (record("child stopped"), response(504, ERROR % b"render_timeout", headers=JSON)),
    (record(), response(429, ERROR % b"queue_full", headers={b"retry-after": b"8"})),
    (record(expected=RANGED), response(206, BODY[10:20], headers=RANGE)),
    (record(expected=REFUSED), response(404, ERROR % b"not_found")),
)

#: Wrong responses, each with words of its problem.
WRONG_RESPONSES = (
    # A truncated body that looks complete, whatever the cause.
    *(
        ("a complete body of 150", record(*causes), response(body=BODY[:150]))
        for causes in ((), KILLED, LEFT, CHANGED)
    ),
    # One wrong byte. The bytes of a broken-off body may be wrong only if the source changed.
    ("from byte 77 on", record(), response(body=WRONG)),
    ("from byte 77 on", record(*KILLED), response(body=WRONG[:100], complete=False)),
    *(
        ("are wrong", record(cause), response(body=b"mixture", complete=False))
        for cause in EXCUSES.keys() - CHANGED
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
        for n in (b"", b"0", b"9", b"soon")
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
        self.assertEqual([], [found for row in RIGHT for found in problems(*row, 8)])

    def test_wrong(self) -> None:
        """Each wrong response has a problem that names what is wrong."""
        for words, made, got in WRONG_RESPONSES:
            found = list(problems(made, got, 8))
            self.assertTrue(any(words in problem for problem in found), (words, made, found))

    def test_hung(self) -> None:
        """A response that does not end within the deadline is wrong."""
        made = record(*LEFT)
        made.hung = True
        self.assertIn("deadline", "".join(problems(made, response(complete=False), 8)))


#: A stream that is broken off; one that a request has joined.
CUT, CUT_JOINED = (
    response(body=BODY[:9], complete=False, headers=headers) for headers in (MISS, JOINED)
)

#: Changes of a request that was sent at 5 seconds, a failed response to one sent at 10 seconds, the
#: end of this response, and whether the limit of a render (20 s) or of a probe (10 s) excuses it.
LIMITS: tuple[tuple[dict[str, object] | None, Response, float, bool], ...] = (
    # A 504 at its own limit, and an earlier one.
    *((None, LATE, ended, ended == 30) for ended in (30, 29.9)),
    *((None, LATE_PROBE, ended, ended == 20) for ended in (20, 19.9)),
    # What a limit does not explain, however late it is.
    (None, response(500, ERROR % b"render_failed"), 50, False),
    (None, response(504, ERROR % b"other"), 50, False),
    (None, response(502, ERROR % b"render_timeout"), 50, False),
    (None, response(body=BODY[:9]), 50, False),
    (None, response(504, LATE.body, complete=False), 50, False),
    # A stream that is broken off, which has to be a render; its bytes have to be right.
    *((None, CUT, ended, ended == 30) for ended in (30, 29.9)),
    (None, response(body=BODY[:9], complete=False, headers=HIT), 30, False),
    (None, response(body=BODY[1:9], complete=False), 30, False),
    # The limit counts from the first request that may share the render.
    *(
        (changes, got, ended, got is not CUT and ended == 25)
        for changes in ({}, {"ended": 6, "causes": {"client left"}})
        for got, ended in ((LATE, 25), (CUT_JOINED, 25), (CUT_JOINED, 24.9), (CUT, 25))
    ),
    # Requests for another variant, at another node, or that are over, share no render.
    ({"target": "y/plain/s"}, CUT_JOINED, 25, False),
    ({"node": "b"}, CUT_JOINED, 25, False),
    ({"ended": 6}, CUT_JOINED, 25, False),
    ({"ended": 30, "status": 200, "complete": True, "state": "MISS"}, CUT_JOINED, 25, False),
    # All requests for one source share its probe.
    ({"target": "y/plain/s"}, LATE_PROBE, 15, True),
    ({"target": "y/plain/t"}, LATE_PROBE, 15, False),
)


class LimitTests(SynchronousTestCase):
    """Failures at a node's own time limit: 20 seconds for a render, 10 for a probe."""

    def setUp(self) -> None:
        self.journal = Journal(TimeLimits(20, 10))

    def begin(self, began: float, target: object = "x/plain/s", **changes: object) -> RequestRecord:
        """Add the record of a request that was sent at some time."""
        request = ExpectedRequest(str(target).encode(), WANTED)
        made = self.journal.begin("a", request, "test")
        for name, value in {"request_id": "a.1", "began": began, **changes}.items():
            setattr(made, name, value)
        return made

    def end(self, made: RequestRecord, ended: float, got: Response) -> bool:
        """Judge a failed response that ended at some time; return whether it is excused."""
        self.patch(journal, "monotonic", lambda: ended)
        self.journal.judge(made, got)
        return made.limited and not made.problems

    def test_limits(self) -> None:
        """A failure at the limit is excused, and nothing else is."""
        for row in LIMITS:
            changes, got, ended, excused = row
            self.journal.records.clear()
            if changes is not None:
                self.begin(5, **changes)
            self.assertEqual(excused, self.end(self.begin(10), ended, got), row)

    def test_repetition(self) -> None:
        """For a minute after a render at its limit, a 504 for its variant comes at once (D73)."""
        for began, changes, excused in (
            (30, {}, True),
            (84, {}, True),
            (86, {}, False),
            (30, {"node": "b"}, False),
            (30, {"target": "y/plain/s"}, False),
        ):
            self.journal.records.clear()
            self.assertTrue(self.end(first := self.begin(5), 25, LATE))
            first.ended = 25
            repeated = self.begin(began, **changes)
            self.assertEqual(excused, self.end(repeated, began + 0.1, LATE), (began, changes))
            self.assertFalse(self.end(self.begin(30), 30.1, CUT))

    def test_other_cause(self) -> None:
        """A 504 that a fault explains is not excused by a limit."""
        stopped = self.begin(5, causes={"child stopped"})
        self.journal.judge(stopped, LATE)
        self.assertEqual(([], False), (stopped.problems, stopped.limited))

    def test_shared_causes(self) -> None:
        """The cause excuses one request, and not the others of the same attack."""
        causes = {"child killed"}
        late, other = self.begin(5, causes=causes), self.begin(24, "y/plain/t", causes=causes)
        self.assertTrue(self.end(late, 25, LATE))
        self.assertFalse(self.end(other, 25, LATE))

    def test_report(self) -> None:
        """These requests are counted apart from those that a fault affects."""
        self.begin(5, causes={"client left"})
        self.end(self.begin(5), 25, LATE)
        figures = check_answers(self.journal).figures
        self.assertIn("1 requests allowed to fail, 1 failed at a time limit", figures)


LINE = (
    "2026-01-01T00:00:00.000Z request_id={} [info] render 200 opts=f:mp3 src=local://x{}"
    " 9 bytes in 3ms"
)
ONE = LINE.format("a.1", "")
LATE_LINE = ONE.replace("render 200", "render 200 render_timeout")

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
    # A request that is excused by a time limit has its code in the log.
    (0, [LATE_LINE], {"causes": {"limit at load"}}),
    (1, [LATE_LINE.replace("timeout", "failed")], {"causes": {"limit at load"}}),
    (1, [ONE], {"causes": {"limit at load"}}),
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
