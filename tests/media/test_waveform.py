"""Waveforms: the reduction of samples, and the JSON and binary documents."""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import replace
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions, NothingDecoded, UndecodableSource
from audioproxy.grammar.options import VariantOptions
from audioproxy.media import waveform as waveform_module
from audioproxy.media.probe import Probe
from audioproxy.media.waveform import SAMPLE, Reduction, Waveform, serialize
from audioproxy.media.waveform_spec import WaveformSpec
from tests.support.audio import parse_options
from tests.support.strategies import DETERMINISTIC
from tests.support.waveforms import (
    HEADER_BYTES,
    KEYS,
    Frames,
    bounds,
    frames_of,
    frames_of_wav,
    mean,
    noisy_frames,
    parse_waveform,
    render_waveform,
)

STEREO = Probe("wav", "pcm_s16le", Decimal(10), True, sample_rate=44100, channels=2)
SPEC = WaveformSpec(44100, 1, 1, 800, 16, "json")
FIXTURES = Path(__file__).parents[1] / "data" / "waveform"


def reduce(frames: Frames, spec: WaveformSpec, cuts: list[int] | None = None) -> Waveform:
    """Return the waveform of frames that arrive in pieces, split at the cuts."""
    reduction = Reduction(spec, BytesIO())
    ends = sorted({0, *(cuts or ()), len(frames)})
    for start, end in pairwise(ends):
        reduction.add(frames[start:end].reshape(-1))
    assert reduction.frames == len(frames)
    return reduction.finish()


def values(waveform: Waveform) -> list[int]:
    """Return the values in the order of the documents."""
    return list(waveform.extremes.reshape(-1).tolist())


class WaveformSpecTests(SynchronousTestCase):
    """`WaveformSpec.of`"""

    def test_defaults(self) -> None:
        """The default is 800 pairs of 16-bit values for one channel, as JSON (Peaks options)."""
        spec = WaveformSpec(44100, 2, 1, 800, 16, "json")
        self.assertEqual(WaveformSpec.of(parse_options("f:peaks"), STEREO), spec)

    def test_options(self) -> None:
        """Every option of peaks has an effect (Peaks options)."""
        text = "f:peaks/pts:5/pk_fmt:dat/pk_bits:8/ch:2"
        self.assertEqual(
            WaveformSpec.of(parse_options(text), STEREO), WaveformSpec(44100, 2, 2, 5, 8, "dat")
        )

    def test_rate(self) -> None:
        """The sample rate is the source's, even an unusual one (Peaks options, 3)."""
        for rate in (1, 7919, 384_000, 5_644_800):
            spec = WaveformSpec.of(parse_options("f:peaks"), replace(STEREO, sample_rate=rate))
            self.assertEqual(spec.sample_rate, rate)

    def test_where_channels_are_mixed(self) -> None:
        """`Reduction` mixes stereo that is at most trimmed, and ffmpeg all else (Peaks options)."""
        for text, channels, decoded_channels in (
            ("ch:1", 1, 1),
            ("ch:1", 2, 2),
            ("ch:1/t:1:2", 2, 2),
            ("ch:1/gain:0", 2, 1),
            ("ch:1", 6, 1),
            ("ch:2", 1, 2),
            ("ch:2", 6, 2),
        ):
            spec = WaveformSpec.of(
                parse_options(f"f:peaks/{text}"), replace(STEREO, channels=channels)
            )
            expected = (decoded_channels, int(text[3]))
            self.assertEqual((spec.decoded_channels, spec.channels), expected, (text, channels))

    def test_options_not_from_a_url(self) -> None:
        """Options that were not parsed from a URL have the same defaults."""
        spec = WaveformSpec.of(VariantOptions(f="peaks"), STEREO)
        self.assertEqual(spec, WaveformSpec(44100, 2, 1, 800, 16, "json"))


