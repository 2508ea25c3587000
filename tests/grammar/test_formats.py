"""The output formats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS, LOSSY_RATE_CEILING, Rates
from tests.support.strategies import DETERMINISTIC

MPEG = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
OPUS = (8000, 12000, 16000, 24000, 48000)
AAC = (7350, *MPEG, 64000, 88200, 96000)


class FormatTests(SynchronousTestCase):
    """`FORMATS`"""

    def test_formats(self) -> None:
        """The formats are the contract's eight (Format and encoding options; D6, D22)."""
        rows = {
            "mp3": ("audio/mpeg", True, (8, 320), 192, ("0", "9"), "", False, ()),
            "opus": ("audio/ogg", True, (6, 510), 128, ("0", "10"), "10", True, ()),
            "ogg": ("audio/ogg", True, (32, 500), None, ("-1", "10"), "5", False, ()),
            "aac": ("audio/aac", True, (8, 512), 160, ("0.1", "2"), "", False, ()),
            "m4a": ("audio/mp4", True, (8, 512), 160, ("0.1", "2"), "", False, ()),
            "flac": ("audio/flac", False, None, None, ("0", "12"), "5", True, ("16", "24")),
            "wav": ("audio/wav", False, None, None, None, "", False, ("16", "24", "32f")),
            "peaks": (None, False, None, None, None, "", False, ()),
        }
        self.assertEqual(list(FORMATS), list(rows))
        for token, row in FORMATS.items():
            self.assertIs(row.in_browsers, token != "peaks", token)
            columns = (row.content_type, row.lossy, row.br, row.default_br)
            columns += (row.q, row.default_q, row.q_whole, row.depths)
            self.assertEqual((row.token, columns), (token, rows[token]))
        self.assertEqual(LOSSY_RATE_CEILING, 48000)


class RatesTests(SynchronousTestCase):
    """`Rates`"""

    def test_listed(self) -> None:
        """A codec with a table of sample rates accepts only these rates (D8)."""
        # Each rate is a multiple of 25.
        tried = {*range(0, 384_001, 25), *(rate + by for rate in AAC for by in (-1, 1))}
        for token, rates in (("mp3", MPEG), ("opus", OPUS), ("aac", AAC), ("m4a", AAC)):
            accepted = {rate for rate in tried if FORMATS[token].rates.accepts(rate)}
            self.assertEqual(accepted, set(rates), token)

    def test_nearest(self) -> None:
        """`nearest` is the same rate, the next higher one or the highest (D8, D20)."""
        for token, rates in (
            ("mp3", {44_100: 44_100, 44_099: 44_100, 44_101: 48_000, 1: 8000, 96_000: 48_000}),
            ("opus", {44_100: 48_000, 24_001: 48_000, 11_025: 12_000, 192_000: 48_000}),
            ("aac", {7349: 7350, 96_000: 96_000}),
            ("m4a", {96_000: 96_000, 192_000: 96_000}),
            ("ogg", {96_000: 96_000, 200_001: 200_000}),
            ("wav", {0: 1, 768_000: 384_000}),
            ("flac", {65_534: 65_534, 65_535: 65_540, 65_541: 65_550, 384_001: 384_000}),
        ):
            for source, rate in rates.items():
                self.assertEqual(FORMATS[token].rates.nearest(source), rate, (token, source))
        for token, words in (
            ("opus", "one of 8000, 12000, 16000, 24000, 48000"),
            ("aac", "one of " + ", ".join(map(str, (7350, *MPEG)))),
            ("flac", "only multiples of 10 above 65534"),
        ):
            self.assertEqual(FORMATS[token].rates.describe(48_000), words, token)
        rates = Rates(highest=200, step_10_above=150)
        for source, rate in ((150, 150), (151, 160), (199, 200), (201, 200)):
            self.assertEqual(rates.nearest(source), rate, source)

    @DETERMINISTIC
    @given(token=st.sampled_from(sorted(FORMATS)), source=st.integers(1, 800_000))
    def test_nearest_is_accepted(self, token: str, source: int) -> None:
        """`nearest` is supported, and no rate from the source's up to it is (D8, D13)."""
        rates = FORMATS[token].rates
        rate = rates.nearest(source)
        self.assertTrue(rates.accepts(rate))
        self.assertFalse(any(rates.accepts(between) for between in range(source, rate)))
