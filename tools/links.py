"""What the site of the documentation cannot link to, since it is the project beside it."""

import re
from typing import Any

# A link out of docs/, to a file or a folder of the project.
_OUTWARD = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name such a file, in place of the link; `tests.test_docs` looks whether it exists."""
    return _OUTWARD.sub(r"\1 (`\2`)", markdown)
