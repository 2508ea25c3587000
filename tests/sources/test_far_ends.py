"""Ends of fetches, copies and files, at any moment: nobody waits in vain, and nothing is left."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred

from audioproxy.errors import RenderFailed, SourceTooLarge, UpstreamUnavailable
from audioproxy.http_client.errors import TransportError
from audioproxy.sources import far_files
from audioproxy.sources.blocks import BLOCK
from audioproxy.sources.far_file import FarFile, Reader
from audioproxy.sources.far_source import LAST_BYTES, START_BYTES, FarSource
from audioproxy.sources.fetch import MOST_PATIENCE, Busy, Part
from audioproxy.testing import FakeThreads
from tests.sources.test_far_file import CONTENT, LOST, MIB, FarFileCase
from tests.sources.test_far_source import FarSourceCase, look
from tests.support.far_versions import FakeStream, FakeVersion
from tests.support.processes import open_descriptors, opened_since


class FileEndTests(FarFileCase):
    """`FarFile`, whose disk is as slow as a test says."""

    def setUp(self) -> None:
        """Let disk work run at once."""
        self.threads = FakeThreads()
        self.is_slow = False
        super().setUp()

    def in_thread(self, work: Any) -> Any:
        """Run disk work at once, or when a test says so."""
        return self.threads.in_thread(work) if self.is_slow else super().in_thread(work)

    def test_large_kept_source(self) -> None:
        """A source that is kept beyond the bound does not take the blocks of others."""
        self.files = self.create_files(8 * BLOCK)
        whole = FakeVersion(CONTENT, is_whole=True)
        kept = self.create(whole, identity=b"w\n1")
        kept.begin(whole.part(0, len(CONTENT)), None)
        whole.run()
        version, file = self.created()
        self.wanted(file, 20)
        version.run()
        self.assert_content(file, 20)
        self.assertEqual(1, len(version.requests))

    def test_copy_that_fails(self) -> None:
        """A copy that fails is not complete; the next one gets what is missing."""
        version, file = self.created()
        version.faults = [None, Busy("503", MOST_PATIENCE + 1)]
        file.begin(None, 4 * BLOCK)
        version.run()
        self.assertIsInstance(self.refusal(file.complete()), UpstreamUnavailable)
        self.assertFalse(file.is_complete)
        completing = file.complete()
        version.run()
        self.successResultOf(completing)
        self.assertTrue(file.is_complete)

    def test_copy_that_nobody_awaits(self) -> None:
        """A copy ends with the last one who waits for it."""
        version, file = self.created()
        completing = file.complete()
        completing.addErrback(lambda failure: None)
        completing.cancel()
        version.run()
        self.assertLess(file.blocks.used, len(CONTENT) // 2)
        self.assertFalse(file.is_kept)

    def test_shrunk(self) -> None:
        """A source without a size that has fewer bytes at the second attempt has changed."""
        version, file = self.created_whole(is_sized=False)
        version.streams[0].arrive(30 * BLOCK)
        version.streams[0].lose(LOST)
        version.most = 10 * BLOCK
        self.clock.advance(0)
        version.run()
        self.assertIsInstance(file.failure, RenderFailed)

    def test_too_large_at_the_last_write(self) -> None:
        """A source without a size whose last byte is written after its end is a 413, too."""
        version = FakeVersion(bytes(self.most_unknown + 1), is_whole=True)
        file = self.create(version, is_sized=False)
        self.is_slow = True
        file.begin(version.part(0, len(version.content)), None)
        completing = file.complete()
        while version.streams[0].is_open:
            self.threads.run()
            version.run()
        self.assertNoResult(completing)
        self.threads.run()
        self.assertIsInstance(self.refusal(completing), SourceTooLarge)

    def test_closed_during_a_write(self) -> None:
        """A file is closed when its last write is over, and nothing is written after that."""
        version, file = self.created()
        waiting = file.want(0, Reader())
        self.wanted(file, 60)
        self.is_slow = True
        with (
            patch.object(file.blocks, "close", wraps=file.blocks.close) as closing,
            patch.object(file.blocks, "write", wraps=file.blocks.write) as writing,
        ):
            for stream in version.streams:
                stream.arrive(200_000)
            self.files.close()
            self.failureResultOf(waiting, RenderFailed)
            closing.assert_not_called()
            self.threads.run()
            closing.assert_called_once()
            writing.assert_called_once()
        self.files.open()

    def test_removed_while_room_is_made(self) -> None:
        """A file that is removed while room is made for another one does no harm."""
        self.files = self.create_files(2 * BLOCK, least_kept=0)
        made: list[FarFile] = []
        for name in (b"a\n1", b"b\n1"):
            version = FakeVersion(CONTENT)
            made.append(self.create(version, identity=name))
            with patch.object(self.files, "most_bytes", MIB):
                self.wanted(made[-1], 20)
                version.run()
        self.is_slow = True
        making = Deferred.fromCoroutine(self.files.make_room(made[0], False))
        made[0].failure = RenderFailed("gone")
        self.files.release(made[0])
        self.is_slow = False
        self.threads.run()
        self.successResultOf(making)

    def test_no_thread(self) -> None:
        """Where no thread can be started for the first bytes, the render fails at once."""
        version = FakeVersion(CONTENT)

        class Prompt(FakeStream):
            def send(self, consumer: Any) -> Deferred[None]:
                done = super().send(consumer)
                self.arrive(BLOCK)
                return done

        def refuse(work: object) -> None:
            raise OSError(errno.EAGAIN, "no thread")

        file = self.create(version)
        stream = Prompt(CONTENT, 0, 4 * BLOCK)
        with patch.object(file, "run_in_thread", refuse):
            file.begin(Part(0, stream), 4 * BLOCK)
        self.assertFalse(stream.is_open)
        waiting = file.want(0, Reader())
        version.run()
        self.successResultOf(waiting)

    def test_idle(self) -> None:
        """What is lost of a file that nobody reads is not requested again."""
        version, file = self.created()
        file.begin(None, 4 * BLOCK)
        self.files.release(file)
        version.streams[0].arrive(BLOCK)
        version.streams[0].lose(LOST)
        self.clock.advance(10)
        self.assertEqual(1, len(version.requests))
        self.files.use(file)
        waiting = file.want(2, Reader())
        version.run()
        self.successResultOf(waiting)

    def test_short_rest(self) -> None:
        """The short rest of a fetch comes though its reader has left it waiting."""
        version, file = self.created()
        reader = Reader(16 * BLOCK)
        self.wanted(file, 0, reader)
        version.run()
        self.assertTrue(version.streams[0].is_paused)
        file.leave(reader)
        version.run()
        self.assert_content(file, 15)
        self.assertFalse(version.streams[0].is_open)

    def test_origin_that_closes_while_it_waits(self) -> None:
        """A connection that is lost while the reader is far behind is made when it comes near."""
        version, file = self.created()
        reader = Reader()
        self.wanted(file, 0, reader)
        version.run()
        version.streams[0].lose(TransportError("closed", is_closed=True))
        self.clock.advance(100)
        self.assertEqual(1, len(version.requests))
        block = next(each for each in range(100) if each not in file.blocks)
        waiting = file.want(block, reader)
        version.run()
        self.successResultOf(waiting)
        self.assert_content(file, block)

    def test_absurd_size(self) -> None:
        """A size that no source has is refused, and takes no memory."""
        for size in (10**18 - 1, 1 << 41):
            with self.assertRaises(SourceTooLarge):
                self.files.create(FakeVersion(b""), size, None)


class SourceEndTests(FarSourceCase):
    """`FarSource`"""

    def test_copy_before_a_server_is_back(self) -> None:
        """A child that can ask for blocks gets the map, after a copy that has failed."""
        version, source = self.opened()
        self.is_preloaded = False
        version.faults = [Busy("503", MOST_PATIENCE + 1)]
        self.error_of(source.inspect(self.deadline(), look), UpstreamUnavailable)
        self.assertIsInstance(source.failure, UpstreamUnavailable)
        source.close()
        self.is_preloaded = True
        again = self.open(version)
        self.assertIsNone(again.descriptor)
        with again.inherit() as descriptors:
            self.assertEqual(3, len(descriptors))
        again.close()

    def test_failures_are_noted(self) -> None:
        """A source without a size that cannot be had has failed, so it is opened anew."""
        version = FakeVersion(CONTENT, is_whole=True)
        source = self.open(version, is_sized=False)
        looking = self.begin(source.inspect(self.deadline(), look))
        version.faults = [RenderFailed("The source changed while it was read.")]
        version.streams[0].arrive(100_000)
        version.streams[0].lose(LOST)
        self.clock.advance(1)
        self.failureResultOf(looking, RenderFailed)
        self.assertIsInstance(source.failure, RenderFailed)

    def test_failure_ahead_of_the_encoder(self) -> None:
        """A source that is known to have changed is refused before the encoder starts."""
        version = FakeVersion(CONTENT)
        source = self.open(version)
        version.faults = [RenderFailed("The source changed while it was read.")]
        version.run()
        self.assertEqual(CONTENT[:9], self.result_of(source.read(0, 9)))
        self.error_of(source.input(self.deadline()), RenderFailed)
        self.assertIsInstance(source.failure, RenderFailed)

    def test_closed_by_its_failure(self) -> None:
        """A source may be closed by whoever gets its failure, and leaves nothing."""
        before = open_descriptors()
        version, source = self.opened()
        version.faults = [RenderFailed("The source changed while it was read.")]
        reading = self.begin(source.read(50 * BLOCK, 9))
        reading.addErrback(lambda failure: source.close())
        version.run()
        self.assertTrue(reading.called)
        slow = FakeVersion(CONTENT, is_prompt=False)
        another = self.open(slow, validator=b"2")
        slow.run()
        waiting = self.begin(another.read(50 * BLOCK, 9))
        waiting.addErrback(lambda failure: another.close())
        slow.faults = [RenderFailed("The source changed while it was read.")]
        slow.streams[-1].lose(LOST)
        self.clock.advance(1)
        self.assertTrue(waiting.called)
        self.assertEqual(set(), opened_since(before))

    def test_read_after_the_end(self) -> None:
        """A source that is closed opens no file again."""
        _version, source = self.opened()
        source.close()
        self.error_of(source.read(0, 9), RenderFailed)

    def test_end_of_the_service(self) -> None:
        """After the end of the service, no child gets a socket, and no file is kept."""
        source = self.open(FakeVersion(CONTENT))
        self.files.close()
        with self.assertRaises(RenderFailed):
            source.inherit().__enter__()
        source.close()
        another = self.open(FakeVersion(CONTENT))
        another.close()
        self.assertEqual(([], []), (self.reactor.readers, self.clock.getDelayedCalls()))

    def test_responses_that_are_not_used(self) -> None:
        """Responses that have begun are given up where they are not needed."""
        small = CONTENT[: START_BYTES + 50_000]

        def coming(content: bytes) -> tuple[FakeVersion, FakeStream, Deferred[Part]]:
            version = FakeVersion(content)
            part = version.part(len(content) - LAST_BYTES, len(content))
            done: Deferred[Part] = Deferred()
            done.callback(part)
            return version, version.streams[0], done

        version, stream, end = coming(small)
        self.open(version, end=end).close()
        self.assertTrue(stream.is_discarded)
        version, stream, end = coming(CONTENT)
        self.open(version, validator=b"2", end=end, unreadable="It is encoded.").close()
        self.assertEqual([True, True], [each.is_discarded for each in version.streams])
        version, stream, end = coming(CONTENT)
        with patch.object(far_files, "BlockFile", side_effect=OSError(errno.EMFILE, "full")):
            source: FarSource = self.open(version, validator=b"3", end=end)
            source.close()
        self.assertEqual([True, True], [each.is_discarded for each in version.streams])

    def test_own_time(self) -> None:
        """A failure of the source ends each further question at once."""
        version, source = self.opened()
        version.faults = [Busy("503", MOST_PATIENCE + 1)]
        self.error_of(source.read(50 * BLOCK, 9), UpstreamUnavailable)
        requests = len(version.requests)
        self.error_of(source.read(90 * BLOCK, 9), UpstreamUnavailable)
        self.assertEqual(requests, len(version.requests))
        source.close()
