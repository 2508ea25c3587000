"""The command, run inside the test's process with a given environment."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from unittest import mock

from audioproxy.cli.main import main

#: Key and salt as environment variables.
SECRETS = {"AP_KEY": bytes(range(32)).hex(), "AP_SALT": "fa11"}


@dataclass(frozen=True)
class RunResult:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


def command(*words: str, environment: Mapping[str, str] = SECRETS, stdin: str = "") -> RunResult:
    """Run the command to its end.

    :param environment: all variables of the command.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
    ):
        try:
            status = main(words)
        except SystemExit as end:
            # argparse raises SystemExit for usage errors and for --help.
            status = int(end.code or 0)
    return RunResult(status, out.getvalue(), err.getvalue())
