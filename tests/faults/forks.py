"""A program that has imported the service, and forks it, or a prune, for each run.

It reads a line of JSON for each: the program, its words, its environment, its control page, and the
files of its output. It prints the number of the process, and then its exit status.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any, NoReturn

from twisted.internet.defer import Deferred
from twisted.scripts import twistd

import audioproxy.render.registry as registry
from audioproxy import tap
from audioproxy.service import AudioProxy
from audioproxy.variants import prune
from tests.support.preloaded import preload

_library = ctypes.CDLL(None)
# prctl(2)
_PR_SET_PDEATHSIG = 1


def _prune(*words: str) -> NoReturn:
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        _library.faults_arm()
        status = prune.main(*words)
        _library.faults_open(None)
    print(printed.getvalue(), end="", flush=True)
    # An interpreter that ends takes longer than all this.
    os._exit(status)


def _start(*words: str) -> int:
    # Nothing can be done without a reactor.
    import_module("twisted.internet.reactor")
    read_options = tap.Options.postOptions

    def post_options(options: tap.Options) -> None:
        _library.faults_arm()
        read_options(options)

    start = AudioProxy.startService

    def start_service(service: AudioProxy) -> Deferred[None]:
        starting = start(service)
        # What the reactor does then is Twisted's own.
        _library.faults_open(None)
        return starting

    AudioProxy.startService = start_service  # type: ignore[method-assign]
    tap.Options.postOptions = post_options  # type: ignore[assignment,method-assign]
    # Finished renders are kept for a second, for which each run would wait.
    registry._LINGER = 0.01
    sys.argv = ["twistd", *words]
    twistd.run()
    return 0


_PROGRAMS: dict[str, Callable[..., int]] = {"prune": _prune, "start": _start}


def _run(program: str, words: list[str], environ: dict[str, str], page: str, output: str) -> None:
    """Become the program, in a fork, which ends with its parent at the latest."""
    _library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    written = os.open(output, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for number in range(3):
        os.dup2(written, number)
    os.close(written)
    os.environ.clear()
    os.environ.update(environ)
    assert not page or _library.faults_open(page.encode())
    sys.exit(_PROGRAMS[program](*words))


def main() -> None:
    preload()
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if not pid:
            _run(**order)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
