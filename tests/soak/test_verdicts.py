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


class AnswerTests(SynchronousTestCase):
    """Verdicts on responses."""

    def assert_good(self, made: RequestRecord, got: Response | None) -> None:
        """Assert that there are no problems."""
        self.assertEqual([], list(problems(made, got, 8)))

    def assert_bad(self, words: str, made: RequestRecord, got: Response | None) -> None:
        """Assert that a problem contains these words."""
        found = list(problems(made, got, 8))
        self.assertTrue(any(words in problem for problem in found), found)

    def test_right(self) -> None:
        """A complete, right body needs no cause, whether MISS or HIT."""
        self.assert_good(record(), response())
        self.assert_good(record(), response(headers=HIT))

    def test_torn(self) -> None:
        """A truncated body that looks complete is wrong, whatever the cause."""
        for causes in ((), ("child killed",), ("client left",), ("source changed",)):
            self.assert_bad("a complete body of 150", record(*causes), response(body=BODY[:150]))

    def test_wrong_byte(self) -> None:
        """One wrong byte is detected, and the problem names its position."""
        wrong = BODY[:77] + b"\0" + BODY[78:]
        self.assert_bad("from byte 77 on", record(), response(body=wrong))
        got = response(body=wrong[:100], complete=False)
        self.assert_bad("from byte 77 on", record("child killed"), got)

    def test_broken_off(self) -> None:
        """A response that is broken off needs a cause."""
        got = response(body=BODY[:9], complete=False)
        self.assert_bad("broken off", record(), got)
        self.assert_good(record("child killed"), got)

    def test_mixture(self) -> None:
        """The bytes of a broken-off body may be wrong only if the source changed."""
        got = response(body=b"mixture", complete=False)
        self.assert_good(record("source changed"), got)
        for cause in EXCUSES.keys() - {"source changed"}:
            self.assert_bad("are wrong", record(cause), got)

    def test_silence(self) -> None:
        """A missing response needs a cause that permits it."""
        self.assert_bad("no response", record(), None)
        self.assert_bad("no response", record("child killed"), None)
        self.assert_good(record("node killed"), None)

    def test_failure_without_cause(self) -> None:
        """A 504 without a cause, or with a cause that does not explain it, is wrong."""
        headers = {b"content-type": b"application/json"}
        late = response(504, ERROR % b"render_timeout", headers=headers)
        self.assert_bad("unexpected 504", record(), late)
        self.assert_bad("unexpected 504", record("child killed"), late)
        self.assert_good(record("child stopped"), late)

    def test_busy(self) -> None:
        """A 429 needs a Retry-After within bounds."""
        for value in (b"", b"0", b"9", b"soon"):
            got = response(429, ERROR % b"queue_full", headers={b"retry-after": value})
            self.assert_bad("Retry-After", record(), got)
        got = response(429, ERROR % b"queue_full", headers={b"retry-after": b"8"})
        self.assert_good(record(), got)

    def test_wrong_stretch(self) -> None:
        """A 206 response has to contain the requested range."""
        request = replace(WANTED, byte_range=(10, 20))
        headers = {**HIT, b"content-range": b"bytes 10-19/200"}
        self.assert_good(record(expected=request), response(206, BODY[10:20], headers=headers))
        got = response(206, BODY[11:21], headers=headers)
        self.assert_bad("a complete body of 10", record(expected=request), got)

    def test_wrong_headers(self) -> None:
        """Wrong ETag, Content-Type, request id, cache state and Content-Length are detected."""
        for words, changed in (
            ("ETag", {b"etag": b'"other"'}),
            ("Content-Type", {b"content-type": b"audio/xpeg"}),
            ("request id", {b"x-request-id": b"a.2"}),
            ("X-Audio-Proxy", {b"x-audio-proxy": b"NONE"}),
            ("Content-Length", {b"content-length": b"200"}),
        ):
            self.assert_bad(words, record(), response(headers={**MISS, **changed}))

    def test_wrong_refusal(self) -> None:
        """A refusal needs the right status, and an error document with the right code."""
        made = record(expected=ExpectedResponse(frozenset({404}), code="not_found"))
        self.assert_good(made, response(404, ERROR % b"not_found"))
        self.assert_bad("unexpected 415", made, response(415, ERROR % b"undecodable_source"))
        self.assert_bad("document says", made, response(404, ERROR % b"expired"))
        self.assert_bad("document says", made, response(404, b"<html>"))

    def test_hung(self) -> None:
        """A response that does not end within the deadline is wrong."""
        made = record("client left")
        made.hung = True
        self.assert_bad("deadline", made, response(complete=False))


