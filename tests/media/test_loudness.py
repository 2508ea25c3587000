"""Gates, percentiles, reports and gains; the signals are measured in `test_loudness_live`."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NothingDecoded, UndecodableSource
from audioproxy.media.loudness import (
    Gain,
    Loudness,
    LoudnessParser,
    Measurement,
    find_gain,
    loudness_filters,
)
from tests.support.strategies import DETERMINISTIC


def measured(momentary: list[float], short_term: list[float] | None = None) -> Loudness:
    """Return the loudness of blocks."""
    return Measurement(tuple(momentary), tuple(short_term or []), 0.5).loudness


def report(*blocks: tuple[str, str, str], time_stamp: str = "0") -> bytes:
    """Return a report of ffmpeg: momentary and short-term loudness and a peak for each frame."""
    return b"".join(
        f"frame:{number} pts:{time_stamp} pts_time:{time_stamp}\n"
        f"lavfi.r128.M={momentary}\nlavfi.r128.S={short_term}\nlavfi.r128.I=-70.000\n"
        f"lavfi.r128.LRA=0.000\nlavfi.r128.true_peaks_ch0={peak}\n"
        f"lavfi.r128.true_peaks_ch1=0.000\nlavfi.r128.true_peak={peak}\n".encode()
        for number, (momentary, short_term, peak) in enumerate(blocks)
    )


class LoudnessTests(SynchronousTestCase):
    """`Measurement`"""

    def test_gates(self) -> None:
        """Blocks below -70 LUFS, and 10 LU below the others, do not count (BS.1770-4, Annex 1)."""
        self.assertEqual(measured([-23] * 10).integrated, -23)
        self.assertEqual(measured([-23, -23, -71, -80]).integrated, -23)
        self.assertEqual(measured([-23] * 10 + [-40] * 3).integrated, -23)
        # Powers are averaged, not levels.
        self.assertApproximates(measured([-20, -26]).integrated, -22.04, 0.01)

    def test_range(self) -> None:
        """The range is from the 10th to the 95th percentile, without quiet blocks (Tech 3342)."""
        levels = [-30 + block / 10 for block in range(101)]
        self.assertApproximates(measured([], levels).range, 8.5, 0.05)
        self.assertEqual(measured([], [-20] * 50 + [-60] * 50).range, 0)
        self.assertEqual(measured([], [-20] * 50 + [-35] * 50).range, 15)

    def test_nothing_to_measure(self) -> None:
        """Silence has no loudness and no range; digital silence has no peak either."""
        for blocks in ([], [-70.0, -120.0]):
            self.assertEqual(
                Loudness(None, None, None), Measurement((*blocks,), (*blocks,), 0).loudness
            )

    def test_album(self) -> None:
        """The loudness of an album is that of all its blocks, not the mean of its programmes."""
        quiet, loud = Measurement((-38,) * 30, (-35,), 0.1), Measurement((-20,) * 10, (-20,), 0.9)
        album = Measurement.combine([quiet, loud])
        self.assertEqual(album.loudness.integrated, -20)
        self.assertEqual((album.loudness.range, album.peak), (15, 0.9))
        self.assertEqual(Measurement.combine([]).loudness, Loudness(None, None, None))


class ParserTests(SynchronousTestCase):
    """`LoudnessParser` and `loudness_filters`"""

    @given(st.integers(1, 400))
    @DETERMINISTIC
    def test_report(self, size: int) -> None:
        """A report is read in pieces. Incomplete blocks, and that of the padding, do not count."""
        frames = [(f"{m}.500", f"{m - 60}.000", "500.000") for m in range(32)]
        data = report(*frames)
        parser = LoudnessParser()
        for start in range(0, len(data), size):
            parser.add(data[start : start + size])
        self.assertEqual(parser.seconds, 3.2)
        found = parser.finish()
        self.assertEqual(found.momentary, tuple(m - 59.5 for m in range(3, 31)))
        self.assertEqual(found.short_term, (-91.0, -90.0))
        self.assertEqual(found.peak, 0.5)

    def test_no_samples(self) -> None:
        """A report of padding alone, and an empty one, mean that nothing was decoded."""
        parser = LoudnessParser()
        self.assertRaises(NothingDecoded, parser.finish)
        parser.add(report(("-120.691", "-120.691", "0.000"), time_stamp="NOPTS"))
        self.assertRaises(NothingDecoded, parser.finish)

    def test_infinite_samples(self) -> None:
        """Infinite samples have no loudness."""
        parser = LoudnessParser()
        parser.add(report(("nan", "nan", "inf")))
        self.assertRaises(UndecodableSource, parser.finish)

    def test_no_numbers(self) -> None:
        """Blocks of digital silence, for which ffmpeg may print nan, do not count."""
        parser = LoudnessParser()
        frames = [("37.000", "37.000", "1.000"), ("nan", "nan", "1.000")]
        parser.add(report(*frames * 20))
        self.assertApproximates(parser.finish().loudness.integrated, -23, 0.001)
        self.assertEqual(parser.finish().loudness.range, 0)

    def test_rate(self) -> None:
        """Low rates, and rates without whole tenths of a second, are measured at 48 kHz."""
        rates = {8000: 48000, 32000: 48000, 44100: 44100, 48048: 48000, 96000: 96000}
        for rate, expected in rates.items():
            filters = ",".join(loudness_filters(rate, "mono", "x=1"))
            converted = filters.startswith("aresample=48000:x=1,")
            self.assertIs(converted, rate != expected)
            self.assertIn(f"sample_rates={expected}:channel_layouts=mono", filters)
            self.assertIn(f"apad=pad_len={expected // 10}", filters)


class GainTests(SynchronousTestCase):
    """`find_gain`"""

    def gain(self, level: float, peak: float, target: float | Decimal, ceiling: float) -> Gain:
        """Return the gain of a programme of a constant level, with a peak in dBTP."""
        found = find_gain(Measurement((level,) * 9, (), 10 ** (peak / 20)), target, ceiling)
        assert found is not None
        return found

    def test_target(self) -> None:
        """The gain is the distance to the target, with two decimals."""
        self.assertEqual(self.gain(-23.004, -12, -16, -1), Gain(Decimal("7.00"), Decimal(0)))
        self.assertEqual(self.gain(-9.5, 0.3, Decimal("-16.5"), -1).decibels, -7)

    def test_ceiling(self) -> None:
        """The ceiling limits the gain; the shortfall is the distance to the target that is left."""
        found = self.gain(-23, -4.5, -16, -1)
        self.assertEqual(found, Gain(Decimal("3.49"), Decimal("3.51")))
        # A programme that is loud enough may still have to become quieter.
        self.assertEqual(self.gain(-16, 1, -16, -1).shortfall, Decimal("2.01"))

    def test_quiet_programme(self) -> None:
        """Blocks that the gain brings above the absolute gate are taken into account."""
        blocks = (-66.0,) * 10 + (-72.0,) * 10
        found = find_gain(Measurement(blocks, (), 0.0001), -16, -1)
        assert found is not None
        gain = float(found.decibels)
        after = Measurement(tuple(block + gain for block in blocks), (), 0.1)
        self.assertApproximates(after.loudness.integrated, -16, 0.006)

    def test_silence(self) -> None:
        """Programmes without loudness have no gain."""
        self.assertIsNone(find_gain(Measurement((), (), 0), -16, -1))
        self.assertIsNone(find_gain(Measurement((-80.0,), (), 0.5), -16, -1))
