"""Diagnosis of wrong signatures that were made with the right key."""

from __future__ import annotations

import base64
import hashlib
import hmac
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.signature import sign
from audioproxy.grammar.signature_diagnosis import diagnose_signature
from tests.support.strategies import DETERMINISTIC

KEY, SALT = bytes(range(32)), b"\xfa\x11"
PATH = b"/f:opus/t:30:15/plain/local://a%20b.wav"
#: Pieces of paths of which the diagnosis tries other spellings.
SPECIAL = st.sampled_from(b"%20 %2F %2f %C3%BC e%CC%88 %25 / : ( ' + &amp; = a ~".split())

#: A path that was signed, the path that was received, a part of the diagnosis, and of the cure.
CHANGES = (
    (PATH, PATH + b"/", "a slash was added at the end", "sent"),
    (PATH, PATH.replace(b"://", b":/"), "two slashes of the path were merged", "way"),
    (b"/plain/s3://b/%c3%bc/%3a", b"/plain/s3:/b/%c3%bc/%3a", "merged", "way"),
    (b"/plain/https://h/a//b", b"/plain/https:/h/a//b", "merged", "way"),
    (b"/plain/local%3A%2F%2Fa%2Fb", b"/plain/local:/a/b", "merged", "way"),
    (b"/plain/s3://b/%c3%bc", b"/plain/s3://b/%C3%BC", "letters of %XX", "way"),
    (b"/plain/s3://b/%C3%BC", b"/plain/s3://b/%c3%bc", "letters of %XX", "way"),
    (b"/no/source", b"/no/source/", "a slash was added", "sent"),
    (b"/no/source%C3", b"/no/source%c3", "letters of %XX", "way"),
    (b"/no/source%c3", b"/no/source%C3", "letters of %XX", "way"),
    # Decoded by a proxy: all of a source, its name, its key, and one escape of several.
    (b"/plain/local%3A%2F%2Fa%2Fb%20c", b"/plain/local://a/b%20c", "'%3A' was decoded", "way"),
    (b"/plain/local%3A//a/b", b"/plain/local://a/b", "'%3A' was decoded to ':'", "way"),
    (b"/plain/local://a%2Fb%2Fc", b"/plain/local://a/b/c", "'%2F' was decoded to '/'", "way"),
    (b"/plain/local:%2F%2Fa", b"/plain/local://a", "'%2F' was decoded to '/'", "way"),
    (b"/plain/s3://b/a%2Fb/c", b"/plain/s3://b/a/b/c", "'%2F' was decoded to '/'", "way"),
    (b"/plain/s3://b/a/b%2Fc/d", b"/plain/s3://b/a/b/c/d", "'%2F' was decoded to '/'", "way"),
    (b"/plain/s3://b/a%2Fb%20c", b"/plain/s3://b/a/b%20c", "'%2F' was decoded to '/'", "way"),
    (b"/plain/s3://b/a%3Ab%2Fc", b"/plain/s3://b/a%3Ab/c", "'%2F' was decoded to '/'", "way"),
    (b"/plain/local://a%20%28b%29", b"/plain/local://a%20(b)", "'%28' was decoded to '('", "way"),
    (b"/plain/local://a%7Eb", b"/plain/local://a~b", "'%7E' was decoded to '~'", "way"),
    (b"/plain/local://a%2Bb", b"/plain/local://a+b", "'%2B' was decoded to '+'", "way"),
    (b"/dl:a%28b/plain/local://a", b"/dl:a(b/plain/local://a", "'%28' was decoded to '('", "way"),
    (b"/plain/local://a%2520b", b"/plain/local://a%20b", "the path was decoded", "way"),
    # Encoded by a client, or by the signer after it has signed.
    (PATH, PATH.replace(b":", b"%3A"), "':' was encoded as '%3A' after", "sent"),
    (PATH, PATH.replace(b"://", b"%3A%2F%2F"), "':' was encoded as '%3A' after", "sent"),
    (b"/plain/local://a/b%20c", b"/plain/local://a%2Fb%20c", "'/' was encoded as '%2F'", "sent"),
    (b"/plain/s3://b/a(b)", b"/plain/s3://b/a%28b%29", "'(' was encoded as '%28'", "sent"),
    (b"/dl:a(b)/plain/local://a", b"/dl:a%28b%29/plain/local://a", "'(' was encoded as", "sent"),
    (b"/gain:+3/plain/local://a", b"/gain:%2B3/plain/local://a", "'+' was encoded as", "sent"),
    (PATH, PATH.replace(b"%", b"%25"), "was percent-encoded after it was signed", "sent"),
    # Copied out of a text, or changed by a program that displays it.
    *(
        (PATH, PATH + end, f"'{end.decode()}' was added at the end", "sent")
        for end in b"%20 %0A %0D%0A ) %22 ' . , &gt; ). %E2%80%9D".split()
    ),
    *((PATH + end, PATH, f"'{end.decode()}' is missing", "sent") for end in (b"/", b")", b".")),
    (b"/plain/local://a&b", b"/plain/local://a&amp;b", "it has &amp;", "sent"),
    (b"/plain/local://a&amp;b", b"/plain/local://a&b", "& was signed as &amp;", "escape"),
    (b"/plain/local://a%20b", b"/plain/local://a+b", "a blank and + were exchanged", "sent"),
    (b"/plain/local://a%7Eb", b"/plain/local://a~b", "'%7E' was decoded to '~'", "way"),
    (b"/plain/local://a%2Bb", b"/plain/local://a%20b", "a blank and + were exchanged", "sent"),
    (b"/plain/local://a+b", b"/plain/local://a%20b", "a blank and + were exchanged", "sent"),
    (b"/plain/s3://b/%C3%BC", b"/plain/s3://b/u%CC%88", "signed in the Unicode form NFC", "sent"),
    (b"/plain/s3://b/u%CC%88", b"/plain/s3://b/%C3%BC", "signed in the Unicode form NFD", "sent"),
)


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
        escaped = standard.replace(b"=", b"%3D")
        self.assertIn("percent-encoded", diagnose_signature(KEY, SALT, path, escaped) or "")
        made = mac(KEY.hex().encode(), SALT.hex().encode() + PATH)
        self.assert_diagnosed(made.hex().encode(), "text of AP_KEY and AP_SALT")

    def test_changed_path(self) -> None:
        """What proxies, clients and people do to a URL is diagnosed, each with its own cause."""
        cures = {
            "way": "on the way to this service; let the client and the proxy",
            "sent": "send the URL as it was signed",
            "escape": "; sign the path, and escape it then",
        }
        for signed, received, word, cure in CHANGES:
            signature = encode(mac(KEY, SALT + signed))
            for spelling in (signature, signature + b"="):
                found = diagnose_signature(KEY, SALT, received, spelling) or ""
                self.assertIn(word, found, received)
                self.assertIn(cures[cure], found, received)
            self.assertIsNone(diagnose_signature(KEY, bytes(2), received, signature), received)

    def test_before_signature(self) -> None:
        """Two slashes at the front, and a mount point that no balancer has removed, are named."""
        signature = encode(mac(KEY, SALT + PATH))
        slashes = "two slashes precede the signature"
        for first, between, words in (
            *(
                (
                    first,
                    b"/" * (2 if first else 1),
                    f"{slashes}; the base of a URL ends without one",
                )
                for first in (b"", b"audio", b"media")
            ),
            (b"audio", b"/", "the balancer in front has to remove /audio"),
            (b"a", b"/b/", "the balancer in front has to remove /a/b"),
            (b"a", b"/media/", "remove /a/media and the name at the end"),
        ):
            path = between + signature + PATH + (b"/e.mp3" if b"media" in first + between else b"")
            self.assertRegex(diagnose_signature(KEY, SALT, path, first) or "", rf"\b{words}\Z")
            self.assertIsNone(diagnose_signature(KEY, SALT, path + b"x/y", first))
        for mount, is_diagnosed in ((b"/b/c/", True), (b"/b/c/d/", False)):
            found = diagnose_signature(KEY, SALT, mount + signature + PATH, b"a")
            self.assertEqual(is_diagnosed, found is not None, mount)

    @DETERMINISTIC
    @given(st.one_of(st.binary(max_size=99), st.lists(SPECIAL, max_size=40).map(b"".join)))
    def test_bound(self, rest: bytes) -> None:
        """A refused path costs at most 80 digests, whatever its bytes, and gets no diagnosis."""
        for start in (b"/plain/s3://b/", b"/dl:(b)/plain/s3:/b/%20"):
            with mock.patch.object(hmac, "new", wraps=hmac.new) as digests:
                self.assertIsNone(diagnose_signature(KEY, SALT, start + rest, b"A" * 43))
            self.assertLessEqual(digests.call_count, 80)

    def test_long_path(self) -> None:
        """Paths of up to 1024 bytes are diagnosed: each mistake that is tried costs a digest."""
        for size, is_diagnosed in ((1024, True), (1025, False)):
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
