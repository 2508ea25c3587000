"""MkDocs hook: replace links out of docs/, which the site of the documentation cannot serve."""

import re
from typing import Any

# A link out of docs/ to a file or folder of the project.
_OUTWARD = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each link out of docs/ by its text and path. `tests.test_docs` checks the path."""
    return _OUTWARD.sub(r"\1 (`\2`)", markdown)
