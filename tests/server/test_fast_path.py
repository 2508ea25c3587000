"""The fast path: same bytes, metrics and access log lines as the ordinary path."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.web.metrics_resource import exposition
from tests.support.http import NOW, Connection, Log, ResourceHarness, key_of, write_request
from tests.support.strategies import DETERMINISTIC

PATH = b"/f:mp3/plain/local://a.mp3"
TAG = b'"' + key_of(PATH).encode() + b'"'
DATA = bytes(range(256)) * 3
_DATE = re.compile(rb"\r\nDate: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n")
_OUR_ID = re.compile(rb"(?<=\r\nX-Request-Id: )[0-9a-f]{32}(?=\r\n)")
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

#: Headers of requests that the fast path serves if the variant is stored.
COMMON: tuple[dict[str, bytes | list[bytes]], ...] = (
    {},
    {"X-Request-Id": b"theirs"},
    {"x-request-id": b"no good id"},
    {"Traceparent": TRACE},
    {"x-request-id": b"no good id", "Traceparent": b" " + TRACE + b"\t"},
    {"Traceparent": TRACE.upper()},
    {"If-None-Match": TAG},
    {"If-None-Match": b'W/"x", ' + TAG},
    {"If-None-Match": b"*"},
    {"If-None-Match": TAG, "Range": b"bytes=0-3"},
    {"Range": b"bytes=1-3"},
    {"RANGE": b"bytes=-4"},
    {"Range": b"bytes=5-"},
    {"Range": b"bytes=768-"},
    {"Range": b"bytes=1-2,4-5"},
    {"Range": b"lines=1-2"},
    {"Range": b"bytes=1-3", "If-Range": TAG},
    {"Range": b"bytes=1-3", "If-Range": b'"other"'},
    {"If-Range": TAG},
    {"Range": b"bytes=1-3", "If-Range": b"Fri, 15 Jan 2027 07:59:00 GMT"},
    {"Range": b"bytes=1-3", "If-Range": b"Fri, 15 Jan 2027 07:59:01 GMT"},
    {"If-Modified-Since": b"Fri, 15 Jan 2027 07:59:00 GMT"},
    {"X-Audio-Proxy-Lane": b"low"},
    {"Connection": b"Keep-Alive", "Accept": b"*/*", "User-Agent": b"a (b; c) d/1.0"},
)

#: Headers of requests that the fast path never serves.
UNCOMMON: tuple[dict[str, bytes | list[bytes]], ...] = (
    {"Connection": b"close"},
    {"Connection": b"upgrade", "Upgrade": b"h2c"},
    {"Content-Length": b"0"},
    {"Expect": b"100-continue", "Content-Length": b"0"},
    {"Range": [b"bytes=0-1", b"bytes=2-3"]},
    {"If-None-Match": [b'"a"', TAG]},
    {"X-Request-Id": [b"one", b"two"]},
    {"Traceparent": [TRACE, TRACE]},
    {"X-Odd": b"\xff"},
    {f"X-{number}": b"1" for number in range(80)},
    {"X-Long": b"x" * 8192},
)


def comparable(response: bytes) -> bytes:
    """Return a response with fixed values in place of its Date and its generated request id."""
    return _OUR_ID.sub(b"ours", _DATE.sub(b"\r\nDate\r\n", response))


class FastPathCase(SynchronousTestCase):
    """Two services with the same stored variant, without and with the fast path."""

    def setUp(self) -> None:
        self.harnesses = self.build()

    def build(self, **options: Any) -> tuple[ResourceHarness, ResourceHarness]:
        """Return two services, without and with the fast path; both have verified the path."""
        plain, fast = ResourceHarness(**options), ResourceHarness(fast=True, **options)
        for harness in (plain, fast):
            harness.store_variant(PATH, DATA, stored=NOW - 60)
            harness.fetch_signed(PATH)
            harness.calls.clear()
        return plain, fast

    def raw(self, harness: ResourceHarness, path: bytes = PATH, **headers: Any) -> Connection:
        """Send one request and return the connection."""
        connection = harness.connect()
        connection.send(harness.path(path), **headers)
        return connection

    def assert_same(
        self, harnesses: tuple[ResourceHarness, ResourceHarness], path: bytes = PATH, **headers: Any
    ) -> list[str]:
        """Assert that responses, metrics and access log lines are the same, but for request ids.

        :returns: the methods that the fast path's service called.
        """
        plain, fast = harnesses
        responses, records = [], []
        for harness in harnesses:
            log = Log()
            stop = log.start()
            responses.append(comparable(self.raw(harness, path, **headers).received))
            stop()
            records.append([record[1:] for record in log.requests])
        self.assertEqual(*responses)
        self.assertEqual(*records)
        self.assertEqual(len(records[0]), 1)
        self.assertEqual(exposition(plain.metrics.registry), exposition(fast.metrics.registry))
        return fast.called_methods()


class SameTests(FastPathCase):
    """Requests that the fast path serves."""

    def test_answers(self) -> None:
        """Status, headers in order, body, metrics and log are the ordinary path's (Request log)."""
        for headers in COMMON:
            self.assertNotIn("lookup", self.assert_same(self.harnesses, **headers), headers)

    def test_other_configurations(self) -> None:
        """With CORS, a tag for caches, ``dl`` or ``exp``, the fast path sends the same response."""
        tagged = {"cache_tag": CacheTagHeader("cache-tag", b"salt")}
        configurations: tuple[tuple[dict[str, Any], bytes], ...] = (
            ({"origin": "*"}, PATH),
            ({"origin": "https://app.example"}, PATH),
            (tagged, PATH),
            ({}, b"/dl:x.mp3" + PATH),
            (tagged, b"/exp:%d" % (NOW + 100) + PATH),
        )
        for options, path in configurations:
            harnesses = self.build(**options)
            for harness in harnesses:
                harness.store_variant(path, DATA)
                harness.fetch_signed(path)
                harness.calls.clear()
            self.assertEqual(["read_small"], self.assert_same(harnesses, path))

    def test_in_turn(self) -> None:
        """One connection can use the fast path and the ordinary path in turn."""
        _, fast = self.harnesses
        connection = fast.connect()
        for headers in (*COMMON, *UNCOMMON[2:3], *COMMON):
            before = len(connection.received)
            connection.send(fast.path(PATH), **headers)
            self.assertRegex(connection.received[before:], rb"^HTTP/1\.1 (200|206|304|416) ")
        self.assertFalse(connection.closed)


