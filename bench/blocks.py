"""Blocks of a document that a measurement fills. The text around them is written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Groups: the opening mark, the name of the block, its text, and the closing mark.
BLOCK = re.compile(r"(<!-- measured: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def fill(text: str, contents: Mapping[str, str]) -> str:
    """Return a document with new contents in its blocks.

    :param contents: Markdown of each block, by its name.
    :raises KeyError: if the document lacks a block, or has one without new contents.
    """
    names = {match[2] for match in BLOCK.finditer(text)}
    if odd := names ^ set(contents):
        raise KeyError(*sorted(odd))
    return BLOCK.sub(lambda match: f"{match[1]}\n{contents[match[2]].strip()}\n\n{match[4]}", text)
