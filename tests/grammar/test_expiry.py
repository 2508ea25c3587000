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
        """A URL is valid to the end of the second that ``exp`` names (D6, D14).

        There is no leeway for clock skew (Request option exp, 2). A URL without ``exp`` never
        expires (Authentication, 8).
        """
        for exp, now, is_expired in (
            (1000, 0.0, False),
            (1000, 1000.0, False),
            (1000, 1000.999999, False),
            (1000, 1001.0, True),
            (1000, 253_402_300_800.0, True),
            # The last second of the year 9999.
            (253_402_300_799, 253_402_300_799.5, False),
            (253_402_300_799, 253_402_300_800.0, True),
            (None, 253_402_300_800.0, False),
        ):
            self.assertIs(expired(exp, now), is_expired, (exp, now))


class ClampTests(SynchronousTestCase):
    """`clamp`"""

    def test_clamp(self) -> None:
        """A lifetime is at most ``exp`` minus now in whole seconds (Request option exp, 3; D14).

        It is 0 once ``exp`` is reached, and unchanged without ``exp``.
        """
        for seconds, now, clamped in (
            (300, 700.0, 300),
            (300, 700.999, 300),
            (300, 701.0, 299),
            (300, 999.999, 1),
            (300, 1000.0, 0),
            (300, 5000.0, 0),
            (YEAR, 0.0, 1000),
            (0, 0.0, 0),
        ):
            self.assertEqual(clamp(seconds, 1000, now), clamped, (seconds, now))
            self.assertEqual(clamp(seconds, None, now), seconds)

    @DETERMINISTIC
    @given(seconds=st.integers(0, YEAR), exp=st.none() | expiries(), now=MOMENTS)
    def test_never_outlives(self, seconds: int, exp: int | None, now: float) -> None:
        """No lifetime is negative, longer than given, or past ``exp`` (Request option exp, 3)."""
        clamped = clamp(seconds, exp, now)
        self.assertTrue(0 <= clamped <= seconds)
        if exp is not None and clamped:
            self.assertFalse(expired(exp, now))
            self.assertFalse(expired(exp, int(now) + clamped))
