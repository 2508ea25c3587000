"""Tests of ``exp``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.expiry import clamp, expired
from tests.support.strategies import DETERMINISTIC, expiries

YEAR = 31_536_000
MOMENTS = st.floats(0, 260_000_000_000)


class ExpiredTests(SynchronousTestCase):
    """`expired`"""

    def test_boundary(self) -> None:
        """A URL is valid to the end of the second that ``exp`` names (D14)."""
        for now, is_expired in (
            (0.0, False),
            (999.0, False),
            (999.999, False),
            (1000.0, False),
            (1000.5, False),
            (1000.999999, False),
            (1001.0, True),
            (1001.5, True),
            (253_402_300_800.0, True),
        ):
            self.assertIs(expired(1000, now), is_expired, now)

    def test_no_leeway(self) -> None:
        """Expiry has no leeway for clock skew (Request option exp, 2)."""
        self.assertIs(expired(1_893_456_000, 1_893_456_000.999), False)
        self.assertIs(expired(1_893_456_000, 1_893_456_001.0), True)

    def test_without_exp(self) -> None:
        """A URL without ``exp`` never expires (Authentication, 8)."""
        self.assertIs(expired(None, 253_402_300_800.0), False)

    def test_last_second(self) -> None:
        """A URL with the largest ``exp`` expires after the last second of the year 9999 (D6)."""
        self.assertIs(expired(253_402_300_799, 253_402_300_799.5), False)
        self.assertIs(expired(253_402_300_799, 253_402_300_800.0), True)


class ClampTests(SynchronousTestCase):
    """`clamp`"""

    def test_clamp(self) -> None:
        """A lifetime is at most ``exp`` minus now in whole seconds (Request option exp, 3; D14).

        It is 0 once ``exp`` is reached.
        """
        for seconds, now, clamped in (
            (300, 600.0, 300),
            (300, 699.0, 300),
            (300, 700.0, 300),
            (300, 700.999, 300),
            (300, 701.0, 299),
            (300, 999.0, 1),
            (300, 999.999, 1),
            (300, 1000.0, 0),
            (300, 1000.999, 0),
            (300, 1001.0, 0),
            (300, 5000.0, 0),
            (YEAR, 0.0, 1000),
            (0, 0.0, 0),
        ):
            self.assertEqual(clamp(seconds, 1000, now), clamped, (seconds, now))

    def test_without_exp(self) -> None:
        """Without ``exp``, lifetimes are unchanged (Request option exp, 3)."""
        for seconds in (0, 300, YEAR):
            self.assertEqual(clamp(seconds, None, 253_402_300_800.0), seconds)

    @DETERMINISTIC
    @given(seconds=st.integers(0, YEAR), exp=st.none() | expiries(), now=MOMENTS)
    def test_never_outlives(self, seconds: int, exp: int | None, now: float) -> None:
        """No lifetime is negative, longer than given, or past ``exp`` (Request option exp, 3)."""
        clamped = clamp(seconds, exp, now)
        self.assertTrue(0 <= clamped <= seconds)
        if exp is not None and clamped:
            self.assertFalse(expired(exp, now))
            self.assertFalse(expired(exp, int(now) + clamped))
