"""The doubles of child processes behave as real ones do."""

from __future__ import annotations

import os

from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.support.processes import FakeSpawner, open_descriptors


class Listener(ProcessProtocol):
    """Protocol that records its calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def connectionMade(self) -> None:
        self.calls.append("connected")

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        self.calls.append((childFD, data))

    def processExited(self, reason: Failure) -> None:
        self.calls.append("exited")

    def processEnded(self, reason: Failure) -> None:
        self.calls.append(reason.value)


class FakeSpawnerTests(SynchronousTestCase):
    """`FakeSpawner` and `FakeChild`"""

    def setUp(self) -> None:
        self.before = open_descriptors()
        self.spawner = FakeSpawner()
        self.listener = Listener()
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.reading = reading
        self.child = self.spawner.spawnProcess(
            self.listener, "a", ["a", "b"], {"c": "d"}, childFDs={0: writing, 1: "r", 2: "r"}
        )
        os.close(writing)

    def tearDown(self) -> None:
        self.spawner.kill_all()

    def test_order(self) -> None:
        """A test decides when data arrives, when the child exits and when its pipes close."""
        self.child.write_stdout(b"out")
        self.child.write_stderr(b"err")
        self.assertEqual(self.listener.calls, ["connected", (1, b"out"), (2, b"err")])
        self.child.exit()
        self.assertEqual(self.listener.calls[3:], ["exited"])
        self.child.end()
        self.assertIsInstance(self.listener.calls[4], ProcessDone)

    def test_signals(self) -> None:
        """A signal is recorded; a child that dies of one ends with it, and accepts no more."""
        self.child.signalProcess("TERM")
        self.assertTrue(self.child.alive)
        self.child.exit_and_end(signal=9)
        self.assertRaises(ProcessExitedAlready, self.child.signalProcess, "KILL")
        self.assertEqual(self.child.signals, ["TERM"])
        reason = self.listener.calls[-1]
        assert isinstance(reason, ProcessTerminated)
        self.assertEqual((reason.exitCode, reason.signal), (None, 9))

    def test_inherited(self) -> None:
        """The child holds its own copy of a descriptor until it exits."""
        os.write(self.child.inherited[0], b"x")
        self.assertEqual(os.read(self.reading, 9), b"x")
        self.child.exit_and_end()
        self.assertEqual(os.read(self.reading, 9), b"")

    def test_put_down(self) -> None:
        """After `kill_all`, no child is alive and no descriptor of a child is open."""
        self.spawner.kill_all()
        self.assertEqual(self.spawner.alive, [])
        left = open_descriptors() - self.before
        self.assertEqual(len(left), 1, left)
