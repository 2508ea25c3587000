"""The encoder: every run ends with a return value or a refusal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    NothingDecoded,
    OutputTooLarge,
    Refusal,
    RenderFailed,
    RenderTimeout,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.process.encoder import Encoder
from audioproxy.process.spawn import Launcher
from tests.media.test_diagnostics import COMPLETE_SOURCES, CUT_SHORT, END_LOST, REMOTE_FAILURES
from tests.support.http import Log
from tests.support.processes import FakeSpawner, open_descriptors


class EncoderCase(SynchronousTestCase):
    """An encoder whose output is a file."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.encoder = Encoder(Launcher(self.spawner, self.clock, {}))
        path = self.mktemp()
        self.output = os.open(path, os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, self.output)
        self.addCleanup(self.spawner.kill_all)
        self.checks: list[tuple[float, int]] = []
        self.refusal: Refusal | None = None
        self.limit = 1000

    def check_output(self) -> int:
        """Record the size of the output; refuse it past the limit."""
        size = os.fstat(self.output).st_size
        self.checks.append((self.clock.seconds(), size))
        if size > self.limit:
            raise RenderFailed("too much")
        return size

    def encode(self, timeout: float = 100) -> Deferred[None]:
        """Start a run."""
        return Deferred.fromCoroutine(
            self.encoder.encode(["ffmpeg"], {}, self.output, timeout, self.check_output, 1000)
        )

    def refused(self, encoding: Deferred[object], refusal: type[Refusal]) -> Refusal:
        """Return the refusal, and assert that no timer is left."""
        error = self.failureResultOf(encoding).value
        self.assertIs(type(error), refusal)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        return error


