"""MkDocs hooks: what the site of the documentation needs beyond the Markdown that GitHub shows."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from textwrap import indent
from typing import Any

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.files import File
from site_api import reference

# A link out of docs/ to a file or folder of the project.
_OUTWARD = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")

# A picture with a version for dark mode. GitHub chooses by the system's preference. The site has a
# switch, whose state the theme's style sheet follows.
_PICTURE = re.compile(
    r'<picture>\s*<source[^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)

# A block of code below its name in bold, such as a language.
_NAMED_CODE = re.compile(r"^\*\*([^*\n]+)\*\*\n\n(```\w+\n.*?^```)$", re.MULTILINE | re.DOTALL)
# A block of commands or of plain text with a URL.
_URL_BLOCK = re.compile(
    r'(<div class="(?:language-(?:sh|text) )?highlight"><pre)(?=>(?:(?!</pre>).)*://)', re.DOTALL
)

# Characters after which a long word of code may be broken, but neither "/" nor "--" at its start.
_BREAK = re.compile(r"(?<=[^-][_/.:,=?-])(?=\w)")

_ICON = Path(__file__).parent.parent / "examples/player/page/icon.svg"


def on_config(config: Any) -> Any:
    """Add the changes of tables and code to the Markdown extensions."""
    config.markdown_extensions.append(_NarrowScreens())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the player's icon, which is the logo of the site."""
    files.append(File.generated(config, "icon.svg", abs_src_path=str(_ICON)))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Mark the blocks whose lines may be broken: those with URLs."""
    return _URL_BLOCK.sub(r'\1 class="wraps"', html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search, which is a dialog without a name in the theme."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links out of docs/, which the site cannot serve, pictures for dark mode, and code.

    Each link becomes its text and path, or its path alone if that is the text. `tests.test_docs`
    checks the path. Blocks of code below their names become tabs. The page of the API gets the
    reference of its modules, and the home page has no list of its headings.
    """
    if page.is_homepage:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri == "api.md":
        markdown = "\n\n".join([markdown, *reference()])
    pictures = r"![\g<alt>](\g<light>#only-light)![\g<alt>](\g<dark>#only-dark)"
    markdown = _PICTURE.sub(pictures, _OUTWARD.sub(_spell_path, markdown))
    return _NAMED_CODE.sub(
        lambda match: f'=== "{match[1]}"\n\n{indent(match[2], " " * 4)}', markdown
    )


def _spell_path(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text == path else f"{text} (`{path}`)"


class _NarrowScreens(Extension):
    """Markup that lets tables, code and diagrams fit on narrow screens."""

    def extendMarkdown(self, md: Markdown) -> None:
        # After inline Markdown has been parsed.
        md.treeprocessors.register(_Tables(md), "tables", 0)


class _Tables(Treeprocessor):
    """Changes of the parsed page; `tools/site/style.css` uses them."""

    def run(self, root: ET.Element) -> None:
        """Label each cell with the heading of its column, and let long words of code break.

        Diagrams can have the focus: they scroll on narrow screens.
        """
        for table in root.iter("table"):
            headings = ["".join(cell.itertext()) for cell in table.iter("th")]
            table.set("data-columns", "2" if len(headings) < 3 else "many")
            for row in table.findall("tbody/tr"):
                for heading, cell in zip(headings, row, strict=True):
                    cell.set("data-label", heading)
                    self._wrap(cell)
        for paragraph in root.iter("p"):
            if any(image.get("src", "").endswith(".svg") for image in paragraph.iter("img")):
                paragraph.set("tabindex", "0")
        blocks = {code for block in root.iter("pre") for code in block.iter("code")}
        for code in root.iter("code"):
            if code not in blocks:
                self._split(code)

    def _wrap(self, cell: ET.Element) -> None:
        """Put the content of a cell into one element; the style sheet puts the label beside it."""
        content = ET.Element("div")
        content.text, cell.text = cell.text, None
        content[:], cell[:] = cell[:], [content]

    def _split(self, code: ET.Element) -> None:
        first, *rest = _BREAK.split(code.text or "")
        code.text = first
        for part in rest:
            ET.SubElement(code, "wbr").tail = part
