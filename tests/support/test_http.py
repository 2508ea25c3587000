"""The in-memory HTTP client that other tests use."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.support.http import Malformed, ResponseReader, read_response

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 3\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class ReadResponseTests(SynchronousTestCase):
    """`read_response`: what it adds to h11"""

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
