"""The site of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.browser.node import NodeCase
from tests.support.service import PROJECT

#: The site, and what it is built from, as the Makefile has it.
SITE = PROJECT / "build" / "site"
PARTS = ("docs", "tools/site", "tools/mkdocs.yml", "tools/site_hooks.py")
NAMES = sorted(page.stem for page in (PROJECT / "docs").glob("*.md"))

#: An element or a style that loads from another host.
FOREIGN = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|url\(["']?(?:https?:)?//|@import"""
)


def build_site() -> None:
    """Build the site, unless `make docs` or an earlier test has built it from the same parts."""
    places = [place for part in PARTS for place in (PROJECT / part, *(PROJECT / part).rglob("*"))]
    # A folder is as new as the last page that was added to it or deleted from it.
    newest = max(place.stat().st_mtime for place in places)
    home = SITE / "index.html"
    if home.exists() and home.stat().st_mtime > newest:
        return
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file")
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run((*command, PROJECT / "tools/mkdocs.yml"), check=True, env=environ)


class SiteCase(NodeCase):
    """The site, opened as files."""

    def visit_site(self) -> list[Any]:
        """Return a visit of every page, after a look at the files."""
        build_site()
        for name in NAMES:
            html = (SITE / f"{name}.html").read_text()
            self.assertIsNone(FOREIGN.search(html), name)
            # The theme would load a library from another host for such diagrams.
            self.assertNotIn('class="mermaid"', html, name)
        home = (SITE / "index.html").read_text()
        article = home.partition("<article")[2].partition("</article")[0]
        links = set(re.findall(r'href="([^":#]+)', article))
        # The home page leads to every other page, except that of the API.
        self.assertEqual(set(NAMES) - {"index"}, {Path(link).stem for link in links})
        for style in SITE.rglob("*.css"):
            self.assertIsNone(FOREIGN.search(style.read_text()), style)
        return ["readSite", str(SITE), *NAMES]

    def assert_site(self, report: dict[str, Any]) -> None:
        """Require that every page fits its screen and that search works."""
        self.assertEqual([], report["problems"])
        self.assertEqual([], report["requests"])
        self.assertLessEqual(set(NAMES), set(report["linked"]))
        self.assertIn("lengths.html", report["found"])
