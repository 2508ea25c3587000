"""The in-memory HTTP client that other tests use."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from twisted.web.static import Data

from audioproxy.variants.headers import VariantHeaders
from tests.support.http import Connection, FakeStored, Malformed, read_response

OK = b"HTTP/1.1 200 OK\r\n"


class ReadResponseTests(SynchronousTestCase):
    """`read_response`"""

    def test_no_headers_yet(self) -> None:
        """Without complete headers there is no response yet."""
        for data in (b"", b"HTTP/1.1 200", OK + b"A: b\r\n"):
            self.assertIsNone(read_response(data))

    def test_length(self) -> None:
        """A body ends at its Content-Length; later bytes are not a part of it."""
        data = OK + b"Content-Length: 3\r\n\r\nabcd"
        response = read_response(data)
        assert response is not None
        self.assertEqual((b"abc", True, b"d"), (response.body, response.complete, response.rest))
        short = read_response(data[:-2])
        self.assertFalse(short is None or short.complete)

    def test_chunks(self) -> None:
        """A chunked body is complete only with its last chunk."""
        data = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\na\r\n0123456789\r\n0\r\n\r\nx"
        response = read_response(data)
        assert response is not None
        self.assertEqual(
            (b"ab0123456789", True, b"x"), (response.body, response.complete, response.rest)
        )
        for cut in range(data.index(b"2\r\nab"), len(data) - 1):
            partial = read_response(data[:cut], closed=True)
            self.assertFalse(partial is None or partial.complete, data[:cut])

    def test_close(self) -> None:
        """A body without Content-Length or chunks ends with a clean close of the connection."""
        data = OK + b"\r\nabc"
        for closed in (True, False):
            response = read_response(data, closed=closed)
            assert response is not None
            self.assertEqual((b"abc", closed), (response.body, response.complete))

    def test_no_body(self) -> None:
        """Responses to HEAD, and with status 204 or 304, have no body, whatever their headers."""
        for method, status in ((b"HEAD", b"200"), (b"GET", b"204"), (b"GET", b"304")):
            data = b"HTTP/1.1 " + status + b" X\r\nContent-Length: 3\r\n\r\n"
            response = read_response(data + b"more", method)
            assert response is not None
            self.assertEqual(
                (b"", True, b"more"), (response.body, response.complete, response.rest)
            )

    def test_malformed(self) -> None:
        """A malformed response raises an error."""
        for data in (
            b"junk\r\n\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            OK + b"no colon\r\n\r\n",
            OK + b"Name : x\r\n\r\n",
            OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc",
        ):
            self.assertRaises(Malformed, read_response, data)

    def test_headers(self) -> None:
        """Header names are case-insensitive; reading a repeated header as one raises an error."""
        response = read_response(OK + b"A: 1\r\nB: 2\r\nb:3\r\n\r\n")
        assert response is not None
        self.assertEqual(b"1", response["a"])
        self.assertIsNone(response["c"])
        self.assertEqual([b"2", b"3"], response.all("B"))
        self.assertRaises(Malformed, lambda: response["b"])
        self.assertRaises(Malformed, lambda: response.document)


class ConnectionTests(SynchronousTestCase):
    """`Connection` with Twisted's own resources."""

    def test_request(self) -> None:
        """A request reaches a site with its method and headers, and gets a response."""
        root = Resource()
        root.putChild(b"", Data(b"hello", "text/plain"))
        connection = Connection(Site(root, timeout=None))
        connection.send(b"/", b"HEAD", if_none_match=[b"a", b"b"])
        self.assertEqual((200, b""), (connection.response.status, connection.response.body))
        self.assertEqual(b"5", connection.response["content-length"])
        self.assertFalse(connection.closed)

    def test_close_and_abort(self) -> None:
        """A clean close and an abort are distinguished; the request is notified of both."""
        for abort in (True, False):
            heard: list[object] = []
            connection = Connection(Site(_Ending(abort, heard), timeout=None))
            connection.send(b"/", version=b"HTTP/1.0")
            self.assertTrue(connection.closed)
            self.assertEqual(abort, connection.aborted)
            self.assertEqual(not abort, connection.response.complete)
            self.assertEqual(1, len(heard))

    def test_leave(self) -> None:
        """The request is notified when the client leaves."""
        heard: list[object] = []
        connection = Connection(Site(_Ending(None, heard), timeout=None))
        connection.send(b"/")
        connection.leave()
        self.assertEqual(1, len(heard))

    def test_read_after_close(self) -> None:
        """Reading a fake stored variant after its close raises ValueError."""
        stored = FakeStored(b"abc", VariantHeaders("audio/mpeg", "")).open()
        self.assertEqual(b"bc", stored.read(1, 9))
        stored.close()
        self.assertRaises(ValueError, stored.read, 0, 1)

    def test_presigned(self) -> None:
        """The presigned URL of a fake stored variant contains its lifetime."""
        stored = FakeStored(b"abc", VariantHeaders("audio/mpeg", ""))
        stored.url = "https://store.example/key"
        self.assertEqual("https://store.example/key?expires=5", stored.presign(5))


class _Ending(Resource):
    """Resource that sends a few bytes and then finishes, aborts, or leaves the request open."""

    isLeaf = True

    def __init__(self, abort: bool | None, heard: list[object]) -> None:
        Resource.__init__(self)
        self._abort = abort
        self._heard = heard

    def render(self, request: object) -> int:
        """Send a few bytes, and end the request as configured."""
        request.notifyFinish().addBoth(self._heard.append)  # type: ignore[attr-defined]
        request.write(b"abc")  # type: ignore[attr-defined]
        if self._abort:
            request.channel.transport.abortConnection()  # type: ignore[attr-defined]
        elif self._abort is not None:
            request.finish()  # type: ignore[attr-defined]
        return NOT_DONE_YET
