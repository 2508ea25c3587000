"""The site of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.browser.node import NodeCase
from tests.support.service import PROJECT

SITE = PROJECT / "build" / "site"
NAMES = sorted(page.stem for page in (PROJECT / "docs").glob("*.md"))

#: An element or a style that loads from another host.
FOREIGN = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|url\(["']?(?:https?:)?//|@import"""
)


def build_site() -> None:
    """Build the site as `make docs` does, unless it is newer than its parts."""
    installed = f"--old-file={sys.prefix}/.site"
    command = ("make", installed, f"VENV={sys.prefix}", "build/site/index.html")
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)


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
        # Blocks of code in several languages are tabs.
        signing = (SITE / "signing.html").read_text()
        self.assertEqual(2, signing.count('class="tabbed-set'))
        # A file of the project is named once.
        embedding = (SITE / "embedding.html").read_text()
        self.assertIn("This runs <code>examples/<wbr />embed.<wbr />py</code> on port", embedding)
        # A line does not end after the first slash of a path.
        self.assertIn("<code>/health</code>", (SITE / "reliability.html").read_text())
        home = (SITE / "index.html").read_text()
        article = home.partition("<article")[2].partition("</article")[0]
        links = set(re.findall(r'href="([^":#]+)', article))
        # The home page leads to every other page, except that of the API.
        self.assertEqual(set(NAMES) - {"index"}, {Path(link).stem for link in links})
        for style in SITE.rglob("*.css"):
            self.assertIsNone(FOREIGN.search(style.read_text()), style)
        return ["readSite", str(SITE), *NAMES]

    def assert_site(self, report: dict[str, Any]) -> None:
        """Require that every page fits its screen and has no barriers, and that search works."""
        self.assertEqual([], report["problems"])
        self.assertEqual([], report["requests"])
        self.assertLessEqual(set(NAMES), set(report["linked"]))
        self.assertIn("lengths.html", report["found"])
