"""Which waveforms several decoders may decode, and where their parts begin and end."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.values import Trim
from audioproxy.media.command.trim import expected_range, trim_range
from audioproxy.media.reading import SourceLength
from audioproxy.media.waveform_parts import Part, split_waveform
from audioproxy.media.waveform_pixels import frames_per_pixel
from tests.support.audio import options_of
from tests.support.probes import Probe, replace
from tests.support.strategies import DETERMINISTIC

FLAC = Probe("flac", "flac", Decimal(3600), True, sample_rate=44100, channels=2)
HOUR = SourceLength(3600 * 44100, seekable=True)


class PartTests(SynchronousTestCase):
    """`split_waveform`"""

    def test_by_hand(self) -> None:
        """Parts begin with a pixel, and the last one ends as the whole does."""
        options = options_of("f:peaks/pts:1000/t:600:600")
        half = 500 * 26_460
        self.assertEqual(
            split_waveform(options, FLAC, HOUR, 1000, 2),
            [
                Part(Trim(Decimal(600), Decimal(300)), half, 500),
                Part(Trim(Decimal(900), Decimal(300)), half, 500),
            ],
        )
        (_, last) = split_waveform(options_of("f:peaks"), FLAC, HOUR, 2, 2)
        self.assertEqual(last, Part(Trim(Decimal(1800)), 1800 * 44100, 1))

    def test_one_pass(self) -> None:
        """One pass is taken where parts may differ, or are not worth a decoder."""
        options = options_of("f:peaks")
        raw = replace(FLAC, container="mxf", codec="pcm_s16le")
        changes: tuple[dict[str, Any], ...] = (
            *({"length": None}, {"length": replace(HOUR, exact=False)}, {"most": 1}),
            *({"length": replace(HOUR, seekable=False)}, {"pixels": 1}, {"probe": raw}),
            *({"probe": replace(FLAC, irregular=True)}, {"options": options_of("f:peaks/fade:1")}),
            {"length": replace(HOUR, samples=119 * 44100)},
            # The source ends before its stated end.
            {"options": options_of("f:peaks/t:120"), "length": replace(HOUR, samples=119 * 44100)},
        )
        usual = {"options": options, "probe": FLAC, "length": HOUR, "pixels": 800, "most": 2}
        self.assertEqual(len(split_waveform(**usual)), 2)  # type: ignore[arg-type]
        for change in changes:
            arguments: dict[str, Any] = usual | change
            self.assertEqual(split_waveform(**arguments), [], change)

    @DETERMINISTIC
    @given(
        rate=st.sampled_from([8000, 11025, 44100, 48000, 192000]),
        milliseconds=st.tuples(st.integers(0, 10**6), st.integers(1, 2 * 10**7)),
        samples=st.integers(1, 10**10),
        pixels=st.integers(1, 65536),
        most=st.integers(1, 99),
    )
    def test_any(
        self, rate: int, milliseconds: tuple[int, int], samples: int, pixels: int, most: int
    ) -> None:
        """The ranges of parts follow each other, and those of their pixels do."""
        start, duration = (Decimal(number) / 1000 for number in milliseconds)
        options = replace(options_of("f:peaks"), t=Trim(start, duration))
        probe = replace(FLAC, sample_rate=rate, duration=None)
        length = replace(HOUR, samples=samples)
        covered = expected_range(options, probe, length)
        assert covered is not None
        parts = split_waveform(options, probe, length, pixels, most)
        self.assertLessEqual(len(parts), most)
        if not parts:
            return
        pixel, at = frames_per_pixel(len(covered), pixels), covered.start
        for part in parts:
            found = trim_range(replace(options, t=part.t), probe)
            self.assertEqual(found.seek + found.start, at)
            if part is not parts[-1]:
                self.assertEqual(part.frames, part.pixels * pixel)
            assert found.end is not None
            at += part.frames
            self.assertEqual(min(samples, found.seek + found.end), at)
            self.assertGreaterEqual(part.frames, 50 * rate)
        self.assertEqual(sum(part.pixels for part in parts), pixels)
        self.assertEqual(sum(part.frames for part in parts), len(covered))
