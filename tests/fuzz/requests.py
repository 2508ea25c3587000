"""HTTP server: any bytes on a connection get valid responses, each with one access log line.

The site is the real one. The test doubles behind it never fail unexpectedly, so no response may be
a 500.
"""

from __future__ import annotations

import io
import re

from audioproxy.errors import Refusal
from audioproxy.observe.access_log import AccessLogEntry
from audioproxy.observe.logs import LineObserver
from tests.fuzz.fixture import VARIANT, FuzzFixture, Setup
from tests.fuzz.headers import TAG_WORD
from tests.fuzz.outcomes import check_message
from tests.support.http import Connection, Log, Response, read_response
from tests.web.test_conditions import TAG

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

STATUSES = {200, 204, 206, 302, 304, 400, 401, 404, 410, 413, 415, 416, 422, 429, 502, 504}
CODES = {(row.status, row.code) for row in Refusal.__subclasses__()}
BODILESS = {204, 304}

# An access log line (Request log).
_LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z request_id=[!-~]{1,200}"
    r" \[(?:debug|info|warning)\] (?:render|info|health|ready|preflight|unknown) \d{3}"
    r"(?: [a-z_]+)?(?: opts=[!-~]+)?(?: src=[!-~]+)?(?: cache=(?:MISS|COALESCED|HIT))?"
    r" \d+ bytes in \d+ms\n"
)
_HEADER_VALUE = re.compile(rb"[ -~]*")
_MOST_TURNS = 1000


def check_server(setup: Setup, data: bytes) -> None:
    """Assert that any bytes get valid responses, each with a log line, and leak nothing.

    :param setup: of the service.
    :param data: the bytes of one connection.
    """
    fixture, log = FuzzFixture(setup), Log()
    stop = log.start()
    try:
        connection = fixture.connect(fixture.window)
        _send(fixture, connection, data.replace(TAG_WORD, TAG))
        unfinished = fixture.resource.active.count
        whole = connection.closed and not connection.aborted
        lost = bool(connection.dataBuffer)
        connection.leave()
        fixture.check_released()
    finally:
        stop()
    assert not log.errors, [event.get("log_text") or event for event in log.errors]
    check_lines(log)
    check_responses(fixture, connection.received, log.requests, whole, unfinished, lost)


def _send(fixture: FuzzFixture, connection: Connection, sent: bytes) -> None:
    piece = fixture.piece or max(1, len(sent))
    for start in range(0, len(sent), piece):
        if not connection.closed:
            connection.send_raw(sent[start : start + piece])
    for _ in range(_MOST_TURNS):
        if connection.closed or fixture.disconnects:
            return
        received = len(connection.received)
        connection.resume()
        if not fixture.work() and len(connection.received) == received:
            return
    raise AssertionError("the connection never becomes idle")


def check_lines(log: Log) -> None:
    """Assert that each event is one printable line, and an access log line has the right format."""
    for event in log.events:
        stream = io.StringIO()
        LineObserver(stream, "debug")(event)
        line = stream.getvalue()
        assert line.count("\n") == 1, line
        assert line[:-1].isprintable(), line
        if "record" in event:
            assert _LINE.fullmatch(line), line


def check_responses(
    fixture: FuzzFixture,
    received: bytes,
    records: list[AccessLogEntry],
    closed: bool,
    unfinished: int,
    lost: bool,
) -> None:
    """Assert that the bytes are one response for each request, and match the log entries.

    Log entries are found by request id. The entry of a request that had to wait follows the entries
    of later requests that were handled immediately.

    :param unfinished: how many requests were in progress when the client left.
    :param lost: whether the client left without the last bytes that were written to it.
    """
    unread = list(records)
    rest = _skip_continue(received)
    for index, method in enumerate(fixture.received_methods):
        last = index == len(fixture.received_methods) - 1
        response = read_response(rest, method, closed)
        if response is None and lost:
            return
        if response is None:
            assert last and not rest, f"no response to request {index}: {rest!r}"
            # The request of a client that left early is logged with 499, but has no response.
            assert unfinished, "a request got no response"
            assert unread.pop().status == 499
            break
        record = _take_record(unread, response)
        assert response.complete or lost or (last and (unfinished or record.error_code)), response
        check_response(fixture, response, method, record)
        rest = _skip_continue(response.rest)
    if rest:
        response = read_response(rest, closed=closed)
        if response is None and lost:
            return
        assert response is not None, rest
        assert response.status == 400, response
        assert response.complete or lost, response
        check_response(fixture, response, b"GET", _take_record(unread, response))
        rest = response.rest
    assert not rest, f"bytes after the last response: {rest!r}"
    assert lost or not unread, f"log entries without a response: {unread}"


def _skip_continue(received: bytes) -> bytes:
    while received.startswith(CONTINUE):
        received = received.removeprefix(CONTINUE)
    return received


def _take_record(unread: list[AccessLogEntry], response: Response) -> AccessLogEntry:
    # A client may send several requests with the same id.
    name = (response["x-request-id"] or b"").decode("ascii")
    found = [each for each in unread if (each.request_id, each.status) == (name, response.status)]
    assert found, f"no log entry of {response}: {unread}"
    unread.remove(found[0])
    return found[0]


def check_response(
    fixture: FuzzFixture, response: Response, method: bytes, record: AccessLogEntry
) -> None:
    """Assert that the status, headers and body of a response fit together and fit its log entry."""
    shared = response["access-control-allow-origin"] is not None
    assert shared == fixture.origin.enabled, response
    assert response.status in STATUSES, response
    assert response["cache-control"], f"no Cache-Control: {response}"
    for name, value in response.headers:
        assert _HEADER_VALUE.fullmatch(name + value), (name, value)
    if method == b"OPTIONS" and response.status == 204:
        assert record.endpoint == "preflight"
    elif method not in (b"GET", b"HEAD"):
        assert response.status == 404, (method, response)
    # A response that failed after its success status was sent must not look complete.
    assert record.error_code is None or response.status >= 400 or not response.complete, response
    assert (response["content-range"] is not None) == (response.status in (206, 416)), response
    length, bodiless = response["content-length"], method == b"HEAD" or response.status in BODILESS
    if bodiless:
        assert not response.body
        assert record.sent == 0, record
    elif response.complete:
        assert length is None or int(length) == len(response.body), response
        assert record.sent == len(response.body), (record, response)
    if response.status == 206 and response.complete:
        first, last, size = map(int, re.split(rb"[ /-]", response["content-range"] or b"")[1:])
        assert (last, size) == (first + len(response.body) - 1, len(VARIANT)), response
        assert response.body == VARIANT[first : last + 1], response
    if response.status in BODILESS:
        assert response["content-type"] is None
    elif response.status < 400:
        assert response["content-type"] not in (None, b"text/html"), response
    else:
        _check_refused(response, bodiless, record)


def _check_refused(response: Response, bodiless: bool, record: AccessLogEntry) -> None:
    assert (response.status, record.error_code) in CODES, record
    assert response["content-type"] == b"application/json", response
    if response.complete and not bodiless:
        assert response.error == record.error_code, response
        check_message(response.document["message"])
    for name in ("etag", "x-audio-proxy", "accept-ranges", "content-disposition"):
        assert response[name] is None, f"{name} of a variant on a refusal: {response}"
    assert (response["retry-after"] is not None) == (response.status == 429), response
