"""The output formats."""

from __future__ import annotations

from decimal import Decimal

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

    def test_tokens(self) -> None:
        """The formats are the eight of the contract (Format and encoding options)."""
        tokens = ["mp3", "opus", "ogg", "aac", "m4a", "flac", "wav", "peaks"]
        self.assertEqual(list(FORMATS), tokens)
        self.assertEqual([row.token for row in FORMATS.values()], tokens)

    def test_content_types(self) -> None:
        """Each format has its Content-Type; that of peaks depends on ``pk_fmt`` (D22)."""
        self.assertEqual(
            {token: row.content_type for token, row in FORMATS.items()},
            {
                "mp3": "audio/mpeg",
                "opus": "audio/ogg",
                "ogg": "audio/ogg",
                "aac": "audio/aac",
                "m4a": "audio/mp4",
                "flac": "audio/flac",
                "wav": "audio/wav",
                "peaks": None,
            },
        )

    def test_lossy(self) -> None:
        """Five formats are lossy; their highest ``sr`` is 48000 (Format and encoding options)."""
        lossy = {token for token, row in FORMATS.items() if row.lossy}
        self.assertEqual(lossy, {"mp3", "opus", "ogg", "aac", "m4a"})
        self.assertEqual(LOSSY_RATE_CEILING, 48000)

    def test_bitrates(self) -> None:
        """Bit rates have the bounds that the encoders honor (D6)."""
        self.assertEqual(
            {token: row.br for token, row in FORMATS.items()},
            {
                "mp3": (8, 320),
                "opus": (6, 510),
                "ogg": (32, 500),
                "aac": (8, 512),
                "m4a": (8, 512),
                "flac": None,
                "wav": None,
                "peaks": None,
            },
        )

    def test_qualities(self) -> None:
        """Qualities have the bounds of the contract (Format and encoding options)."""
        self.assertEqual(
            {
                token: (*map(Decimal, row.q), row.q_whole)
                for token, row in FORMATS.items()
                if row.q is not None
            },
            {
                "mp3": (0, 9, False),
                "opus": (0, 10, True),
                "ogg": (-1, 10, False),
                "aac": (Decimal("0.1"), 2, False),
                "m4a": (Decimal("0.1"), 2, False),
                "flac": (0, 12, True),
            },
        )

    def test_depths(self) -> None:
        """Lossless formats have bit depths; only wav has 32f (Format and encoding options)."""
        self.assertEqual(
            {token: row.depths for token, row in FORMATS.items() if row.depths},
            {"flac": ("16", "24"), "wav": ("16", "24", "32f")},
        )


class RatesTests(SynchronousTestCase):
    """`Rates`"""

    def test_listed(self) -> None:
        """A codec with a table of sample rates accepts only these rates (D8)."""
        for token, rates in (("mp3", MPEG), ("opus", OPUS), ("aac", AAC), ("m4a", AAC)):
            accepted = [rate for rate in range(384_001) if FORMATS[token].rates.accepts(rate)]
            self.assertEqual(accepted, sorted(rates), token)

    def test_ranges(self) -> None:
        """ogg, wav and flac accept a range; flac only multiples of 10 above 65534 (D8)."""
        for token, rate, accepted in (
            ("ogg", 0, False),
            ("ogg", 1, True),
            ("ogg", 200_000, True),
            ("ogg", 200_001, False),
            ("wav", 0, False),
            ("wav", 1, True),
            ("wav", 65_537, True),
            ("wav", 384_000, True),
            ("wav", 384_001, False),
            ("flac", 65_534, True),
            ("flac", 65_535, False),
            ("flac", 65_540, True),
            ("flac", 65_550, True),
            ("flac", 88_200, True),
            ("flac", 352_801, False),
            ("flac", 384_000, True),
            ("flac", 384_010, False),
        ):
            self.assertIs(FORMATS[token].rates.accepts(rate), accepted, (token, rate))

    def test_nearest(self) -> None:
        """`Rates.nearest` returns the same rate, the next higher one or the highest (D8)."""
        for token, source, rate in (
            ("mp3", 44_100, 44_100),
            ("mp3", 44_099, 44_100),
            ("mp3", 44_101, 48_000),
            ("mp3", 1, 8000),
            ("mp3", 96_000, 48_000),
            ("opus", 44_100, 48_000),
            ("opus", 24_001, 48_000),
            ("opus", 11_025, 12_000),
            ("opus", 192_000, 48_000),
            ("aac", 7349, 7350),
            ("aac", 96_000, 96_000),
            ("m4a", 96_000, 96_000),
            ("m4a", 192_000, 96_000),
            ("ogg", 96_000, 96_000),
            ("ogg", 200_001, 200_000),
            ("wav", 0, 1),
            ("wav", 768_000, 384_000),
            ("flac", 65_534, 65_534),
            ("flac", 65_535, 65_540),
            ("flac", 65_541, 65_550),
            ("flac", 383_999, 384_000),
            ("flac", 384_001, 384_000),
        ):
            self.assertEqual(FORMATS[token].rates.nearest(source), rate, (token, source))

    def test_describe(self) -> None:
        """`Rates.describe` states the rates that ``sr`` accepts (D8, D20)."""
        for token, words in (
            ("opus", "one of 8000, 12000, 16000, 24000, 48000"),
            ("aac", "one of " + ", ".join(map(str, (7350, *MPEG)))),
            ("flac", "only multiples of 10 above 65534"),
        ):
            self.assertEqual(FORMATS[token].rates.describe(48_000), words, token)

    def test_nearest_in_steps_of_10(self) -> None:
        """The nearest rate is supported, even above ``step_10_above`` and ``highest`` (D8)."""
        rates = Rates(lowest=100, highest=200, step_10_above=150)
        for source, rate in ((1, 100), (150, 150), (151, 160), (199, 200), (201, 200)):
            self.assertEqual(rates.nearest(source), rate, source)

    @DETERMINISTIC
    @given(token=st.sampled_from(sorted(FORMATS)), source=st.integers(1, 800_000))
    def test_nearest_is_accepted(self, token: str, source: int) -> None:
        """`Rates.nearest` returns a supported rate (D8, D13).

        If that is higher than the source's rate, no supported rate is between the two.
        """
        rates = FORMATS[token].rates
        rate = rates.nearest(source)
        self.assertTrue(rates.accepts(rate))
        self.assertFalse(any(rates.accepts(between) for between in range(source, rate)))
