"""The in-memory HTTP client that other tests use."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from tests.support.http import Connection, Malformed, ResponseReader, read_response

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 3\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class ReadResponseTests(SynchronousTestCase):
    """`read_response`: what it adds to h11"""

    def test_bodies(self) -> None:
        """The body, its completeness and the bytes after it follow from framing and method."""
        chunks = CHUNKED + b"2\r\nab\r\na\r\n0123456789\r\n0\r\n\r\n"
        no_content = LENGTH.replace(b"200", b"204")
        for data, method, closed, expected in (
            (LENGTH + b"abcd", b"GET", False, (b"abc", True, b"d")),
            (LENGTH + b"ab", b"GET", True, (b"ab", False, b"")),
            (chunks + b"x", b"GET", False, (b"ab0123456789", True, b"x")),
            (OK + b"\r\nabc", b"GET", True, (b"abc", True, b"")),
            (OK + b"\r\nabc", b"GET", False, (b"abc", False, b"")),
            (LENGTH + b"more", b"HEAD", False, (b"", True, b"more")),
            (no_content + b"more", b"GET", False, (b"", True, b"more")),
            (no_content.replace(b"204", b"304") + b"m", b"GET", False, (b"", True, b"m")),
            (b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH, b"GET", False, (b"", True, LENGTH)),
        ):
            response = read_response(data, method, closed)
            assert response is not None, data
            found = (response.body, response.complete, response.rest)
            self.assertEqual(expected, found, (data, method, closed))

    def test_cuts(self) -> None:
        """Without complete headers there is no response; without the last byte it is incomplete."""
        data = CHUNKED + b"2\r\nab\r\n0\r\n\r\n"
        reader = ResponseReader()
        for at in range(len(data)):
            for response in (read_response(data[:at], closed=True), reader.response(closed=True)):
                self.assertEqual(response is None, at < len(CHUNKED), data[:at])
                self.assertFalse(response is not None and response.complete, data[:at])
            reader.feed(data[at : at + 1])
        self.assertEqual(read_response(data), reader.response())

    def test_malformed(self) -> None:
        """A malformed response raises an error, also if it is read again."""
        for data in (
            b"junk\r\n\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.2 200 OK\r\n\r\n",
            OK + b"no colon\r\n\r\n",
            OK + b"Name : x\r\n\r\n",
            OK + b"A: b\nC: d\r\n\r\n",
            OK + b"A: b\r\n c\r\n\r\n",
            OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            OK + b"Content-Length: 1\r\nA: b\r\ncontent-length: 1\r\n\r\n",
            CHUNKED + b"1\r\nabc",
        ):
            reader = ResponseReader()
            for part in (data, b""):
                self.assertRaises(Malformed, reader.feed, part)

    def test_headers(self) -> None:
        """Header names are case-insensitive; reading a repeated header as one raises an error."""
        response = read_response(b"HTTP/1.0 404 Not  Here\r\nA: 1\r\nB: 2\r\nb:3\r\n\r\n")
        assert response is not None
        self.assertEqual((b"HTTP/1.0", b"Not  Here"), (response.version, response.reason))
        self.assertEqual((b"1", None), (response["a"], response["c"]))
        self.assertEqual([b"2", b"3"], response.all("B"))
        self.assertRaises(Malformed, lambda: response["b"])
        self.assertRaises(Malformed, lambda: response.document)


class ConnectionTests(SynchronousTestCase):
    """`Connection` with Twisted's own resources."""

    def test_request(self) -> None:
        """A request reaches a site with its method and headers, and gets a response."""
        ending = _Ending(None)
        connection = Connection(Site(ending, timeout=None))
        connection.send(b"/", b"HEAD", if_none_match=[b"a", b"b"])
        (request,) = ending.requests
        self.assertEqual(b"HEAD", request.method)
        self.assertEqual([b"a", b"b"], request.requestHeaders.getRawHeaders(b"if-none-match"))
        self.assertEqual((200, b""), (connection.response.status, connection.response.body))
        self.assertFalse(connection.closed)

    def test_ends(self) -> None:
        """A clean close, an abort and a leaving client are told apart; the request hears of it."""
        for abort in (True, False, None):
            ending = _Ending(abort)
            connection = Connection(Site(ending, timeout=None))
            connection.send(b"/", version=b"HTTP/1.0")
            if abort is None:
                self.assertEqual((False, 0), (connection.closed, len(ending.heard)))
                connection.leave()
            self.assertTrue(connection.closed)
            self.assertEqual(bool(abort), connection.aborted)
            self.assertEqual(not abort, connection.response.complete)
            self.assertEqual(1, len(ending.heard))


class _Ending(Resource):
    """Resource that sends a few bytes and then finishes, aborts, or leaves the request open."""

    isLeaf = True

    def __init__(self, abort: bool | None) -> None:
        Resource.__init__(self)
        self._abort = abort
        self.requests: list[object] = []
        self.heard: list[object] = []

    def render(self, request: object) -> int:
        """Send a few bytes, and end the request as configured."""
        self.requests.append(request)
        request.notifyFinish().addBoth(self.heard.append)  # type: ignore[attr-defined]
        request.write(b"abc")  # type: ignore[attr-defined]
        if self._abort:
            request.channel.transport.abortConnection()  # type: ignore[attr-defined]
        elif self._abort is not None:
            request.finish()  # type: ignore[attr-defined]
        return NOT_DONE_YET
