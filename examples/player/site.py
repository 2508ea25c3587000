"""The application: a page with what belongs to it, and the service below /audio.

It signs whatever it is asked to, so it must not be reachable for anybody but the person in front
of the machine: it is bound to the loopback address, and answers to the loopback's names only.
Otherwise any page on the web could give its own name the address 127.0.0.1 and ask from within.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic

from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site
from twisted.web.static import File

from audioproxy.urls import InvalidOptions, Refusal, Signer
from examples.player.signing import describe_formats, sign
from examples.player.sources import list_sources

HERE = Path(__file__).parent
PAGE = HERE / "page"
LIBRARY = HERE / "node_modules" / "wavesurfer.js" / "dist"

#: All that is served from files, by the names that the page has for them.
FILES = {path.name: path for path in PAGE.iterdir() if path.suffix in (".css", ".mjs", ".svg")} | {
    "wavesurfer.js": LIBRARY / "wavesurfer.esm.js",
    "regions.js": LIBRARY / "plugins" / "regions.esm.js",
}

NAMES = (b"127.0.0.1", b"localhost")

_POLICY = (
    "default-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; object-src 'none';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(Resource):
    """The page itself.

    wavesurfer.js has a style sheet in its own shadow tree, which the policy lets through by a
    word that is good for one answer.
    """

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        """Answer with the page."""
        nonce = secrets.token_urlsafe(16)
        request.setHeader(b"content-security-policy", _POLICY.format(nonce=nonce).encode())
        request.setHeader(b"content-type", b"text/html; charset=utf-8")
        request.setHeader(b"cache-control", b"no-store")
        page = (PAGE / "index.html").read_text("utf-8").replace("{{nonce}}", nonce)
        return _body(request, page.encode())


class Document(Resource):
    """A JSON document, or the refusal that comes in its place."""

    isLeaf = True

    def __init__(self, make: Callable[[dict[str, str]], object]) -> None:
        """Serve what a function makes of the request's parameters."""
        Resource.__init__(self)
        self._make = make

    def render_GET(self, request: Request) -> bytes:
        """Answer with the document."""
        request.setHeader(b"cache-control", b"no-store")
        request.setHeader(b"content-type", b"application/json")
        try:
            document = self._make(_parameters(request))
        except Refusal as refusal:
            request.setResponseCode(refusal.status, HTTPStatus(refusal.status).phrase.encode())
            document = {"error": refusal.code, "message": str(refusal)}
        return _body(request, json.dumps(document).encode())


def _body(request: Request, body: bytes) -> bytes:
    """Return what to send of a body: for HEAD nothing, which Twisted would warn of."""
    if request.method == b"HEAD":
        request.setHeader(b"content-length", b"%d" % len(body))
        return b""
    return body


def _parameters(request: Request) -> dict[str, str]:
    parameters = {}
    for name, values in (request.args or {}).items():
        key = name.decode("utf-8", "replace")
        if len(values) > 1:
            raise InvalidOptions(f'"{key}" is not accepted: it may be given only once.')
        parameters[key] = values[0].decode("utf-8", "replace")
    return parameters


class _Words(Resource):
    """A line of text in place of what was asked for."""

    isLeaf = True

    def __init__(self, status: HTTPStatus, text: str) -> None:
        Resource.__init__(self)
        self._status = status
        self._text = text

    def render(self, request: Request) -> bytes:
        request.setResponseCode(self._status, self._status.phrase.encode())
        request.setHeader(b"content-type", b"text/plain")
        return _body(request, f"{self._text}\n".encode())


_NOTHING = _Words(HTTPStatus.NOT_FOUND, "There is nothing of that name.")
_STRANGE_HOST = _Words(
    HTTPStatus.MISDIRECTED_REQUEST, "This application answers to 127.0.0.1 and localhost only."
)


class _Folder(Resource):
    """Has names in it, and is nothing to look at itself."""

    def getChild(self, name: bytes, request: Request) -> IResource:
        return _NOTHING

    def render(self, request: Request) -> bytes:
        return _NOTHING.render(request)


class Root(_Folder):
    """Everything, for those who ask for it by a name of this machine."""

    def __init__(self, proxy: Resource, signer: Signer, folder: Path) -> None:
        """Put the service beside the page.

        :param signer: writes URLs of the service where it is mounted.
        :param folder: the sources.
        """
        Resource.__init__(self)
        self.putChild(b"", Page())
        self.putChild(b"audio", proxy)
        self.putChild(b"sources", Document(lambda _: list_sources(folder)))
        self.putChild(b"formats", Document(lambda _: describe_formats()))
        self.putChild(b"sign", Document(partial(sign, signer)))
        files = _Folder()
        for name, path in FILES.items():
            files.putChild(name.encode(), File(str(path)))
        self.putChild(b"page", files)

    def getChildWithDefault(self, name: bytes, request: Request) -> IResource:
        """Find what is asked for, unless the Host header names some other site."""
        request.setHeader(b"x-content-type-options", b"nosniff")
        if request.getRequestHostname() not in NAMES:
            return _STRANGE_HOST
        return Resource.getChildWithDefault(self, name, request)


class TimedRequest(Request):
    """Says in Server-Timing where a variant comes from, and when its first byte was there.

    It is the only header that a page can see of what its audio element fetched.
    """

    _since = 0.0

    def process(self) -> None:
        """Take note of the time."""
        self._since = monotonic()
        Request.process(self)

    def write(self, data: bytes) -> None:
        """Add the header to the others, right before they go out."""
        state = self.responseHeaders.getRawHeaders(b"x-audio-proxy")
        if state and not self.startedWriting:
            milliseconds = 1000 * (monotonic() - self._since)
            timing = b"cache;desc=%s, first;dur=%.1f" % (state[0], milliseconds)
            self.setHeader(b"server-timing", timing)
        Request.write(self, data)


def make_site(proxy: Resource, signer: Signer, folder: Path) -> Site:
    """Build the application."""
    site = Site(Root(proxy, signer, folder))
    site.requestFactory = TimedRequest
    # The service has its own line for each request.
    site.log = lambda request: None
    site.noisy = False
    return site
