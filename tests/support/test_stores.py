"""The doubles of sources and stores behave as tests set them."""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NotFound
from audioproxy.grammar.sources import LocalSource, S3Source
from audioproxy.media.command.inputs import Input, local_input
from audioproxy.variants.headers import VariantHeaders
from tests.support.consumers import FakeConsumer
from tests.support.processes import open_descriptors
from tests.support.stores import FakeSources, FakeStore

HEADERS = VariantHeaders("audio/mpeg", "no-store")


class FakeSourcesTests(SynchronousTestCase):
    """`FakeSources` and `FakeSource`"""

    def setUp(self) -> None:
        self.sources = FakeSources({b"a": 3})

    def open(self, source: LocalSource | S3Source) -> Deferred:
        return Deferred.fromCoroutine(self.sources.open(source))

    def test_there(self) -> None:
        """An existing source can be opened, and holds a descriptor until it is closed."""
        before = open_descriptors()
        source = self.successResultOf(self.open(LocalSource(b"a")))
        self.assertEqual((source.size, self.sources.held), (3, 1))
        self.assertEqual(os.read(source.descriptors[3], 1), b"")
        source.close()
        self.assertEqual((self.sources.held, open_descriptors()), (0, before))
        self.assertRaises(AssertionError, source.close)

    def test_fetched(self) -> None:
        """`input` of a slow source waits for `fetching`; `inspect` does not."""
        self.sources.slow = True
        source = self.successResultOf(self.open(LocalSource(b"a")))
        self.addCleanup(source.close)

        async def look(opened: Input) -> Input:
            return opened

        seen = self.successResultOf(
            Deferred.fromCoroutine(source.inspect(Deadline(Clock(), 5), look))
        )
        self.assertEqual(local_input(), seen)
        fetching = Deferred.fromCoroutine(source.input(Deadline(Clock(), 4)))
        self.assertNoResult(fetching)
        source.refusal = OSError()
        source.fetching.callback(None)
        self.failureResultOf(fetching, OSError)
        self.assertEqual(source.input_calls, [(5, False), (4, True)])

    def test_not_there(self) -> None:
        """Opening a missing source raises NotFound, as with every source store."""
        for source in (LocalSource(b"b"), S3Source("a", b"a")):
            self.failureResultOf(self.open(source), NotFound)

    def test_crash(self) -> None:
        """Opening a source raises the error that a test sets."""
        self.sources.crash = OSError()
        self.failureResultOf(self.open(LocalSource(b"a")), OSError)

    def test_default(self) -> None:
        """With a default size every source exists, with the validator that a test sets."""
        self.sources.default_size = 5
        self.sources.validator = b"v"
        source = self.successResultOf(self.open(S3Source("a", b"b")))
        source.close()
        self.assertEqual((5, b"s3://a/b\nv"), (source.size, source.identity))
        self.assertEqual([("open", b"s3://a/b")], self.sources.calls)


class FakeStoreTests(SynchronousTestCase):
    """`FakeStore`"""

    def setUp(self) -> None:
        self.store = FakeStore()
        self.scratch = self.successResultOf(Deferred.fromCoroutine(self.store.create()))
        self.addCleanup(self.scratch.close)
        os.write(self.scratch.descriptor, b"abc")

    def commit(self) -> Deferred:
        return Deferred.fromCoroutine(self.store.commit("k", self.scratch, 3, HEADERS))

    def lookup(self) -> object:
        return self.successResultOf(Deferred.fromCoroutine(self.store.lookup("k")))

    def called(self) -> list[str]:
        return [name for name, _ in self.store.calls]

    def test_round_trip(self) -> None:
        """A lookup returns a committed variant with its headers."""
        self.assertIsNone(self.store.read_small("k"))
        self.store.calls.clear()
        self.assertIsNone(self.lookup())
        self.successResultOf(self.commit())
        stored = self.lookup()
        self.assertEqual((stored.size, stored.headers, stored.read(1, 9)), (3, HEADERS, b"bc"))
        consumer = FakeConsumer()
        flow = self.successResultOf(Deferred.fromCoroutine(stored.open_range(1, 2)))
        self.successResultOf(flow.send(consumer))
        self.assertEqual(b"b", bytes(consumer.data))
        stored.close()
        self.assertRaises(AssertionError, stored.read, 0, 1)
        self.assertEqual((1, 1, ["lookup"] * 2), (stored.opened, stored.closed, self.called()))

    def test_errors(self) -> None:
        """Lookups, ranges and reads raise the errors that a test sets."""
        self.successResultOf(self.commit())
        stored = self.lookup()
        stored.error, stored.error_at = OSError(), 1
        self.assertEqual(b"a", stored.read(0, 1))
        self.assertRaises(OSError, stored.read, 1, 1)
        stored.refusal = self.store.lookup_error = OSError()
        for failing in (stored.open_range(0, 1), self.store.lookup("k")):
            self.failureResultOf(Deferred.fromCoroutine(failing), OSError)

    def test_slow(self) -> None:
        """A lookup does not find a variant whose slow commit has not ended."""
        self.store.slow = True
        committing = self.commit()
        self.assertNoResult(committing)
        self.assertIsNone(self.lookup())
        self.store.commits[0].callback(None)
        self.successResultOf(committing)
        self.assertIsNotNone(self.lookup())

    def test_refuses(self) -> None:
        """A failed commit stores nothing, and a store without space creates no scratch file."""
        self.store.refusal = OSError()
        self.failureResultOf(self.commit(), OSError)
        self.assertIsNone(self.lookup())
        self.store.create_error = OSError()
        self.failureResultOf(Deferred.fromCoroutine(self.store.create()), OSError)
