"""CORS headers of responses and preflights; without AP_ALLOW_ORIGIN there are none."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from audioproxy.web.cors import Cors


class CorsTests(SynchronousTestCase):
    """`Cors`"""

    def test_headers(self) -> None:
        """With an origin, every response has it, and exposes headers (CORS, 1 and 2).

        With ``*`` no Vary is sent, since the headers do not depend on the request. Values of Vary
        that an embedding application has set are kept.
        """
        exposed = {
            b"access-control-expose-headers": [b"x-audio-proxy, retry-after, accept-ranges, etag"]
        }
        named = b"https://player.example"
        vary = {b"vary": [b"Accept-Encoding"]}
        for origin, before, expected in (
            (None, {}, {}),
            ("*", {}, {b"access-control-allow-origin": [b"*"], **exposed}),
            (
                named.decode(),
                vary,
                {
                    b"access-control-allow-origin": [named],
                    b"vary": [b"Accept-Encoding", b"Origin"],
                    **exposed,
                },
            ),
        ):
            headers = Headers(before)
            Cors(origin).add_to(headers)
            added = {name.lower(): values for name, values in headers.getAllRawHeaders()}
            self.assertEqual(expected, added)
            self.assertIs(origin is not None, Cors(origin).enabled)

    def test_preflight(self) -> None:
        """A preflight allows GET, HEAD and the requested headers, if any, for a day (CORS, 3)."""
        response = Cors("*").preflight(b"range, x-request-id")
        self.assertEqual(b"GET, HEAD", response[b"access-control-allow-methods"])
        self.assertEqual(b"86400", response[b"access-control-max-age"])
        self.assertEqual(b"range, x-request-id", response[b"access-control-allow-headers"])
        self.assertNotIn(b"access-control-allow-headers", Cors("*").preflight(None))
