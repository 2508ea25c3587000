"""The encoder: every run ends with a return value or a refusal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import (
    DiskFailed,
    DiskFull,
    IrregularSource,
    MemoryExceeded,
    NothingDecoded,
    OutputDiffers,
    OutputTooLarge,
    RenderFailed,
    RenderTimeout,
    UndecodableSource,
    UpstreamUnavailable,
    WrongLength,
)
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.command.progress import REPORT
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.spawn import Launcher
from tests.media.test_diagnostics import COMPLETE_SOURCES, END_LOST, SILENCE_LOST
from tests.support.processes import FakeChild, FakeSpawner, open_descriptors, opened_since
from tests.support.stores import FakeSourceFile

# For each failed run: what the child wrote to stderr, its exit status and signal, and the refusal.
FAILURES = (
    (b"x: Invalid data found when processing input", 1, None, UndecodableSource),
    (b"Empty output", 1, None, NothingDecoded),
    # The source did not cause these: no diagnostic, a full disk, a missing filter, a signal.
    (b"", 1, None, RenderFailed),
    (b"av_interleaved_write_frame(): No space left on device", 1, None, DiskFull),
    (b"Invalid data found when processing input", 0, 11, RenderFailed),
    # The limits of CPU time and memory.
    (b"", 0, signal.SIGXCPU, RenderTimeout),
    (b"terminate called after throwing an instance of 'std::bad_alloc'", 0, 6, MemoryExceeded),
    (b"error while loading shared libraries: x: Cannot allocate memory", 127, None, RenderFailed),
    # The output limit (D52).
    (b"", 0, signal.SIGXFSZ, OutputTooLarge),
    (b"Error closing file pipe:1: File too large\n", 0, None, OutputTooLarge),
    # The output lacks its end, although ffmpeg 5 exits with 0 (D35).
    *((text, 0, None, DiskFull if b"No space" in text else DiskFailed) for text in END_LOST),
    (SILENCE_LOST, 0, None, MemoryExceeded),
)

COMMAND = Pipeline(["ffmpeg"])


class EncoderCase(SynchronousTestCase):
    """An encoder whose output is a file."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.ffmpeg = Ffmpeg(Launcher(self.spawner, self.clock, {}))
        self.source = FakeSourceFile()
        self.output = os.open(self.mktemp(), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, self.output)
        self.addCleanup(self.spawner.kill_all)

    def deadline(self, seconds: float = 100) -> Deadline:
        """Return the deadline of a render."""
        return Deadline(self.clock, seconds, RenderTimeout)

    def encode(self, pipeline: Pipeline = COMMAND) -> Deferred[bytes]:
        """Start an encoder."""
        os.truncate(self.output, 0)
        os.lseek(self.output, 0, os.SEEK_SET)

        async def encode() -> bytes:
            running = self.ffmpeg.encode(pipeline, self.source, self.output, 1000, self.deadline())
            async with running as self.encoding:
                self.over = self.encoding.wait()
                return await self.over

        return Deferred.fromCoroutine(encode())

    def run_to_pipe(self, pipe: int | None = None, pipeline: Pipeline = COMMAND) -> Deferred[None]:
        """Start a run that writes to a pipe, whose reader has not failed."""
        pipe = os.open(os.devnull, os.O_WRONLY) if pipe is None else pipe
        deadline = self.deadline()
        running = self.ffmpeg.run_to_pipe(pipeline, self.source, pipe, deadline, lambda: False)
        return Deferred.fromCoroutine(running)

    def measure(self) -> Deferred[int]:
        """Start a decode pass."""
        return Deferred.fromCoroutine(self.ffmpeg.measure(["ffmpeg"], self.source, self.deadline()))

    def read_piece(self) -> Deferred[bytes]:
        """Start the decoding of a piece."""
        reading = self.ffmpeg.read_piece(["ffmpeg"], self.source, self.deadline())
        return Deferred.fromCoroutine(reading)

    def run_each(self, *starts: Callable[[], Deferred[Any]]) -> Iterator[Deferred[Any]]:
        """Start runs one by one; require that each leaves no descriptor open."""
        for start in starts:
            before = open_descriptors()
            yield start()
            self.assertEqual(set(), opened_since(before))

    def refused(self, running: Deferred[Any], refusal: type[Exception], row: object = "") -> Any:
        """Return the refusal, and assert that no timer is left."""
        error = self.failureResultOf(running).value
        self.assertIs(type(error), refusal, row)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        return error


