"""Cross-origin headers, where an origin is configured (CORS)."""

from __future__ import annotations

from twisted.web.http_headers import Headers

# Those of the contract (CORS, 2), and those that players and reports of errors need (D76).
_EXPOSED = (
    b"x-audio-proxy, retry-after, accept-ranges, etag, content-range, content-length,"
    b" content-disposition, x-request-id"
)


class Cors:
    """The CORS headers of responses, for one configured origin, for ``*``, or for none."""

    def __init__(self, origin: str | None) -> None:
        self.enabled = origin is not None
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        if origin is not None:
            self.headers = (
                (b"access-control-allow-origin", origin.encode("ascii")),
                (b"access-control-expose-headers", _EXPOSED),
                # A page with `Cross-Origin-Embedder-Policy: require-corp` plays audio without the
                # attribute `crossorigin` only if each response, redirects included, has this.
                (b"cross-origin-resource-policy", b"cross-origin"),
                *(((b"vary", b"Origin"),) if origin != "*" else ()),
            )

    def add_to(self, headers: Headers) -> None:
        for name, value in self.headers:
            if name == b"vary":
                headers.addRawHeader(name, value)
            else:
                headers.setRawHeaders(name, [value])

    def preflight(self, requested: bytes | None) -> dict[bytes, bytes]:
        response_headers = {
            b"access-control-allow-methods": b"GET, HEAD",
            b"access-control-max-age": b"86400",
            b"cache-control": b"no-store",
        }
        if requested is not None:
            response_headers[b"access-control-allow-headers"] = requested
        return response_headers
