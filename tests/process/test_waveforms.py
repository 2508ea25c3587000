"""Waveforms from the output of a child: every run ends with a document or a refusal."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import (
    DiskFull,
    NothingDecoded,
    OutputTooLarge,
    RenderFailed,
    RenderTimeout,
    UpstreamUnavailable,
)
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.waveform_spec import Pass, PcmSamples, WaveformSpec
from audioproxy.process.decoder import Decoder, DecoderPipe
from audioproxy.process.ffmpeg import Ffmpeg, open_pipe
from audioproxy.process.spawn import Launcher
from audioproxy.process.waveforms import Waveforms
from audioproxy.testing import FakeThreads
from tests.support.folders import free_descriptors
from tests.support.processes import FakeSpawner, open_descriptors, opened_since
from tests.support.stores import FakeSourceFile
from tests.support.waveforms import frames_of, noisy_frames, parse_waveform, render_waveform

COMMAND = Pipeline(["ffmpeg"])
STEREO = WaveformSpec(8000, 2, 2, 2, 16, "dat")


def samples(*values: int) -> bytes:
    """Return samples as ffmpeg outputs them."""
    return struct.pack(f"<{len(values)}h", *values)


#: Parts of the two pixels of `STEREO`, with two frames each.
PARTS = [Pass(Pipeline(["ffmpeg", name]), None, 2, 1) for name in ("first", "last")]


class WaveformTests(SynchronousTestCase):
    """`Waveforms`. No work, timer or descriptor may be left after a test."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.parts_ended = 0
        self.threads = FakeThreads()
        self.ffmpeg = Ffmpeg(Launcher(self.spawner, self.clock, {}))
        self.output = os.open(self.mktemp(), os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, self.output)
        self.before = open_descriptors()
        self.addCleanup(self.assert_nothing_left)

    def assert_nothing_left(self) -> None:
        """Assert that no work, no timer and no descriptor is left."""
        self.assertEqual(self.threads.waiting, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(set(), opened_since(self.before))

    def start(
        self,
        spec: WaveformSpec = STEREO,
        timeout: float = 100,
        output: int | None = None,
        in_thread: Callable[[Any], Any] | None = None,
        source: bytes | None = None,
        codec: str = "pcm_s16le",
        frames: int | None = None,
        parts: Sequence[Pass] = (),
        **options: Any,
    ) -> Deferred[None]:
        """Start to render a waveform of an expected number of frames.

        :param source: the content of a source of two frames that needs no decoder.
        :param options: further fields of `Waveforms`.
        """
        in_thread = in_thread or self.threads.in_thread
        direct = None if source is None else PcmSamples(codec, 0, 2, 2)

        async def render() -> None:
            with tempfile.TemporaryFile() as file:
                file.write(source or b"")
                file.flush()
                self.source = FakeSourceFile({SOURCE_DESCRIPTOR: file.fileno()})
                await Waveforms(Decoder(self.ffmpeg, in_thread), in_thread, **options).write(
                    Pass(COMMAND, direct, frames, spec.pixels),
                    self.source,
                    file.fileno(),
                    spec,
                    self.output if output is None else output,
                    1000,
                    Deadline(self.clock, timeout, RenderTimeout),
                    parts,
                    self.count_part,
                )

        return Deferred.fromCoroutine(render())

    def count_part(self) -> None:
        """Count the parts that have ended."""
        self.parts_ended += 1

    def end(self, code: int = 0, signal: int | None = None, **output: bytes) -> None:
        """End the child with its last output, then run the waiting threads."""
        self.spawner.last.exit_and_end(code, signal, **output)
        self.threads.run()

    def run_until(self, children: int) -> None:
        """Run waiting threads until so many children were started."""
        while len(self.spawner.children) < children:
            self.threads.run_next()

    def read_values(self, rendering: Deferred[None]) -> list[int]:
        """Return the values of a finished waveform, and empty the output."""
        self.successResultOf(rendering)
        document = self.written()
        os.truncate(self.output, 0)
        os.lseek(self.output, 0, os.SEEK_SET)
        return parse_waveform(document).values

    def written(self) -> bytes:
        """Return the content of the output."""
        return os.pread(self.output, 1_000_000, 0)

    def refused(self, rendering: Deferred[None], refusal: type[Exception]) -> Exception:
        """Return the refusal, and assert that the output is empty."""
        error = self.failureResultOf(rendering).value
        self.assertIs(type(error), refusal)
        self.assertEqual(self.written(), b"")
        return error

    def test_document(self) -> None:
        """The document covers the output to its end, and is written when the child has ended."""
        rendering = self.start()
        self.spawner.last.write_stdout(samples(1, -1, 2, -2))
        self.spawner.last.write_stdout(samples(3, -3))
        self.assertEqual(self.written(), b"")
        self.spawner.last.exit_and_end()
        self.assertNoResult(rendering)
        self.assertEqual(self.written(), b"")
        self.threads.run()
        self.successResultOf(rendering)
        found = parse_waveform(self.written())
        self.assertEqual((found.channels, found.rate, found.pixel, found.length), (2, 8000, 2, 2))
        self.assertEqual(found.values, [1, 2, -2, -1, 3, 3, -3, -3])
        # Only the caller closes the output.
        os.fstat(self.output)

    def test_part_of_a_frame(self) -> None:
        """An incomplete last frame is ignored, whether a channel or half a sample is missing."""
        for part in (b"\x01", samples(99), samples(99) + b"\x01"):
            rendering = self.start()
            self.end(stdout=samples(1, 2, 3, 4) + part)
            self.assertEqual(self.read_values(rendering), [1, 1, 2, 2, 3, 3, 4, 4])

    def test_many_blocks(self) -> None:
        """Blocks beyond the memory limit, which go into a file, give a correct waveform."""
        frames = noisy_frames(3001, 2)
        rendering = self.start(max_memory=16)
        self.end(stdout=frames.tobytes())
        self.successResultOf(rendering)
        found = parse_waveform(self.written())
        self.assertEqual(found.values, render_waveform(frames, found.pixel, 2))

    def test_encoder(self) -> None:
        """A child that fails, or outputs no complete frame, causes a refusal."""
        for stdout, code, signal, refusal in (
            (samples(1, 2, 3, 4), 0, 11, RenderFailed),
            (b"", 0, None, NothingDecoded),
            (b"\x01", 0, None, NothingDecoded),
            (samples(1), 0, None, NothingDecoded),
        ):
            rendering = self.start()
            self.end(code, signal, stdout=stdout)
            self.refused(rendering, refusal)

    def warning(self, events: Iterable[Any]) -> str:
        """Return the only warning of a log."""
        (event,) = [event for event in events if event["log_level"] is LogLevel.warn]
        return str(formatEvent(event))

    def test_full_disk(self) -> None:
        """An output on a full disk is a 500, and the log says why."""
        with capturedLogs() as events, open("/dev/full", "wb") as full:
            rendering = self.start(output=full.fileno())
            self.end(stdout=samples(1, 2))
        self.refused(rendering, DiskFull)
        self.assertRegex(self.warning(events), "cannot be written: .*No space left on device")

    def test_blocks_cannot_be_stored(self) -> None:
        """Blocks that cannot be stored are a 500, and the log names only their disk."""
        with capturedLogs() as events:
            rendering = self.start(max_memory=16, folder="/nowhere")
            self.end(stdout=samples(1, 2) * 5)
        self.refused(rendering, RenderFailed)
        line = "the samples of a waveform cannot be kept in TMPDIR: No such file or directory"
        self.assertTrue(self.warning(events).startswith(line), events)

    def test_blocks_cannot_be_read(self) -> None:
        """Blocks that cannot be read again are a failure of TMPDIR, not of the output's disk."""
        folder = os.path.abspath(self.mktemp())
        os.mkdir(folder)
        with capturedLogs() as events, open("/dev/null", "wb") as unreadable:
            rendering = self.start(max_memory=16, folder=folder)
            self.spawner.last.exit_and_end(stdout=samples(1, 2) * 5)
            self.threads.run_next()
            (blocks,) = [each for each in opened_since(self.before) if folder in each]
            os.dup2(unreadable.fileno(), int(blocks.split()[0]))
            self.threads.run()
        self.assertIs(RenderFailed, type(self.failureResultOf(rendering).value))
        self.assertRegex(self.warning(events), "cannot be kept in TMPDIR: Bad file descriptor")

    def test_failed_reader(self) -> None:
        """The failure of a reader is raised however its child ends, which is not blamed."""

        def read(_: object) -> None:
            raise ZeroDivisionError

        for code, signal, stderr in ((0, None, b""), (1, None, b"Broken pipe"), (0, 13, b"")):
            with capturedLogs() as events:
                decoding = Deferred.fromCoroutine(
                    Decoder(self.ffmpeg, self.threads.in_thread).decode(
                        COMMAND, FakeSourceFile(), Deadline(self.clock, 100, RenderTimeout), read
                    )
                )
                self.threads.run()
                self.spawner.last.exit_and_end(code, signal, stderr=stderr)
            self.failureResultOf(decoding, ZeroDivisionError)
            self.assertEqual([], events)

    def test_no_descriptors(self) -> None:
        """Without a descriptor for the pipe the waveform is a 500, and no child starts."""
        # One is for the source.
        with capturedLogs() as events, free_descriptors(2):
            rendering = self.start()
        self.refused(rendering, RenderFailed)
        self.assertRegex(self.warning(events), "cannot be written: .*Too many open files")
        self.assertEqual(self.spawner.children, [])
        self.threads.run()

    def test_not_started(self) -> None:
        """Without ffmpeg (D34) or a thread a waveform is a 500; no pipe stays open."""

        def refuse(work: object) -> Any:
            raise OSError(11, "can't start new thread")

        self.refused(self.start(in_thread=refuse), RenderFailed)
        self.assertEqual(self.spawner.children, [])
        self.assertEqual(set(), opened_since(self.before))
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        rendering = self.start()
        self.threads.run()
        self.refused(rendering, RenderFailed)

    def test_reader_that_crashes(self) -> None:
        """An unexpected exception is passed on, and nothing is written."""
        rendering = self.start(source=samples(1, 2), codec="unknown")
        self.threads.run()
        self.failureResultOf(rendering, ZeroDivisionError)
        self.assertEqual(self.written(), b"")

    def test_file(self) -> None:
        """The document has the samples of a source without a decoder; no child is started."""
        reading = self.start(source=samples(1, -2, 3, -4, 99, 99))
        self.threads.run()
        self.assertEqual(self.read_values(reading), [1, 1, -2, -2, 3, 3, -4, -4])
        self.assertEqual(self.spawner.children, [])

    def test_failed_source(self) -> None:
        """A source that could not be read is the cause, whatever the samples up to there give."""
        for output in (samples(1, -2), b""):
            reading = self.start()
            self.source.failure = UpstreamUnavailable()
            self.end(stdout=output)
            self.refused(reading, UpstreamUnavailable)

    def test_file_refused(self) -> None:
        """A timeout, or an output that is too large, refuses the waveform."""
        reading = self.start(source=samples(1, 2, 3, 4), timeout=-1)
        self.threads.run()
        self.refused(reading, RenderTimeout)
        reading = self.start(source=samples(1, 2, 3, 4), spec=replace(STEREO, pixels=500))
        self.threads.run()
        self.failureResultOf(reading, OutputTooLarge)
        self.assertLessEqual(len(self.written()), 1000)

    def test_unusual_file(self) -> None:
        """ffmpeg decodes samples that it must convert."""
        reading = self.start(source=struct.pack("<4f", 0, 0, 0, 1e30), codec="pcm_f32le")
        self.threads.run_next()
        self.assertEqual(self.written(), b"")
        self.end(stdout=samples(1, -2))
        self.assertEqual(self.read_values(reading), [1, 1, -2, -2, 0, 0, 0, 0])

    def test_before_it_is_written(self) -> None:
        """Cancelling stops the child and awaits the reader; no document is written."""
        for ended in (False, True):
            rendering = self.start()
            self.spawner.last.write_stdout(samples(1, 2))
            if ended:
                self.spawner.last.exit_and_end()
            rendering.cancel()
            self.assertEqual(self.spawner.last.signals, [] if ended else ["TERM"])
            self.assertNoResult(rendering)
            if not ended:
                self.spawner.last.exit_and_end(signal=15)
            rendering.cancel()
            self.assertNoResult(rendering)
            self.assertNotEqual(open_descriptors(), self.before)
            self.threads.run()
            self.failureResultOf(rendering, CancelledError)
            self.assertEqual(self.written(), b"")

    def test_while_it_is_written(self) -> None:
        """A waveform that is cancelled during the write ends only when the writer has ended."""
        works: list[Callable[[], object]] = []

        def in_thread(work: Callable[[], object]) -> Deferred[Any]:
            works.append(work)

            def do() -> object:
                if len(works) == 2:
                    rendering.cancel()
                    self.assertNoResult(rendering)
                return work()

            return self.threads.in_thread(do)

        rendering = self.start(in_thread=in_thread)
        self.end(stdout=samples(1, 2))
        # These are the reader, the writer, and the removal of the blocks.
        self.assertEqual(len(works), 3)
        self.failureResultOf(rendering, CancelledError)
        self.assertEqual(len(parse_waveform(self.written()).values), 8)

    def test_second_pass(self) -> None:
        """Another pass follows where the first one has other frames than expected."""
        output = samples(*range(18))
        for expected, passes in ((None, 1), (9, 1), (8, 2), (4, 2), (10, 1), (20, 2)):
            self.spawner.children.clear()
            rendering = self.start(frames=expected)
            self.spawner.last.exit_and_end(stdout=output)
            if passes == 2:
                self.run_until(2)
                self.assertNoResult(rendering)
                self.assertEqual(self.written(), b"")
                self.spawner.last.exit_and_end(stdout=output)
            self.threads.run()
            self.assertEqual(len(self.spawner.children), passes, expected)
            values = self.read_values(rendering)
            self.assertEqual(values, render_waveform(frames_of(range(18), 2), 5, 2), expected)

    def test_two_passes_at_most(self) -> None:
        """A source whose length differs in each pass is a 500."""
        rendering = self.start(frames=4)
        self.spawner.last.exit_and_end(stdout=samples(*range(18)))
        self.run_until(2)
        self.end(stdout=samples(*range(42)))
        self.refused(rendering, RenderFailed)
        self.assertEqual(len(self.spawner.children), 2)

    def test_parts(self) -> None:
        """Decoders of parts run side by side; the document has the pixels of all of them."""
        rendering = self.start(frames=4, parts=PARTS)
        first, last = self.spawner.children
        self.assertEqual([first.arguments[-1], last.arguments[-1]], ["first", "last"])
        last.exit_and_end(stdout=samples(5, -5, 6, -6))
        first.exit_and_end(stdout=samples(1, -1, 2, -2))
        self.assertEqual(self.parts_ended, 0)
        self.threads.run()
        self.assertEqual(self.read_values(rendering), [1, 2, -2, -1, 5, 6, -6, -5])
        self.assertEqual(self.parts_ended, 2)

    def test_uneven_parts(self) -> None:
        """Where a part has other frames than it should have, one pass replaces all parts."""
        for output in (samples(1, -1), samples(1, -1, 2, -2, 3, -3), b""):
            self.spawner.children.clear()
            self.parts_ended = 0
            rendering = self.start(frames=4, parts=PARTS)
            first, last = self.spawner.children
            first.exit_and_end(stdout=output)
            self.assertNoResult(rendering)
            # The reader of the other part waits until its decoder has ended.
            self.threads.run_next()
            self.assertEqual(last.signals, ["TERM"])
            last.exit_and_end(signal=15)
            self.run_until(3)
            self.assertEqual(self.parts_ended, 2)
            self.end(stdout=samples(1, -1, 2, -2, 3, -3))
            self.assertEqual(self.read_values(rendering), [1, 2, -2, -1, 3, 3, -3, -3])

    def test_stopped_parts(self) -> None:
        """The failure of one part, and cancelling, stop all decoders, and wait for their ends."""
        for refusal in (RenderFailed, CancelledError):
            self.spawner.children.clear()
            self.parts_ended = 0
            rendering = self.start(frames=4, parts=PARTS)
            first, last = self.spawner.children
            if refusal is CancelledError:
                rendering.cancel()
                self.assertEqual(first.signals, ["TERM"])
            first.exit_and_end(signal=11)
            self.threads.run_next()
            self.assertNoResult(rendering)
            self.assertEqual(last.signals, ["TERM"])
            last.exit_and_end(signal=15)
            self.threads.run()
            self.refused(rendering, refusal)
            self.assertEqual((self.parts_ended, len(self.spawner.children)), (2, 2))

    def test_parts_of_a_file(self) -> None:
        """Parts of uncompressed samples are read side by side, and need no decoder."""
        parts = [
            replace(part, samples=PcmSamples("pcm_s16le", 8 * number, 2, 2))
            for number, part in enumerate(PARTS)
        ]
        source = samples(1, -1, 2, -2, 5, -5, 6, -6)
        rendering = self.start(source=source, frames=4, parts=parts)
        self.assertEqual(self.threads.waiting, 2)
        self.threads.run()
        self.assertEqual(self.read_values(rendering), [1, 2, -2, -1, 5, 6, -6, -5])
        self.assertEqual(self.spawner.children, [])


class ScriptedEvent(Event):
    """Event that takes a step ahead of each check whether it is set, while there are any."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = [*steps]

    def is_set(self) -> bool:
        if self._steps:
            self._steps.pop(0)()
        return super().is_set()


class DecoderPipeTests(SynchronousTestCase):
    """`DecoderPipe`"""

    def setUp(self) -> None:
        readable, self.writable = open_pipe()
        self.pipe = open(readable, "rb", buffering=0)  # noqa: SIM115
        self.addCleanup(self.pipe.close)
        closing = self.closing = ExitStack()
        closing.callback(os.close, self.writable)
        self.addCleanup(closing.close)

    def read(self, ended: Event) -> bytes:
        """Return the output of a decoder."""
        reader, room, output = DecoderPipe(self.pipe, ended, poll_timeout=1), bytearray(9), b""
        while count := reader.readinto(memoryview(room)):
            output += room[:count]
        return output

    def test_held_open(self) -> None:
        """A grandchild that holds the pipe open delays neither the end nor the last samples."""
        write = partial(os.write, self.writable, b"abc")
        write()
        # Samples arrive after the child's death, just before the reader notices it.
        for ended in (ScriptedEvent(), ScriptedEvent(write)):
            ended.set()
            self.assertEqual(b"abc", self.read(ended))

    def test_slow_child(self) -> None:
        """A child that is silent for longer than the reader's poll interval is awaited."""
        wait: list[Callable[[], object]] = [lambda: None] * 3
        # The first piece fills the room.
        one, two = (partial(os.write, self.writable, text) for text in (b"123456789", b"abc"))
        steps = (*wait, one, *wait, two, self.closing.close)
        self.assertEqual(b"123456789abc", self.read(ScriptedEvent(*steps)))
