"""Node as a child process of a test, with the libraries of ``package.json`` and Chromium."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest

from tests.deploy.balancer import installed
from tests.support.folders import short_folder
from tests.support.service import PATIENCE, Process, ServiceCase, until

HERE = Path(__file__).parent
LIBRARIES = HERE / "node_modules"

#: Whether a missing library fails the tests. ``make test-more`` installs all of them.
REQUIRED = os.environ.get("AUDIOPROXY_BROWSER") == "required"


#: Returns the path of a program.
program = partial(installed, variable="AUDIOPROXY_BROWSER")


def missing(what: str) -> Exception:
    """Return the exception for a missing library: SkipTest unless REQUIRED."""
    reason = f"{what}; `make test-more` or `make browsers` installs it"
    return AssertionError(reason) if REQUIRED else SkipTest(reason)


def find_processes(path: str) -> list[int]:
    """Return the living processes whose command line or environment contains a path."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                known = path.encode() in (folder / name).read_bytes()
            except OSError:
                # The process has ended, or belongs to another user.
                continue
            if known:
                found.append(int(folder.name))
                break
    return found


def start_with_home(case: ServiceCase, *words: str) -> tuple[Process, Callable[[], bool]]:
    """Start a program with a home of its own, which ends with the test, as all its children.

    :returns: it, and a function that kills all of these, and returns whether all have ended.
    """
    # Its path identifies the processes: a browser outlives a killed node, and the browser's
    # children outlive the browser briefly. It is short, since it contains Unix sockets.
    home = short_folder(case)
    home.chmod(0o777)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
    process = case.spawn(*words, **environ)

    def all_ended() -> bool:
        left = find_processes(str(home))
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left and process.code is not None

    case.addCleanup(until, all_ended, f"{words[0]} and its children to end")
    return process, all_ended


class NodeCase(ServiceCase):
    """Tests that run scripts with node, and end every process that a script leaves behind."""

    def setUp(self) -> None:
        """Require node and its libraries."""
        super().setUp()
        self.node = program("node")
        if not LIBRARIES.is_dir():
            raise missing(f"there is no {LIBRARIES.relative_to(HERE.parent.parent)}")

    async def run_script(self, name: str, *words: str) -> Any:
        """Run a script of this folder and return the JSON document that it prints."""
        process, _ = start_with_home(self, self.node, str(HERE / name), *words)
        # A browser that visits many pages is slow on a busy machine.
        await until(lambda: process.code is not None, f"{name} to end", 3 * PATIENCE)
        self.assertEqual(0, process.code, process.stderr)
        return json.loads(process.out)
