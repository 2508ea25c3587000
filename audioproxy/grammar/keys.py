"""The cache key of a variant, which is its object name and its ETag."""

from __future__ import annotations

import hashlib


def cache_key(canonical_options: str, canonical_source: bytes) -> str:
    """Return the lower-case hex SHA-256 of options, a newline and the source (D5)."""
    return hashlib.sha256(canonical_options.encode("ascii") + b"\n" + canonical_source).hexdigest()


def etag(key: str) -> bytes:
    """Return the cache key as the entity tag that responses carry: a quoted string."""
    return b'"' + key.encode("ascii") + b'"'
