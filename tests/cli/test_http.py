"""GET requests of the commands."""

from __future__ import annotations

from audioproxy.cli.http import get
from audioproxy.http_client.client import USER_AGENT, Response
from audioproxy.http_client.errors import TransportError
from tests.support.wire import ClientCase, Peer, chunk, reply, reply_without_length

URL = "http://audio.test/s/a[1]|%2f;"


class GetTests(ClientCase):
    """The function `get`."""

    def get(self, *packets: bytes) -> Response:
        """Return the response of a server that sends these packets."""
        self.network.scripts.append(packets)
        return self.result_of(get(self.client, self.network, URL))

    def test_request(self) -> None:
        """The URL is sent unchanged, with User-Agent and without Accept-Encoding."""
        self.get(reply(200))
        (request,) = self.network.requests
        self.assertEqual("/s/a[1]|%2f;", request.target)
        self.assertEqual({"host", "user-agent"}, set(request.headers))
        self.assertEqual(USER_AGENT, request.headers["user-agent"])

    def test_response(self) -> None:
        """Status, headers and body are the server's, and redirects are not followed."""
        for status in (200, 302, 404):
            response = self.get(reply(status, b"body", {"Location": "http://other.test/"}))
            self.assertEqual(status, response.status)
            self.assertEqual("http://other.test/", response.header("location"))
            self.assertEqual(b"body", self.result_of(response.read(10)))
        self.assertEqual(["audio.test"], self.network.names)

    def test_cookies(self) -> None:
        """Cookies are not sent back."""
        for _ in range(2):
            self.result_of(self.get(reply(200, headers={"Set-Cookie": "a=b"})).discard())
        self.assertNotIn("cookie", self.network.requests[-1].headers)

    def test_truncated(self) -> None:
        """A truncated body raises TransportError, however the connection ends."""
        chunked = reply_without_length(200, headers={"Transfer-Encoding": "chunked"})
        for packets in ((reply(200, b"he", length=5),), (chunked, chunk(b"he"))):
            for end in (Peer.close, Peer.reset):
                response = self.get(*packets)
                reading = self.begin(response.read(10))
                end(self.network.peers[-1])
                self.network.run()
                self.assertIsInstance(self.failureResultOf(reading).value, TransportError)

    def test_timeout(self) -> None:
        """A server that sends no headers before the timeout raises TransportError."""
        waiting = self.begin(get(self.client, self.network, URL, 3))
        self.network.advance(2.9)
        self.assertNoResult(waiting)
        self.network.advance(0.1)
        self.assertEqual("no response in time", str(self.exactly(waiting, TransportError)))

    def test_unreachable(self) -> None:
        """A host without an address raises TransportError."""
        self.network.unknown.add("audio.test")
        self.error_of(get(self.client, self.network, URL), TransportError)
