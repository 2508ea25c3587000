"""Cross-origin headers, where an origin is configured (CORS)."""

from __future__ import annotations

from twisted.web.http_headers import Headers

_EXPOSED = b"x-audio-proxy, retry-after, accept-ranges, etag"
_METHODS = b"GET, HEAD"
_MAX_AGE = b"86400"


class Cors:
    """The CORS headers of responses, for one configured origin, for ``*``, or for none."""

    def __init__(self, origin: str | None) -> None:
        self._origin = None if origin is None else origin.encode("ascii")

    @property
    def enabled(self) -> bool:
        """Whether OPTIONS requests are answered."""
        return self._origin is not None

    def headers(self) -> dict[bytes, bytes]:
        """Return the headers of every response."""
        if self._origin is None:
            return {}
        return {
            b"access-control-allow-origin": self._origin,
            b"access-control-expose-headers": _EXPOSED,
            **({b"vary": b"Origin"} if self._origin != b"*" else {}),
        }

    def add_to(self, headers: Headers) -> None:
        """Add these headers to those that an application may have set before."""
        for name, value in self.headers().items():
            if name == b"vary":
                headers.addRawHeader(name, value)
            else:
                headers.setRawHeaders(name, [value])

    def preflight(self, requested: bytes | None) -> dict[bytes, bytes]:
        """Return the headers of a response to OPTIONS.

        :param requested: the value of Access-Control-Request-Headers.
        """
        response_headers = {
            b"access-control-allow-methods": _METHODS,
            b"access-control-max-age": _MAX_AGE,
            b"cache-control": b"no-store",
        }
        if requested is not None:
            response_headers[b"access-control-allow-headers"] = requested
        return response_headers
