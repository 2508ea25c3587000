"""A pooled connection: it is paused between responses, and at no other time."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.protocol import Protocol, ServerFactory
from twisted.internet.testing import StringTransport
from twisted.protocols.policies import WrappingFactory
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.http_client.connection import PooledConnection


class CountingTransport(StringTransport):
    """Transport that counts how often it is paused."""

    pauses = 0

    def pauseProducing(self) -> None:
        self.pauses += 1
        super().pauseProducing()


class PauseTests(SynchronousTestCase):
    """`PooledConnection.pauseProducing` and `PooledConnection.resumeProducing`"""

    def setUp(self) -> None:
        self.reactions: list[Callable[[], object]] = []
        self.transport = CountingTransport()
        client = Protocol()
        client.dataReceived = lambda data: self.reactions.pop(0)()  # type: ignore[method-assign]
        self.connection = PooledConnection(WrappingFactory(ServerFactory()), client)
        self.connection.makeConnection(self.transport)

    def receive(self, *reactions: Callable[[], object]) -> str:
        """Receive a piece of data for each reaction; return the state of the transport."""
        self.reactions = list(reactions)
        for _ in reactions:
            self.connection.dataReceived(b"x")
        return str(self.transport.producerState)

    def pause_and_resume(self) -> None:
        """React as to a body that came with its headers."""
        self.connection.pauseProducing()
        self.connection.resumeProducing()

    def test_at_once(self) -> None:
        """A client that resumes before it returns costs no system call."""
        self.assertEqual("producing", self.receive(self.pause_and_resume))
        self.assertEqual(0, self.transport.pauses)

    def test_later(self) -> None:
        """A client that returns without resuming has paused the transport, until it resumes."""
        self.assertEqual("paused", self.receive(self.connection.pauseProducing))
        self.connection.resumeProducing()
        self.assertEqual("producing", self.transport.producerState)

    def test_data_after_a_pause(self) -> None:
        """A resume counts for all pauses before it: TLS passes on what it has read, also paused.

        Otherwise, the next response on the connection would never be read.
        """
        pause = self.connection.pauseProducing
        self.assertEqual("producing", self.receive(pause, self.pause_and_resume))
        self.assertEqual("paused", self.receive(pause, pause))
