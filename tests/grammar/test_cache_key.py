"""The cache key and the ETag of a variant, and the key of an info document."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from hypothesis import assume, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar import options as options_module
from audioproxy.grammar.cache_key import cache_key, etag, info_key, source_identity
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.parser import read_options
from audioproxy.grammar.sources import read_source
from tests.support.strategies import (
    DETERMINISTIC,
    encoded,
    escaped,
    expiries,
    option_segments,
    sources,
)

# Each key is the output of `printf '1\n'OPTIONS'\n'SOURCE | sha256sum`. The 1 is the byte revision
# of the output format (D5).
VECTORS = (
    (
        "f:mp3",
        b"local://a.mp3",
        "4ac143fde48893325f9d8c10520d2634c67b8d05f979c7e014275be9f9ffcd32",
    ),
    (
        "ch:1/f:peaks/pk_bits:16/pk_fmt:json/pts:800",
        b"s3://bucket/k\xff",
        "0705c018d360499d06b29fcc864e85edf19e1e833962974307d9fbee17d07f7c",
    ),
    (
        "br:128/f:mp3",
        b"https://example.com/",
        "a19d8b176732d508b27f73850b7cebd3f1229129ca69a7808f432474f70c5839",
    ),
)

# Option segments, form and raw source of each request, with its cache key.
REQUESTS = (
    ([], b"plain", b"local://a.mp3", VECTORS[0][2]),
    ([b"f:mp3"], b"enc", b"bG9jYWw6Ly9hLm1wMw", VECTORS[0][2]),
    ([b"f:peaks"], b"plain", b"s3://bucket/k%ff", VECTORS[1][2]),
    ([b"pts:800", b"ch:1", b"f:peaks"], b"plain", b"s3%3A%2F%2Fbucket%2Fk%FF", VECTORS[1][2]),
    ([b"f:mp3", b"br:0128"], b"plain", b"HTTPS://EXAMPLE.com.:443#top", VECTORS[2][2]),
    ([b"exp:5", b"br:128"], b"plain", b"https://example.com/?", VECTORS[2][2]),
)


#: Each key is the output of `printf SOURCE'\n'VALIDATOR | sha256sum`.
INFO_VECTORS = (
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
    (
        b"https://example.com/",
        b"",
        "0f75cb1cf3445432b4fd260c155db5fb67fddf77d0dc40b424c7cb3819d9650f",
    ),
)


class CacheKeyTests(SynchronousTestCase):
    """`cache_key`"""

    def test_known_vectors(self) -> None:
        """The key is the SHA-256 of revision, options and source, joined by newlines (D5)."""
        for text, source, key in VECTORS:
            options, _ = read_options(text.encode().split(b"/"))
            self.assertEqual(cache_key(options, source), key)

    def test_byte_revision(self) -> None:
        """A new byte revision of a format changes the keys of that format only (D5)."""
        mp3, wav = VariantOptions(f="mp3"), VariantOptions(f="wav")
        before = cache_key(mp3, b"local://a"), cache_key(wav, b"local://a")
        self.patch(
            options_module, "FORMATS", {**FORMATS, "mp3": replace(FORMATS["mp3"], revision=2)}
        )
        expected = sha256(b"2\nf:mp3\nlocal://a").hexdigest()
        self.assertEqual(
            (expected, before[1]), (cache_key(mp3, b"local://a"), cache_key(wav, b"local://a"))
        )
        self.assertNotEqual(before[0], expected)

    def test_requests(self) -> None:
        """All spellings of one variant have one key (Design rules, 2; D5)."""
        for segments, form, raw, key in REQUESTS:
            options, _ = read_options(segments)
            source = read_source(form, raw)
            self.assertEqual(cache_key(options, source.canonical), key, raw)

    def test_etag(self) -> None:
        """The ETag is the key as a quoted string (Stored object; D5)."""
        self.assertEqual(etag(VECTORS[0][2]), b'"' + VECTORS[0][2].encode("ascii") + b'"')

    @DETERMINISTIC
    @given(data=st.data(), segments=option_segments(), source=sources())
    def test_any_order(self, data: st.DataObject, segments: list[bytes], source: bytes) -> None:
        """Options in any order and a source in any form give one key (Signed URL grammar)."""
        shuffled = data.draw(st.permutations(segments))
        plain = read_source(b"plain", data.draw(escaped(source))).canonical
        first = cache_key(read_options(segments)[0], plain)
        second = cache_key(
            read_options(shuffled)[0], read_source(b"enc", encoded(source)).canonical
        )
        self.assertEqual(first, second)
        self.assertRegex(first, r"\A[0-9a-f]{64}\Z")

    @DETERMINISTIC
    @given(segments=option_segments(), exp=expiries(), source=sources())
    def test_exp(self, segments: list[bytes], exp: int, source: bytes) -> None:
        """URLs that differ only in ``exp`` are one variant (Option classes)."""
        canonical = read_source(b"enc", encoded(source)).canonical
        without, _ = read_options(segments)
        with_exp, _ = read_options([b"exp:%d" % exp, *segments])
        self.assertEqual(cache_key(with_exp, canonical), cache_key(without, canonical))

    @DETERMINISTIC
    @given(one=option_segments(), other=option_segments(), source=sources())
    def test_other_options(self, one: list[bytes], other: list[bytes], source: bytes) -> None:
        """Different options give a different key (Design rules, 2)."""
        first, second = read_options(one)[0], read_options(other)[0]
        assume(first != second)
        self.assertNotEqual(cache_key(first, source), cache_key(second, source))

    @DETERMINISTIC
    @given(segments=option_segments())
    def test_newline(self, segments: list[bytes]) -> None:
        """Canonical options contain no newline, which separates them from the source (D5)."""
        self.assertNotIn("\n", read_options(segments)[0].canonical())


class InfoKeyTests(SynchronousTestCase):
    """`source_identity` and `info_key`"""

    def test_known_vectors(self) -> None:
        """The key is a hash of the canonical source and its validator (Info endpoint, 1)."""
        for source, validator, key in INFO_VECTORS:
            self.assertEqual(info_key(source_identity(source, validator)), key)

    def test_requests(self) -> None:
        """All spellings of one source have one key (Info endpoint, 1)."""
        for _, form, raw, _ in REQUESTS:
            canonical = read_source(form, raw).canonical
            found = {
                info_key(source_identity(read_source(*other).canonical, b"m"))
                for other in ((form, raw), (b"enc", encoded(canonical)))
            }
            self.assertEqual(len(found), 1, raw)

    def test_no_variant(self) -> None:
        """An info document never shares a key with a variant of its source."""
        source, validator = b"local://a.mp3", b"f:mp3"
        keys = {info_key(source_identity(source, validator)), cache_key(VariantOptions(), source)}
        self.assertEqual(len(keys), 2)

    @DETERMINISTIC
    @given(data=st.data(), source=sources(), validator=st.binary(max_size=20))
    def test_any_spelling(self, data: st.DataObject, source: bytes, validator: bytes) -> None:
        """All forms and spellings of one source have one identity and one key."""
        plain = read_source(b"plain", data.draw(escaped(source))).canonical
        other = read_source(b"enc", encoded(source)).canonical
        identity = source_identity(plain, validator)
        self.assertEqual(identity, source_identity(other, validator))
        self.assertRegex(info_key(identity), r"\A[0-9a-f]{64}\Z")

    @DETERMINISTIC
    @given(
        one=st.tuples(sources(), st.binary(max_size=9)),
        other=st.tuples(sources(), st.binary(max_size=9)),
    )
    def test_other_state(self, one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
        """A different source or validator gives a different identity and key.

        No validator contains a newline: it is the value of an HTTP header, or the size and time of
        a file.
        """
        first, second = (
            (read_source(b"enc", encoded(source)).canonical, validator.replace(b"\n", b""))
            for source, validator in (one, other)
        )
        assume(first != second)
        self.assertNotEqual(source_identity(*first), source_identity(*second))
        self.assertNotEqual(info_key(source_identity(*first)), info_key(source_identity(*second)))

    def test_newline_in_a_name(self) -> None:
        """A file name with a newline never has the identity of another file."""
        tricky = source_identity(b"local://a\n5-5", b"1-1")
        self.assertNotEqual(tricky, source_identity(b"local://a", b"5-5"))
        self.assertNotEqual(tricky, source_identity(b"local://a\n5-5\n1-1", b""))
