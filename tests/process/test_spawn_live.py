"""The settings of all child processes: limits, the parent-death signal and process groups."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.cell import CellStarter
from audioproxy.process.child import Child
from audioproxy.process.child_limits import ChildLimits, count_threads
from audioproxy.process.find_starter import BINARY
from audioproxy.process.spawn import Launcher
from audioproxy.process.starters import Starter, UtilLinuxStarter
from tests.process.test_child_live import ENVIRONMENT, RealCase
from tests.support.processes import set_environment
from tests.support.programs import write_script
from tests.support.service import PATIENCE, is_running, reactor, until

MEMORY = 1 << 28
# Prints whether the process leads its own process group.
LEADS = "import os; print(os.getpgid(0) == os.getpid())"


class LimitsTests(SynchronousTestCase):
    """`ChildLimits`"""

    def test_lower_limits(self) -> None:
        """A limit of the service that is lower stays in force."""
        self.patch(resource, "getrlimit", lambda _: (9, 99))
        limits = dict(ChildLimits(MEMORY).of_child(100, 1000))
        self.assertEqual((1, 1), limits.pop("core"))
        names = {"memlock", "data", "as", "cpu", "nofile", "stack", "fsize", "nproc"}
        self.assertEqual(dict.fromkeys(names, (9, 9)), limits)

    def test_hidden_load(self) -> None:
        """Threads have a limit where only processes are visible, as in the unit."""
        limits = ChildLimits(MEMORY, lambda: count_threads("/proc/hidden"))
        self.assertGreater(limits.of_child(100, None)["nproc"], (1024, 1024))


class SpawnTests(RealCase):
    """Limits and process groups of real child processes"""

    def setUp(self) -> None:
        self.use(self.starter(), ChildLimits(MEMORY))

    def starter(self) -> Starter:
        """Return the starter of the children."""
        return CellStarter(str(BINARY), {})

    def use(self, starter: Starter, limits: ChildLimits) -> None:
        """Start the next children with a starter and limits."""
        self.launcher = Launcher(reactor, reactor, ENVIRONMENT, starter, limits)

    def launch(self, *arguments: str, timeout: float = PATIENCE, **options: Any) -> Child:
        """Start a program."""
        return self.launcher.launch(arguments, {}, timeout, stdout_limit=65_536, **options)

    async def test_values(self) -> None:
        """Memory, address space, CPU time, descriptors, cores and files are limited."""
        for limit in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
            self.assertEqual(resource.RLIM_INFINITY, resource.getrlimit(limit)[0])
        cpu = PATIENCE * (os.cpu_count() or 1)
        for memory, address_space in ((MEMORY, 4 * MEMORY), (3 << 30, 8 << 30), (9 << 30,) * 2):
            self.use(self.starter(), ChildLimits(memory))
            ended = await self.launch(
                "cat", "/proc/self/limits", timeout=PATIENCE - 0.9, output_limit=5
            ).wait()
            found = re.findall(r"Max (.+?)  +(\d+) +(\d+)", ended.stdout.decode())
            limits = {name: (int(soft), int(hard)) for name, soft, hard in found}
            self.assertLessEqual(limits["core file size"], (1, 1))
            expected = {
                "locked memory": (1 << 20,) * 2,
                "data size": (memory,) * 2,
                "address space": (address_space,) * 2,
                "cpu time": (cpu, cpu + 5),
                "open files": (64, 64),
                "stack size": (8 << 20, 8 << 20),
                "file size": (5, 5),
            }
            self.assertEqual(expected, {name: limits.get(name) for name in expected}, ended)

    async def test_leads(self) -> None:
        """A child leads a group, so that a terminal's Ctrl-C does not reach it (D39)."""
        self.assertEqual(b"True\n", (await self.run_python(LEADS)).stdout)
        # The group is given to nothing else that this process starts.
        ended = subprocess.run([sys.executable, "-c", LEADS], capture_output=True)
        self.assertEqual(b"False\n", ended.stdout)

    async def test_wrapper(self) -> None:
        """A signal reaches what a wrapper has started, even where the wrapper ignores it."""
        clock = Clock()
        self.launcher = replace(self.launcher, clock=clock)
        for wrapper in ('trap "" TERM; sleep 1000 & echo $!; wait', "sleep 1000 & echo $!; wait"):
            child = self.launch("sh", "-c", wrapper)
            await until(lambda child=child: child.protocol.stdout.endswith(b"\n"), "a pid")
            pid = int(child.protocol.stdout)
            self.assertTrue(is_running(pid))
            waiting = Deferred.fromCoroutine(child.wait()).addErrback(lambda _: None)
            waiting.cancel()
            # The time from TERM to KILL.
            clock.advance(2)
            await waiting
            await until(lambda pid=pid: not is_running(pid), "the end of the inner process")

    async def test_left_behind(self) -> None:
        """What a child leaves behind ends with it, and delays nothing."""
        ended = await self.launch("sh", "-c", "sleep 1000 & echo $!").wait()
        self.assertTrue(ended.ok)
        await until(lambda: not is_running(int(ended.stdout)), "the end of the inner process")


class UtilLinuxTests(SpawnTests):
    """The same with the programs of util-linux, where audioproxy-cell is missing"""

    def starter(self) -> Starter:
        starter = UtilLinuxStarter.find(ChildLimits(MEMORY).of_child(1, 1), PATIENCE)
        self.assertEqual([], starter.shortcomings)
        return starter

    def test_without_util_linux(self) -> None:
        """Without util-linux, or with other programs of its names, nothing is limited."""
        folder = Path(self.mktemp()).resolve()
        for name in ("prlimit", "setpriv"):
            write_script(folder / name, "#!/bin/sh\nexit 1\n")
        for path in ("/nowhere", str(folder)):
            set_environment(self, PATH=path)
            starter = UtilLinuxStarter.find({"core": (0, 0)})
            self.assertEqual((UtilLinuxStarter(), 2), (starter, len(starter.shortcomings)))
