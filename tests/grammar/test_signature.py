"""Signatures: the signed bytes, and the two accepted spellings."""

from __future__ import annotations

import base64
import hashlib
import hmac
import string

from hypothesis import assume, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.signature import sign, verify
from tests.support.strategies import DETERMINISTIC, junk

KEY = bytes(range(32))
SALT = b"salt"
PATH = b"/f:mp3/plain/local://a.mp3"

ALPHABET = (string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_").encode()


class SignTests(SynchronousTestCase):
    """`sign`"""

    @DETERMINISTIC
    @given(key=st.binary(min_size=32, max_size=80), salt=st.binary(min_size=1), path=st.binary())
    def test_definition(self, key: bytes, salt: bytes, path: bytes) -> None:
        """A signature is base64url(HMAC-SHA256(key, salt + path)) (Authentication, 1)."""
        mac = hmac.new(key, digestmod=hashlib.sha256)
        mac.update(salt)
        mac.update(path)
        made = sign(key, salt, path)
        self.assertEqual(base64.b64decode(made + b"=", altchars=b"-_"), mac.digest())


class VerifyTests(SynchronousTestCase):
    """`verify`"""

    def test_other_spellings(self) -> None:
        """More padding, escapes, spaces and missing characters are refused (Authentication, 2)."""
        signature = sign(KEY, SALT, PATH)
        others = [signature + tail for tail in (b"==", b"=" * 100, b"A", b"%3D", b" ", b"\n")]
        others += [signature[:-1] + tail for tail in (b"", b"=", b"==")]
        others += [head + signature for head in (b"=", b" ")]
        others += [signature.swapcase(), signature.hex().encode(), b"insecure", b"=", b""]
        for other in others:
            self.assertIs(verify(KEY, SALT, PATH, other), False, other)

    def test_changed_character(self) -> None:
        """A signature with any changed character is refused (Authentication, 2)."""
        signature = sign(KEY, SALT, PATH)
        for at in range(len(signature)):
            for byte in ALPHABET + b"+/= \n%\0\x80\xff":
                spelled = signature[:at] + bytes([byte]) + signature[at + 1 :]
                for each in (spelled, spelled + b"="):
                    self.assertIs(verify(KEY, SALT, PATH, each), spelled == signature, each)

    def test_key_and_salt(self) -> None:
        """Another key, salt or ``exp`` is refused (Authentication, 8; Request option exp, 1)."""
        self.assertFalse(verify(KEY, SALT, PATH, sign(KEY[::-1], SALT, PATH)))
        self.assertFalse(verify(KEY, SALT, PATH, sign(KEY, b"pepper", PATH)))
        signature = sign(KEY, SALT, b"/exp:1893456000/plain/local://a")
        for path in (b"/exp:1893456001/plain/local://a", b"/plain/local://a"):
            self.assertFalse(verify(KEY, SALT, path, signature), path)

    @DETERMINISTIC
    @given(path=junk(), other=st.binary(max_size=60))
    def test_junk(self, path: bytes, other: bytes) -> None:
        """A signature is valid for its own path only (Authentication, 3 and 6)."""
        assume(path != other)
        signature = sign(KEY, SALT, path)
        self.assertTrue(verify(KEY, SALT, path, signature))
        self.assertFalse(verify(KEY, SALT, other, signature))
        self.assertIs(verify(KEY, SALT, other, path), False)
