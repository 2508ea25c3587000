"""Exit statuses of the commands, and the error for incorrect usage."""

from __future__ import annotations

SUCCESS = 0  # of `verify`: the URL is good
FAILURE = 1  # completely or in part; of `verify`: the signature is wrong
USAGE_ERROR = 2  # the command line is wrong, or a setting is missing
EXPIRED = 3  # the signature is valid, but the URL has expired
REFUSED = 4  # the signature is valid, but the service would refuse the options or the source
BUSY = 75  # another process prunes the store (EX_TEMPFAIL of sysexits.h)
INTERRUPTED = 130  # by Ctrl-C

#: What a command says about an error of its own, below the traceback.
CRASHED = "audioproxy itself failed, as the lines above say; please report them"


class UsageError(Exception):
    """A command that cannot run with its arguments or settings; the text says what is wrong."""
