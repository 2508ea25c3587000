"""CORS headers of responses and preflights; without AP_ALLOW_ORIGIN there are none."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from audioproxy.web.cors import Cors


class CorsTests(SynchronousTestCase):
    """`Cors`"""

    def added(self, origin: str | None) -> dict[bytes, list[bytes]]:
        """Return the headers that are added to a response without headers."""
        headers = Headers()
        Cors(origin).add_to(headers)
        return {name.lower(): values for name, values in headers.getAllRawHeaders()}

    def test_without_an_origin(self) -> None:
        """Without AP_ALLOW_ORIGIN, no header is added and CORS is disabled (CORS, 1)."""
        self.assertEqual({}, self.added(None))
        self.assertFalse(Cors(None).enabled)

    def test_any_origin(self) -> None:
        """With ``*``, no Vary is sent, since the headers do not depend on the request (CORS, 2)."""
        self.assertEqual(
            {
                b"access-control-allow-origin": [b"*"],
                b"access-control-expose-headers": [
                    b"x-audio-proxy, retry-after, accept-ranges, etag"
                ],
            },
            self.added("*"),
        )

    def test_one_origin(self) -> None:
        """A named origin is sent as configured, with ``Vary: Origin`` (CORS, 2)."""
        added = self.added("https://player.example")
        self.assertEqual([b"https://player.example"], added[b"access-control-allow-origin"])
        self.assertEqual([b"Origin"], added[b"vary"])

    def test_other_vary_is_kept(self) -> None:
        """Values of Vary that an embedding application has set are kept."""
        headers = Headers({b"vary": [b"Accept-Encoding"]})
        Cors("https://player.example").add_to(headers)
        self.assertEqual([b"Accept-Encoding", b"Origin"], headers.getRawHeaders(b"vary"))

    def test_preflight(self) -> None:
        """A preflight allows GET, HEAD and the requested headers for a day (CORS, 3)."""
        response = Cors("*").preflight(b"range, x-request-id")
        self.assertEqual(b"GET, HEAD", response[b"access-control-allow-methods"])
        self.assertEqual(b"86400", response[b"access-control-max-age"])
        self.assertEqual(b"range, x-request-id", response[b"access-control-allow-headers"])

    def test_preflight_for_no_headers(self) -> None:
        """A preflight without requested headers allows none."""
        self.assertNotIn(b"access-control-allow-headers", Cors("*").preflight(None))
