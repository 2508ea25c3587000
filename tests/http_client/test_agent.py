"""`ExactUrlAgent`, the Twisted agent that treq's client uses."""

from __future__ import annotations

from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.web.client import readBody
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent
from zope.interface.verify import verifyObject

from tests.support.wire import ClientCase, reply


class ExactUrlTests(ClientCase):
    """The requests that `ExactUrlAgent` sends"""

    def get(self, url: str, seen: str = "http://other.test/") -> Deferred[object]:
        """Start a treq request for ``seen`` through an agent that requests ``url``."""
        client = HTTPClient(self.client.agent(url))
        answered = client.get(
            seen,
            headers=Headers({"x-test": ["1"]}),
            unbuffered=True,
            allow_redirects=False,
            reactor=self.network,
        )
        self.network.run()
        return answered

    def test_byte_for_byte(self) -> None:
        """Characters and hosts that treq or Twisted would encode or reject are sent unchanged."""
        targets = "/a[1] /a|b /a;b; /a; /%2f%2F //a/../b/./c /a%zz% /?q=[|]&r=%2f; /a?".split()
        for target in targets:
            url = f"http://my_service:4000{target}"
            for seen in ("http://other.test/", url.replace("_", "-")):
                self.network.scripts.append(reply(200))
                self.successResultOf(self.get(url, seen))
                request = self.network.requests[-1]
                self.assertEqual(("GET", target), (request.method, request.target))
                self.assertEqual("my_service:4000", request.headers["host"])
                self.assertEqual("1", request.headers["x-test"])

    def test_no_encoding(self) -> None:
        """Requests have no Accept-Encoding, and a gzip body is passed on undecoded."""
        self.network.scripts.append(reply(200, b"\x1f\x8b", {"Content-Encoding": "gzip"}))
        response = self.successResultOf(self.get("http://audio.test/"))
        self.assertNotIn("accept-encoding", self.network.requests[-1].headers)
        self.assertEqual(b"\x1f\x8b", self.successResultOf(readBody(response)))

    def test_cancelled(self) -> None:
        """A request cancelled while connecting or waiting fails with CancelledError.

        An open connection is closed.
        """
        silent = self.get("http://audio.test/")
        self.network.silent = True
        connecting = self.get("http://other.test/")
        for answered in (silent, connecting):
            answered.cancel()
            self.failureResultOf(answered, CancelledError)
        self.network.run()
        self.assertEqual([True], [peer.closed for peer in self.network.peers])

    def test_interface(self) -> None:
        """The agent implements Twisted's IAgent, in which headers are optional."""
        agent = self.client.agent("http://audio.test/a;")
        self.assertTrue(verifyObject(IAgent, agent))
        self.network.scripts.append(reply(200))
        answered = agent.request(b"GET", b"http://audio.test/a")
        self.network.run()
        self.assertEqual(200, self.successResultOf(answered).code)
        self.assertEqual("/a;", self.network.requests[-1].target)
