"""Private parts of Twisted that concern processes: each test fails if an upgrade changes one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from twisted.internet.process import reapProcessHandlers
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy._twisted import ForkedProcess
from tests.support import runs
from tests.support.processes import open_descriptors, opened_since
from tests.support.service import TEST_PATIENCE, Process, reactor


def output_of(program: str, **variables: str) -> str:
    """Run a Python program in a process of its own, with more variables, and return its stdout."""
    environment = {**os.environ, **variables}
    return runs.output_of(sys.executable, "-c", program, environment=environment).strip()


class ProcessTests(SynchronousTestCase):
    """Exit and environment of twistd"""

    def test_exit_signal(self) -> None:
        """twistd exits by the signal that the reactor stored in a private attribute."""
        program = (
            "import os, signal\n"
            "from twisted.application.app import ApplicationRunner\n"
            "from twisted.internet import reactor\n"
            "from audioproxy._twisted import forget_exit_signal\n"
            "reactor.callWhenRunning(os.kill, os.getpid(), signal.SIGTERM)\n"
            "{}"
            "runner = ApplicationRunner({{'profile': None, 'debug': False}})\n"
            "runner.startReactor(reactor, None, None)\n"
            "print(runner._exitSignal)\n"
        )
        forgetting = (
            "reactor.addSystemEventTrigger('during', 'shutdown', forget_exit_signal, reactor)\n"
        )
        seen = [output_of(program.format(line)) for line in ("", forgetting)]
        self.assertEqual(
            str(int(signal.SIGTERM)), seen[0].split(".")[-1], "`forget_exit_signal` may be needless"
        )
        self.assertEqual("None", seen[1], "`_exitSignal` has changed")

    def test_first_environment(self) -> None:
        """Importing Twisted's endpoints removes systemd's variables from the environment."""
        program = (
            "import os\n"
            "os.environ['LISTEN_PID'] = str(os.getpid())\n"
            "import twisted.internet.endpoints\n"
            "print('LISTEN_FDS' in os.environ)\n"
            "from audioproxy._twisted import first_environment\n"
            "print('LISTEN_FDS' in first_environment({}))\n"
        )
        kept, found = output_of(program, LISTEN_FDS="0", LISTEN_PID="1").split()
        self.assertEqual("False", kept, "`first_environment` is needless")
        self.assertEqual("True", found)

    def test_without_openssl(self) -> None:
        """The reactor imports OpenSSL, except `without_openssl`; later imports work again."""
        program = (
            "import sys\n"
            "from audioproxy._twisted import without_openssl\n"
            "{}import twisted.internet.reactor\n"
            "print('OpenSSL' in sys.modules)\n"
            "import OpenSSL.SSL, twisted.internet.ssl\n"
        )
        imported = [output_of(program.format(block)) for block in ("", "with without_openssl(): ")]
        self.assertEqual("True", imported[0], "`without_openssl` is needless")
        self.assertEqual("False", imported[1])

    def test_skip_log_prefixes(self) -> None:
        """The reactor sets the log prefix of a descriptor for each of its events."""
        program = (
            "import socket\n"
            "from twisted.internet import epollreactor, reactor\n"
            "from twisted.internet.abstract import FileDescriptor\n"
            "from twisted.python import context, log\n"
            "from audioproxy._twisted import skip_log_prefixes\n"
            "{}\n"
            "ours, theirs = socket.socketpair()\n"
            "class Reader(FileDescriptor):\n"
            "    fileno = ours.fileno\n"
            "    def logPrefix(self):\n"
            "        return 'reader'\n"
            "    def doRead(self):\n"
            "        print(context.get(log.ILogContext)['system'])\n"
            "        reactor.stop()\n"
            "Reader(reactor).startReading()\n"
            "theirs.send(b'x')\n"
            "reactor.run()\n"
        )
        prefixes = [output_of(program.format(line)) for line in ("", "skip_log_prefixes()")]
        self.assertEqual("reader", prefixes[0], "`skip_log_prefixes` is needless")
        self.assertEqual("-", prefixes[1], "`epollreactor` has changed")


class ForkedProcessTests(TestCase):
    """Children that the reactor has not started: it reads and reaps them as its own"""

    timeout = TEST_PATIENCE

    def start(self, *, has_ended: bool) -> tuple[ForkedProcess, Process, list[int]]:
        """Start a child that reads a byte, and exits with 3; the list gets its statuses."""

        def fork(descriptors: Mapping[int, int]) -> int:
            self.assertEqual([0, 1, 2], sorted(descriptors))
            pid = os.fork()
            if not pid:
                os.write(descriptors[1], b"out")
                os.write(descriptors[2], b"err")
                os._exit(3 if has_ended or os.read(descriptors[0], 1) else 4)
            if has_ended:
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return pid

        protocol, statuses = Process(), list[int]()
        pipes = {0: "w", 1: "r", 2: "r"}
        process = ForkedProcess(reactor, protocol, pipes, fork, statuses.append)
        return process, protocol, statuses

    async def test_reaped(self) -> None:
        """A child is read and reaped once, even if it has ended before the reactor knows it."""
        for has_ended in (False, True):
            process, protocol, statuses = self.start(has_ended=has_ended)
            if not has_ended:
                self.assertIs(process, reapProcessHandlers[process.pid])
                process.writeToChild(0, b"x")
            self.assertEqual(3, await protocol.end())
            self.assertEqual((b"out", b"err"), (protocol.out, protocol.err))
            self.assertEqual([3], [*map(os.waitstatus_to_exitcode, statuses)])
            self.assertNotIn(process.pid, reapProcessHandlers)

    def test_not_started(self) -> None:
        """An error of the start is raised, and no pipe stays open."""

        def fork(_: Mapping[int, int]) -> int:
            raise OSError("not forked")

        before = open_descriptors()
        arguments = ({0: "w", 1: "r"}, fork, lambda _: None)
        self.assertRaises(OSError, ForkedProcess, reactor, Process(), *arguments)
        self.assertEqual(set(), opened_since(before))
