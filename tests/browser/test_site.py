"""The site of the documentation in a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.browser.node import HERE, NodeCase, program

ROOT = HERE.parent.parent

#: An element or a style that loads from another host.
FOREIGN = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|url\(["']?(?:https?:)?//|@import"""
)


class SiteTests(NodeCase):
    """The site that `make docs` builds, opened as files."""

    async def test_site(self) -> None:
        """Every page fits narrow and wide screens, search works, and no other host is used."""
        site = Path(self.mktemp()).resolve()
        command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet")
        options = ("--config-file", str(ROOT / "tools/mkdocs.yml"), "--site-dir", str(site))
        environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        subprocess.run((*command, *options), check=True, env=environ)
        names = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
        for name in names:
            html = (site / f"{name}.html").read_text()
            self.assertIsNone(FOREIGN.search(html), name)
            # The theme would load a library from another host for such diagrams.
            self.assertNotIn('class="mermaid"', html, name)
        home = (site / "index.html").read_text().partition("<article")[2].partition("</article")[0]
        links = set(re.findall(r'href="([^":#]+)', home))
        # The home page leads to every other page, except that of the API.
        self.assertEqual({name for name in names if name != "index"}, {Path(x).stem for x in links})
        for style in site.rglob("*.css"):
            self.assertIsNone(FOREIGN.search(style.read_text()), style)
        report = await self.run_script("site.mjs", program("chromium"), str(site), *names)
        self.assertEqual([], report["problems"])
        self.assertEqual([], report["requests"])
        self.assertLessEqual(set(names), set(report["linked"]))
        self.assertIn("lengths.html", report["found"])