class LimitTests(SynchronousTestCase):
    """Failures at a node's own time limit: 20 seconds for a render, 10 for a probe."""

    def setUp(self) -> None:
        self.journal = Journal(TimeLimits(20, 10))

    def begin(self, began: float, target: str = "x/plain/s", **changes: object) -> RequestRecord:
        """Add the record of a request that was sent at some time."""
        request = ExpectedRequest(target.encode(), WANTED)
        made = self.journal.begin("a", request, "test")
        made.request_id = "a.1"
        made.began = began
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def end(self, made: RequestRecord, ended: float, got: Response) -> bool:
        """Judge a failed response that ended at some time; return whether it is excused."""
        self.patch(journal, "monotonic", lambda: ended)
        self.journal.judge(made, got)
        return made.limited and not made.problems

    def test_error(self) -> None:
        """A 504 is excused at its own limit, and by no other cause; an earlier one is wrong."""
        for got, limit in ((LATE, 20), (LATE_PROBE, 10)):
            for seconds, excused in ((limit, True), (limit - 0.1, False)):
                self.assertEqual(excused, self.end(self.begin(5), 5 + seconds, got))
        stopped = self.begin(5, causes={"child stopped"})
        self.journal.judge(stopped, LATE)
        self.assertEqual(([], False), (stopped.problems, stopped.limited))

    def test_other_errors(self) -> None:
        """Whatever a limit does not explain is wrong, however late it is."""
        for status, code in ((500, b"render_failed"), (504, b"other"), (502, b"render_timeout")):
            got = response(status, ERROR % code)
            self.assertFalse(self.end(self.begin(5), 50, got))
        self.assertFalse(self.end(self.begin(5), 50, response(body=BODY[:9])))
        self.assertFalse(self.end(self.begin(5), 50, response(504, LATE.body, complete=False)))

    def test_broken_off(self) -> None:
        """A stream is excused that the limit of a render breaks off; its bytes have to be right."""
        for body, headers, ended, excused in (
            (BODY[:9], MISS, 25, True),
            (BODY[:9], MISS, 24.9, False),
            (BODY[:9], HIT, 25, False),
            (BODY[1:9], MISS, 25, False),
        ):
            got = response(body=body, complete=False, headers=headers)
            self.assertEqual(excused, self.end(self.begin(5), ended, got))
            self.journal.records.clear()

    def test_joined(self) -> None:
        """The limit of a render counts from the first request that may share it."""
        joined = response(body=BODY[:9], complete=False, headers=JOINED)
        for changes in ({}, {"ended": 6, "causes": {"client left"}}):
            self.begin(5, **changes)
            for got in (LATE, joined):
                self.assertTrue(self.end(self.begin(20), 25, got))
            self.assertFalse(self.end(self.begin(20), 24.9, joined))
            started = response(body=BODY[:9], complete=False)
            self.assertFalse(self.end(self.begin(20), 25, started), "it has started a render")
            self.journal.records.clear()

    def test_other_work(self) -> None:
        """Requests for another variant, at another node, or that are over, share no render."""
        joined = response(body=BODY[:9], complete=False, headers=JOINED)
        for changes in (
            {"target": "y/plain/s"},
            {"node": "b"},
            {"ended": 6},
            {"ended": 30, "status": 200, "complete": True, "state": "MISS"},
        ):
            self.begin(5, **changes)  # type: ignore[arg-type]
            self.assertFalse(self.end(self.begin(20), 25, joined), changes)
            self.journal.records.clear()

    def test_joined_probe(self) -> None:
        """All requests for one source share its probe."""
        self.begin(5, "y/plain/s")
        self.assertTrue(self.end(self.begin(10), 15, LATE_PROBE))
        self.assertFalse(self.end(self.begin(10, "x/plain/t"), 15, LATE_PROBE))

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


class LogTests(SynchronousTestCase):
    """Verdicts on the access log, which has one line for each request."""

    def problems(self, *lines: str, **changes: object) -> list[str]:
        """Return the differences between the lines of a log and one record."""
        made = record()
        made.status = 200
        for name, value in changes.items():
            setattr(made, name, value)
        return list(mismatches([made], entries("\n".join(lines))))

    def test_one(self) -> None:
        """One line per request is right, with and without a cache state."""
        for more in ("", " cache=MISS"):
            self.assertEqual([], self.problems(LINE.format("a.1", more)))

    def test_missing(self) -> None:
        """A missing line is detected, unless the request may never have arrived."""
        self.assertEqual(1, len(self.problems()))
        self.assertEqual([], self.problems(certain=False))

    def test_double(self) -> None:
        """A second line for a request is always detected."""
        line = LINE.format("a.1", "")
        self.assertEqual(1, len(self.problems(line, line)))
        self.assertEqual(1, len(self.problems(line, line, certain=False)))

    def test_unsent(self) -> None:
        """A request whose headers were never complete must not have a line."""
        self.assertEqual([], self.problems(unsent=True))
        self.assertEqual(1, len(self.problems(LINE.format("a.1", ""), unsent=True)))

    def test_strange(self) -> None:
        """A line whose id belongs to no request is detected."""
        self.assertEqual(1, len(self.problems(*(LINE.format(n, "") for n in ("a.1", "a.9")))))

    def test_other_status(self) -> None:
        """A logged status that differs from the client's is detected."""
        self.assertEqual(1, len(self.problems(LINE.format("a.1", ""), status=404)))

    def test_limit(self) -> None:
        """A request that is excused by a time limit has its code in the log."""
        for more, wrong in ((" render_timeout", 0), (" render_failed", 1), ("", 1)):
            line = LINE.format("a.1", "").replace("render 200", f"render 200{more}")
            causes = {"limit at load"}
            self.assertEqual(wrong, len(self.problems(line, causes=causes)), line)

    def test_alarms(self) -> None:
        """`alarms` returns log lines of crashes and errors, but no warning of a failed render."""
        self.assertEqual(1, len(alarms("T [error] a render crashed\nT [info] fine")))
        self.assertEqual(1, len(alarms("    Traceback (most recent call last):")))
        self.assertEqual([], alarms("T [warning] the encoder failed (ended by SIGKILL): "))