class ReductionTests(SynchronousTestCase):
    """`Reduction`"""

    def test_by_hand(self) -> None:
        """A pixel is the minimum and the maximum of its frames; the last may have fewer."""
        frames = frames_of([1, -2, 3, 0, 0, 0, -7, -8, -9, 4])
        waveform = reduce(frames, replace(SPEC, pixels=4))
        self.assertEqual(waveform.frames_per_pixel, 3)
        self.assertEqual(values(waveform), [-2, 3, 0, 0, -9, -7, 4, 4])

    def test_past_the_end(self) -> None:
        """There are always as many pixels as requested, and pixels past the end are 0, 0 (D26)."""
        frames = frames_of([5, -6, 7, -8, 9])
        waveform = reduce(frames, replace(SPEC, pixels=4))
        self.assertEqual(values(waveform), [-6, 5, -8, 7, 9, 9, 0, 0])
        waveform = reduce(frames, replace(SPEC, pixels=7))
        self.assertEqual(values(waveform), [5, 5, -6, -6, 7, 7, -8, -8, 9, 9, 0, 0, 0, 0])
        self.assertEqual(waveform.frames_per_pixel, 1)

    def test_channels(self) -> None:
        """Each channel has a pair in every pixel, the left channel first (Peaks options, 3)."""
        frames = frames_of([1, -10, 2, -20, 3, -30, 4, -40], 2)
        waveform = reduce(frames, replace(SPEC, decoded_channels=2, channels=2, pixels=2))
        self.assertEqual(values(waveform), [1, 2, -20, -10, 3, 4, -40, -30])

    def test_mean(self) -> None:
        """Two channels are mixed to one as their mean, truncated towards zero (Peaks options)."""
        for left, right, middle in (
            (0, 0, 0),
            (1, 0, 0),
            (-1, 0, 0),
            (3, 0, 1),
            (-3, 0, -1),
            (0, -3, -1),
            (-2, -2, -2),
            (-2, -3, -2),
            (32767, 32767, 32767),
            (32767, 32766, 32766),
            (-32768, -32768, -32768),
            (-32768, -32767, -32767),
            (-32768, 32767, 0),
        ):
            spec = replace(SPEC, decoded_channels=2, pixels=1)
            waveform = reduce(frames_of([left, right], 2), spec)
            self.assertEqual(values(waveform), [middle, middle], (left, right))

    def test_little_endian(self) -> None:
        """Samples are little-endian on every machine, as ffmpeg outputs them."""
        reduction = Reduction(replace(SPEC, pixels=1), BytesIO())
        reduction.add(np.frombuffer(b"\x01\x02\xff\xff", SAMPLE))
        self.assertEqual(values(reduction.finish()), [-1, 0x201])

    def test_frame_bytes(self) -> None:
        """A frame has two bytes for each decoded channel."""
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

    def test_one_frame(self) -> None:
        """A single frame is enough, for any number of pixels."""
        for pixels in (1, 2, 800, 65536):
            waveform = reduce(frames_of([-5]), replace(SPEC, pixels=pixels))
            self.assertEqual(waveform.frames_per_pixel, 1)
            self.assertEqual(values(waveform), [-5, -5] + [0, 0] * (pixels - 1))

    @DETERMINISTIC
    @given(
        pixels=st.integers(1, 99),
        count=st.integers(1, 1500),
        kind=st.sampled_from([(1, 1), (2, 1), (2, 2)]),
        blocks_in_pixel=st.integers(1, 4),
        half_capacity=st.integers(1, 20),
        half_batch=st.integers(1, 9),
        cuts=st.lists(st.integers(0, 1500), max_size=50),
        seed=st.integers(0, 99),
    )
    def test_any_length(
        self,
        pixels: int,
        count: int,
        kind: tuple[int, int],
        blocks_in_pixel: int,
        half_capacity: int,
        half_batch: int,
        cuts: list[int],
        seed: int,
    ) -> None:
        """Every pixel is exact for any length and any pieces (D26)."""
        patches = (
            self.patch(waveform_module, "_BLOCKS_IN_PIXEL", blocks_in_pixel),
            self.patch(waveform_module, "_LEAST_CAPACITY", 2 * half_capacity),
            self.patch(waveform_module, "_BLOCKS_PER_BATCH", 2 * half_batch),
        )
        try:
            decoded_channels, channels = kind
            spec = WaveformSpec(8000, decoded_channels, channels, pixels, 16, "json")
            frames = noisy_frames(count, decoded_channels, seed)
            waveform = reduce(frames, spec, [cut for cut in cuts if cut < count])
        finally:
            for patch in patches:
                patch.restore()
        least_pixel = -(-count // pixels)
        self.assertLessEqual(least_pixel, waveform.frames_per_pixel)
        # Rounding a pixel up to whole blocks lengthens it by less than 1 / ``blocks_in_pixel``.
        self.assertLess(
            waveform.frames_per_pixel * blocks_in_pixel, least_pixel * (blocks_in_pixel + 1)
        )
        mixed = frames if channels == decoded_channels else mean(frames)
        self.assertEqual(
            values(waveform), render_waveform(mixed, waveform.frames_per_pixel, pixels)
        )

    @DETERMINISTIC
    @given(
        pixels=st.integers(1, 5),
        count=st.integers(1, 20_000),
        cuts=st.lists(st.integers(1, 20_000), max_size=3),
    )
    def test_pixel_length(self, pixels: int, count: int, cuts: list[int]) -> None:
        """A pixel is never too short, and at most 1 % too long (D26)."""
        patch = self.patch(waveform_module, "_LEAST_CAPACITY", 2)
        try:
            frames = noisy_frames(count)
            spec = replace(SPEC, pixels=pixels)
            waveform = reduce(frames, spec, [cut for cut in cuts if cut < count])
        finally:
            patch.restore()
        least, most = bounds(count, pixels)
        self.assertTrue(least <= waveform.frames_per_pixel <= most, waveform.frames_per_pixel)
        self.assertEqual(
            values(waveform), render_waveform(frames, waveform.frames_per_pixel, pixels)
        )

    def test_small_pieces(self) -> None:
        """Every pixel is exact for every short length, in small pieces (D26)."""
        self.patch(waveform_module, "_LEAST_CAPACITY", 2)
        self.patch(waveform_module, "_BLOCKS_IN_PIXEL", 1)
        for count in range(1, 60):
            frames = noisy_frames(count, seed=count)
            for pixels in (1, 2, 3):
                for piece in (1, 3):
                    cuts = list(range(0, count, piece))
                    waveform = reduce(frames, replace(SPEC, pixels=pixels), cuts)
                    expected = render_waveform(frames, waveform.frames_per_pixel, pixels)
                    self.assertEqual(values(waveform), expected, (count, pixels, piece))

    def test_real_sizes(self) -> None:
        """Every pixel is exact at the lengths where blocks merge, and for 65536 pixels (D26)."""
        capacity = 256 * 1024
        everything = noisy_frames(4 * capacity + 1, 2)
        for pixels, count in (
            (800, capacity - 1),
            (800, capacity),
            (800, capacity + 1),
            (800, 4 * capacity + 1),
            (1, 2 * capacity + 1),
            (4001, 900_000),
            (65536, 700_000),
        ):
            frames = everything[:count]
            spec = replace(SPEC, decoded_channels=2, channels=2, pixels=pixels)
            waveform = reduce(frames, spec, list(range(65_536, count, 65_536)))
            least, most = bounds(count, pixels)
            self.assertTrue(least <= waveform.frames_per_pixel <= most, (pixels, count))
            expected = render_waveform(frames, waveform.frames_per_pixel, pixels)
            self.assertTrue(values(waveform) == expected, (pixels, count))

    def test_most_pixels_of_a_long_source(self) -> None:
        """All 65536 pixels are exact for a source so long that blocks are merged (D26)."""
        frames = noisy_frames(14_000_000)
        spec = replace(SPEC, pixels=65536)
        with tempfile.SpooledTemporaryFile(4096) as spool:
            reduction = Reduction(spec, spool)
            for at in range(0, len(frames), 131_072):
                reduction.add(frames[at : at + 131_072].reshape(-1))
            waveform = reduction.finish()
        least, most = bounds(len(frames), 65536)
        self.assertTrue(least <= waveform.frames_per_pixel <= most, waveform.frames_per_pixel)
        expected = render_waveform(frames, waveform.frames_per_pixel, 65536)
        self.assertTrue(values(waveform) == expected)

    def test_memory(self) -> None:
        """The memory for a source does not grow with its length (D26)."""
        self.patch(waveform_module, "_LEAST_CAPACITY", 64)
        spool = BytesIO()
        reduction = Reduction(replace(SPEC, pixels=1), spool)
        for _ in range(1000):
            reduction.add(noisy_frames(1000).reshape(-1))
        self.assertEqual(reduction.frames, 1_000_000)
        reduction.finish()
        # 200 blocks of one pixel, each a minimum and a maximum of two bytes, and one incomplete
        # block.
        self.assertLessEqual(len(spool.getvalue()), 201 * 4)


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

    def test_dat(self) -> None:
        """The binary document is six fields and 16-bit values (Peaks options, 4; D25)."""
        spec = WaveformSpec(8000, 1, 1, 2, 16, "dat")
        document = self.document(spec, 0x102, -1, 1, -32768, 0x7FFE)
        self.assertEqual(
            document.hex(" ", 4),
            "02000000 00000000 401f0000 02010000 02000000 01000000 ffff0100 0080fe7f",
        )

    def test_dat_of_8_bits(self) -> None:
        """With 8 bits the flag is 1 and a value is one byte (Peaks options, 4; D25)."""
        spec = WaveformSpec(8000, 2, 2, 1, 8, "dat")
        document = self.document(spec, 3, -32768, 32767, -256, 256)
        self.assertEqual(
            document.hex(" ", 4),
            "02000000 01000000 401f0000 03000000 01000000 02000000 807fff01",
        )
        self.assertEqual(len(document), HEADER_BYTES + 4)

    def test_truncated(self) -> None:
        """An 8-bit value is the 16-bit value divided by 256, truncated (Peaks options, 5)."""
        cases = {0: 0, 1: 0, 255: 0, 256: 1, 511: 1, 512: 2, 32511: 126, 32512: 127, 32767: 127}
        cases |= {-1: 0, -255: 0, -256: -1, -257: -1, -511: -1, -512: -2}
        cases |= {-32512: -127, -32513: -127, -32767: -127, -32768: -128}
        inputs, expected = list(cases), list(cases.values())
        for serialization in ("json", "dat"):
            spec = WaveformSpec(8000, 1, 1, len(cases), 8, serialization)
            pairs = [value for value in inputs for _ in range(2)]
            parsed = parse_waveform(self.document(spec, 1, *pairs))
            self.assertEqual((parsed.bits, parsed.values[::2]), (8, expected))

    def test_every_value(self) -> None:
        """All 65536 16-bit values are truncated towards zero for 8 bits (Peaks options, 5)."""
        everything = range(-32768, 32768)
        expected = [abs(value) // 256 * (-1 if value < 0 else 1) for value in everything]
        for serialization in ("json", "dat"):
            spec = WaveformSpec(8000, 1, 1, 32768, 8, serialization)
            parsed = parse_waveform(self.document(spec, 1, *everything))
            self.assertEqual(parsed.values, expected)

    def test_same_values(self) -> None:
        """Both serializations have the same values, for any number of values (Peaks options, 3)."""
        for pixels in (1, 2047, 2048, 2049, 4096, 5000):
            for channels in (1, 2):
                for bits in (8, 16):
                    frames = noisy_frames(pixels, channels)
                    spec = WaveformSpec(48000, channels, channels, pixels, bits, "json")
                    waveform = reduce(frames, spec)
                    one, two = (
                        parse_waveform(
                            b"".join(serialize(waveform, replace(spec, serialization=s)))
                        )
                        for s in ("json", "dat")
                    )
                    self.assertEqual(one, two)
                    self.assertEqual(
                        (one.version, one.channels, one.rate, one.pixel, one.bits, one.length),
                        (2, channels, 48000, 1, bits, pixels),
                    )

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


class AudiowaveformTests(SynchronousTestCase):
    """Comparison with the output of BBC's audiowaveform for the same audio (D25)"""

    def serialize_fixture(self, channels: int, bits: int, serialization: str) -> bytes:
        """Return the document of the fixture's audio."""
        frames = frames_of_wav((FIXTURES / "stereo.wav").read_bytes(), 2)
        spec = WaveformSpec(8000, 2, channels, 96, bits, serialization)
        return b"".join(serialize(reduce(frames, spec), spec))

    def test_dat(self) -> None:
        """The binary documents are identical, byte for byte (D25)."""
        for bits in (8, 16):
            reference = (FIXTURES / f"stereo-250-{bits}.dat").read_bytes()
            self.assertEqual(self.serialize_fixture(2, bits, "dat"), reference, bits)

    def test_json(self) -> None:
        """The JSON documents are identical, with the same order of keys (D25)."""
        for bits in (8, 16):
            reference = json.loads((FIXTURES / f"stereo-250-{bits}.json").read_bytes())
            document = json.loads(self.serialize_fixture(2, bits, "json"))
            self.assertEqual(list(document.items()), list(reference.items()), bits)

    def test_mono(self) -> None:
        """The values for one channel, mixed from two, are identical (D25)."""
        reference = json.loads((FIXTURES / "mono-250-16.json").read_bytes())
        document = json.loads(self.serialize_fixture(1, 16, "json"))
        self.assertEqual(list(document), list(reference))
        self.assertEqual(document, {**reference, "version": 2})
