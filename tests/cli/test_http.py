"""GET requests of the commands."""

from __future__ import annotations

from audioproxy.cli.http import get
from audioproxy.http_client.client import USER_AGENT, Response
from audioproxy.http_client.errors import TransportError
from tests.support.wire import ClientCase, reply

URL = "http://audio.test/s/a[1]|%2f;"


class GetTests(ClientCase):
    """The function `get`."""

    def get(self, *packets: bytes) -> Response:
        """Return the response of a server that sends these packets."""
        self.network.scripts.append(packets)
        return self.result_of(get(self.client, self.network, URL))

    def test_request(self) -> None:
        """The URL is sent unchanged, with User-Agent and without Accept-Encoding.

        Cookies are not sent back.
        """
        for _ in range(2):
            self.result_of(self.get(reply(200, headers={"Set-Cookie": "a=b"})).discard())
            request = self.network.requests[-1]
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

    def test_unreachable(self) -> None:
        """A host without an address raises TransportError."""
        self.network.unknown.add("audio.test")
        self.error_of(get(self.client, self.network, URL), TransportError)
