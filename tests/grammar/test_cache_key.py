"""The cache key and the ETag of a variant, and the key of an info document."""

from __future__ import annotations

from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.cache_key import all_cache_keys, cache_key, etag, info_key
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


class CacheKeyTests(SynchronousTestCase):
    """`cache_key`"""

    def test_definition(self) -> None:
        """The key is the SHA-256 of revision, options and source (Stored object; D5)."""
        self.assertGreater(len({form.revision for form in FORMATS.values()}), 1)
        for token, form in FORMATS.items():
            for options, words in (
                (VariantOptions(f=token), f"f:{token}"),
                (VariantOptions(f=token, ch=1), f"ch:1/f:{token}"),
            ):
                text = f"{form.revision}\n{words}\nlocal://a"
                key = cache_key(options, b"local://a")
                self.assertEqual(sha256(text.encode()).hexdigest(), key)
                self.assertEqual(f'"{key}"'.encode(), etag(key))

    def test_all_revisions(self) -> None:
        """A variant has had a key under each revision of its format, from 1 to the current one."""
        options = VariantOptions(f="opus")
        texts = [f"{revision}\nf:opus\nlocal://a" for revision in range(8, 0, -1)]
        keys = all_cache_keys(options, b"local://a")
        self.assertEqual(tuple(sha256(text.encode()).hexdigest() for text in texts), keys)
        self.assertEqual(cache_key(options, b"local://a"), keys[0])

    # Drawing all the parts of a URL takes long.
    @settings(DETERMINISTIC, max_examples=40)
    @given(data=st.data(), segments=option_segments(), exp=expiries(), source=sources())
    def test_any_spelling(
        self, data: st.DataObject, segments: list[bytes], exp: int, source: bytes
    ) -> None:
        """All spellings have one key (Design rules, 2; Signed URL grammar; Option classes)."""
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
        local = "8804480dc4e5fcf11a8a0a98acd52fadaffcc8405c0aab8e39aee11e4fd124ee"
        self.assertEqual(info_key(b"local://a.mp3", b"1000-1700000000123456789"), local)
        stored = "7b5f4460ee1d605d4b0f3dfb84ebea0302c2b1def33d2d8b5fc98d4e4a440e18"
        self.assertEqual(info_key(b"s3://bucket/k\xff", b'"etag"'), stored)

    def test_never_shared(self) -> None:
        """Neither a file name with a newline nor a variant has the key of another document."""
        tricky = info_key(b"local://a\n5-5", b"1-1")
        self.assertNotEqual(tricky, info_key(b"local://a", b"5-5"))
        self.assertNotEqual(tricky, info_key(b"local://a\n5-5\n1-1", b""))
        key = info_key(b"local://a.mp3", b"f:mp3")
        self.assertNotEqual(key, cache_key(VariantOptions(), b"local://a.mp3"))
