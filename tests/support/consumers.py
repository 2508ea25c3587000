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
    :ivar calls: the calls in order: registered, wrote, unregistered.
    :ivar on_write: called after each write.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.data = bytearray()
        self.writes: list[int] = []
        self.calls: list[str] = []
        self.producer: Any = None
        self.on_write: Callable[[], object] = lambda: None
        self._capacity = capacity
        self._held = 0

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert self.producer is None, "a producer is registered already"
        assert streaming, "only push producers are supported"
        self.producer = producer
        self.calls.append("registered")

    def unregisterProducer(self) -> None:
        assert self.producer is not None, "no producer is registered"
        self.producer = None
        self.calls.append("unregistered")

    def write(self, data: bytes) -> None:
        assert self.producer is not None, "write without a registered producer"
        assert data, "an empty write would end a chunked body"
        self.data += data
        self.writes.append(len(data))
        self.calls.append("wrote")
        self._held += len(data)
        if self._capacity is not None and self._held > self._capacity:
            self.producer.pauseProducing()
        self.on_write()

    def drain(self) -> None:
        """Empty the buffer and resume the producer."""
        self._held = 0
        if self.producer is not None:
            self.producer.resumeProducing()

    def disconnect(self) -> None:
        """Disconnect: stop the producer and unregister it."""
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.stopProducing()