class EndTests(EncoderCase):
    """The ends of all kinds of runs"""

    def start_each(self) -> Iterator[Deferred[Any]]:
        """Start a run of each kind."""
        return self.run_each(self.encode, self.run_to_pipe, self.measure, self.read_piece)

    def check(
        self, stderr: bytes, code: int | None, number: int | None, refusal: type[Exception] | None
    ) -> None:
        """Require this refusal, or none, of a run of each kind that ends in this way."""
        for running in self.start_each():
            self.assertNoResult(running)
            self.spawner.last.exit_and_end(code, number, stdout=b"total_size=500\n", stderr=stderr)
            if refusal is None:
                self.successResultOf(running)
                self.assertEqual(self.clock.getDelayedCalls(), [])
            else:
                self.refused(running, refusal, (stderr, code, number))

    def test_failures(self) -> None:
        """A failed run is refused with its cause, and its output is discarded (Errors, 8)."""
        for row in FAILURES:
            self.check(*row)

    def test_success(self) -> None:
        """Messages of ffmpeg about faults of the source do not fail a run."""
        for stderr in (b"", *COMPLETE_SOURCES):
            self.check(stderr, 0, None, None)

    def test_stops(self) -> None:
        """A timeout (504) and cancelling stop the child, and are raised when it is dead."""
        for refusal in (RenderTimeout, CancelledError):
            for running in self.start_each():
                self.clock.advance(99)
                if refusal is RenderTimeout:
                    self.clock.advance(1)
                else:
                    running.cancel()
                self.assertEqual(self.spawner.last.signals, ["TERM"])
                self.assertNoResult(running)
                self.spawner.last.exit_and_end(signal=15)
                self.refused(running, refusal)

    def test_failed_source(self) -> None:
        """A source that could not be read is the cause of every end of its child."""
        self.source.failure = UpstreamUnavailable()
        invalid = b"Invalid data found when processing input"
        for stderr, code, number in (
            (b"", 0, None),
            (b"lavfi.silence_end=7\n", 0, None),
            (b"Empty output", 1, None),
            (invalid, 1, None),
            (b"", None, signal.SIGXCPU),
        ):
            self.check(stderr, code, number, UpstreamUnavailable)

    def test_failed_source_of_stopped_child(self) -> None:
        """A source that could not be read explains why a child was stopped."""
        encoding = self.encode()
        self.source.failure = UpstreamUnavailable()
        self.over.errback(OutputDiffers())
        self.spawner.last.exit_and_end(255)
        self.refused(encoding, UpstreamUnavailable)

    def test_missing_program(self) -> None:
        """Without ffmpeg a run is a 500 (D34)."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        for running in self.start_each():
            self.refused(running, RenderFailed)

    def test_output_file(self) -> None:
        """The child of `encode` writes to the disk, and no byte goes through the service (D38)."""
        encoding = self.encode()
        self.assertEqual(self.spawner.last.piped, {2})
        self.spawner.last.write_stdout(b"abc")
        self.assertEqual(os.pread(self.output, 9, 0), b"abc")
        self.spawner.last.exit_and_end(stderr=b"some words")
        self.assertEqual(b"some words", self.successResultOf(encoding))

    def test_stopped(self) -> None:
        """A refusal in the block stops the child, and is raised however and whenever that ends."""
        for code, seconds in ((255, 0), (0, 0), (None, 10)):
            encoding = self.encode()
            self.clock.advance(99)
            self.over.errback(RenderFailed("too much"))
            self.clock.advance(seconds)
            self.assertEqual(self.spawner.last.signals, ["TERM"] + ["KILL"] * (seconds > 0))
            self.assertNoResult(encoding)
            stderr = b"Invalid data found when processing input" if code else b""
            self.spawner.last.exit_and_end(code or 0, None if seconds == 0 else 9, stderr=stderr)
            self.assertEqual(self.refused(encoding, RenderFailed).message, "too much")

    def test_irregular(self) -> None:
        """A run that finds its source irregular is refused as such, whatever its end (D63)."""
        for stderr, code, number in (
            (b"[a @ 0x5] Changing audio frame properties on the fly is not supported.\n", 1, None),
            (b"lavfi.silence_end=7\n" + b"Header missing\n" * 999, 0, None),
            (b"lavfi.silence_end=7\n", None, signal.SIGABRT),
            (b"audioproxy.excess=1\n" + b"Header missing\n" * 999, 0, None),
        ):
            for start in (self.encode, self.run_to_pipe):
                running: Deferred[Any] = start()
                self.spawner.last.exit_and_end(code, number, stderr=stderr)
                refusal = WrongLength if b"excess" in stderr else IrregularSource
                self.refused(running, refusal, stderr)

    def test_measure(self) -> None:
        """The length is ffmpeg's last report, a byte for each sample, or 0 for none."""
        for report, length in (
            (b"total_size=5\nprogress=continue\ntotal_size=1234567\nout_time_ms=28\n", 1234567),
            (b"total_size=5\nprogress=continue\ntotal_size=0\nprogress=end\n", 0),
            (b"total_size=5\nprogress=continue\ntotal_size=N/A\nprogress=end\n", 0),
            *((report, None) for report in (b"", b"total_size=\n", b"xtotal_size=5\n")),
        ):
            measuring = self.measure()
            self.spawner.last.write_stdout(report[:36])
            self.spawner.last.exit_and_end(stdout=report[36:])
            if length is None:
                self.refused(measuring, RenderFailed, report)
            else:
                self.assertEqual(self.successResultOf(measuring), length)


