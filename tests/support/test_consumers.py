"""The consumer double refuses what a real consumer ignores or fails on."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.support.consumers import FakeConsumer


class FakeConsumerTests(SynchronousTestCase):
    """`FakeConsumer`"""

    def test_forbids(self) -> None:
        """The consumer rejects misuse that a real one would ignore or fail on."""
        consumer, producer = FakeConsumer(), object()
        self.assertRaises(AssertionError, consumer.write, b"a")
        self.assertRaises(AssertionError, consumer.unregisterProducer)
        self.assertRaises(AssertionError, consumer.registerProducer, producer, False)
        consumer.registerProducer(producer, True)
        self.assertRaises(AssertionError, consumer.registerProducer, producer, True)
        self.assertRaises(AssertionError, consumer.write, b"")
        consumer.unregisterProducer()
        self.assertEqual(consumer.calls, ["registered", "unregistered"])
