"""Consumer whose capacity a test sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IConsumer
from zope.interface import implementer


@implementer(IConsumer)
class FakeConsumer:
    """Consumer that pauses its producer while it holds more bytes than its capacity.

    :ivar data: all bytes written.
    :ivar writes: the size of each write.
    :ivar heard: the calls in order: registered, wrote, unregistered.
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
        assert self.producer is None, "a producer is registered already"
        assert streaming, "only push producers are supported"
        self.producer = producer
        self.heard.append("registered")

    def unregisterProducer(self) -> None:
        assert self.producer is not None, "no producer is registered"
        self.producer = None
        self.heard.append("unregistered")

    def write(self, data: bytes) -> None:
        assert self.producer is not None, "write without a registered producer"
        assert data, "an empty write would end a chunked body"
        self.data += data
        self.writes.append(len(data))
        self.heard.append("wrote")
        self._held += len(data)
        if self._room is not None and self._held > self._room:
            self.producer.pauseProducing()
        self.on_write()

    def drain(self) -> None:
        """Empty the buffer and resume the producer."""
        self._held = 0
        if self.producer is not None:
            self.producer.resumeProducing()

    def hang_up(self) -> None:
        """Disconnect: stop the producer and unregister it."""
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.stopProducing()
