"""Reads of uncompressed samples that end early, and samples that only ffmpeg can convert."""

from __future__ import annotations

import os
import struct
import tempfile
from io import BytesIO
from threading import Event

import numpy as np
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import InvalidOptions, RenderFailed, RenderTimeout
from audioproxy.media.waveform import Waveform
from audioproxy.media.waveform_spec import PcmSamples, UnusualSamples, WaveformSpec
from audioproxy.process.waveform_reader import PcmReader, reduce_samples, write_document
from tests.support.waveforms import noisy_frames, render_waveform


def deadline(seconds: float = 60) -> Deadline:
    """Return the deadline of a render."""
    return Deadline(Clock(), seconds, RenderTimeout)


class Pieces:
    """Stream of samples that arrive in pieces of some bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = memoryview(data), size

    def readinto(self, room: memoryview) -> int:
        piece = self._data[: min(self._size, len(room))]
        room[: len(piece)] = piece
        self._data = self._data[len(piece) :]
        return len(piece)


class PcmReaderTests(SynchronousTestCase):
    """`PcmReader`"""

    def setUp(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115
        self.addCleanup(self.file.close)
        self.stop = Event()

    def reader(
        self, data: bytes, codec: str = "pcm_s16le", frames: int = 2, timeout: float = 60
    ) -> PcmReader:
        """Return a reader of mono samples, which begin at the fifth byte of the file."""
        self.file.seek(0)
        self.file.truncate()
        self.file.write(b"head" + data)
        self.file.flush()
        samples = PcmSamples(codec, 4, frames, 1)
        return PcmReader(samples, self.file.fileno(), deadline(timeout), self.stop)

    def read(self, reader: PcmReader) -> bytes:
        """Return what one call reads."""
        room = bytearray(100)
        return bytes(room[: reader.readinto(memoryview(room))])

    def test_chunks(self) -> None:
        """Samples that arrive in odd pieces, over many chunks, are joined correctly."""
        frames = noisy_frames(700_000, 2)
        spec = WaveformSpec(8000, 2, 2, 2, 16, "dat")
        for size in (99_999, 1 << 20, 3_000_001):
            reduction = reduce_samples(spec, BytesIO(), 350_000, Pieces(frames.tobytes(), size))
            found = reduction.finish().extremes.reshape(-1).tolist()
            self.assertEqual(render_waveform(frames, 350_000, 2), found, size)

    def test_nothing_written(self) -> None:
        """A waveform that its serialization cannot represent is a 422 without any output."""
        waveform = Waveform(2**31, np.zeros((1, 1, 2), np.int16))
        spec = WaveformSpec(8000, 1, 1, 1, 16, "dat")
        self.assertRaises(InvalidOptions, write_document, waveform, spec, self.file.fileno(), 1000)
        self.assertEqual(0, os.fstat(self.file.fileno()).st_size)

    def test_unusual(self) -> None:
        """NaN, infinite and huge samples are left to ffmpeg."""
        for codec, letter in (("pcm_f32le", "f"), ("pcm_f64le", "d")):
            for value in (float("nan"), float("inf"), -float("inf"), 65536.0, -1e30):
                reader = self.reader(struct.pack(f"<2{letter}", 0, value), codec)
                self.assertRaises(UnusualSamples, self.read, reader)

    def test_short_file(self) -> None:
        """A file that was cut meanwhile ends the samples; part of a sample is dropped."""
        reader = self.reader(b"abcde", frames=9)
        self.assertEqual((self.read(reader), self.read(reader)), (b"abcd", b""))

    def test_unreadable(self) -> None:
        """A file that cannot be read fails the render."""
        folder = os.open("/", os.O_RDONLY)
        self.addCleanup(os.close, folder)
        reader = PcmReader(PcmSamples("pcm_s16le", 4, 2, 1), folder, deadline(), self.stop)
        error = self.assertRaises(RenderFailed, self.read, reader)
        self.assertEqual(error.message, "The source could not be read.")

    def test_ended(self) -> None:
        """No sample is read past the deadline, or after the render was stopped."""
        self.assertRaises(RenderTimeout, self.read, self.reader(b"abcd", timeout=-1))
        self.stop.set()
        self.assertEqual(self.read(self.reader(b"abcd")), b"")
