"""The doubles of sources and stores behave as tests set them."""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.grammar.sources import LocalSource, S3Source
from audioproxy.variants.response_headers import VariantHeaders
from tests.support.consumers import FakeConsumer
from tests.support.processes import open_descriptors
from tests.support.stores import RECORD, FakeSources, FakeStore

HEADERS = VariantHeaders("audio/mpeg", "no-store")


class FakeSourcesTests(SynchronousTestCase):
    """`FakeSources` and `FakeSource`"""

    def setUp(self) -> None:
        self.sources = FakeSources({b"a": 3})

    def open(self, source: LocalSource | S3Source) -> Deferred:
        return Deferred.fromCoroutine(self.sources.open(source))

    def test_there(self) -> None:
        """An open source holds a descriptor; a closed source can only be closed again."""
        before = open_descriptors()
        source = self.successResultOf(self.open(LocalSource(b"a")))
        self.assertEqual((source.size, self.sources.held), (3, 1))
        self.assertEqual(os.read(source.descriptor, 1), b"")
        with source.inherit() as descriptors:
            self.assertEqual(descriptors, {3: source.descriptor})
        source.close()
        self.assertEqual((self.sources.held, open_descriptors()), (0, before))
        source.close()
        for use in (source.read(0, 1), source.unchanged(), source.input(Deadline(Clock(), 1))):
            self.failureResultOf(Deferred.fromCoroutine(use), AssertionError)


class FakeStoreTests(SynchronousTestCase):
    """`FakeStore`"""

    def setUp(self) -> None:
        self.store = FakeStore()
        self.scratch = self.successResultOf(Deferred.fromCoroutine(self.store.create()))
        self.addCleanup(self.scratch.close)
        os.write(self.scratch.descriptor, b"abc")

    def commit(self) -> Deferred:
        return Deferred.fromCoroutine(self.store.commit("k", self.scratch, 3, HEADERS, RECORD))

    def lookup(self) -> object:
        return self.successResultOf(Deferred.fromCoroutine(self.store.lookup("k")))

    def test_round_trip(self) -> None:
        """A lookup returns a variant once it is committed, with its headers."""
        self.store.slow = True
        committing = self.commit()
        self.assertNoResult(committing)
        self.assertIsNone(self.lookup())
        self.store.commits[0].callback(None)
        self.successResultOf(committing)
        stored = self.lookup()
        self.assertEqual((stored.size, stored.read(1, 9)), (3, b"bc"))
        self.assertEqual({"k": (b"abc", HEADERS)}, self.store.variants)
        consumer = FakeConsumer()
        flow = self.successResultOf(Deferred.fromCoroutine(stored.open_range(1, 2)))
        self.successResultOf(flow.send(consumer))
        self.assertEqual(b"b", bytes(consumer.data))
        stored.close()
        self.assertRaises(AssertionError, stored.read, 0, 1)
        self.assertEqual((1, 1), (stored.opened, stored.closed))

    def test_refuses(self) -> None:
        """A failed commit stores nothing; a scratch file must have the stated size."""
        os.ftruncate(self.scratch.descriptor, 2)
        self.failureResultOf(self.commit(), AssertionError)
        self.store.refusal = OSError()
        self.failureResultOf(self.commit(), OSError)
        self.assertIsNone(self.lookup())
