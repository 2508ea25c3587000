"""Open remote sources: what children and the service read of them, and what ends them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import MagicMock, patch

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NotFound, ProbeTimeout, RenderFailed, RenderTimeout, SourceTooLarge
from audioproxy.media.inputs import (
    MAP_DESCRIPTOR,
    QUESTIONS_DESCRIPTOR,
    SOURCE_DESCRIPTOR,
    Input,
    local_input,
)
from audioproxy.sources.blocks import BLOCK
from audioproxy.sources.far_source import LAST_BYTES, START_BYTES, FarReading, FarSource, Found
from audioproxy.sources.fetch import Busy, Part
from tests.sources.test_far_file import CONTENT, FarFileCase
from tests.support.far_versions import FakeReaders, FakeVersion

T = TypeVar("T")


async def look(opened: Input) -> Input:
    """Look at a source without a child."""
    return opened


class FarSourceCase(FarFileCase):
    """Sources whose origin a test plays."""

    def setUp(self) -> None:
        """Open no source yet."""
        super().setUp()
        self.reactor = FakeReaders()
        self.is_preloaded = True
        reactor: Any = self.reactor
        self.reading = FarReading(
            reactor,
            self.clock,
            self.files,
            self.in_thread,
            self.can_preload,
            self.most_unknown,
            100.0,
        )

    async def can_preload(self) -> bool:
        """Return whether children can ask for blocks."""
        return self.is_preloaded

    def open(
        self,
        version: FakeVersion,
        *,
        validator: bytes = b"1",
        is_sized: bool = True,
        end: Deferred[Part] | None = None,
        unreadable: str = "",
        reads: bool = True,
    ) -> FarSource:
        """Open a source."""
        size = len(version.content) if is_sized else None
        stop = len(version.content) if version.is_whole else min(START_BYTES, size or 0)
        start = version.part(0, stop)
        found = Found(b"a", validator, size, version, start, end, unreadable)
        source = self.reading.open(found, reads=reads)
        self.addCleanup(source.close)
        return source

    def opened(self) -> tuple[FakeVersion, FarSource]:
        """Return a version that is served in ranges, and its source, whose ends have come."""
        version = FakeVersion(CONTENT)
        source = self.open(version)
        version.run()
        return version, source

    def result_of(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a call that waits for nothing."""
        result: T = self.successResultOf(self.begin(work))
        return result

    def error_of(self, work: Coroutine[Any, Any, Any], kind: type[Exception]) -> None:
        """Assert that a call fails at once."""
        self.failureResultOf(self.begin(work), kind)

    def child_of(self, source: FarSource) -> socket.socket:
        """Return a child's socket for questions."""
        with source.inherit() as descriptors:
            child = socket.socket(fileno=os.dup(descriptors[QUESTIONS_DESCRIPTOR]))
        self.addCleanup(child.close)
        return child

    def ask(self, child: socket.socket, block: int) -> None:
        """Ask for a block, as a child does."""
        child.send(struct.pack("<Q", block))
        self.reactor.run()

    def begin(self, work: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Start a call."""
        return Deferred.fromCoroutine(work)

    def deadline(self, seconds: float = 60) -> Deadline:
        """Return a deadline of a render."""
        return Deadline(self.clock, seconds, RenderTimeout)


class ReadTests(FarSourceCase):
    """What the service itself reads."""

    def test_requests(self) -> None:
        """The start comes with the first response, the end with one more, without being asked."""
        version, source = self.opened()
        last = (len(CONTENT) - 64 * 1024) // BLOCK * BLOCK
        self.assertEqual([(last, len(CONTENT))], version.requests)
        for place, count in ((0, 100), (100_000, 60_000), (len(CONTENT) - 60_000, 60_000)):
            self.assertEqual(
                CONTENT[place : place + count], self.result_of(source.read(place, count))
            )
        self.assertEqual(1, len(version.requests))

    def test_end_that_is_coming(self) -> None:
        """An end that was requested with the start is not requested again, unless that fails."""
        place = len(CONTENT) - LAST_BYTES
        for fails in (False, True):
            version = FakeVersion(CONTENT)
            coming: Deferred[Part] = Deferred()
            source = self.open(version, validator=b"%d" % fails, end=coming)
            reading = self.begin(source.read(len(CONTENT) - 100, 100))
            version.run()
            self.assertEqual([], version.requests)
            if fails:
                coming.errback(Busy("no such range"))
            else:
                coming.callback(version.part(place, len(CONTENT)))
            version.run()
            self.assertEqual(CONTENT[-100:], self.successResultOf(reading))
            self.assertEqual(fails, len(version.requests))

    def test_end_that_is_known(self) -> None:
        """An end that is there already is not needed, whether it has come or not."""
        version = FakeVersion(CONTENT)
        self.open(version)
        for has_come in (False, True):
            coming: Deferred[Part] = Deferred()
            if has_come:
                coming.callback(version.part(len(CONTENT) - LAST_BYTES, len(CONTENT)))
            again = self.open(version, end=coming)
            self.assertTrue(coming.called)
            self.assertIs(has_come, version.streams[-2].is_discarded)
            again.close()

    def test_end_of_a_broadcast(self) -> None:
        """Of MPEG-TS, more of the end is requested: ffprobe reads 250,000 bytes."""
        version = FakeVersion((b"G" + bytes(187)) * 20_000)
        self.open(version)
        version.run()
        first, stop = version.requests[0]
        assert stop is not None
        self.assertGreaterEqual(stop - first, 250_000)

    def test_shared(self) -> None:
        """Another request for the same version reads what is there; another version does not."""
        version = FakeVersion(CONTENT)
        first = self.open(version)
        version.run()
        first.close()
        again = FakeVersion(CONTENT)
        second = self.open(again)
        self.assertTrue(again.streams[0].is_discarded)
        self.assertEqual(CONTENT[:9], self.result_of(second.read(0, 9)))
        second.close()
        changed = FakeVersion(CONTENT[::-1])
        third = self.open(changed, validator=b"2")
        changed.run()
        self.assertEqual(CONTENT[:-10:-1], self.result_of(third.read(0, 9)))
        third.close()

    def test_without_a_validator(self) -> None:
        """Without a validator, nothing is shared, and nothing is certain."""
        version = FakeVersion(CONTENT, is_whole=True)
        first = self.open(version, validator=b"")
        second = self.open(version, validator=b"")
        self.assertFalse(first.has_certain_identity())
        self.assertFalse(version.streams[1].is_discarded)
        first.close()
        second.close()
        self.assertFalse(any(stream.is_open for stream in version.streams))

    def test_given_back_meanwhile(self) -> None:
        """A block that is given back while it is read is read again."""
        version, source = self.opened()
        file = source.begin()
        with patch("audioproxy.sources.far_source.read_in_thread", new_callable=MagicMock) as read:
            slow: Deferred[bytes] = Deferred()
            read.side_effect = [slow, Deferred.fromCoroutine(_return(b"right"))]
            reading = self.begin(source.read(0, 5))
            self.result_of(file.give_back(4))
            slow.callback(bytes(5))
            version.run()
            self.assertEqual(b"right", self.successResultOf(reading))

    def test_failures(self) -> None:
        """A block that cannot be had is a refusal, also of all that the source is for."""
        version = FakeVersion(CONTENT)
        source = self.open(version)
        version.faults = [None, NotFound("gone")]
        version.run()
        self.error_of(source.read(50 * BLOCK, 5), NotFound)
        self.assertIsInstance(source.failure, NotFound)
        self.assertFalse(source.has_certain_identity())
        self.assertFalse(self.result_of(source.unchanged()))

    def test_disk_that_fails(self) -> None:
        """A file that cannot be read is a failed render."""
        _version, source = self.opened()
        with patch("os.pread", side_effect=OSError(errno.EIO, "broken")):
            self.error_of(source.read(0, 5), RenderFailed)

    def test_stat(self) -> None:
        """A source that is only looked up takes no file, and drops the body of its response."""
        version = FakeVersion(CONTENT)
        source = self.open(version, reads=False)
        self.assertTrue(version.streams[0].is_discarded)
        self.assertEqual(
            (len(CONTENT), b"1", b"a\n1"), (source.size, source.validator, source.identity)
        )
        reading = self.begin(source.read(0, 5))
        version.run()
        self.assertEqual(CONTENT[:5], self.successResultOf(reading))

    def test_no_file(self) -> None:
        """Where no file can be created, opening succeeds, and reading fails."""
        with patch("tempfile.TemporaryFile", side_effect=OSError(errno.ENOSPC, "full")):
            source = self.open(FakeVersion(CONTENT))
            self.error_of(source.read(0, 5), RenderFailed)


async def _return(value: T) -> T:
    return value


class ChildTests(FarSourceCase):
    """What a child gets."""

    def test_questions(self) -> None:
        """A child asks for what is missing; when it cannot be had, the source says why first."""
        version, source = self.opened()
        with source.inherit() as descriptors:
            self.assertEqual(
                {SOURCE_DESCRIPTOR, QUESTIONS_DESCRIPTOR, MAP_DESCRIPTOR}, set(descriptors)
            )
            child = socket.socket(fileno=os.dup(descriptors[QUESTIONS_DESCRIPTOR]))
        self.ask(child, 50)
        version.run()
        self.assertEqual(bytes(4), child.recv(9))
        self.assert_content(source.begin(), 50)
        version.faults = [RenderFailed("The source changed while it was read.")]
        self.ask(child, 90)
        self.assertIsInstance(source.failure, RenderFailed)
        self.assertEqual(errno.EIO.to_bytes(4, "little"), child.recv(9))
        source.close()
        self.assertEqual(b"", child.recv(9))

    def test_share(self) -> None:
        """A child that reads a share of the source gets no request for much more."""
        version, source = self.opened()
        self.result_of(source.input(self.deadline(), 0.5))
        child = self.child_of(source)
        self.ask(child, 4)
        stop = version.requests[-1][1]
        assert stop is not None
        self.assertTrue(0.5 * len(CONTENT) < stop < 0.6 * len(CONTENT) + 2 * BLOCK, stop)

    def test_nobody_can_write(self) -> None:
        """No descriptor of a child can write the file or the map."""
        source = self.open(FakeVersion(CONTENT))
        with source.inherit() as descriptors:
            for number in (SOURCE_DESCRIPTOR, MAP_DESCRIPTOR):
                with self.assertRaises(OSError):
                    os.write(descriptors[number], b"x")

    def test_places_that_no_source_has(self) -> None:
        """A question about a block past the end is answered with EIO, and requests nothing."""
        version, source = self.opened()
        child = self.child_of(source)
        for block in (len(CONTENT) // BLOCK + 1, 2**64 - 1):
            self.ask(child, block)
            self.assertEqual(errno.EIO.to_bytes(4, "little"), child.recv(9))
        self.assertEqual(1, len(version.requests))

    def test_end_of_a_child(self) -> None:
        """When a child has ended, what it has requested is given up."""
        version, source = self.opened()
        child = self.child_of(source)
        self.ask(child, 4)
        self.assertTrue(version.streams[-1].is_open)
        version.streams[-1].arrive(BLOCK)
        child.close()
        self.reactor.run()
        self.assertFalse(version.streams[-1].is_open)

    def test_start_that_fails(self) -> None:
        """A child that cannot be started leaves no socket, and the source is opened anew."""
        source = self.open(FakeVersion(CONTENT))
        starting, error = source.inherit(), OSError(errno.EAGAIN, "no server")
        starting.__enter__()
        self.assertFalse(starting.__exit__(OSError, error, None))
        self.assertIsInstance(source.failure, RenderFailed)
        self.assertEqual([], self.reactor.readers)

    def test_closed_while_others_look(self) -> None:
        """A look that other requests share goes on when the source is closed."""
        _version, source = self.opened()
        waiting: Deferred[None] = Deferred()

        async def look_long(opened: Input) -> int:
            await waiting
            with source.inherit() as descriptors:
                return len(descriptors)

        looking = self.begin(source.inspect(self.deadline(), look_long))
        source.close()
        waiting.callback(None)
        self.assertEqual(3, self.successResultOf(looking))
        self.assertEqual([], self.reactor.readers)


class WholeTests(FarSourceCase):
    """Sources without ranges, or without a size."""

    def test_look_while_it_arrives(self) -> None:
        """A source without ranges is looked at while it arrives, and can be sought."""
        version = FakeVersion(CONTENT, is_whole=True)
        source = self.open(version)
        self.assertEqual(local_input(), self.result_of(source.inspect(self.deadline(), look)))
        self.assertIsNone(source.descriptor)
        completing = self.begin(source.complete(self.deadline()))
        self.assertNoResult(completing)
        version.run()
        self.successResultOf(completing)
        assert source.descriptor is not None
        with source.inherit() as descriptors:
            self.assertEqual({SOURCE_DESCRIPTOR: source.descriptor}, dict(descriptors))

    def test_slow(self) -> None:
        """If half of the time was not enough, the start alone is looked at."""
        version = FakeVersion(CONTENT, is_whole=True)
        source = self.open(version)
        seen: list[bool] = []

        async def look_at_the_end(opened: Input) -> Input:
            seen.append(opened.seekable)
            if opened.seekable:
                await source.read(len(CONTENT) - 3, 3)
            return opened

        deadline = Deadline(self.clock, 10, ProbeTimeout)
        looking = self.begin(source.inspect(deadline, look_at_the_end))
        self.clock.advance(4)
        self.assertNoResult(looking)
        self.clock.advance(2)
        self.assertEqual(local_input(seekable=False), self.successResultOf(looking))
        self.assertEqual([True, False], seen)
        self.assertIsNone(source.failure)

    def test_no_size(self) -> None:
        """A source that states no size is complete before it is looked at, or rendered."""
        version = FakeVersion(CONTENT, is_whole=True)
        source = self.open(version, is_sized=False)
        looking = self.begin(source.inspect(self.deadline(), look))
        opening = self.begin(source.input(self.deadline()))
        self.assertNoResult(looking)
        self.assertNoResult(opening)
        version.run()
        self.assertEqual(local_input(), self.successResultOf(looking))
        self.assertEqual(local_input(), self.successResultOf(opening))
        self.assertEqual(len(CONTENT), source.size)

    def test_too_large(self) -> None:
        """Of one that is too large, a look sees what is accepted; a render is a 413.

        (Info endpoint, 4)
        """
        version = FakeVersion(bytes(self.most_unknown + 1), is_whole=True)
        source = self.open(version, is_sized=False)
        looking = self.begin(source.inspect(self.deadline(), look))
        version.run()
        self.assertEqual(local_input(seekable=False), self.successResultOf(looking))
        self.result_of(source.read(self.most_unknown - 10, 10))
        self.assertIsNone(source.failure)
        self.error_of(source.complete(self.deadline()), SourceTooLarge)


class CopyTests(FarSourceCase):
    """Where children cannot ask for blocks."""

    def setUp(self) -> None:
        """Preload nothing."""
        super().setUp()
        self.is_preloaded = False

    def test_copy(self) -> None:
        """The source is complete before it is looked at, and the child gets the file alone."""
        version = FakeVersion(CONTENT)
        source = self.open(version)
        looking = self.begin(source.inspect(self.deadline(), look))
        self.assertNoResult(looking)
        version.run()
        self.assertEqual(local_input(), self.successResultOf(looking))
        self.result_of(source.input(self.deadline()))
        with source.inherit() as descriptors:
            self.assertEqual([SOURCE_DESCRIPTOR], list(descriptors))
            self.assertEqual(CONTENT, os.pread(descriptors[3], len(CONTENT) + 1, 0))

    def test_own_time(self) -> None:
        """The copy takes no time of the probe, and has a limit of its own."""
        version = FakeVersion(CONTENT)
        source = self.open(version)
        deadline = Deadline(self.clock, 10, ProbeTimeout)
        looking = self.begin(source.inspect(deadline, look))
        self.clock.advance(50)
        version.run()
        self.successResultOf(looking)
        self.assertEqual(10, deadline.remaining)

    def test_too_large(self) -> None:
        """A large source is looked at as far as sources may reach; a render is a 413."""
        version = FakeVersion(CONTENT + bytes(4 * 1024 * 1024))
        source = self.open(version)
        looking = self.begin(source.inspect(self.deadline(), look))
        version.run()
        self.assertEqual(local_input(seekable=False), self.successResultOf(looking))
        self.error_of(source.input(self.deadline()), SourceTooLarge)
        source.close()
