"""``audioproxy warm``: the command's words."""

from typing import Any


def add(commands: Any) -> None:
    """Add the command to the parser."""
