"""`FileProducer`: exact bytes at the consumer's pace, and one result."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IPushProducer
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from audioproxy.errors import RenderTimeout
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.files.streams import ConsumerGone, FileProducer
from audioproxy.render.encoded_file import EncodedFile
from audioproxy.render.output import RenderOutput
from tests.support.consumers import FakeConsumer
from tests.support.processes import open_descriptors, opened_since
from tests.support.strategies import DETERMINISTIC

CHUNK = 64 * 1024


class Bytes:
    """Bytes that can be read by offset; reads behind the first chunk can fail."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self._data = data
        self._error = error

    def read(self, offset: int, limit: int) -> bytes:
        if self._error is not None and offset >= CHUNK:
            raise self._error
        return self._data[offset : offset + limit]


class FileProducerCase(SynchronousTestCase):
    """Base class with a consumer."""

    def setUp(self) -> None:
        self.consumer = FakeConsumer()

    def begin(
        self,
        source: object,
        start: int = 0,
        stop: int | None = None,
        consumer: FakeConsumer | None = None,
    ) -> FileProducer:
        """Start to send bytes to a new consumer."""
        self.consumer = consumer or FakeConsumer()
        feed = FileProducer(source, start, stop)
        feed.send(self.consumer)
        return feed


class RangeTests(FileProducerCase):
    """Producer that reads a complete file"""

    DATA = bytes(range(256)) * 4 * 400

    def test_ranges(self) -> None:
        """Each range is written exactly, in chunks of at most 64 KiB."""
        size = len(self.DATA)
        for start, stop in (
            *((0, size), (0, 1), (size - 1, size), (5, 5 + CHUNK), (0, 2 * CHUNK)),
            *((7, 7), (size, size)),
        ):
            feed = self.begin(Bytes(self.DATA), start, stop)
            self.successResultOf(feed.done)
            self.assertEqual(self.consumer.data, self.DATA[start:stop], (start, stop))
            self.assertEqual(len(self.consumer.writes), -(-(stop - start) // CHUNK))

    def test_order(self) -> None:
        """The producer registers before the first byte, and unregisters before `done` fires."""
        feed = FileProducer(Bytes(b"abc"), 0, 3)
        self.assertTrue(verifyObject(IPushProducer, feed))
        feed.done.addCallback(lambda _: self.consumer.calls.append("done"))
        feed.send(self.consumer)
        self.assertEqual(self.consumer.calls, ["registered", "wrote", "unregistered", "done"])

    def test_failures(self) -> None:
        """A file that is shorter than the range fails with EOFError."""
        feed = self.begin(Bytes(b"abc"), 0, 5)
        self.failureResultOf(feed.done, EOFError)
        self.assertEqual((bytes(self.consumer.data), self.consumer.producer), (b"abc", None))
        for error in (OSError(5, "Input/output error"), ZeroDivisionError()):
            feed = self.begin(Bytes(self.DATA, error), 0, len(self.DATA))
            self.assertIs(self.failureResultOf(feed.done).value, error)
            self.assertEqual((len(self.consumer.data), self.consumer.producer), (CHUNK, None))

    def test_resumed_while_writing(self) -> None:
        """A consumer that resumes inside its write method receives each byte exactly once."""
        # More chunks than Python allows nested calls.
        data = self.DATA * 100
        consumer = FakeConsumer(capacity=0)
        consumer.on_write = consumer.drain
        feed = self.begin(Bytes(data), 0, len(data), consumer)
        self.successResultOf(feed.done)
        self.assertEqual(self.consumer.data, data)

    def test_gone(self) -> None:
        """A producer that is cancelled or loses its consumer ends, and writes nothing more."""
        for leave in (lambda feed: self.consumer.disconnect(), lambda feed: feed.done.cancel()):
            feed = self.begin(Bytes(self.DATA), 0, len(self.DATA), FakeConsumer(capacity=0))
            leave(feed)
            self.failureResultOf(feed.done, ConsumerGone)
            feed.resumeProducing()
            self.assertEqual(self.consumer.calls, ["registered", "wrote"])
        leaving = FakeConsumer()
        leaving.on_write = leaving.disconnect
        feed = self.begin(Bytes(self.DATA), 0, len(self.DATA), leaving)
        self.failureResultOf(feed.done, ConsumerGone)
        self.assertEqual(len(leaving.writes), 1)

        class Gone(FakeConsumer):
            def registerProducer(self, producer: FileProducer, streaming: bool) -> None:
                producer.stopProducing()

        feed = self.begin(Bytes(b"abc"), 0, 3, Gone())
        self.failureResultOf(feed.done, ConsumerGone)
        self.assertEqual(self.consumer.calls, [])


class PrefetchTests(FileProducerCase):
    """Producer of a file whose reads may block"""

    DATA = os.urandom(2_500_000)

    def setUp(self) -> None:
        super().setUp()
        self.prefetches: list[tuple[int, int, Deferred[object]]] = []
        self.is_fast = False

    def prefetch(self, offset: int, count: int) -> Deferred[object]:
        """Wait until the test fires the Deferred, unless the disk is fast."""
        if self.is_fast:
            return succeed(None)
        self.prefetches.append((offset, count, Deferred()))
        return self.prefetches[-1][2]

    def start(self, data: bytes, start: int, stop: int) -> Deferred[None]:
        """Start to send a range."""
        source = Bytes(data)
        return FileProducer(source, start, stop, prefetch=self.prefetch).send(self.consumer)

    def test_in_turn(self) -> None:
        """Nothing is read before it is prefetched, a megabyte at a time, and all bytes are sent."""
        size = len(self.DATA)
        for start, stop in ((0, size), (10, size - 10), (5, 70_000), (7, 7)):
            self.consumer = FakeConsumer()
            self.prefetches.clear()
            sending = self.start(self.DATA, start, stop)
            offset = start
            while offset < stop:
                self.assertNoResult(sending)
                self.assertEqual(bytes(self.consumer.data), self.DATA[start:offset])
                at, count, done = self.prefetches.pop()
                self.assertEqual((at, count), (offset, min(1 << 20, stop - offset)))
                self.assertEqual(self.prefetches, [])
                offset += count
                done.callback(None)
            self.successResultOf(sending)
            self.assertEqual(bytes(self.consumer.data), self.DATA[start:stop])

    def test_paused(self) -> None:
        """A consumer that pauses during a prefetch gets bytes when it resumes, and only once."""
        sending = self.start(self.DATA, 0, 70_000)
        self.consumer.producer.pauseProducing()
        self.consumer.producer.resumeProducing()
        self.consumer.producer.pauseProducing()
        ((_, _, done),) = self.prefetches
        done.callback(None)
        self.assertEqual(bytes(self.consumer.data), b"")
        self.consumer.producer.resumeProducing()
        self.successResultOf(sending)
        self.assertEqual(bytes(self.consumer.data), self.DATA[:70_000])

    def test_failure(self) -> None:
        """If a prefetch fails, `done` fails with the same error."""
        sending = self.start(self.DATA, 0, 70_000)
        error = OSError("the disk does not respond")
        self.prefetches[0][2].errback(error)
        self.assertIs(self.failureResultOf(sending).value, error)

    def test_gone(self) -> None:
        """If the consumer is gone, the end of a prefetch has no effect."""
        for error in (None, OSError("too late")):
            sending = self.start(self.DATA, 0, 70_000)
            self.consumer.producer.stopProducing()
            self.failureResultOf(sending, ConsumerGone)
            done = self.prefetches.pop()[2]
            done.callback(None) if error is None else done.errback(error)
            self.assertEqual(bytes(self.consumer.data), b"")
            self.consumer = FakeConsumer()


class GrowingFileTests(FileProducerCase):
    """Producer that reads the output of a running render"""

    def setUp(self) -> None:
        super().setUp()
        self.before = open_descriptors()
        self.output = RenderOutput(EncodedFile(AnonymousFile()), 1 << 30)

    def put(self, data: bytes) -> None:
        """Append bytes to the output as an encoder does."""
        os.write(self.output.descriptor, data)
        self.output.update_size(self.output.written)

    def assert_released(self) -> None:
        """Assert that the producer no longer keeps the file open."""
        self.output.release()
        self.assertEqual(set(), opened_since(self.before))

    def test_as_it_grows(self) -> None:
        """Existing bytes are written at once, and later bytes as they are appended."""
        self.put(b"abc")
        feed = self.begin(self.output)
        self.assertEqual(bytes(self.consumer.data), b"abc")
        self.put(b"def")
        self.assertEqual(bytes(self.consumer.data), b"abcdef")
        self.assertNoResult(feed.done)
        self.output.end()
        self.successResultOf(feed.done)
        self.assertIsNone(self.consumer.producer)
        self.assert_released()

    def test_failure(self) -> None:
        """If the render fails, `done` fails with the same error after all output is written."""
        failure = RenderTimeout()
        feed = self.begin(self.output, consumer=FakeConsumer(capacity=0))
        self.put(b"abc")
        self.put(b"def")
        self.output.end(failure)
        self.assertNoResult(feed.done)
        for _ in range(2):
            self.consumer.drain()
        self.assertIs(self.failureResultOf(feed.done).value, failure)
        self.assertEqual(bytes(self.consumer.data), b"abcdef")
        self.assert_released()

    def test_shortened(self) -> None:
        """If the file loses its end, `done` fails; the bytes would look complete otherwise."""
        feed = self.begin(self.output)
        self.put(b"abc")
        self.output.size += 1
        self.output.end()
        error = self.failureResultOf(feed.done, EOFError).value
        self.assertEqual(str(error), "the file was shortened to 3 bytes or less")
        self.assert_released()

    def test_stalled(self) -> None:
        """A stalled consumer does not delay the others (D38)."""
        stalled = FakeConsumer(capacity=0)
        stuck = FileProducer(self.output)
        stuck.send(stalled)
        feed = self.begin(self.output)
        for _ in range(10):
            self.put(b"abc")
        self.output.end()
        self.successResultOf(feed.done)
        self.assertEqual((len(self.consumer.data), len(stalled.data)), (30, 3))
        stalled.disconnect()
        self.failureResultOf(stuck.done, ConsumerGone)
        self.assert_released()

    @DETERMINISTIC
    @given(
        capacity=st.none() | st.integers(0, 200_000),
        reenters=st.booleans(),
        steps=st.lists(
            st.sampled_from(("drain", "pause", "resume"))
            | st.integers(1, 9)
            | st.integers(100_000, 300_000),
            max_size=12,
        ),
    )
    def test_any_interleaving(
        self, capacity: int | None, reenters: bool, steps: list[str | int]
    ) -> None:
        """The consumer receives exactly the output in any order of appends, pauses and resumes."""
        output = RenderOutput(EncodedFile(AnonymousFile()), 1 << 30)
        consumer = FakeConsumer(capacity)
        if reenters:
            consumer.on_write = lambda: len(consumer.writes) % 2 or consumer.drain()
        feed = FileProducer(output)
        feed.send(consumer)
        made = b""
        for number, step in enumerate(steps):
            if isinstance(step, int):
                more = bytes([number]) * step
                os.write(output.descriptor, more)
                output.update_size(output.written)
                made += more
            elif step == "drain":
                consumer.drain()
            elif step == "pause":
                feed.pauseProducing()
            else:
                feed.resumeProducing()
            self.assertTrue(made.startswith(consumer.data))
        output.end()
        for _ in range(len(made) // CHUNK + len(steps) + 2):
            consumer.drain()
        self.successResultOf(feed.done)
        self.assertEqual(consumer.data, made)
        self.assertEqual(consumer.calls[-1], "unregistered")
        output.release()
