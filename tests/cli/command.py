"""The command, run inside the test's process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from argparse import Namespace
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, TypeVar
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.main import build_parser, main
from audioproxy.urls import Signer
from tests.support import preloaded
from tests.support.runs import RunResult
from tests.support.service import PATIENCE, PROJECT, Process, ServiceCase, reactor

KEY, SALT = bytes(range(32)), b"\xfa\x11"
#: Key and salt as environment variables.
SECRETS = {"AP_KEY": KEY.hex(), "AP_SALT": SALT.hex()}
SIGNER = Signer(KEY, SALT, "https://audio.example")
PIECE = "local://masters/piece.wav"

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, in a test that is none: the reactor does not run there."""
    outcomes: list[Any] = []

    def end(outcome: Any) -> None:
        outcomes.append(outcome)
        if reactor.running:
            reactor.crash()

    Deferred.fromCoroutine(work).addTimeout(PATIENCE, reactor).addBoth(end)
    if not outcomes:
        # As trial does for a test that is a coroutine.
        reactor.run()
    (outcome,) = outcomes
    if isinstance(outcome, Failure):
        outcome.raiseException()
    return outcome  # type: ignore[no-any-return]


def command(*words: str, environment: Mapping[str, str] = SECRETS, stdin: str = "") -> RunResult:
    """Run the command to its end, also in a test that is no coroutine with a reactor of trial.

    :param environment: all variables of the command.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        # That one can be called once in a process.
        mock.patch.object(cli_reactor, "run", lambda work, *_: wait_for(work(reactor))),
    ):
        try:
            status = main(words)
        except SystemExit as end:
            # argparse raises SystemExit for usage errors and for --help.
            status = int(end.code or 0)
    return RunResult(status, out.getvalue(), err.getvalue())


def json_keys(value: Any) -> Any:
    """Return a document with None for each text, number and truth value, and a row for all rows.

    Programs read what commands print with --json, so the keys never change.
    """
    if isinstance(value, dict):
        return {key: json_keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [json_keys(each) for each in value[:1]]
    return None


@cache
def parse_store(*words: str) -> Namespace:
    """Return the arguments of a command of `audioproxy store`."""
    return build_parser(["store"]).parse_args(["store", *words])


def start_command(
    case: ServiceCase, *words: str, terminal: bool = False, **variables: str
) -> Process:
    """Start the command with the settings of a service, in a process of its own."""
    # A terminal of a test has no size, without which no progress bar is shown.
    size = {"TQDM_NCOLS": "80", "TQDM_NROWS": "24"} if terminal else {}
    environment = case.environment(**size, **variables)
    return case.spawn(*preloaded.COMMAND, *words, terminal=terminal, **environment)


def run_command(*words: str, environment: Mapping[str, str]) -> RunResult:
    """Run the command in a process of its own to its end."""
    environment = {"PYTHONPATH": str(PROJECT), **environment}
    return RunResult(*preloaded.run((*preloaded.COMMAND, *words), environment))
