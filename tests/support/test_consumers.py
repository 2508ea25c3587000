"""The consumer double behaves as a real consumer does."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from tests.support.consumers import FakeConsumer


class FakeConsumerTests(SynchronousTestCase):
    """`FakeConsumer`"""

    def setUp(self) -> None:
        self.consumer = FakeConsumer(capacity=3)
        self.calls: list[str] = []
        names = ("pauseProducing", "resumeProducing", "stopProducing")
        self.producer = SimpleNamespace(
            **{each: partial(self.calls.append, each) for each in names}
        )

    def test_pauses(self) -> None:
        """Each write over the capacity pauses the producer, and `drain` resumes it."""
        self.consumer.registerProducer(self.producer, True)
        for data in (b"abc", b"d", b"e"):
            self.consumer.write(data)
        self.assertEqual(self.calls, ["pauseProducing"] * 2)
        self.consumer.drain()
        self.consumer.write(b"fgh")
        self.assertEqual(self.calls, ["pauseProducing"] * 2 + ["resumeProducing"])
        self.assertEqual((bytes(self.consumer.data), self.consumer.writes[0]), (b"abcdefgh", 3))

    def test_forbids(self) -> None:
        """The consumer rejects misuse that a real one would ignore or fail on."""
        self.assertRaises(AssertionError, self.consumer.write, b"a")
        self.assertRaises(AssertionError, self.consumer.unregisterProducer)
        self.assertRaises(AssertionError, self.consumer.registerProducer, self.producer, False)
        self.consumer.registerProducer(self.producer, True)
        self.assertRaises(AssertionError, self.consumer.registerProducer, self.producer, True)
        self.assertRaises(AssertionError, self.consumer.write, b"")
        self.consumer.unregisterProducer()
        self.assertEqual(self.consumer.calls, ["registered", "unregistered"])
