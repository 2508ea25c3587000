"""The socket at which a child asks for blocks."""

from __future__ import annotations

import errno
import socket
import struct
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UpstreamUnavailable
from audioproxy.sources.questions import Questions
from tests.support.far_versions import FakeReaders


class QuestionsTests(SynchronousTestCase):
    """`Questions`, with a child that a test plays."""

    def setUp(self) -> None:
        """Start a child."""
        self.reactor = FakeReaders()
        self.asked: list[tuple[int, Deferred[None]]] = []
        self.ended = 0
        reactor: Any = self.reactor
        self.questions = Questions(reactor, self.bring, self.end)
        self.child = socket.socket(fileno=self.questions.theirs.detach())
        self.child.setblocking(False)
        self.addCleanup(self.child.close)
        self.addCleanup(self.questions.close)

    def bring(self, block: int) -> Deferred[None]:
        """Note a question."""
        waiting: Deferred[None] = Deferred()
        self.asked.append((block, waiting))
        return waiting

    def end(self, is_fault: bool) -> None:
        """Note the end."""
        self.ended += 1
        self.is_fault = is_fault

    def ask(self, block: int) -> Deferred[None]:
        """Ask for a block; return what the answer waits for."""
        self.child.send(struct.pack("<Q", block))
        self.reactor.run()
        self.assertEqual(block, self.asked[-1][0])
        return self.asked[-1][1]

    def answer(self) -> int:
        """Return the answer that the child has got."""
        return int.from_bytes(self.child.recv(100), "little")

    def test_answers(self) -> None:
        """A block that came is answered with 0, one that cannot be had with EIO."""
        self.ask(7).callback(None)
        self.assertEqual(0, self.answer())
        self.ask(2**63).errback(UpstreamUnavailable())
        self.assertEqual(errno.EIO, self.answer())
        self.assertEqual(0, self.ended)

    def test_pause(self) -> None:
        """A child that asks for blocks that are there cannot keep the service busy."""
        self.bring = lambda block: succeed(None)  # type: ignore[method-assign]
        self.questions.close()
        self.setUp()
        for number in range(3):
            self.child.send(struct.pack("<Q", number))
        for reader in list(self.reactor.readers):
            reader.doRead()
        self.assertEqual([], self.reactor.readers)
        self.reactor.advance(0.001)
        self.assertEqual([self.questions], self.reactor.readers)
        self.reactor.run()
        self.questions.close()
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_one_at_a_time(self) -> None:
        """Further questions are not read before the first one is answered."""
        first = self.ask(1)
        self.child.send(struct.pack("<Q", 2))
        self.reactor.run()
        self.assertEqual(1, len(self.asked))
        first.callback(None)
        self.reactor.run()
        self.assertEqual([1, 2], [block for block, _ in self.asked])

    def test_end_of_the_child(self) -> None:
        """When the child has ended, that is noted once."""
        self.child.close()
        self.reactor.run()
        self.questions.close()
        self.assertEqual((1, []), (self.ended, self.reactor.readers))
        self.assertFalse(self.is_fault)

    def test_no_questions(self) -> None:
        """Messages of another size end the connection."""
        for data in (b"x", bytes(9), bytes(60_000)):
            self.setUp()
            self.child.send(data)
            self.reactor.run()
            self.assertEqual((1, []), (self.ended, self.reactor.readers))
            self.assertEqual([], self.asked)
            self.assertTrue(self.is_fault)

    def test_flood(self) -> None:
        """A child that reads no answers is no longer answered, and nothing waits for it."""
        sent = 0
        while not self.ended and sent < 100_000:
            self.ask(sent).callback(None)
            sent += 1
        self.assertEqual((1, True), (self.ended, self.is_fault))

    def test_early_close(self) -> None:
        """A block that is no longer wanted is given up, and the child sees the end."""
        waiting = self.ask(1)
        self.questions.close()
        self.assertTrue(waiting.called)
        self.assertEqual(b"", self.child.recv(100))

    def test_end_of_the_reactor(self) -> None:
        """A reactor that stops ends it."""
        self.questions.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(1, self.ended)
        self.assertEqual("questions", self.questions.logPrefix())
        self.reactor.run()
