"""Exit statuses of the commands, and the error that ends a command with one of them."""

from __future__ import annotations

#: The command succeeded, or the answer is yes.
SUCCESS = 0
#: The command failed, wholly or in part, or the answer is no.
FAILURE = 1
#: The command cannot be understood, or lacks a setting.
USAGE_ERROR = 2
#: The signature is valid and the URL has expired.
EXPIRED = 3
#: The signature is valid and the service would refuse the signed path.
REFUSED = 4
#: Ctrl-C stopped the command.
INTERRUPTED = 130


class UsageError(Exception):
    """A command that cannot run as it was given; the text says what would be right."""