class DecoderTests(EncoderCase):
    """Encoders that read from a decoder (D63)"""

    PIPELINE = Pipeline(["encoder"], ["decoder"])

    def start_each(self) -> Iterator[Deferred[Any]]:
        """Start a run of each kind."""
        starts = (self.encode, self.run_to_pipe)
        return self.run_each(*(partial(start, pipeline=self.PIPELINE) for start in starts))

    @property
    def decoder(self) -> FakeChild:
        """The decoder of the last run."""
        return self.spawner.children[-2]

    def test_pipe(self) -> None:
        """The decoder's stdout is the encoder's stdin, and both end together."""
        for running in self.start_each():
            self.assertEqual(
                [child.arguments for child in self.spawner.alive],
                [["decoder"], ["encoder", *REPORT]],
            )
            self.decoder.write_stdout(b"abc")
            self.assertEqual(os.read(self.spawner.last.inherited[0], 9), b"abc")
            self.decoder.exit_and_end()
            self.assertEqual(os.read(self.spawner.last.inherited[0], 9), b"")
            self.spawner.last.exit_and_end()
            self.successResultOf(running)

    def test_lost_source(self) -> None:
        """Nothing is readable that an encoder makes of the end of a decoder that failed."""
        for code, failure, readable in (
            (0, None, True),
            (0, UpstreamUnavailable(), False),
            (1, None, False),
        ):
            self.source.failure = None
            running = self.encode(pipeline=self.PIPELINE)
            self.assertTrue(self.encoding.is_readable)
            self.source.failure = failure
            self.assertEqual(failure is None, self.encoding.is_readable)
            self.decoder.exit(code)
            # How it has ended is not known before its pipes are closed.
            self.assertFalse(self.encoding.is_readable)
            self.decoder.end()
            self.assertEqual(readable, self.encoding.is_readable, (code, failure))
            self.spawner.last.exit_and_end()
            (self.successResultOf if readable else self.failureResultOf)(running)

    def test_endless_stderr(self) -> None:
        """Nothing is readable while a child prints more than is read of its stderr."""
        for number in (0, 1):
            running = self.encode(pipeline=self.PIPELINE)
            child = self.spawner.children[-2:][number]
            child.write_stderr(b"x" * (1 << 20))
            self.assertFalse(self.encoding.is_readable)
            self.clock.advance(1)
            self.assertTrue(self.encoding.is_readable)
            self.decoder.exit_and_end()
            self.spawner.last.exit_and_end()
            self.successResultOf(running)

    def test_enough(self) -> None:
        """An encoder may end before its decoder, which is then stopped."""
        for running in self.start_each():
            self.spawner.last.exit_and_end()
            self.assertNoResult(running)
            self.assertEqual(self.decoder.signals, ["TERM"])
            self.decoder.exit_and_end(255)
            self.successResultOf(running)

    def test_failures(self) -> None:
        """A run fails with the cause of its decoder, or else of its encoder."""
        reader = b"av_interleaved_write_frame(): Broken pipe\n"
        invalid, full = b"Invalid data found when processing input", b"No space left on device"
        for code, number, decoder_stderr, encoder_code, stderr, refusal in (
            (0, None, b"", 0, b"lavfi.silence_end=7\n", None),
            (0, None, b"", 0, b"audioproxy.excess=1\n", WrongLength),
            (1, None, reader, 0, b"", None),
            (1, None, reader, 1, full, DiskFull),
            (1, None, invalid, 0, b"End of file", UndecodableSource),
            (1, None, invalid, 1, b"End of file", UndecodableSource),
            (None, signal.SIGTERM, b"", 0, b"End of file", RenderFailed),
            (255, None, b"", 1, b"End of file", RenderFailed),
        ):
            for running in self.start_each():
                self.decoder.exit_and_end(code, number, stderr=decoder_stderr)
                self.spawner.last.exit_and_end(encoder_code, stderr=stderr)
                if refusal is None:
                    self.successResultOf(running)
                else:
                    self.refused(running, refusal, (code, number, decoder_stderr, encoder_code))

    def test_failed_source(self) -> None:
        """The failure of the source is raised, even if the encoder has ended before its decoder."""
        null = os.open(os.devnull, os.O_RDONLY)
        self.addCleanup(os.close, null)
        self.source.descriptors = {3: null, 4: null, 5: null}
        for encoder_is_first in (False, True):
            for running in self.start_each():
                self.assertLessEqual({3, 4, 5}, set(self.decoder.inherited))
                self.assertEqual(set(), {3, 4, 5} & set(self.spawner.last.inherited))
                self.source.failure = UpstreamUnavailable()
                ends = [self.decoder, self.spawner.last]
                for child in reversed(ends) if encoder_is_first else ends:
                    child.exit_and_end()
                self.refused(running, UpstreamUnavailable)
                self.source.failure = None

    def test_cancelled(self) -> None:
        """If the run is cancelled, both children are stopped; it ends when both are dead."""
        for running in self.start_each():
            running.cancel()
            self.assertEqual(self.spawner.last.signals, ["TERM"])
            self.spawner.last.exit_and_end(255)
            self.assertNoResult(running)
            self.assertEqual(self.decoder.signals, ["TERM"])
            self.decoder.exit_and_end(255)
            self.refused(running, CancelledError)

    def test_not_started(self) -> None:
        """If a program cannot be started, the run fails, and nothing is left."""
        self.spawner.refusal = OSError(2, "No such file or directory")
        for running in self.start_each():
            self.refused(running, RenderFailed)
