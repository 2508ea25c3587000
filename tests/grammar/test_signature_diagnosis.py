"""Diagnosis of wrong signatures that were made with the right key."""

from __future__ import annotations

import base64
import hashlib
import hmac

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.signature import sign
from audioproxy.grammar.signature_diagnosis import diagnose_signature

KEY, SALT = bytes(range(32)), b"\xfa\x11"
PATH = b"/f:opus/t:30:15/plain/local://a%20b.wav"


def mac(key: bytes, text: bytes) -> bytes:
    """Return the HMAC-SHA256 of a text, computed without the package."""
    return hmac.new(key, text, hashlib.sha256).digest()


def encode(digest: bytes) -> bytes:
    """Return a digest in the form of a signature: unpadded base64url."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=")


class DiagnosisTests(SynchronousTestCase):
    """The diagnosis names each common mistake, with what would be right."""

    def assert_diagnosed(self, signature: bytes, *words: str) -> None:
        """Assert that the diagnosis of a signature contains these words."""
        found = diagnose_signature(KEY, SALT, PATH, signature) or ""
        for word in words:
            self.assertIn(word, found)

    def test_other_input(self) -> None:
        """Wrong secrets, a missing salt or slash, and a decoded path are diagnosed."""
        wanted = "the bytes that the hexadecimal digits encode are expected"
        for spell in (str.lower, str.upper):
            key, salt = spell(KEY.hex()).encode(), spell(SALT.hex()).encode()
            both = encode(mac(key, salt + PATH))
            self.assert_diagnosed(both, "text of AP_KEY and AP_SALT", wanted)
            self.assert_diagnosed(encode(mac(key, SALT + PATH)), "text of AP_KEY;", wanted)
            self.assert_diagnosed(encode(mac(KEY, salt + PATH)), "text of AP_SALT;", wanted)
        self.assert_diagnosed(encode(mac(KEY, PATH)), "without AP_SALT")
        self.assert_diagnosed(encode(mac(SALT, KEY + PATH)), "swapped")
        self.assert_diagnosed(encode(mac(KEY, SALT + PATH[1:])), "leading slash")
        decoded = PATH.replace(b"%20", b" ")
        self.assert_diagnosed(encode(mac(KEY, SALT + decoded)), "decoded before it was signed")

    def test_other_spelling(self) -> None:
        """The right digest in hexadecimal, with wrong padding, or with + and / is diagnosed."""
        digest = mac(KEY, SALT + PATH)
        self.assert_diagnosed(digest.hex().encode(), "hexadecimal", "base64url")
        self.assert_diagnosed(digest.hex().upper().encode(), "hexadecimal", "base64url")
        self.assert_diagnosed(encode(digest) + b"==", "too much padding", "base64url")
        for padding in (b"%3D", b"%3d", b"%3D%3D"):
            signature = encode(digest) + padding
            self.assert_diagnosed(signature, "percent-encoded", "without padding")
        # The digest of this path has both characters.
        path = next(
            path
            for n in range(999)
            if set(base64.b64encode(mac(KEY, SALT + (path := b"/%d" % n)))) >= set(b"+/")
        )
        standard = base64.b64encode(mac(KEY, SALT + path))
        self.assertIn("+ and /", diagnose_signature(KEY, SALT, path, standard) or "")
        made = mac(KEY.hex().encode(), SALT.hex().encode() + PATH)
        self.assert_diagnosed(made.hex().encode(), "text of AP_KEY and AP_SALT")

    def test_changed_path(self) -> None:
        """What caches and CDNs do to a URL is diagnosed: slashes, and the letters of %XX."""
        for signed, received, word in (
            (PATH, PATH + b"/", "slash was added"),
            (PATH, PATH.replace(b"://", b":/"), "merged"),
            (b"/plain/s3://b/%c3%bc/%3a", b"/plain/s3:/b/%c3%bc/%3a", "merged"),
            (b"/plain/https://h/a//b", b"/plain/https:/h/a//b", "merged"),
            (b"/plain/s3://b/%c3%bc", b"/plain/s3://b/%C3%BC", "letters of %XX"),
            (b"/plain/s3://b/%C3%BC", b"/plain/s3://b/%c3%bc", "letters of %XX"),
        ):
            signature = encode(mac(KEY, SALT + signed))
            for spelling in (signature, signature + b"="):
                found = diagnose_signature(KEY, SALT, received, spelling) or ""
                self.assertIn(word, found, received)
            self.assertIsNone(diagnose_signature(KEY, bytes(2), received, signature), received)

    def test_file_name(self) -> None:
        """A file name under /media that no balancer has removed is diagnosed."""
        signature = encode(mac(KEY, SALT + PATH))
        path = b"/" + signature + PATH + b"/a.mp3"
        self.assertIn("remove /media", diagnose_signature(KEY, SALT, path, b"media") or "")
        for other in (path + b"/b", b"/x" + path, b"/", b""):
            self.assertIsNone(diagnose_signature(KEY, SALT, other, b"media"), other)

    def test_long_path(self) -> None:
        """Paths of up to 2048 bytes are diagnosed: each mistake that is tried costs a digest."""
        for size, is_diagnosed in ((2048, True), (2049, False)):
            path = PATH.ljust(size, b"x")
            padded = encode(mac(KEY, SALT + path)) + b"="
            found = diagnose_signature(KEY, SALT, path, padded)
            self.assertEqual(is_diagnosed, found is not None)
            inner = PATH.ljust(size - 46, b"x")
            named = b"/" + encode(mac(KEY, SALT + inner)) + inner + b"/a"
            self.assertEqual(size, len(named))
            found = diagnose_signature(KEY, SALT, named, b"media")
            self.assertEqual(is_diagnosed, found is not None)

    def test_unknown_key(self) -> None:
        """Signatures made without the key get no diagnosis."""
        other = sign(bytes(32), SALT, PATH)
        for signature in (other, b"", b"x", other + b"=", b"0" * 64, b"insecure", b"\xff" * 43):
            self.assertIsNone(diagnose_signature(KEY, SALT, PATH, signature), signature)

    def test_broken_escape(self) -> None:
        """A path with a broken escape is still checked for the other mistakes."""
        path = b"/f:mp3/plain/local://100%"
        self.assertIsNone(diagnose_signature(KEY, SALT, path, sign(bytes(32), SALT, path)))
        unsalted = encode(mac(KEY, path))
        self.assertIn("without AP_SALT", diagnose_signature(KEY, SALT, path, unsalted) or "")
