"""Uncompressed samples that the service reads itself, beside the samples that ffmpeg decodes."""

from __future__ import annotations

import struct
import tempfile
from io import BytesIO
from pathlib import Path
from threading import Event

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.media.waveform_pixels import frames_per_pixel
from audioproxy.media.waveform_spec import WaveformSpec, readable_samples
from audioproxy.process.waveform_reader import (
    PcmReader,
    SampleStream,
    reduce_samples,
    write_document,
)
from tests.support.audio import convert_all, find_length_of, options_of
from tests.support.probes import Probe
from tests.support.strategies import DETERMINISTIC
from tests.support.waveforms import decode_frames

_LITTLE = ("s16le", "s24le", "s32le", "f32le", "f64le")
_BIG = ("s8", "s16be", "s24be", "s32be", "f32be", "f64be")
#: For each container: the name that ffprobe gives it, arguments, and the codecs that it can have.
CONTAINERS = {
    "wav": ("wav", "-f wav", ("u8", *_LITTLE)),
    "rf64": ("wav", "-f wav -rf64 always", ("u8", *_LITTLE)),
    "w64": ("w64", "-f w64", ("u8", *_LITTLE)),
    "aiff": ("aiff", "-f aiff", _BIG),
    "caf": ("caf", "-f caf", (*_LITTLE, *_BIG)),
}
KINDS = [(name, codec) for name, (_, _, codecs) in CONTAINERS.items() for codec in codecs]


def make_sources(count: int, channels: int, seed: int) -> dict[tuple[str, str], bytes]:
    """Return sources of the same samples, in each container with each codec."""
    # Steps of a quarter of the least of 16 bits, past both ends of the range, and noise below that.
    chance = np.random.default_rng(seed)
    steps = chance.integers(-5 * 32768, 5 * 32768, count * channels) / (4 * 32768)
    steps[::3] += chance.uniform(-1, 1, len(steps[::3])) / 2**24
    samples = steps.astype("<f8").tobytes()
    # A wav file of 64-bit floats.
    form = struct.pack("<HHIIHH", 3, channels, 8000, 8 * 8000 * channels, 8 * channels, 64)
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<I", 16)
    wav = head + form + b"data" + struct.pack("<I", len(samples)) + samples
    forms = {
        f"{container}.{codec}": f"-c:a pcm_{codec} {CONTAINERS[container][1]}"
        for container, codec in KINDS
    }
    made = convert_all(wav, forms)
    return {kind: made[".".join(kind)] for kind in KINDS}


def render_document(stream: SampleStream, spec: WaveformSpec, frames: int | None) -> bytes:
    """Return the document of all samples of a stream."""
    block = 1 if frames is None else frames_per_pixel(frames, spec.pixels)
    reduction = reduce_samples(spec, BytesIO(), block, stream)
    with tempfile.TemporaryFile() as output:
        write_document(reduction.finish(), spec, output.fileno(), 1 << 20)
        output.seek(0)
        return output.read()


class PcmReaderTests(SynchronousTestCase):
    """`PcmReader`"""

    @settings(DETERMINISTIC, max_examples=6)
    @given(
        channels=st.integers(1, 2),
        count=st.integers(1, 5000),
        pixels=st.integers(1, 3000),
        seed=st.integers(0, 99),
    )
    def test_same_documents(self, channels: int, count: int, pixels: int, seed: int) -> None:
        """The document is byte for byte that of the samples that ffmpeg decodes (D26)."""
        sources = make_sources(count, channels, seed)
        with tempfile.TemporaryDirectory() as folder:
            for kind, source in sources.items():
                Path(folder, ".".join(kind)).write_bytes(source)
            names = {".".join(kind): channels for kind in sources}
            decoded = decode_frames(Path(folder), names)
            for (container, codec), source in sources.items():
                name = f"{container}.{codec}"
                demuxer = CONTAINERS[container][0]
                found = Probe(
                    demuxer, f"pcm_{codec}", None, True, sample_rate=8000, channels=channels
                )
                found = found.with_length(find_length_of(source, found))
                for ch in range(1, channels + 1):
                    options = options_of(f"f:peaks/ch:{ch}/pts:{pixels}/pk_fmt:dat")
                    spec = WaveformSpec.of(options, found)
                    form = readable_samples(options, found)
                    assert form is not None, name
                    with open(Path(folder, name), "rb") as file:
                        deadline = Deadline(Clock(), 60)
                        stream = PcmReader(form, file.fileno(), deadline, Event())
                        direct = render_document(stream, spec, form.frames)
                    through_pipe = BytesIO(decoded[name].tobytes())
                    self.assertEqual(direct, render_document(through_pipe, spec, None), name)
