"""The consumer double behaves as a real consumer does."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.support.consumers import FakeConsumer


class Producer:
    """Producer that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


class FakeConsumerTests(SynchronousTestCase):
    """`FakeConsumer`"""

    def setUp(self) -> None:
        self.consumer = FakeConsumer(capacity=3)
        self.producer = Producer()

    def test_pauses(self) -> None:
        """Each write over the capacity pauses the producer, and `drain` resumes it."""
        self.consumer.registerProducer(self.producer, True)
        for data in (b"abc", b"d", b"e"):
            self.consumer.write(data)
        self.assertEqual(self.producer.calls, ["pause", "pause"])
        self.consumer.drain()
        self.consumer.write(b"fgh")
        self.assertEqual(self.producer.calls, ["pause", "pause", "resume"])
        self.assertEqual((bytes(self.consumer.data), self.consumer.writes[0]), (b"abcdefgh", 3))

    def test_hangs_up(self) -> None:
        """A disconnect stops the producer once."""
        self.consumer.registerProducer(self.producer, True)
        self.consumer.disconnect()
        self.consumer.disconnect()
        self.consumer.drain()
        self.assertEqual(self.producer.calls, ["stop"])

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
