"""Waveforms: the reduction of samples, and the JSON and binary documents."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import IO
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, NothingDecoded, UndecodableSource
from audioproxy.media import waveform as waveform_module
from audioproxy.media import waveform_pixels as pixels_module
from audioproxy.media.waveform import SAMPLE, Reduction, Waveform, serialize
from audioproxy.media.waveform_pixels import CoarseBlocks, frames_per_pixel
from audioproxy.media.waveform_spec import WaveformSpec
from tests.support.strategies import DETERMINISTIC
from tests.support.waveforms import (
    KEYS,
    Frames,
    bounds,
    frames_of,
    mean,
    noisy_frames,
    parse_waveform,
    render_waveform,
    round_frames,
)

SPEC = WaveformSpec(44100, 1, 1, 800, 16, "json")
FIXTURES = Path(__file__).parents[1] / "data" / "waveform"


def reduce(
    frames: Frames,
    spec: WaveformSpec,
    cuts: Sequence[int] = (),
    spool: IO[bytes] | None = None,
    *,
    expected: int | None = None,
) -> Waveform:
    """Return the waveform of frames that arrive in pieces, split at the cuts, after 2 passes.

    :param expected: their number, as far as it is known from the beginning.
    """
    block = 1 if expected is None else frames_per_pixel(expected, spec.pixels)
    ends = sorted({0, *cuts, len(frames)})
    for _ in range(2):
        reduction = Reduction(spec, spool or BytesIO(), block)
        for start, end in pairwise(ends):
            reduction.add(frames[start:end].reshape(-1))
        assert reduction.frames == len(frames)
        try:
            return reduction.finish()
        except CoarseBlocks as coarse:
            block = frames_per_pixel(coarse.frames, spec.pixels)
    raise AssertionError("a third pass would be needed")


def patched_blocks(blocks_in_pixel: int, half_capacity: int) -> AbstractContextManager[object]:
    """Return a patch with which a few frames are merged as many are."""
    return mock.patch.multiple(
        pixels_module, _BLOCKS_IN_PIXEL=blocks_in_pixel, _LEAST_CAPACITY=2 * half_capacity
    )


def values(waveform: Waveform) -> list[int]:
    """Return the values in the order of the documents."""
    return list(waveform.extremes.reshape(-1).tolist())


class ReductionTests(SynchronousTestCase):
    """`Reduction`"""

    def test_by_hand(self) -> None:
        """A pixel is the minimum and the maximum of its frames; the last may have fewer.

        There are always as many pixels as requested, and pixels past the end are 0, 0 (D26). Each
        channel has a pair in every pixel, the left channel first (Peaks options, 3).
        """
        short, stereo = [5, -6, 7, -8, 9], [1, -10, 2, -20, 3, -30, 4, -40]
        for samples, channels, pixels, per_pixel, expected in (
            ([1, -2, 3, 0, 0, 0, -7, -8, -9, 4], 1, 4, 3, [-2, 3, 0, 0, -9, -7, 4, 4]),
            (short, 1, 4, 2, [-6, 5, -8, 7, 9, 9, 0, 0]),
            (short, 1, 7, 1, [5, 5, -6, -6, 7, 7, -8, -8, 9, 9, 0, 0, 0, 0]),
            (stereo, 2, 2, 2, [1, 2, -20, -10, 3, 4, -40, -30]),
            *(([-5], 1, pixels, 1, [-5, -5] + [0, 0] * (pixels - 1)) for pixels in (1, 2, 65536)),
        ):
            spec = replace(SPEC, decoded_channels=channels, channels=channels, pixels=pixels)
            waveform = reduce(frames_of(samples, channels), spec)
            self.assertEqual(waveform.frames_per_pixel, per_pixel)
            self.assertEqual(values(waveform), expected)

    def test_bytes(self) -> None:
        """Samples are little-endian on every machine; each decoded channel has two bytes."""
        reduction = Reduction(replace(SPEC, pixels=1), BytesIO())
        reduction.add(np.frombuffer(b"\x01\x02\xff\xff", SAMPLE))
        self.assertEqual(values(reduction.finish()), [-1, 0x201])
        for decoded_channels, channels in ((1, 1), (2, 1), (2, 2)):
            spec = replace(SPEC, decoded_channels=decoded_channels, channels=channels)
            self.assertEqual(Reduction(spec, BytesIO()).frame_bytes, 2 * decoded_channels)

    def test_nothing(self) -> None:
        """A source without frames is refused (Errors, 415)."""
        reduction = Reduction(SPEC, BytesIO())
        error = self.assertRaises(NothingDecoded, reduction.finish)
        self.assertIsInstance(error, UndecodableSource)
        reduction.add(np.empty(0, SAMPLE))
        self.assertRaises(NothingDecoded, reduction.finish)
        self.assertEqual(reduction.frames, 0)

    @DETERMINISTIC
    @given(
        pixels=st.integers(1, 99),
        count=st.integers(1, 1500),
        kind=st.sampled_from([(1, 1), (2, 1), (2, 2)]),
        sizes=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 9)),
        cuts=st.lists(st.integers(0, 1500), max_size=50),
        seed=st.integers(0, 99),
        expected=st.integers(1, 3000),
    )
    def test_any_length(
        self,
        pixels: int,
        count: int,
        kind: tuple[int, int],
        sizes: tuple[int, int, int],
        cuts: list[int],
        seed: int,
        expected: int,
    ) -> None:
        """Every pixel is exact for any length, any pieces and any expected length (D26).

        Two passes are always enough.
        """
        blocks_in_pixel, half_capacity, half_batch = sizes
        with (
            mock.patch.object(waveform_module, "_BLOCKS_PER_BATCH", 2 * half_batch),
            patched_blocks(blocks_in_pixel, half_capacity),
        ):
            decoded_channels, channels = kind
            spec = WaveformSpec(8000, decoded_channels, channels, pixels, 16, "json")
            frames = noisy_frames(count, decoded_channels, seed)
            cuts = [cut for cut in cuts if cut < count]
            waveform = reduce(frames, spec, cuts)
            others = [reduce(frames, spec, cuts, expected=number) for number in (count, expected)]
        mixed = frames if channels == decoded_channels else mean(frames)
        values_of_all = render_waveform(mixed, waveform.frames_per_pixel, pixels)
        self.assertEqual(values(waveform), values_of_all)
        # Whether the number of frames was known, or expected wrongly, makes no difference.
        for other in others:
            self.assertEqual(other.frames_per_pixel, waveform.frames_per_pixel)
            self.assertEqual(values(other), values_of_all)

    def test_real_sizes(self) -> None:
        """Every pixel is exact, and at most 1 % too long, where blocks merge (D26)."""
        capacity = 256 * 1024
        everything = noisy_frames(14_000_000)
        for channels, pixels, count in (
            (2, 800, capacity + 1),
            (2, 800, 4 * capacity + 1),
            (2, 65536, 700_000),
            (1, 65536, 14_000_000),
        ):
            frames = everything[: count * channels].reshape(-1, channels)
            spec = replace(SPEC, decoded_channels=channels, channels=channels, pixels=pixels)
            with tempfile.SpooledTemporaryFile(4096) as spool:
                waveform = reduce(frames, spec, list(range(65_536, count, 65_536)), spool)
            least, most = bounds(count, pixels)
            self.assertTrue(least <= waveform.frames_per_pixel <= most, (pixels, count))
            expected = render_waveform(frames, waveform.frames_per_pixel, pixels)
            self.assertTrue(values(waveform) == expected, (pixels, count))

    def test_long_pixels(self) -> None:
        """Long pixels are exact, whether all of a piece is one or several of them."""
        for channels in (1, 2):
            frames = noisy_frames(200_003, 2)
            spec = replace(SPEC, decoded_channels=2, channels=channels)
            for pixels in (1, 2, 7, 31, 33, 211):
                waveform = reduce(frames, replace(spec, pixels=pixels), expected=len(frames))
                mixed = mean(frames) if channels == 1 else frames
                expected = render_waveform(mixed, waveform.frames_per_pixel, pixels)
                self.assertTrue(values(waveform) == expected, (channels, pixels))

    def test_memory(self) -> None:
        """The memory for a source does not grow with its length (D26)."""
        spool, frames = BytesIO(), noisy_frames(1_000_000).reshape(-1)
        reduction = Reduction(replace(SPEC, pixels=1), spool)
        for _ in range(8):
            reduction.add(frames)
        self.assertEqual(reduction.frames, 8_000_000)
        reduction.finish()
        # The blocks of few pixels, each a minimum and a maximum of two bytes, and one incomplete
        # block.
        self.assertLessEqual(len(spool.getvalue()), (256 * 1024 + 1) * 4)

    def test_one_pixel(self) -> None:
        """A waveform of one pixel takes one pass, whatever its length (D26)."""
        frames = noisy_frames(600_001)
        for block in (1, 2, 300, 5000):
            reduction = Reduction(replace(SPEC, pixels=1), BytesIO(), block)
            reduction.add(frames.reshape(-1))
            waveform = reduction.finish()
            self.assertEqual(waveform.frames_per_pixel, len(frames))
            self.assertEqual(values(waveform), render_waveform(frames, len(frames), 1))


class DocumentTests(SynchronousTestCase):
    """`serialize`"""

    def document(self, spec: WaveformSpec, pixel: int, *extremes: int) -> bytes:
        """Return the document of a waveform."""
        table = np.array(extremes, np.int16).reshape(-1, spec.channels, 2)
        return b"".join(serialize(Waveform(pixel, table), spec))

    def test_json(self) -> None:
        """The JSON document has exactly seven keys, and whole numbers (Peaks options, 3; D25)."""
        spec = WaveformSpec(8000, 2, 2, 2, 16, "json")
        document = self.document(spec, 3, -1, 1, -32768, 32767, -2, 2, 0, 0)
        self.assertEqual(
            document,
            b'{"version":2,"channels":2,"sample_rate":8000,"samples_per_pixel":3,"bits":16,'
            b'"length":2,"data":[-1,1,-32768,32767,-2,2,0,0]}',
        )
        self.assertEqual(list(json.loads(document)), KEYS)

    def test_every_value(self) -> None:
        """All 65536 16-bit values are truncated towards zero for 8 bits (Peaks options, 5)."""
        everything = range(-32768, 32768)
        expected = [abs(value) // 256 * (-1 if value < 0 else 1) for value in everything]
        for serialization in ("json", "dat"):
            spec = WaveformSpec(8000, 1, 1, 32768, 8, serialization)
            parsed = parse_waveform(self.document(spec, 1, *everything))
            self.assertEqual(parsed.values, expected)

    def test_in_pieces(self) -> None:
        """A large document is serialized in many pieces of less than 40 kB."""
        for serialization in ("json", "dat"):
            spec = replace(SPEC, pixels=65536, serialization=serialization)
            pieces = list(serialize(reduce(noisy_frames(65536), spec), spec))
            self.assertGreater(len(pieces), 30)
            self.assertLess(max(map(len, pieces)), 40_000)

    def test_longest_pixel(self) -> None:
        """A pixel too long for the binary header gives a 422 that names ``pts`` (D13)."""
        spec = WaveformSpec(8000, 1, 1, 1, 16, "dat")
        document = self.document(spec, 2**31 - 1, 0, 0)
        self.assertEqual(struct.unpack_from("<i", document, 12), (2**31 - 1,))
        error = self.assertRaises(InvalidOptions, self.document, spec, 2**31, 0, 0)
        self.assertEqual(
            error.message,
            '"pts:1" is not accepted: pk_fmt:dat holds pixels of at most 2147483647 frames,'
            " and these would have 2147483648.",
        )
        # JSON can represent this length.
        document = self.document(replace(spec, serialization="json"), 2**31, 0, 0)
        self.assertEqual(parse_waveform(document).pixel, 2**31)

    def test_documents(self) -> None:
        """Documents are those of BBC's audiowaveform, with the same order of keys (D25).

        Both serializations have the same values (Peaks options, 3 and 4).
        """
        for name, channels, bits, changes in (
            ("stereo-250-8", 2, 8, {}),
            ("stereo-250-16", 2, 16, {}),
            ("mono-250-16", 1, 16, {"version": 2}),
        ):
            frames = round_frames((FIXTURES / "stereo.wav").read_bytes())
            spec = WaveformSpec(8000, 2, channels, 96, bits, "json")
            waveform = reduce(frames, spec)
            found = json.loads(b"".join(serialize(waveform, spec)))
            reference = json.loads((FIXTURES / f"{name}.json").read_bytes()) | changes
            self.assertEqual(list(found.items()), list(reference.items()), name)
            if channels == 2:
                dat = b"".join(serialize(waveform, replace(spec, serialization="dat")))
                self.assertEqual(dat, (FIXTURES / f"{name}.dat").read_bytes(), name)