class EncodeTests(EncoderCase):
    """`Encoder.encode`"""

    def test_success(self) -> None:
        """When a run succeeds, the final size of its output has been checked."""
        encoding = self.encode()
        self.spawner.last.write_stdout(b"abc")
        self.assertNoResult(encoding)
        self.spawner.last.exit_and_end()
        self.successResultOf(encoding)
        self.assertEqual(self.checks, [(0, 3)])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stdout_is_the_output_file(self) -> None:
        """The output is written to the disk without passing through the service (D38)."""
        self.encode().addErrback(lambda _: None)
        self.assertEqual(self.spawner.last.piped, {2})
        self.spawner.last.write_stdout(b"abc")
        self.assertEqual(os.pread(self.output, 9, 0), b"abc")

    def test_cadence(self) -> None:
        """The file is checked often until it has a first byte, and less often afterwards."""
        encoding = self.encode()
        self.clock.pump([0.0005] * 9)
        self.assertEqual(len(self.checks), 4)
        self.spawner.last.write_stdout(b"a")
        self.clock.advance(0.0005)
        self.assertEqual((len(self.checks), self.checks[-1][1]), (5, 1))
        self.clock.pump([0.001] * 90)
        self.assertEqual(len(self.checks), 8)
        self.spawner.last.exit_and_end()
        self.successResultOf(encoding)
        self.clock.advance(60)
        self.assertEqual(len(self.checks), 9)

    def test_faulty_source(self) -> None:
        """A diagnostic that reports a bad source is a 415, and empty output is NothingDecoded."""
        for stderr, refusal in (
            (b"x: Invalid data found when processing input", UndecodableSource),
            (b"Empty output", NothingDecoded),
        ):
            encoding = self.encode()
            self.spawner.last.exit_and_end(1, stderr=stderr)
            self.refused(encoding, refusal)

    def test_nothing_decoded(self) -> None:
        """`encode` does not log an empty output: the caller may render again, or log it."""
        log = Log()
        self.addCleanup(log.start())
        encoding = self.encode()
        self.spawner.last.exit_and_end(1, stderr=b"Empty output")
        refusal = self.refused(encoding, NothingDecoded)
        self.assertEqual(" (exit status 1: Empty output)", refusal.diagnostic)  # type: ignore[attr-defined]
        self.assertEqual([], log.events)

    def test_service_failure(self) -> None:
        """A failure that the source did not cause is a 500.

        Examples are a full disk, a missing filter, a signal, and an unknown diagnostic.
        """
        for stderr, code, number in (
            (b"", 1, None),
            (b"av_interleaved_write_frame(): No space left on device", 1, None),
            (b"No such filter: 'deesser'\nInvalid data found when processing input", 1, None),
            (b"", 0, 11),
            (b"", 0, 40),
        ):
            encoding = self.encode()
            self.spawner.last.exit_and_end(code, number, stderr=stderr)
            self.refused(encoding, RenderFailed)

    def test_missing_end(self) -> None:
        """A run whose output lacks its end fails, even if ffmpeg 5 exits with 0 (D35)."""
        for stderr in END_LOST:
            encoding = self.encode()
            self.spawner.last.exit_and_end(stdout=b"abc", stderr=stderr)
            self.refused(encoding, RenderFailed)

    def test_limit(self) -> None:
        """An encoder that ends with SIGXFSZ or EFBIG has exceeded the output limit (D52)."""
        for stderr, code, number in (
            (b"", 0, signal.SIGXFSZ),
            (b"av_interleaved_write_frame(): File too large\nError closing file pipe:1", 1, None),
            (b"Error closing file pipe:1: File too large\n", 0, None),
        ):
            encoding = self.encode()
            self.spawner.last.exit_and_end(code, number, stderr=stderr)
            self.refused(encoding, OutputTooLarge)

    def test_missing_program(self) -> None:
        """Without ffmpeg a render is a 500 (D34)."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.refused(self.encode(), RenderFailed)

    def test_timeout(self) -> None:
        """A run that exceeds its timeout is a 504, raised when the child is dead."""
        encoding = self.encode(timeout=100)
        self.clock.advance(100)
        self.assertNoResult(encoding)
        self.spawner.last.exit_and_end(signal=15)
        self.refused(encoding, RenderTimeout)

    def test_refusal_by_the_check(self) -> None:
        """A refusal by the check of the output stops the child, and is raised."""
        encoding = self.encode()
        self.spawner.last.write_stdout(b"x" * 1001)
        self.clock.advance(0.01)
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.assertNoResult(encoding)
        self.spawner.last.exit_and_end(255, stderr=b"Invalid data found when processing input")
        self.assertEqual(self.refused(encoding, RenderFailed).message, "too much")
        self.assertEqual(len(self.checks), 1)

    def test_refusal_and_a_good_end(self) -> None:
        """After a refusal by the check, even a child that exits with 0 is a failed render."""
        encoding = self.encode()
        self.spawner.last.write_stdout(b"x" * 1001)
        self.clock.advance(0.01)
        self.spawner.last.exit_and_end()
        self.assertEqual(self.refused(encoding, RenderFailed).message, "too much")

    def test_refusal_and_the_deadline(self) -> None:
        """A refusal by the check is raised even if the child then exceeds its deadline."""
        encoding = self.encode(timeout=1)
        self.clock.advance(0.9)
        self.spawner.last.write_stdout(b"x" * 1001)
        self.clock.advance(0.05)
        self.clock.advance(10)
        self.assertEqual(self.spawner.last.signals, ["TERM", "KILL"])
        self.spawner.last.exit_and_end(signal=9)
        self.assertEqual(self.refused(encoding, RenderFailed).message, "too much")

    def test_refusal_by_the_last_check(self) -> None:
        """The output of a child that ends before the first check is checked too."""
        encoding = self.encode()
        self.spawner.last.exit_and_end(stdout=b"x" * 1001)
        self.assertEqual(self.refused(encoding, RenderFailed).message, "too much")

    def test_cancelled(self) -> None:
        """Cancelling stops the child, and CancelledError is raised when the child is dead."""
        encoding = self.encode()
        encoding.cancel()
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.assertNoResult(encoding)
        self.spawner.last.exit_and_end(signal=15)
        self.failureResultOf(encoding, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_no_leak(self) -> None:
        """No descriptor stays open, whether a run succeeds or fails."""
        before = open_descriptors()
        for code in (0, 1):
            encoding = self.encode()
            self.spawner.last.exit_and_end(code)
            encoding.addErrback(lambda _: None)
        self.assertEqual(open_descriptors(), before)


class RunToPipeTests(EncoderCase):
    """`Encoder.run_to_pipe`"""

    def setUp(self) -> None:
        EncoderCase.setUp(self)
        before = open_descriptors()
        self.reading, self.writing = os.pipe()
        # Only the read end of the pipe stays open.
        self.addCleanup(lambda: self.assertEqual(open_descriptors(), before))
        self.addCleanup(os.close, self.reading)

    def run_to_pipe(self, timeout: float = 100) -> Deferred[None]:
        """Start a run."""
        return Deferred.fromCoroutine(
            self.encoder.run_to_pipe(["ffmpeg"], {}, self.writing, timeout)
        )

    def test_success(self) -> None:
        """The child's stdout is the pipe; both the pipe and the run end with the child."""
        running = self.run_to_pipe()
        self.assertEqual(self.spawner.last.piped, {2})
        self.spawner.last.write_stdout(b"abc")
        self.assertEqual(os.read(self.reading, 9), b"abc")
        self.assertNoResult(running)
        self.spawner.last.exit_and_end()
        self.assertEqual(os.read(self.reading, 9), b"")
        self.successResultOf(running)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_bad_end(self) -> None:
        """A failed run raises UndecodableSource, NothingDecoded or RenderFailed."""
        os.close(self.writing)
        for stderr, code, number, refusal in (
            (b"x: Invalid data found when processing input", 1, None, UndecodableSource),
            (b"Empty output", 1, None, NothingDecoded),
            (b"", 1, None, RenderFailed),
            (b"Invalid data found when processing input", 0, 11, RenderFailed),
        ):
            self.writing = os.open(os.devnull, os.O_WRONLY)
            running = self.run_to_pipe()
            self.spawner.last.exit_and_end(code, number, stderr=stderr)
            self.refused(running, refusal)

    def test_timeout(self) -> None:
        """A run that exceeds its timeout is a 504, raised when the child is dead."""
        running = self.run_to_pipe(timeout=3)
        self.clock.advance(3)
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.assertNoResult(running)
        self.spawner.last.exit_and_end(signal=15)
        self.refused(running, RenderTimeout)

    def test_missing_program(self) -> None:
        """Without ffmpeg the run is a 500, and the pipe's reader gets EOF at once (D34)."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.refused(self.run_to_pipe(), RenderFailed)
        self.assertEqual(os.read(self.reading, 9), b"")

    def test_cancelled(self) -> None:
        """Cancelling stops the child, and CancelledError is raised when the child is dead."""
        running = self.run_to_pipe()
        running.cancel()
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.assertNoResult(running)
        self.spawner.last.exit_and_end(signal=15)
        self.failureResultOf(running, CancelledError)


class MeasureTests(EncoderCase):
    """`Encoder.measure`"""

    def measure(self, timeout: float = 100) -> Deferred[Decimal]:
        """Start a decode pass."""
        return Deferred.fromCoroutine(self.encoder.measure(["ffmpeg"], {}, timeout))

    def test_last_report(self) -> None:
        """The length of the source is ffmpeg's last report, to the microsecond."""
        measuring = self.measure()
        self.spawner.last.write_stdout(b"out_time_us=500000\nprogress=continue\nout_time")
        self.spawner.last.write_stdout(b"_us=1234567\nout_time_ms=1234567\nprogress=end\n")
        self.spawner.last.exit_and_end()
        self.assertEqual(self.successResultOf(measuring), Decimal("1.234567"))

    def test_no_report(self) -> None:
        """A pass that reports no valid time has failed."""
        for report in (b"", b"out_time_us=N/A\nprogress=end\n", b"xout_time_us=5\n"):
            measuring = self.measure()
            self.spawner.last.exit_and_end(stdout=report)
            self.refused(measuring, RenderFailed)

    def test_bad_end(self) -> None:
        """The report of a failed pass is discarded."""
        measuring = self.measure()
        self.spawner.last.exit_and_end(
            1, stdout=b"out_time_us=500000\n", stderr=b"Invalid data found when processing input"
        )
        self.refused(measuring, UndecodableSource)

    def test_timeout(self) -> None:
        """A decode pass that exceeds its timeout is a 504."""
        measuring = self.measure(timeout=3)
        self.clock.advance(3)
        self.spawner.last.exit_and_end(signal=15)
        self.refused(measuring, RenderTimeout)

    def test_missing_program(self) -> None:
        """Without ffmpeg the decode pass fails (D34)."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.refused(self.measure(), RenderFailed)


class CutShortTests(EncoderCase):
    """A remote source with a lost connection"""

    def runs(self) -> list[Callable[[], Deferred[Any]]]:
        """Return functions that start each kind of run."""

        def run_to_pipe() -> Deferred[None]:
            pipe = os.open(os.devnull, os.O_WRONLY)
            return Deferred.fromCoroutine(self.encoder.run_to_pipe(["ffmpeg"], {}, pipe, 100))

        def measure() -> Deferred[Decimal]:
            return Deferred.fromCoroutine(self.encoder.measure(["ffmpeg"], {}, 100))

        return [self.encode, run_to_pipe, measure]

    def end(self, stderr: bytes, code: int = 0) -> None:
        """End a run that has written its output."""
        self.spawner.last.exit_and_end(code, stdout=b"out_time_us=500000\n", stderr=stderr)

    def test_exit_0(self) -> None:
        """A run that read only a part of its source fails, although ffmpeg exits with 0.

        (Errors, 8)
        """
        for start in self.runs():
            for stderr in CUT_SHORT:
                running = start()
                self.end(stderr)
                self.refused(running, UpstreamUnavailable)

    def test_whole(self) -> None:
        """Messages of ffmpeg about recovered connections or other faults do not fail a run."""
        for start in self.runs():
            for stderr in (b"", *COMPLETE_SOURCES):
                running = start()
                self.end(stderr)
                self.successResultOf(running)

    def test_diagnostics(self) -> None:
        """A run that fails because of the connection is refused with the cause."""
        for start in self.runs():
            for refusal, diagnostics in REMOTE_FAILURES.items():
                for stderr in diagnostics:
                    running = start()
                    self.end(stderr, 1)
                    self.refused(running, refusal or RenderFailed)
