"""What the commands end with."""

from __future__ import annotations

import sys

#: Done, or yes.
DONE = 0
#: No, or not all of it.
NO = 1
#: The command cannot be understood, or lacks a setting.
USAGE_ERROR = 2
#: The signature is good and the URL has expired.
EXPIRED = 3
#: The signature is good and the service would refuse what it signs.
REFUSED = 4


class UsageError(Exception):
    """The command cannot be carried out as it was given; the text says what would be right."""


def printable(text: str) -> str:
    """Return text in one line that changes nothing of the terminal but what is written on it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(*lines: str) -> None:
    """Say what is wrong, where it does not mix with what was asked for."""
    for line in lines:
        print(f"audioproxy: {printable(line)}", file=sys.stderr)
