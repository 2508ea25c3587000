"""A consumer with as much room as a test gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IConsumer
from zope.interface import implementer


@implementer(IConsumer)
class FakeConsumer:
    """Takes what it is written, and pauses its producer while it holds more than it has room for.

    :ivar data: everything that was written.
    :ivar writes: how many bytes each write had.
    :ivar heard: what it was told, in order: registered, wrote, unregistered.
    :ivar on_write: called after each write.
    """

    def __init__(self, room: int | None = None) -> None:
        self.data = bytearray()
        self.writes: list[int] = []
        self.heard: list[str] = []
        self.producer: Any = None
        self.on_write: Callable[[], object] = lambda: None
        self._room = room
        self._held = 0

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert self.producer is None, "one producer at a time"
        assert streaming, "pull producers are not for us"
        self.producer = producer
        self.heard.append("registered")

    def unregisterProducer(self) -> None:
        assert self.producer is not None, "there is none to unregister"
        self.producer = None
        self.heard.append("unregistered")

    def write(self, data: bytes) -> None:
        assert self.producer is not None, "only a registered producer writes"
        assert data, "an empty write is an end of chunks"
        self.data += data
        self.writes.append(len(data))
        self.heard.append("wrote")
        self._held += len(data)
        if self._room is not None and self._held > self._room:
            self.producer.pauseProducing()
        self.on_write()

    def drain(self) -> None:
        """Pass on what is held, and ask for more."""
        self._held = 0
        if self.producer is not None:
            self.producer.resumeProducing()

    def hang_up(self) -> None:
        """Go away; a producer hears of it and is forgotten."""
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.stopProducing()
