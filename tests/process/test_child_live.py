"""Real child processes: how they end, what they inherit, and programs that cannot be started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from audioproxy.process.child import Child, ChildTimeout, Exit
from audioproxy.process.spawn import Launcher, SpawnFailed
from tests.support.folders import free_descriptors
from tests.support.processes import open_descriptors, opened_since
from tests.support.service import PATIENCE, TEST_PATIENCE, until

ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


class RealCase(TestCase):
    """Real child processes of the real reactor."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.launcher = Launcher(reactor, reactor, ENVIRONMENT)

    def start(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int] | None = None,
        stdout_limit: int = 65536,
        timeout: float = PATIENCE,
    ) -> Child:
        """Start a program."""
        return self.launcher.launch(
            arguments, descriptors or {}, timeout, stdout_limit=stdout_limit
        )

    async def run_python(self, source: str, descriptors: Mapping[int, int] | None = None) -> Exit:
        """Run a Python program to its end."""
        return await self.start([sys.executable, "-c", source], descriptors).wait()


class ChildTests(RealCase):
    """How a child starts, what it inherits, and how it ends"""

    async def test_exits(self) -> None:
        """The exit status or the signal is reported, with all output; no descriptor leaks.

        The stdin of a child is empty.
        """
        await self.start(["/bin/true"]).wait()
        before = open_descriptors()
        for source, expected in (
            ("echo out; echo err >&2", Exit(0, stdout=b"out\n", stderr=b"err\n")),
            ("cat; exit 7", Exit(7)),
            ("kill -9 $$", Exit(None, 9)),
        ):
            self.assertEqual(await self.start(["/bin/sh", "-c", source]).wait(), expected)
        ended = await self.start(["/bin/cat", "/dev/zero"], stdout_limit=16).wait()
        self.assertEqual((ended.stdout, ended.overflowed), (bytes(16), True))
        with self.assertRaises(ChildTimeout):
            await self.start(["/bin/cat", "/dev/zero"], stdout_limit=1 << 40, timeout=0.01).wait()
        self.assertEqual(set(), opened_since(before))

    async def test_killed_while_it_waits(self) -> None:
        """A child whose stderr is not read for now is killed and reaped at once."""
        clock = Clock()
        child = Launcher(reactor, clock, ENVIRONMENT).launch(
            ["/bin/sh", "-c", "exec cat /dev/zero >&2"], {}, PATIENCE
        )
        await until(lambda: child.read_stderr() is None, "the child to wait")
        child.kill()
        self.assertEqual((await child.wait()).signal, signal.SIGKILL)
        self.assertEqual(clock.getDelayedCalls(), [])

    async def test_descriptors(self) -> None:
        """A child has each file under the requested descriptor, even if two numbers are swapped."""
        texts = {}
        for text in ("one", "two"):
            file = os.open(self.mktemp(), os.O_RDWR | os.O_CREAT)
            self.addCleanup(os.close, file)
            os.write(file, text.encode())
            texts[file] = text
        one, two = texts
        for requested in ({3: one, 4: two}, {one: two, two: one}, {two: two}):
            source = f"import os; print(*[os.pread(fd, 9, 0).decode() for fd in {list(requested)}])"
            ended = await self.run_python(source, requested)
            expected = [texts[file] for file in requested.values()]
            self.assertEqual(ended.stdout.decode().split(), expected, ended)

    def test_refused(self) -> None:
        """A program that cannot be started is reported at once with its name; nothing leaks."""
        before = open_descriptors()
        for path, why in (
            ("/no/such/program", "No such file or directory"),
            (os.devnull, "Permission denied"),
        ):
            error = self.assertRaises(SpawnFailed, self.start, [path])
            self.assertEqual(str(error), f"{path}: {why}")
        for spare in range(5):
            with free_descriptors(spare):
                error = self.assertRaises(SpawnFailed, self.start, ["/bin/true"])
            self.assertEqual(str(error), "/bin/true: Too many open files", spare)
        self.assertEqual(set(), opened_since(before))
