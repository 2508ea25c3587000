"""The application: the page with its files, and the service below /audio.

The application signs every URL that is requested, so only the user of this machine may reach it.
It is bound to the loopback address, and accepts only the host names of the loopback address.
Without the check of the host name, any web page could give its own name the address 127.0.0.1 and
send requests from the user's browser. A body is stored only if the page itself sends it.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from time import monotonic

from twisted.web.resource import IResource, Resource
from twisted.web.server import Request, Site
from twisted.web.static import File

from audioproxy.urls import Signer
from examples.player.documentation import Documentation
from examples.player.documents import NOTHING, Document, Line, trim_body
from examples.player.loudness import LoudnessDocuments, Measure
from examples.player.signing import describe_formats, sign
from examples.player.sources import Sources
from examples.player.uploads import OtherOrigin, Upload, Uploads

HERE = Path(__file__).parent
PAGE = HERE / "page"
LIBRARIES = HERE / "node_modules"

#: Files of the page, by their names in URLs.
FILES = {path.name: path for path in PAGE.iterdir() if path.suffix in (".css", ".mjs", ".svg")} | {
    "marked.js": LIBRARIES / "marked" / "lib" / "marked.esm.js",
    "wavesurfer.js": LIBRARIES / "wavesurfer.js" / "dist" / "wavesurfer.esm.js",
}

NAMES = (b"127.0.0.1", b"localhost")

_POLICY = (
    "default-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; object-src 'none';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(Resource):
    """The HTML page.

    wavesurfer.js adds a style sheet to its shadow tree. The content security policy allows it by a
    nonce, which is new for each response.
    """

    isLeaf = True

    def render_GET(self, request: Request) -> bytes:
        """Return the page."""
        nonce = secrets.token_urlsafe(16)
        request.setHeader(b"content-security-policy", _POLICY.format(nonce=nonce).encode())
        request.setHeader(b"content-type", b"text/html; charset=utf-8")
        request.setHeader(b"cache-control", b"no-store")
        page = (PAGE / "index.html").read_text("utf-8").replace("{{nonce}}", nonce)
        return trim_body(request, page.encode())


_STRANGE_HOST = Line(
    HTTPStatus.MISDIRECTED_REQUEST,
    "This application accepts only the host names 127.0.0.1 and localhost.",
)


class _Folder(Resource):
    """Resource with children, which itself returns a 404."""

    def getChild(self, name: bytes, request: Request) -> IResource:
        return NOTHING

    def render(self, request: Request) -> bytes:
        return NOTHING.render(request)


class Root(_Folder):
    """Root resource, which serves only requests with a host name of this machine."""

    def __init__(
        self,
        proxy: Resource,
        signer: Signer,
        sources: Sources,
        uploads: Uploads,
        measure: Measure,
        env_file: Path,
    ) -> None:
        """Add the page, its files, the documents and the service as children.

        :param signer: signs URLs with the mount point of the service as their base.
        :param measure: measures loudness.
        :param env_file: a file with the settings of the service.
        """
        Resource.__init__(self)
        self._signer = signer
        self._sources = sources
        self._uploads = uploads
        self._env_file = env_file
        self.putChild(b"", Page())
        self.putChild(b"audio", proxy)
        self.putChild(b"docs", Documentation())
        self.putChild(
            b"sources", Document(lambda *_: {**sources.describe(), "limit": uploads.limit})
        )
        self.putChild(b"uploads", Document(self._store, (b"PUT",)))
        self.putChild(b"formats", Document(lambda *_: describe_formats()))
        self.putChild(b"sign", Document(self._sign))
        loudness = LoudnessDocuments(measure, sources.find)
        self.putChild(b"loudness", Document(lambda _, given: loudness.describe(given)))
        files = _Folder()
        for name, path in FILES.items():
            files.putChild(name.encode(), File(str(path)))
        self.putChild(b"page", files)

    def receive(self, request: Request) -> Upload:
        """Return the file for the body of a request, when its headers have arrived."""
        own = request.getRequestHostname() in NAMES
        own = own and request.getHeader("origin") == _origin(request)
        return Upload(self._uploads, None if own else OtherOrigin())

    def _sign(self, request: Request, parameters: dict[str, str]) -> object:
        signer = replace(self._signer, base=_origin(request) + self._signer.base)
        return sign(signer, self._sources.find, self._env_file, parameters)

    def _store(self, request: Request, parameters: dict[str, str]) -> object:
        return self._uploads.store(request.content, parameters.get("name", ""))

    def getChildWithDefault(self, name: bytes, request: Request) -> IResource:
        """Return the child, or a 421 if the Host header names another host."""
        request.setHeader(b"x-content-type-options", b"nosniff")
        if request.getRequestHostname() not in NAMES:
            return _STRANGE_HOST
        return Resource.getChildWithDefault(self, name, request)


class PlayerRequest(Request):
    """Request whose body the page's server receives, and whose response states its timing.

    Server-Timing has the cache state and the time to the first byte. A page can read no other
    response header of the requests of its audio element.
    """

    _since = 0.0

    def gotLength(self, length: int | None) -> None:
        """Provide the file for the body."""
        self.content = self.channel.site.resource.receive(self)

    def process(self) -> None:
        """Record the time of the request."""
        self._since = monotonic()
        Request.process(self)

    def write(self, data: bytes) -> None:
        """Add the Server-Timing header just before the headers are sent."""
        state = self.responseHeaders.getRawHeaders(b"x-audio-proxy")
        if state and not self.startedWriting:
            milliseconds = 1000 * (monotonic() - self._since)
            timing = b"cache;desc=%s, first;dur=%.1f" % (state[0], milliseconds)
            self.setHeader(b"server-timing", timing)
        Request.write(self, data)


def _origin(request: Request) -> str:
    """Return the origin of the page that has sent a request to its own server."""
    return f"http://{request.getHeader('host')}"


def make_site(root: Root) -> Site:
    """Return the site of the application."""
    site = Site(root, parsePOSTFormSubmission=False)
    site.requestFactory = PlayerRequest
    # The service logs each request itself.
    site.log = lambda request: None
    site.noisy = False
    return site
