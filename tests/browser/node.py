"""Node as a child of a test, with the libraries of ``package.json`` and Debian's Chromium."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest

from tests.support.service import PATIENCE, Process, ServiceCase, reactor, until

HERE = Path(__file__).parent
LIBRARIES = HERE / "node_modules"

#: Set by ``make test``, which installs all that is needed: what is missing then is a failure.
REQUIRED = os.environ.get("AUDIOPROXY_BROWSER") == "required"


def program(name: str) -> str:
    """Return the path of a program.

    :raises SkipTest: where it is missing, and may be.
    """
    path = shutil.which(name)
    if path is None:
        raise missing(f"there is no {name} on this machine")
    return path


def missing(what: str) -> Exception:
    """Return what to raise for something that is not on this machine: a skip, where it may be."""
    reason = f"{what}; `make test` installs it"
    return AssertionError(reason) if REQUIRED else SkipTest(reason)


def relatives(home: str) -> list[int]:
    """Return the living processes whose command line or environment names a folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                known = home.encode() in (folder / name).read_bytes()
            except OSError:
                # It ended, or is somebody else's.
                continue
            if known:
                found.append(int(folder.name))
                break
    return found


class NodeCase(ServiceCase):
    """Tests that run scripts with node; nothing that those start outlives its test."""

    def setUp(self) -> None:
        """Look for node and its libraries."""
        super().setUp()
        self.node = program("node")
        if not LIBRARIES.is_dir():
            raise missing(f"there is no {LIBRARIES.relative_to(HERE.parent.parent)}")

    async def run_script(self, name: str, *words: str) -> Any:
        """Run a script of this folder and return the JSON document that it prints."""
        # A name of its own by which its processes are known, and short: sockets are made there.
        home = tempfile.mkdtemp(prefix="audioproxy-node-")
        process = Process()

        def all_ended() -> bool:
            # A browser outlives a node that is killed, and its own children outlive it a bit.
            left = relatives(home)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left and process.code is not None

        async def clean() -> None:
            await until(all_ended, "node and its children to end")
            shutil.rmtree(home)

        command = (self.node, str(HERE / name), *words)
        environ = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home}
        reactor.spawnProcess(process, command[0], command, env=environ)
        self.addCleanup(lambda: Deferred.fromCoroutine(clean()))
        # A browser that is sent through many pages takes its time on a machine that is busy.
        await until(lambda: process.code is not None, f"{name} to end", 3 * PATIENCE)
        self.assertEqual(0, process.code, process.stderr)
        return json.loads(process.out)
