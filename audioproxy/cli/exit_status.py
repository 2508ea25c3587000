"""Exit statuses of the commands, and the error for incorrect usage."""

from __future__ import annotations

#: The command succeeded. For ``verify``: the URL is good.
SUCCESS = 0
#: The command failed, completely or in part. For ``verify``: the signature is wrong.
FAILURE = 1
#: The command line is wrong, or a setting is missing.
USAGE_ERROR = 2
#: The signature is valid, but the URL has expired.
EXPIRED = 3
#: The signature is valid, but the service would refuse the options or the source.
REFUSED = 4
#: Another process prunes the store (EX_TEMPFAIL of sysexits.h).
BUSY = 75
#: Ctrl-C stopped the command.
INTERRUPTED = 130

#: What a command says about an error of its own, below the traceback.
CRASHED = "audioproxy itself failed, as the lines above say; please report them"


class UsageError(Exception):
    """A command that cannot run with its arguments or settings; the text says what is wrong."""
