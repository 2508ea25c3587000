"""Verification and parsing of signed requests."""

from __future__ import annotations

import hmac
import re
from dataclasses import replace
from unittest import mock

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
)
from audioproxy.grammar.segments import SignedPath
from audioproxy.grammar.signature import sign
from audioproxy.grammar.sources import LocalSource
from tests.support.strategies import DETERMINISTIC, expiries

KEY, SALT = b"k" * 32, b"salt"
PREVIOUS = ((b"p" * 32, b"old"), (b"q" * 32, b"older"))
KEYS = SigningKeys(((KEY, SALT), *PREVIOUS))
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
        """Each pair is accepted and identified, and the allowed word ``insecure`` (D55)."""
        for number, (key, salt) in enumerate(KEYS.pairs):
            path = SignedPath(sign(key, salt, PATH), PATH)
            self.assertEqual(number, KEYS.verify(path))
            self.assertEqual(number, replace(KEYS, allow_insecure=True).verify(path))
        self.assertIsNone(SigningKeys((), True).verify(SignedPath(b"insecure", PATH)))

    def test_every_pair_is_tried(self) -> None:
        """The time of a verification does not depend on the pair that matches (D55)."""
        for number, (key, salt) in enumerate(KEYS.pairs):
            path = SignedPath(sign(key, salt, PATH), PATH)
            with mock.patch.object(hmac, "new", wraps=hmac.new) as digests:
                self.assertEqual(number, KEYS.verify(path))
            tried = [call.args[0] for call in digests.call_args_list]
            self.assertEqual([key for key, _ in KEYS.pairs], tried)

    def test_refused(self) -> None:
        """The refusal names a missing setting, or a common signing mistake with what is right."""
        no_keys = SigningKeys((), allow_insecure=True)
        (old_key, old_salt), _ = PREVIOUS
        swapped = "AP_KEY and AP_SALT were swapped; the salt precedes the path"
        mixed = "it was made with the key of one pair and the salt of another"
        old = f"{swapped} (with pair 1 of AP_PREVIOUS_KEY)"
        unsalted = "it was made without AP_SALT; the salt precedes the path"
        for keys, signature, message, diagnosis in (
            (KEYS, b"x" * 43, f"^{InvalidSignature.default_message}$", None),
            (KEYS, sign(KEY, b"", PATH), f"^The signature does not match: {unsalted}.$", unsalted),
            (KEYS, sign(old_salt, old_key, PATH), re.escape(old), old),
            (KEYS, sign(KEY, old_salt, PATH), mixed, mixed),
            (KEYS, sign(old_key, SALT, PATH), mixed, mixed),
            (KEYS, b"insecure", "AP_ALLOW_INSECURE", None),
            (no_keys, sign(KEY, SALT, PATH), "AP_KEY", None),
        ):
            path = SignedPath(signature, PATH)
            error = self.assertRaises(InvalidSignature, keys.verify, path)
            self.assertRegex(error.message, message)
            self.assertEqual(diagnosis, error.diagnosis)


#: The source local://a.
ENC = b"enc/bG9jYWw6Ly9h"


class RequestTests(SynchronousTestCase):
    """`parse_request`"""

    def test_requests(self) -> None:
        """A request has all parts of its path; an info request has a source only."""
        path = b"/br:96/f:opus/exp:1800000001/plain/local://a"
        request = parse_request(path, NOW)
        options, exp = parse_options([b"f:opus", b"br:96", b"exp:1800000001"])
        key = cache_key(options, b"local://a")
        source = LocalSource(b"a")
        expected = VariantRequest(options, source, exp, "br:96/f:opus", key, etag(key))
        self.assertEqual(expected, request)
        self.assertEqual(expected, parse_request(path.replace(b"plain/local://a", ENC), NOW))
        for spelled in (b"plain/local://a", ENC):
            self.assertEqual(InfoRequest(source), parse_request(b"/info/" + spelled, NOW))

    def test_order(self) -> None:
        """Errors are reported in the order exp, options, source."""
        worst = b"/exp:5/q:99/plain/nowhere://a"
        for path, now, refusal in (
            (worst, NOW, Expired),
            (worst, 5, InvalidOptions),
            (b"/exp:5/plain/nowhere://a", 5, NotFound),
            (b"/f:mp3", NOW, NotFound),
            (b"/info/f:mp3/plain/local://a", NOW, InvalidOptions),
            (b"/info/plain/nowhere://a", NOW, NotFound),
        ):
            error = self.assertRaises(Refusal, parse_request, path, now)
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
