"""The cache key of a variant, which is its object name and its ETag, and what names a source."""

from __future__ import annotations

import hashlib


def cache_key(canonical_options: str, canonical_source: bytes) -> str:
    """Return the lower-case hex SHA-256 of options, a newline and the source (D5)."""
    return hashlib.sha256(canonical_options.encode("ascii") + b"\n" + canonical_source).hexdigest()


def source_identity(canonical_source: bytes, material: bytes) -> bytes:
    """Return what is equal for two states of a source only where their bytes are the same.

    :param material: changes with the bytes; the storage knows what that is.
    """
    return canonical_source + b"\n" + material


def info_key(identity: bytes) -> str:
    """Return the hash that is the ETag of an info document: lower-case hex SHA-256.

    :param identity: from `source_identity`.
    """
    return hashlib.sha256(identity).hexdigest()


def etag(key: str) -> bytes:
    """Return a key as the entity tag that responses carry: a quoted string."""
    return b'"' + key.encode("ascii") + b'"'
