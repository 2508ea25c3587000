"""The tag by which caches in front remove all responses for a source (AP_CACHE_TAG_HEADER)."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

# Hexadecimal digits of a tag: half of the digest, so that no two sources share one.
_DIGITS = 32


def cache_tags(salts: Iterable[bytes], canonical_source: bytes) -> list[str]:
    """Return the tag of a source under each decoded value of AP_SALT, without repetitions.

    A tag is ``ap-`` and digits of HMAC-SHA-256, so that it does not name the source.
    """
    digests = [hmac.digest(salt, canonical_source, "sha256").hex() for salt in salts]
    return list(dict.fromkeys(f"ap-{digest[:_DIGITS]}" for digest in digests))


class CacheTagHeader(NamedTuple):
    """The response header that has the tag of the source; its name is in lower case."""

    name: str
    salt: bytes

    def line(self, canonical_source: bytes) -> tuple[str, str]:
        return _line(self, canonical_source)


# Most requests are for few sources, and the digest takes longer than this look-up.
@lru_cache(4096)
def _line(header: CacheTagHeader, canonical_source: bytes) -> tuple[str, str]:
    (tag,) = cache_tags([header.salt], canonical_source)
    return header.name, tag
