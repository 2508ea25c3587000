"""The checks of a fault run detect wrong responses and wrong log lines."""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from tests.soak.access_log import entries, mismatches
from tests.soak.records import ExpectedRequest, ExpectedResponse, RequestRecord
from tests.soak.verdicts import problems
from tests.support.http import Response

BODY = bytes(range(200))
EXPECTED = ExpectedResponse(frozenset({200, 206}), BODY, content_type="audio/mpeg", etag='"key"')
RANGED = replace(EXPECTED, byte_range=(10, 20))
HEADERS = {
    b"x-request-id": b"a.1",
    b"cache-control": b"no-store",
    b"x-audio-proxy": b"MISS",
    b"content-type": b"audio/mpeg",
    b"etag": b'"key"',
}
RANGE = {
    b"x-audio-proxy": b"HIT",
    b"accept-ranges": b"bytes",
    b"content-length": b"10",
    b"content-range": b"bytes 10-19/200",
}


def record(*causes: str, expected: ExpectedResponse = EXPECTED) -> RequestRecord:
    """Return the record of a request for a variant."""
    return RequestRecord("a.1", "a", "test", ExpectedRequest(b"/x", expected), set(causes))


def response(
    body: bytes = BODY, status: int = 200, complete: bool = True, **headers: bytes
) -> Response:
    """Return a response, by default a right MISS."""
    changed = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return Response(b"HTTP/1.1", status, tuple({**HEADERS, **changed}.items()), body, complete)


def ranged(body: bytes) -> Response:
    """Return a range of a stored variant."""
    return Response(b"HTTP/1.1", 206, tuple({**HEADERS, **RANGE}.items()), body, True)


class VerdictTests(SynchronousTestCase):
    """Verdicts on responses and on the access log"""

    def test_responses(self) -> None:
        """Each wrong byte is a problem, and each failure without a cause that explains it."""
        wrong = BODY[:77] + b"\0" + BODY[78:]
        for words, made, got in (
            ("", record(), response()),
            ("", record("child killed"), response(BODY[:9], complete=False)),
            ("", record("node killed"), None),
            ("", record(expected=RANGED), ranged(BODY[10:20])),
            ("a complete body of 150", record("child killed"), response(BODY[:150])),
            ("from byte 77 on", record(), response(wrong)),
            ("from byte 77 on", record("client left"), response(wrong, complete=False)),
            ("a complete body of 10", record(expected=RANGED), ranged(BODY[11:21])),
            ("broken off", record(), response(BODY[:9], complete=False)),
            ("no response", record("child killed"), None),
            ("unexpected 504", record("child killed"), response(status=504)),
            ("Retry-After", record(), response(status=429, retry_after=b"301")),
            ("ETag", record(), response(etag=b'"other"')),
        ):
            found = "".join(problems(made, got))
            self.assertTrue(words in found if words else not found, (words, found))

    def test_lines(self) -> None:
        """Missing, second and strange log lines are detected, and other values."""
        line = "T request_id={} [info] render 200 opts=f:mp3 src=local://x 9 bytes in 3ms"
        one, strange = line.format("a.1"), line.format("a.9")
        for count, lines, status in (
            *((0, [one], 200), (1, [], 200), (1, [one, one], 200)),
            *((1, [one, strange], 200), (1, [one], 404)),
        ):
            made = record()
            made.status = status
            found = list(mismatches([made], entries("\n".join(lines))))
            self.assertEqual(count, len(found), (lines, found))
