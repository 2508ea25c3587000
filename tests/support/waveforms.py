"""Independent parser of both waveform serializations, and reference computation of the values."""

from __future__ import annotations

import json
import struct
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.audio import read_wav, run
from tests.support.programs import FFMPEG

#: One row per frame, one column per channel.
Frames = NDArray[np.int16]

#: Keys of a JSON document, in this order (D25).
KEYS = ["version", "channels", "sample_rate", "samples_per_pixel", "bits", "length", "data"]

HEADER_BYTES = 24


@dataclass(frozen=True)
class WaveformDocument:
    """Parsed waveform document: a minimum and a maximum for each channel of each pixel."""

    version: int
    channels: int
    rate: int
    pixel: int
    bits: int
    length: int
    values: list[int]


def parse_waveform(document: bytes) -> WaveformDocument:
    """Parse a document of either serialization and check its form."""
    if document.startswith(b"{"):
        read = json.loads(document)
        assert list(read) == KEYS, list(read)
        assert {type(value) for value in (*read["data"], *list(read.values())[:-1])} == {int}
        waveform = WaveformDocument(*read.values())
    else:
        version, flags, rate, pixel, length, channels = struct.unpack_from("<6i", document)
        assert flags in (0, 1), flags
        width = 2 - flags
        values = np.frombuffer(document[HEADER_BYTES:], f"<i{width}").tolist()
        waveform = WaveformDocument(version, channels, rate, pixel, 8 * width, length, values)
    assert len(waveform.values) == 2 * waveform.channels * waveform.length, len(waveform.values)
    return waveform


def render_waveform(frames: Frames, pixel: int, pixels: int) -> list[int]:
    """Return the values of a waveform, ordered by pixel and then by channel (D26)."""
    covered = frames[: pixel * pixels]
    starts = np.arange(0, len(covered), pixel)
    lowest, highest = (extreme.reduceat(covered, starts) for extreme in (np.minimum, np.maximum))
    values = np.zeros((pixels, frames.shape[1], 2), np.int16)
    values[: len(starts)] = np.stack((lowest, highest), axis=2)
    return [int(value) for value in values.reshape(-1)]


def mean(frames: Frames) -> Frames:
    """Return the mean of the channels of each frame, truncated toward zero."""
    sums = frames.astype(np.float64).sum(axis=1, keepdims=True)
    return np.trunc(sums / frames.shape[1]).astype(np.int16)


def bounds(frames: int, pixels: int) -> tuple[int, float]:
    """Return the least and the greatest permitted ``samples_per_pixel`` (D26)."""
    least = -(-frames // pixels)
    return least, 1.01 * least


def frames_of(values: Sequence[int], channels: int = 1) -> Frames:
    """Return frames from interleaved samples."""
    return np.array(values, np.int16).reshape(-1, channels)


def noisy_frames(count: int, channels: int = 1, seed: int = 1) -> Frames:
    """Return pseudorandom frames that cover the whole 16-bit range."""
    chance = np.random.default_rng(seed)
    return chance.integers(-32768, 32768, (count, channels), np.int16)


def decode_frames(folder: Path, channels: Mapping[str, int]) -> dict[str, Frames]:
    """Decode the first audio stream of each file to 16 bits, in one run of ffmpeg.

    :param channels: channel counts by file name.
    """
    words = [FFMPEG, "-nostdin", "-v", "fatal"]
    with tempfile.TemporaryDirectory() as decoded:
        for name in channels:
            words += ["-i", f"file:{folder / name}"]
        for number, name in enumerate(channels):
            words += f"-map {number}:a:0 -c:a pcm_s16le -f s16le {decoded}/{name}".split()
        ended = run(words)
        assert ended.returncode == 0, ended.stderr
        return {
            name: frames_of(array("h", Path(decoded, name).read_bytes()), count)
            for name, count in channels.items()
        }


def round_frames(file: bytes) -> Frames:
    """Return the frames of a wav file of floats, rounded to 16 bits without dither."""
    samples = read_wav(file).channels.T.astype(np.float64)
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
