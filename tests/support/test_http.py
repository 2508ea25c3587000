"""The in-memory HTTP client that other tests use."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.support.http import Malformed, ResponseReader, read_response

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
