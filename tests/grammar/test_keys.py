"""The cache key."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.keys import cache_key, etag
from audioproxy.grammar.reading import read_options
from audioproxy.grammar.sources import read_source
from tests.support.strategies import (
    PROMISE,
    encoded,
    escaped,
    expiries,
    option_segments,
    sources,
)

# Each key was made by `printf OPTIONS'\n'SOURCE | sha256sum`.
VECTORS = (
    (
        "f:mp3",
        b"local://a.mp3",
        "d369ab4ccfd92476e253b2213107acffbfa055ac593c3b0e05bad7ae6c32ff6b",
    ),
    (
        "ch:1/f:peaks/pk_bits:16/pk_fmt:json/pts:800",
        b"s3://bucket/k\xff",
        "e00eb3a8f441318f1e46ff95bba4be3dfbdb61199f5af5b506673788dd01c8c5",
    ),
    (
        "br:128/f:mp3",
        b"https://example.com/",
        "357d9afd8e40c70a4fb1325c9632f778f383a53b01dd1e693fd35ecf499b4c6d",
    ),
)

# What a client asks for, raw, and the key of it.
REQUESTS = (
    ([], b"plain", b"local://a.mp3", VECTORS[0][2]),
    ([b"f:mp3"], b"enc", b"bG9jYWw6Ly9hLm1wMw", VECTORS[0][2]),
    ([b"f:peaks"], b"plain", b"s3://bucket/k%ff", VECTORS[1][2]),
    ([b"pts:800", b"ch:1", b"f:peaks"], b"plain", b"s3%3A%2F%2Fbucket%2Fk%FF", VECTORS[1][2]),
    ([b"f:mp3", b"br:0128"], b"plain", b"HTTPS://EXAMPLE.com.:443#top", VECTORS[2][2]),
    ([b"exp:5", b"br:128"], b"plain", b"https://example.com/?", VECTORS[2][2]),
)


class CacheKeyTests(SynchronousTestCase):
    """`cache_key`"""

    def test_known_vectors(self) -> None:
        """The key is the SHA-256 of options, a newline and the source, in lower case (D5)."""
        for options, source, key in VECTORS:
            self.assertEqual(cache_key(options, source), key)

    def test_requests(self) -> None:
        """All spellings of one variant have one key (What the service does, 2; D5)."""
        for segments, form, raw, key in REQUESTS:
            options, _ = read_options(segments)
            source = read_source(form, raw)
            self.assertEqual(cache_key(options.canonical(), source.canonical), key, raw)

    def test_etag(self) -> None:
        """The ETag is the key as a quoted string (Variant; D5)."""
        self.assertEqual(etag(VECTORS[0][2]), b'"' + VECTORS[0][2].encode("ascii") + b'"')

    @PROMISE
    @given(data=st.data(), segments=option_segments(), source=sources())
    def test_any_order(self, data: st.DataObject, segments: list[bytes], source: bytes) -> None:
        """Options in any order, a source in any form: one key (Signed URL grammar)."""
        shuffled = data.draw(st.permutations(segments))
        plain = read_source(b"plain", data.draw(escaped(source))).canonical
        first = cache_key(read_options(segments)[0].canonical(), plain)
        second = cache_key(
            read_options(shuffled)[0].canonical(), read_source(b"enc", encoded(source)).canonical
        )
        self.assertEqual(first, second)
        self.assertRegex(first, r"\A[0-9a-f]{64}\Z")

    @PROMISE
    @given(segments=option_segments(), exp=expiries(), source=sources())
    def test_exp(self, segments: list[bytes], exp: int, source: bytes) -> None:
        """URLs that differ only in ``exp`` are one variant (Option classes)."""
        canonical = read_source(b"enc", encoded(source)).canonical
        without, _ = read_options(segments)
        with_exp, _ = read_options([b"exp:%d" % exp, *segments])
        self.assertEqual(
            cache_key(with_exp.canonical(), canonical), cache_key(without.canonical(), canonical)
        )

    @PROMISE
    @given(one=option_segments(), other=option_segments(), source=sources())
    def test_other_options(self, one: list[bytes], other: list[bytes], source: bytes) -> None:
        """Other options are another key (What the service does, 2)."""
        first, second = read_options(one)[0], read_options(other)[0]
        assume(first != second)
        self.assertNotEqual(
            cache_key(first.canonical(), source), cache_key(second.canonical(), source)
        )

    @PROMISE
    @given(segments=option_segments())
    def test_newline(self, segments: list[bytes]) -> None:
        """No option can hold the newline that parts options from source (D5)."""
        self.assertNotIn("\n", read_options(segments)[0].canonical())
