"""The output of a render: a growing file, and the followers that it notifies."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import (
    IrregularSource,
    OutputDiffers,
    OutputTooLarge,
    Refusal,
    RenderFailed,
    RenderTimeout,
    UpstreamUnavailable,
)
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import StatedLength
from audioproxy.media.lengths.headers import OutputForm
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.spawn import Launcher
from audioproxy.render.encoded_file import EncodedFile
from audioproxy.render.output import RenderOutput
from tests.support.http import Log
from tests.support.processes import FakeSpawner, open_descriptors
from tests.support.stores import FakeSourceFile
from tests.support.transfers import Transfers

COMMAND = Pipeline(["ffmpeg"])


class OutputCase(SynchronousTestCase):
    """An output, whose file must be closed at the end."""

    def setUp(self) -> None:
        self.before = before = open_descriptors()
        self.addCleanup(lambda: self.assertEqual(before, open_descriptors()))
        self.use()

    def use(self, limit: int = 1 << 30, *words: Any) -> RenderOutput:
        """Use another output, with a new file, and return it."""
        self.output = RenderOutput(EncodedFile(AnonymousFile(), *words), limit)
        self.addCleanup(self.output.release)
        self.descriptor = self.output.descriptor
        return self.output

    def put(self, data: bytes) -> None:
        """Write bytes as an encoder does, and check the size of the file."""
        os.write(self.descriptor, data)
        self.output.update_size(self.output.written)

    def complete(self) -> Deferred[None]:
        """Complete the output, as at the end of its encoder."""
        self.clock = Clock()
        return Deferred.fromCoroutine(self.output.complete(self.clock))


class RenderOutputTests(OutputCase):
    """`RenderOutput`"""

    def setUp(self) -> None:
        super().setUp()
        self.told: list[str] = []

    def follow(self, name: str = "a") -> Callable[[], None]:
        """Add a follower that records its name on every change."""
        return self.output.follow(lambda: self.told.append(name))

    def state(self, token: str, form: OutputForm, header_bytes: int = 0) -> RenderOutput:
        """Return an output whose header states its length."""
        stated = StatedLength(form, ENCODERS[token].length_header)
        return self.use(1 << 30, header_bytes, stated)

    def test_stated_length(self) -> None:
        """Headers are changed before a reader or the store sees them, when audio follows (D57)."""
        output = self.state("flac", OutputForm(0xABC, 44100, 2), 42)
        leave = self.follow()
        for data in (b"fLaC" + bytes(22), bytes(16)):
            self.put(data)
            self.assertEqual((output.size, output.has_audio, self.told), (0, False, []))
        self.put(b"audio")
        self.assertEqual((output.size, self.told), (47, ["a"]))
        self.assertEqual(output.read(18, 8), b"\0\0\0\0\0\0\x0a\xbc")
        self.assertTrue(output.has_audio)
        self.successResultOf(self.complete())
        self.assertEqual((output.read(42, 9), output.encoded_bytes), (b"audio", 47))
        leave()

    def test_short_output(self) -> None:
        """The header of an output that is shorter than headers may be is changed at its end."""
        output = self.state("wav", OutputForm(1, 44100, 1, sample_bytes=1), 80)
        self.put(b"RIFF\xff\xff\xff\xffWAVEdata\xff\xff\xff\xffx")
        self.assertEqual(output.size, 0)
        self.successResultOf(self.complete())
        expected = b"RIFF\x1a\0\0\0WAVEfact\4\0\0\0\1\0\0\0data\1\0\0\0x\0"
        self.assertEqual(output.read(0, 99), expected)

    def test_prefix(self) -> None:
        """The encoder writes after the bytes that precede its output; they alone are no output."""
        form = OutputForm(44100, 44100, 2)
        output = self.state("mp3", form)
        stated = StatedLength(form, ENCODERS["mp3"].length_header)
        self.successResultOf(self.complete())
        self.assertEqual((output.size, output.encoded_bytes, output.has_audio), (0, 0, False))
        self.put(b"audio")
        self.assertEqual(output.read(0, 9999), stated.header.prefix(form) + b"audio")
        self.assertEqual((output.encoded_bytes, output.has_audio), (5, True))
        scratch = AnonymousFile()
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, scratch.descriptor)
        os.close(full)
        self.assertRaises(RenderFailed, EncodedFile, scratch, 0, stated)
        scratch.close()

    def test_end(self) -> None:
        """Followers are notified of the end once; the first reported result is final."""
        for failure in (RenderTimeout(), None):
            output = self.use()
            self.told.clear()
            leave = self.follow()
            output.end(failure)
            output.end()
            output.end(RenderFailed())
            self.assertEqual((output.ended, output.failure, self.told), (True, failure, ["a"]))
            leave()

    def test_failing_disk(self) -> None:
        """A file whose size cannot be read is a refusal, with a line in the log."""
        log = Log(self)
        scratch: Any = SimpleNamespace(descriptor=-1, path=None)
        with self.assertRaises(RenderFailed):
            EncodedFile(scratch).written  # noqa: B018
        self.assertEqual([LogLevel.warn], [event["log_level"] for event in log.events])

    def test_closed_by_the_last(self) -> None:
        """The file is closed when the render and the last reader have released it, in any order."""
        first, second = self.follow(), self.follow()
        for _ in range(2):
            first()
        self.put(b"abc")
        self.assertEqual(self.told, ["a"])
        self.output.release()
        self.assertEqual(self.output.read(0, 9), b"abc")
        second()
        self.assertEqual(open_descriptors(), self.before)

    def test_removal_during_notification(self) -> None:
        """Followers that are removed during a notification are not notified any more."""
        leavers: list[Callable[[], None]] = []

        def leave_all() -> None:
            self.told.append("first")
            for leave in leavers:
                leave()

        leavers += [self.output.follow(leave_all), self.follow("second")]
        self.put(b"abc")
        self.put(b"def")
        self.assertEqual(self.told, ["first"])
        leavers[:] = [self.output.follow(leave_all)]
        self.output.end()
        self.assertEqual(self.told, ["first"] * 2)


class AnewTests(OutputCase):
    """A render that begins anew in another file, behind what readers have (D63)."""

    def setUp(self) -> None:
        super().setUp()
        self.use(1 << 30, 4)
        self.told: list[int] = []
        self.addCleanup(self.output.follow(lambda: self.told.append(self.output.size)))

    def begin_anew(self) -> None:
        """Begin anew, with an encoder of its own."""
        scratch = AnonymousFile()
        self.descriptor = scratch.descriptor
        self.output.begin_anew(EncodedFile(scratch, 4))

    def read(self) -> bytes:
        """Return all that readers can read."""
        return self.output.read(0, 99)

    def test_different(self) -> None:
        """Readers get no byte of an output that differs from what they have."""
        for data in (b"tail", b"headfirsT", b"headsecond and more"):
            self.put(b"headfirst")
            transfers = Transfers(self)
            transfers.most = 3
            self.begin_anew()
            self.assertRaises(OutputDiffers, self.put, data)
            transfers.clear()
            self.assertEqual((b"headfirst", [9]), (self.read(), self.told))
            self.doCleanups()
            self.setUp()

    def test_shorter(self) -> None:
        """An output that ends within what readers have is another one."""
        self.put(b"headfirst")
        self.begin_anew()
        self.put(b"head")
        self.failureResultOf(self.complete(), OutputDiffers)
        self.assertEqual((b"headfirst", False), (self.read(), self.output.ended))

    def test_headers_alone(self) -> None:
        """An output that ends within its headers, which readers have with audio, is another one."""
        self.put(b"headfirst")
        form = StatedLength(OutputForm(9, 44100, 1), ENCODERS["mp3"].length_header)
        self.output.begin_anew(EncodedFile(AnonymousFile(), 4, form))
        self.failureResultOf(self.complete(), OutputDiffers)

    def test_unread(self) -> None:
        """What nobody could read is not compared: headers alone, or the file of a third attempt."""
        self.put(b"tail")
        self.begin_anew()
        self.put(b"headfirst")
        for data in (b"head", b"headfirst."):
            self.begin_anew()
            self.put(data)
        self.assertEqual((b"headfirst.", [4, 9, 10]), (self.read(), self.told))

    def test_much(self) -> None:
        """Many bytes are compared in parts, between which the service responds to others."""
        data = os.urandom(5 << 20)
        self.put(data)
        self.begin_anew()
        os.write(self.descriptor, data + b"end")
        completing = self.complete()
        self.assertNoResult(completing)
        self.assertEqual(len(data), self.output.size)
        self.clock.advance(0)
        self.successResultOf(completing)
        self.assertEqual(b"end", self.output.read(len(data), 9))

    def test_limit(self) -> None:
        """The limit of an output holds for another file, too (D52)."""
        self.output.limit = 12
        self.put(b"headfirst")
        self.begin_anew()
        self.assertRaises(OutputTooLarge, self.put, b"headfirst and more")
        self.assertEqual(b"headfirst an", self.read())


class WatchTests(SynchronousTestCase):
    """`RenderOutput.first_audio` and `rest`, of an output of at most 1000 bytes"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)
        self.output = RenderOutput(EncodedFile(AnonymousFile()), 1000)
        self.addCleanup(self.output.release)
        self.addCleanup(self.output.follow(self.record))
        self.source = FakeSourceFile()
        self.told: list[tuple[float, int]] = []

    def record(self) -> None:
        """Record the time and the size of a change."""
        self.told.append((self.clock.seconds(), self.output.size))

    def watch(self, pipeline: Pipeline = COMMAND) -> Deferred[bytes]:
        """Start an encoder, and follow it."""
        ffmpeg = Ffmpeg(Launcher(self.spawner, self.clock, {}))

        async def encode() -> bytes:
            deadline = Deadline(self.clock, 100, RenderTimeout)
            output = self.output.descriptor
            async with ffmpeg.encode(pipeline, self.source, output, 1000, deadline) as encoding:
                await self.output.first_audio(encoding, self.clock)
                return await self.output.rest(encoding, self.clock)

        return Deferred.fromCoroutine(encode())

    def refused(self, watching: Deferred[bytes], kind: type[Refusal]) -> None:
        """Assert that the encoder was refused, and that no timer is left."""
        self.assertIs(kind, type(self.failureResultOf(watching).value))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_cadence(self) -> None:
        """The file is checked often until it has a first byte, and less often afterwards."""
        watching = self.watch()
        self.clock.pump([0.0005] * 9)
        self.spawner.last.write_stdout(b"a")
        self.clock.advance(0.0005)
        self.assertEqual([1], [size for _, size in self.told])
        for _ in range(90):
            self.spawner.last.write_stdout(b"b")
            self.clock.advance(0.001)
        self.assertEqual([1, 30, 60, 90], [size // 30 * 30 or 1 for _, size in self.told])
        self.spawner.last.exit_and_end(stderr=b"some words")
        self.assertEqual(b"some words", self.successResultOf(watching))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_irregular(self) -> None:
        """An encoder is stopped at a sample that is no audio, before its output is checked."""
        watching = self.watch()
        self.clock.advance(1)
        self.spawner.last.write_stdout(b"x")
        self.spawner.last.write_stderr(b"lavfi.silence_end=7\n")
        self.clock.advance(1)
        self.assertEqual((["TERM"], []), (self.spawner.last.signals, self.told))
        self.spawner.last.exit_and_end(255)
        self.refused(watching, IrregularSource)

    def test_lost_source(self) -> None:
        """Readers get nothing that is written after the source was lost, which is a 502."""
        watching = self.watch()
        self.spawner.last.write_stdout(b"before")
        self.clock.advance(1)
        self.source.failure = UpstreamUnavailable()
        self.spawner.last.write_stdout(b"after")
        self.clock.advance(1)
        self.assertEqual(([6], 6), ([size for _, size in self.told], self.output.size))
        self.spawner.last.exit_and_end()
        self.refused(watching, UpstreamUnavailable)
        self.assertEqual(6, self.output.size)

    def test_reader_that_cancels(self) -> None:
        """A reader that leaves while it is notified of new bytes may cancel the render."""
        watching = self.watch()
        leave = self.output.follow(lambda: watching.cancel())
        self.spawner.last.write_stdout(b"audio")
        self.clock.advance(1)
        self.assertEqual(["TERM"], self.spawner.last.signals)
        leave()
        self.spawner.last.exit_and_end(255)
        self.failureResultOf(watching, CancelledError)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_crash(self) -> None:
        """If the check itself fails, the encoder is stopped, and the failure is logged."""
        watching = self.watch()
        self.patch(self.output, "update_size", lambda written: 1 / 0)
        self.clock.advance(1)
        self.spawner.last.exit_and_end(255)
        self.refused(watching, RenderFailed)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
