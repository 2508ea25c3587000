"""References in comments, docstrings and documents lead to decisions, rules and files."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = "audioproxy bench deploy docs examples tests tools twisted".split()
TEXT = {".cfg", ".conf", ".css", ".html", ".md", ".mjs", ".py", ".service", ".sh", ".yaml", ".yml"}

#: A decision, and the row of one. Longer words such as SHA-256 digests are none.
DECISION = re.compile(r"(?<![\w%/.-])D(\d{1,2})\b(?![-%])")
DECISION_ROW = re.compile(r"^\| D(\d+) \|", re.MULTILINE)

#: The title of a section of the contract's rules.
TITLE = r"([A-Z][A-Za-z-]*(?:\s+[A-Za-z-]+){0,6})"
#: What may follow in the parentheses.
DECISIONS = r"(?:;\s[^()]*)?\)"
#: A rule of the contract: a section, and numbers of its rules or statuses of errors.
RULE = re.compile(rf"(?:\(|;\s+){TITLE},\s+(\d[\d, andto\s-]*?){DECISIONS}")
#: A section alone, at the end of a line, or ahead of a further reference. COALESCED, a field of
#: LAME and interfaces are none.
SECTION = re.compile(
    rf'\((?![A-Z]+\)|ENCDELAY|I[A-Z]){TITLE}(?:{DECISIONS}\.(?:"""|\s*\n)|;\s+[A-Z])'
)
#: A number of a rule without a section.
BARE = re.compile(
    r"\b(?:[Rr]ules?|[Nn]otes?) \d|[Cc]ontract: [A-Z]"
    r'|\(\d{1,2}(?:(?:, | and )\d{1,2})*(?:; ?D\d+(?:, D\d+)*)?\)[.,:;]*"""'
)
#: A file of the project.
PLACE = re.compile(rf"\b((?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:cfg|md|mjs|py|sh|yaml))\b")


def sections() -> dict[str, str]:
    """Return the text of each section of docs/rules.md by its title.

    The statuses of errors are those of docs/urls.md.
    """
    rules = (ROOT / "docs/rules.md").read_text()
    titles_and_texts = re.split(r"^## (.+)\n", rules, flags=re.MULTILINE)[1:]
    found = dict(zip(titles_and_texts[::2], titles_and_texts[1::2], strict=True))
    found["Errors"] += (ROOT / "docs/urls.md").read_text()
    return found


def numbers(section: str) -> set[str]:
    """Return the numbers that a section gives to its rules, and the statuses in its table."""
    return {
        rule or status
        for rule, status in re.findall(r"^(?:(\d+)\. |\| (\d+) \|)", section, re.MULTILINE)
    }


def prose(path: Path) -> str:
    """Return the text of a document, or the comments and docstrings of a Python file."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(
        token.string.lstrip("#: ")
        for token in tokens
        if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""'))
    )


def documents() -> Iterator[tuple[str, str]]:
    """Yield the path and the prose of each source file and document."""
    places = [ROOT / name for name in ("Makefile", "README.md", "CONTRIBUTING.md", "setup.cfg")]
    for folder in FOLDERS:
        places += (place for place in (ROOT / folder).rglob("*") if place.suffix in TEXT)
    for place in places:
        if "node_modules" not in place.parts and place != Path(__file__).resolve():
            yield str(place.relative_to(ROOT)), prose(place)


def dead_references(text: str, decisions: set[str], rules: dict[str, str]) -> Iterator[str]:
    """Yield each reference in a text that leads to no decision and no rule."""
    for match in DECISION.finditer(text):
        if match[1] not in decisions:
            yield match[0]
    for match in RULE.finditer(text):
        title = " ".join(match[1].split())
        cited = set(re.findall(r"\d+", match[2]))
        if title not in rules or not cited <= numbers(rules[title]):
            yield match[0]
    for match in SECTION.finditer(text):
        if " ".join(match[1].split()) not in rules:
            yield match[0]
    for match in BARE.finditer(text):
        yield f"{match[0]} without the section of the contract"


class ReferenceTests(SynchronousTestCase):
    """References lead to what they name."""

    def test_references(self) -> None:
        """Every decision, every rule of the contract and every file that is named exists."""
        text = (ROOT / "docs/decisions.md").read_text()
        decisions, rules = set(DECISION_ROW.findall(text)), sections()
        dead = []
        for path, document in documents():
            found = [*dead_references(document, decisions, rules)]
            found += [name for name in PLACE.findall(document) if not (ROOT / name).exists()]
            dead += [f"{path}: {reference}" for reference in found]
        self.assertEqual([], dead, "\n".join(dead))
