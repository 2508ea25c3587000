"""Parsing of signed requests, in the order signature, exp, options, source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import Expired, InvalidOptions, InvalidSignature, NotFound, Refusal
from audioproxy.grammar.cache_key import cache_key, etag
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.request import (
    InfoRequest,
    SigningKeys,
    VariantRequest,
    clamp,
    expired,
    parse_request,
    verify_request,
)
from audioproxy.grammar.segments import SignedPath
from audioproxy.grammar.signature import sign
from audioproxy.grammar.sources import LocalSource
from tests.support.strategies import DETERMINISTIC, expiries

KEY, SALT = b"k" * 32, b"salt"
KEYS = SigningKeys(KEY, SALT)
NOW = 1_800_000_000.9
PATH = b"/plain/local://a"
YEAR = 31_536_000
MOMENTS = st.floats(0, 260_000_000_000)


def signed(path: bytes) -> SignedPath:
    """Return a path with its correct signature."""
    return SignedPath(sign(KEY, SALT, path), path)


class VerifyTests(SynchronousTestCase):
    """`SigningKeys.verify`"""

    def test_accepted(self) -> None:
        """The correct signature is accepted, and the word ``insecure`` if it is allowed."""
        KEYS.verify(signed(PATH))
        SigningKeys(KEY, SALT, allow_insecure=True).verify(signed(PATH))
        SigningKeys(None, None, allow_insecure=True).verify(SignedPath(b"insecure", PATH))

    def test_refused(self) -> None:
        """The refusal names a missing setting, or a common signing mistake with what is right."""
        no_keys = SigningKeys(None, None, allow_insecure=True)
        unsalted = "it was made without AP_SALT; the salt precedes the path"
        for keys, signature, message, diagnosis in (
            (KEYS, b"x" * 43, f"^{InvalidSignature.default_message}$", None),
            (KEYS, sign(KEY, b"", PATH), f"^The signature does not match: {unsalted}.$", unsalted),
            (KEYS, b"insecure", "AP_ALLOW_INSECURE", None),
            (no_keys, sign(KEY, SALT, PATH), "AP_KEY", None),
        ):
            path = SignedPath(signature, PATH)
            error = self.assertRaises(InvalidSignature, keys.verify, path)
            self.assertRegex(error.message, message)
            self.assertEqual(diagnosis, error.diagnosis)


class RequestTests(SynchronousTestCase):
    """`verify_request` and `parse_request`"""

    def test_requests(self) -> None:
        """A request has all parts of its path; an info request has a source only."""
        path = b"/br:96/f:opus/exp:1800000001/plain/local://a"
        request = verify_request(signed(path), KEYS, NOW)
        options, exp = parse_options([b"f:opus", b"br:96", b"exp:1800000001"])
        key = cache_key(options, b"local://a")
        source = LocalSource(b"a")
        expected = VariantRequest(options, source, exp, "br:96/f:opus", key, etag(key))
        self.assertEqual(expected, request)
        info = parse_request(b"/info/plain/local://a", NOW)
        self.assertEqual(InfoRequest(source), info)

    def test_order(self) -> None:
        """Errors are reported in the order signature, exp, options, source."""
        worst = b"/exp:5/q:99/plain/nowhere://a"
        for path, now, refusal in (
            (SignedPath(b"x", worst), NOW, InvalidSignature),
            (signed(worst), NOW, Expired),
            (signed(worst), 5, InvalidOptions),
            (signed(b"/exp:5/plain/nowhere://a"), 5, NotFound),
            (signed(b"/f:mp3"), NOW, NotFound),
            (signed(b"/info/f:mp3/plain/local://a"), NOW, InvalidOptions),
            (signed(b"/info/plain/nowhere://a"), NOW, NotFound),
        ):
            error = self.assertRaises(Refusal, verify_request, path, KEYS, now)
            self.assertIs(refusal, type(error), path)

    def test_no_clock(self) -> None:
        """Without a clock an expired path is parsed; it expires after the second ``exp`` (D14)."""
        for path, exp in ((b"/exp:5/plain/local://a", 5), (b"/plain/local://a", None)):
            request = parse_request(path, None)
            assert isinstance(request, VariantRequest)
            verdicts = request.is_expired(5.999), request.is_expired(6)
            self.assertEqual((exp, False, exp is not None), (request.exp, *verdicts))


class LifetimeTests(SynchronousTestCase):
    """`expired` and `clamp`"""

    def test_expired(self) -> None:
        """``exp`` is the last second (Request option exp, 2; Authentication, 8; D6, D14)."""
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

    def test_clamp(self) -> None:
        """A lifetime ends with ``exp``, in whole seconds (Request option exp, 3; D14)."""
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