class OrdinaryPathTests(FastPathCase):
    """Requests that the fast path leaves to the ordinary path."""

    def test_uncommon(self) -> None:
        """Requests with unusual headers take the ordinary path and get the same response."""
        for headers in UNCOMMON:
            self.assertEqual("lookup", self.assert_same(self.harnesses, **headers)[-1], headers)

    def test_split_and_pipelined_requests(self) -> None:
        """Split requests and pipelined requests get the same response with the fast path."""
        for harness in self.harnesses:
            request = write_request(harness.path(PATH), x_request_id=b"a")
            whole = len(self.raw(harness, **{"X-Request-Id": b"a"}).received)
            for at in (1, 10, len(request) - 3, len(request) - 1):
                connection = harness.connect()
                connection.send_raw(request[:at])
                connection.send_raw(request[at:])
                self.assertEqual(len(connection.received), whole)
            twice = harness.connect()
            twice.send_raw(request * 2)
            harness.connection_clock.advance(0)
            self.assertEqual(len(twice.received), 2 * whole)

    def test_other_forms(self) -> None:
        """Other methods, versions, target forms and malformed requests take the ordinary path."""
        path = self.harnesses[0].path(PATH)
        for request in (
            b"HEAD %s HTTP/1.1\r\nHost: h\r\n\r\n" % path,
            b"GET %s HTTP/1.0\r\nHost: h\r\n\r\n" % path,
            b"GET %s?x HTTP/1.1\r\nHost: h\r\n\r\n" % path,
            b"GET http://h%s HTTP/1.1\r\nHost: h\r\n\r\n" % path,
            b"GET %s HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n" % path,
            b"GET %s HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n" % path,
            b"GET %s HTTP/1.1\nHost: h\nA: b\n\n" % path,
            b"GET %s HTTP/1.1\r\nHost: h\r\nA\r\n\r\n" % path,
            b"GET  %s HTTP/1.1\r\nHost: h\r\n\r\n" % path,
            b"GET %s HTTP/2.0\r\nHost: h\r\n\r\n" % path,
            b"OPTIONS %s HTTP/1.1\r\nHost: h\r\n\r\n" % path,
        ):
            self.assert_same_bytes(request)
            self.assertNotIn("read_small", self.harnesses[1].called_methods(), request)

    def assert_same_bytes(self, request: bytes) -> None:
        """Assert that any bytes get the same response with and without the fast path."""
        responses = []
        for harness in self.harnesses:
            connection = harness.connect()
            connection.send_raw(request)
            harness.connection_clock.advance(0)
            responses.append((comparable(connection.received), connection.closed))
        self.assertEqual(*responses, request)

    def test_expired(self) -> None:
        """An expired URL is a 410, even if it was served on the fast path before (D14)."""
        path = b"/exp:%d" % (NOW + 1) + PATH
        _, fast = self.harnesses
        fast.store_variant(path, DATA)
        statuses = []
        for now in (NOW, NOW, NOW + 2.0, NOW + 2.0):
            fast.now = now
            statuses.append(fast.fetch_signed(path).status)
        self.assertEqual(statuses, [200, 200, 410, 410])

    def test_stores(self) -> None:
        """Without a store or its variant, and during shutdown, requests take the ordinary path."""
        harness = ResourceHarness(fast=True, has_store=False)
        connection = harness.connect()
        connection.send(harness.path(PATH))
        harness.render(PATH).write_output(DATA)
        harness.render(PATH).end()
        self.assertEqual(harness.called_methods(), ["join"])
        self.assertEqual(harness.fetch_signed(PATH, if_none_match=TAG).status, 304)
        _, fast = self.harnesses
        open_connection = fast.connect()
        fast.site.stopping = True
        open_connection.send(fast.path(PATH))
        self.assertEqual(open_connection.response["connection"], b"close")
        fast.site.stopping = False
        fast.calls.clear()
        fast.store.stored.clear()
        fast.connect().send(fast.path(PATH))
        self.assertEqual(fast.called_methods(), ["read_small", "lookup", "join"])

    def test_a_client_that_takes_nothing(self) -> None:
        """The fast path makes no response while the client does not read earlier ones."""
        _, fast = self.harnesses
        connection = fast.connect()
        connection.pause()
        for _ in range(3):
            connection.send(fast.path(PATH))
        self.assertNotIn("read_small", fast.called_methods())

    @DETERMINISTIC
    @given(st.binary(max_size=60), st.binary(max_size=20), st.integers(0, 200))
    def test_arbitrary_bytes(self, noise: bytes, more: bytes, at: int) -> None:
        """Arbitrary bytes get the same response with and without the fast path."""
        request = b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % self.harnesses[0].path(PATH)
        self.assert_same_bytes(request[:at] + noise + request[at:] + more)


class SendTests(FastPathCase):
    """Sending of responses on the fast path."""

    def test_partly_sent(self) -> None:
        """Bytes that the socket does not accept at once are sent later, without loss."""
        _, fast = self.harnesses
        expected = comparable(self.raw(fast).received)
        for taken in (0, 1, 100, BlockingIOError(), ConnectionResetError()):
            wire = _PartialTransport(taken)
            channel = fast.site.buildProtocol(None)
            channel.makeConnection(wire)
            channel.is_plain_tcp = True
            channel.dataReceived(b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" % fast.path(PATH))
            self.assertEqual(1, wire.attempts)
            self.assertEqual(comparable(wire.taken + wire.value()), expected)


class _PartialTransport(StringTransport):
    """Transport whose socket accepts some bytes at once, or fails."""

    def __init__(self, taking: int | Exception) -> None:
        super().__init__()
        self.taking = taking
        self.taken = b""
        self.attempts = 0

    def getHandle(self) -> _PartialTransport:
        """Return the socket."""
        return self

    def send(self, data: bytes) -> int:
        """Accept the first bytes."""
        self.attempts += 1
        if isinstance(self.taking, Exception):
            raise self.taking
        self.taken = data[: self.taking]
        return self.taking
