"""The cache key and the ETag of a variant, and the key of an info document."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar import options as options_module
from audioproxy.grammar.cache_key import cache_key, etag, info_key
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.sources import read_source
from tests.support.strategies import (
    DETERMINISTIC,
    encoded,
    escaped,
    expiries,
    option_segments,
    sources,
)

# Spellings of requests by the key of their variant: option segments, form and raw source. Each key
# is the output of `printf '5\n'OPTIONS'\n'SOURCE | sha256sum`, with the canonical options and
# source of the first spelling. The 5 is the byte revision of the output format (D5).
REQUESTS = {
    "a7b14359b046b81cf883a84d8587ed4faf54100f67597cf3be6018ff29a04045": (
        ([b"f:mp3"], b"plain", b"local://a.mp3"),
        ([], b"enc", b"bG9jYWw6Ly9hLm1wMw"),
    ),
    "3278ee79352072ea7ff1a656c9142d98df24dc263874909a5965f9c12333a443": (
        (b"ch:1/f:peaks/pk_bits:16/pk_fmt:json/pts:800".split(b"/"), b"plain", b"s3://bucket/k%ff"),
        ([b"pts:800", b"ch:1", b"f:peaks"], b"plain", b"s3%3A%2F%2Fbucket%2Fk%FF"),
    ),
    "9537ed1ae73aefdf1943623cc9367565a32e7cc5e9f6195a8013958103c7fd5d": (
        ([b"br:128", b"f:mp3"], b"plain", b"https://example.com/"),
        ([b"f:mp3", b"br:0128"], b"plain", b"HTTPS://EXAMPLE.com.:443#top"),
        ([b"exp:5", b"br:128"], b"plain", b"https://example.com/?"),
    ),
}


class CacheKeyTests(SynchronousTestCase):
    """`cache_key`"""

    def test_requests(self) -> None:
        """All spellings of one variant have one key (Design rules, 2; D5).

        The key is the SHA-256 of revision, options and source, joined by newlines, and the ETag is
        the key as a quoted string (Stored object).
        """
        for key, spellings in REQUESTS.items():
            for segments, form, raw in spellings:
                options, _ = parse_options(segments)
                self.assertEqual(cache_key(options, read_source(form, raw).canonical), key, raw)
            self.assertEqual(etag(key), f'"{key}"'.encode())

    def test_byte_revision(self) -> None:
        """A new byte revision of a format changes the keys of that format only (D5)."""
        mp3, wav = VariantOptions(f="mp3"), VariantOptions(f="wav")
        before = cache_key(wav, b"local://a")
        formats = {**FORMATS, "mp3": replace(FORMATS["mp3"], revision=6)}
        self.patch(options_module, "FORMATS", formats)
        expected = sha256(b"6\nf:mp3\nlocal://a").hexdigest()
        self.assertEqual(
            (expected, before), (cache_key(mp3, b"local://a"), cache_key(wav, b"local://a"))
        )

    # Drawing all the parts of a URL takes long.
    @settings(DETERMINISTIC, max_examples=40)
    @given(data=st.data(), segments=option_segments(), exp=expiries(), source=sources())
    def test_any_spelling(
        self, data: st.DataObject, segments: list[bytes], exp: int, source: bytes
    ) -> None:
        """Options in any order and a source in any form give one key (Signed URL grammar; D5).

        URLs that differ only in ``exp`` are one variant (Option classes). Canonical options contain
        no newline, so different options give a different key (Design rules, 2).
        """
        shuffled = data.draw(st.permutations([*segments, b"exp:%d" % exp]))
        plain = read_source(b"plain", data.draw(escaped(source))).canonical
        enc = read_source(b"enc", encoded(source)).canonical
        options, first = parse_options(segments)[0], parse_options(shuffled)[0]
        self.assertEqual(cache_key(options, plain), cache_key(first, enc))
        self.assertRegex(cache_key(options, plain), r"\A[0-9a-f]{64}\Z")
        self.assertNotIn("\n", options.canonical())
        self.assertEqual(info_key(plain, b"1"), info_key(enc, b"1"))


class InfoKeyTests(SynchronousTestCase):
    """`info_key`"""

    def test_known_vectors(self) -> None:
        """The key is a hash of the canonical source and its validator (Info endpoint, 1)."""
        # Each key is the output of `printf SOURCE'\n'VALIDATOR | sha256sum`.
        for source, validator, key in (
            (
                b"local://a.mp3",
                b"1000-1700000000123456789",
                "8804480dc4e5fcf11a8a0a98acd52fadaffcc8405c0aab8e39aee11e4fd124ee",
            ),
            (
                b"s3://bucket/k\xff",
                b'"etag"',
                "7b5f4460ee1d605d4b0f3dfb84ebea0302c2b1def33d2d8b5fc98d4e4a440e18",
            ),
        ):
            self.assertEqual(info_key(source, validator), key)

    @DETERMINISTIC
    @given(
        one=st.tuples(st.binary(max_size=3), st.binary(max_size=3)),
        other=st.tuples(st.binary(max_size=3), st.binary(max_size=3)),
    )
    def test_other_state(self, one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
        """A different source or validator gives a different key.

        No validator contains a newline: it is the value of an HTTP header, or the size and time of
        a file. A file name may contain one.
        """
        first, second = (
            (source, validator.replace(b"\n", b"")) for source, validator in (one, other)
        )
        assume(first != second)
        self.assertNotEqual(info_key(*first), info_key(*second))

    def test_never_shared(self) -> None:
        """A file name with a newline never has the key of another file.

        An info document never shares a key with a variant of its source.
        """
        tricky = info_key(b"local://a\n5-5", b"1-1")
        self.assertNotEqual(tricky, info_key(b"local://a", b"5-5"))
        self.assertNotEqual(tricky, info_key(b"local://a\n5-5\n1-1", b""))
        key = info_key(b"local://a.mp3", b"f:mp3")
        self.assertNotEqual(key, cache_key(VariantOptions(), b"local://a.mp3"))
