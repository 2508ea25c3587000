"""The documentation: the site that `make docs` has built, or else the Markdown of its pages.

The Markdown needs no program: a script of the page shows it.
"""

from __future__ import annotations

from pathlib import Path

from twisted.web.resource import IResource, Resource
from twisted.web.server import Request
from twisted.web.static import File
from twisted.web.util import Redirect

from examples.player.documents import NOTHING

_PROJECT = Path(__file__).parent.parent.parent
PAGES = _PROJECT / "docs"
SITE = _PROJECT / "build" / "site"
READER = Path(__file__).parent / "page" / "reader.html"


class Documentation(Resource):
    """The pages of the documentation, and their pictures."""

    def render(self, request: Request) -> bytes:
        """Redirect to the first page, whose links need the slash."""
        return Redirect(b"docs/").render(request)

    def getChild(self, path: bytes, request: Request) -> IResource:
        """Return a page or a file."""
        if (SITE / "index.html").is_file():
            return _Folder(str(SITE)).getChild(path, request)
        if path in {b"", *(b"%s.html" % page.stem.encode() for page in PAGES.glob("*.md"))}:
            return File(str(READER))
        return _Folder(str(PAGES)).getChild(path, request)


class _Folder(File):
    """A folder that is not listed."""

    def directoryListing(self) -> IResource:
        return NOTHING
