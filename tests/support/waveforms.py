"""Waveforms by other means: a plain reader of both documents, and a plain reference."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.support.audio import run

#: One row for each frame, one column for each channel.
Frames = NDArray[np.int16]

#: What a JSON document has, in this order (D25).
KEYS = ["version", "channels", "sample_rate", "samples_per_pixel", "bits", "length", "data"]

HEADER_BYTES = 24


@dataclass(frozen=True)
class Drawing:
    """What a document says.

    :ivar pixel: what the format calls ``samples_per_pixel``.
    :ivar values: a minimum and a maximum for each channel of each pixel.
    """

    version: int
    channels: int
    rate: int
    pixel: int
    bits: int
    length: int
    values: list[int]


def read_drawing(document: bytes) -> Drawing:
    """Read a document of either serialization, and insist on its form."""
    drawing = _read_json(document) if document.startswith(b"{") else _read_dat(document)
    assert len(drawing.values) == 2 * drawing.channels * drawing.length, len(drawing.values)
    return drawing


def _read_json(document: bytes) -> Drawing:
    read = json.loads(document)
    assert list(read) == KEYS, list(read)
    assert {type(value) for value in (*read["data"], *list(read.values())[:-1])} == {int}
    return Drawing(*read.values())


def _read_dat(document: bytes) -> Drawing:
    version, flags, rate, pixel, length, channels = struct.unpack_from("<6i", document)
    assert flags in (0, 1), flags
    kind = "b" if flags else "h"
    count = (len(document) - HEADER_BYTES) // struct.calcsize(kind)
    values = struct.unpack(f"<{count}{kind}", document[HEADER_BYTES:])
    return Drawing(version, channels, rate, pixel, 8 if flags else 16, length, list(values))


def draw(frames: Frames, pixel: int, pixels: int) -> list[int]:
    """Return the values of a waveform: pixel after pixel, channel after channel (D26)."""
    values: list[int] = []
    for at in range(0, pixel * pixels, pixel):
        part = frames[at : at + pixel]
        if len(part):
            extremes = np.stack((part.min(axis=0), part.max(axis=0)), axis=1)
            values += extremes.reshape(-1).tolist()
        else:
            values += [0, 0] * frames.shape[1]
    return values


def mean(frames: Frames) -> Frames:
    """Return the mean of the channels of each frame, truncated towards zero."""
    sums = frames.astype(np.float64).sum(axis=1, keepdims=True)
    return np.trunc(sums / frames.shape[1]).astype(np.int16)


def bounds(frames: int, pixels: int) -> tuple[int, float]:
    """Return the least and the greatest ``samples_per_pixel`` that there may be (D26)."""
    least = -(-frames // pixels)
    return least, 1.01 * least


def frames_of(values: Sequence[int], channels: int = 1) -> Frames:
    """Return frames of interleaved samples."""
    return np.array(values, np.int16).reshape(-1, channels)


def noisy_frames(count: int, channels: int = 1, seed: int = 1) -> Frames:
    """Return frames of which no two are alike, of all that 16 bits can hold."""
    chance = np.random.default_rng(seed)
    return chance.integers(-32768, 32768, (count, channels), np.int16)


def decode_frames(source: bytes, channels: int, *words: str) -> Frames:
    """Decode the first audio stream of a file of so many channels to 16 bits.

    :param words: for ffmpeg, ahead of the output.
    """
    command = "ffmpeg -nostdin -v fatal -i file:/dev/fd/3 -map 0:a:0"
    ended = run([*command.split(), *words, "-c:a", "pcm_s16le", "-f", "s16le", "-"], source)
    assert ended.code == 0, ended.stderr
    return frames_of(array("h", ended.stdout), channels)


def frames_of_wav(file: bytes, channels: int) -> Frames:
    """Return the frames of a wav file of 16 bits, whatever its header says of its length."""
    return frames_of(array("h", file[file.index(b"data") + 8 :]), channels)
