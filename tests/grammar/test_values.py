"""The spellings of numbers and of percent-encoded bytes."""

from __future__ import annotations

import contextlib
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.values import (
    parse_decimal,
    parse_integer,
    percent_decode,
    percent_encode,
    print_decimal,
)
from tests.support.strategies import DETERMINISTIC, escaped, junk, spell_thousandths


class DecimalTests(SynchronousTestCase):
    """`parse_decimal` and `print_decimal`"""

    def test_spellings(self) -> None:
        """A decimal is parsed exactly, and printed in its shortest form (D3)."""
        for printed, spellings in (
            ("0", b"0 -0 -0.000 0.0 000"),
            ("1.5", b"1.50"),
            ("30", b"30 30.0"),
            ("7.25", b"007.250"),
            *((same, same.encode()) for same in "100 -7 -1.5 0.1 -0.001 999999999".split()),
            ("-999999999.999", b"-999999999.999"),
        ):
            for text in spellings.split():
                value = parse_decimal(text, -(10**9), 10**9)
                self.assertEqual((value, print_decimal(value)), (Decimal(printed), printed), text)

    def test_refused_spellings(self) -> None:
        """Exponents, bare dots, four fractional and ten integer digits are refused (D3)."""
        for text in (
            *(b"", b"-", b"+", b".", b"1.", b".5", b"-.5", b"1.2.3", b"1,5", b"--1", b"1-", b"+-1"),
            *(b"1e3", b"1E3", b"1e-3", b"0x10", b"1_000", b"inf", b"nan", b"Infinity", b"-NaN"),
            *(b" 1", b"1 ", b"1\n", b"\t1", b"%31", b"1.2345", b"1.0000", b"1234567890"),
            *(b"0000000001", b"\xd9\xa1", b"\xb2", b"\xff", b"1\0"),
        ):
            for plus in (False, True):
                error = self.assertRaises(
                    ValueError, parse_decimal, text, -(10**9), 10**9, plus=plus
                )
                self.assertIn("plain decimal", str(error), text)
                self.assertIn("at most 3 fractional digits", str(error), text)

    def test_bounds(self) -> None:
        """Both bounds are accepted, and nothing 0.001 outside them (D3, D6)."""
        low, high = Decimal("0.1"), Decimal(2)
        for text in (b"0.1", b"2", b"2.000"):
            self.assertTrue(low <= parse_decimal(text, low, high) <= high, text)
        for text in (b"0.099", b"2.001", b"-1"):
            error = self.assertRaises(ValueError, parse_decimal, text, low, high)
            self.assertEqual(str(error), "a number from 0.1 to 2 is expected", text)
        self.assertEqual(parse_decimal(b"+1.5", low, high, plus=True), Decimal("1.5"))
        self.assertRaises(ValueError, parse_decimal, b"+1.5", low, high)
        for value, printed in (("1E+3", "1000"), ("1E-3", "0.001"), ("0E+2", "0"), ("-0E-9", "0")):
            self.assertEqual(print_decimal(Decimal(value)), printed, value)

    @DETERMINISTIC
    @given(
        thousandths=st.integers(-(10**12) + 1, 10**12 - 1),
        digits=st.tuples(st.integers(0, 3), st.integers(0, 9)),
        plus=st.booleans(),
    )
    def test_inverse(self, thousandths: int, digits: tuple[int, int], plus: bool) -> None:
        """All spellings of a number give the same value and the same printed form (D3)."""
        text = spell_thousandths(
            thousandths, fraction_digits=digits[0], integer_digits=digits[1], plus=plus
        )
        value = parse_decimal(text.encode(), -(10**9), 10**9, plus=True)
        printed = print_decimal(value)
        self.assertEqual(value, Decimal(thousandths) / 1000)
        shortest = spell_thousandths(thousandths, fraction_digits=0, integer_digits=1, plus=False)
        self.assertEqual(printed, shortest, text)
        self.assertEqual(parse_decimal(printed.encode(), -(10**9), 10**9), value)


class IntegerTests(SynchronousTestCase):
    """`parse_integer`"""

    def test_spellings(self) -> None:
        """A whole number has up to 9 digits and a minus, and nothing else (D3)."""
        for text in b"0 -0 7 -7 000000007 -000000007 100000000 -100000000".split():
            self.assertEqual(parse_integer(text, -(10**8), 10**8), int(text), text)
        for text in (
            *(b"", b"-", b"+7", b"7.0", b"7.", b"7e1", b"0x7", b"7_0", b" 7", b"7 ", b"7\n"),
            *(b"%37", b"0000000007", b"-0000000007", b"1000000000", b"9" * 18, b"9" * 5000),
            *(b"\xd9\xa1", b"\xb2", b"\xff", b"100000001", b"-100000001"),
        ):
            error = self.assertRaises(ValueError, parse_integer, text, -(10**8), 10**8)
            words = "a whole number from -100000000 to 100000000 is expected"
            self.assertEqual(str(error), words, text)

    @DETERMINISTIC
    @given(text=junk())
    def test_junk(self, text: bytes) -> None:
        """Any bytes give a number within the bounds or raise ValueError (D3)."""
        with contextlib.suppress(ValueError):
            self.assertTrue(1 <= parse_integer(text, 1, 65_536) <= 65_536)
        with contextlib.suppress(ValueError):
            self.assertTrue(-60 <= parse_decimal(text, -60, 60, plus=True) <= 60)


class PercentTests(SynchronousTestCase):
    """`percent_decode` and `percent_encode`"""

    def test_broken_escapes(self) -> None:
        """A percent sign without two hexadecimal digits is refused (D2)."""
        for text in (*b"% a% %2 %g0 %0g %%20 %20% %+1 %u0041".split(), b"% 20"):
            error = self.assertRaises(ValueError, percent_decode, text)
            self.assertIn("two hexadecimal digits", str(error), text)

    def test_encode(self) -> None:
        """Only the unreserved characters of RFC 3986, 2.3 stay unescaped (D4)."""
        bare = b"AZaz09-._~"
        self.assertEqual(percent_encode(bare), bare.decode())
        self.assertEqual(percent_encode(b"a b/c:d%e+\0\xff"), "a%20b%2Fc%3Ad%25e%2B%00%FF")

    @DETERMINISTIC
    @given(value=st.binary(), data=st.data())
    def test_inverse(self, value: bytes, data: st.DataObject) -> None:
        """Every escaped spelling, and the canonical one, decodes to the same bytes (D2, D4)."""
        text = data.draw(escaped(value))
        self.assertEqual(percent_decode(text), value)
        self.assertEqual(percent_decode(percent_encode(value).encode()), value)
