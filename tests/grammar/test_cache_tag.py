"""The tag of a source for caches in front."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.cache_tag import CacheTagHeader, cache_tags


class CacheTagTests(SynchronousTestCase):
    """`cache_tags` and `CacheTagHeader`"""

    def test_known_vectors(self) -> None:
        """A tag is ``ap-`` and half of HMAC-SHA-256 under the salt; each salt has its own (D59)."""
        # printf 'local://a b.flac' | openssl dgst -sha256 -mac HMAC -macopt hexkey:SALT
        current, previous = (
            "ap-8c45702a9b824f1189e4043b97de1467",
            "ap-31b1bd3b279e4739c84b031f82c3584e",
        )
        salts = [b"\x5a\x17", b"\x01", b"\x5a\x17"]
        self.assertEqual([current, previous], cache_tags(salts, b"local://a b.flac"))
        line = CacheTagHeader("cache-tag", salts[0]).line(b"local://a b.flac")
        self.assertEqual(("cache-tag", current), line)
