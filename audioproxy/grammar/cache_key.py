"""The cache key of a variant, its entity tag, and the identity of a source."""

from __future__ import annotations

import hashlib

from audioproxy.grammar.options import VariantOptions


def cache_key(options: VariantOptions, canonical_source: bytes) -> str:
    """Return the cache key of a variant: lower-case hex SHA-256 of three lines (D5).

    The lines are the byte revision of the output format, the canonical options and the canonical
    source. No newline follows the source. Versions of the service that make different bytes share
    no key.
    """
    lines = f"{options.format.revision}\n{options.canonical()}\n".encode("ascii")
    return hashlib.sha256(lines + canonical_source).hexdigest()


def source_identity(canonical_source: bytes, validator: bytes) -> bytes:
    """Return the identity of a state of a source: equal identities mean equal bytes.

    :param validator: changes with the bytes; its form depends on the storage.
    """
    return canonical_source + b"\n" + validator


def info_key(identity: bytes) -> str:
    """Return the ETag of an info document: lower-case hex SHA-256.

    :param identity: from `source_identity`.
    """
    return hashlib.sha256(identity).hexdigest()


def etag(key: str) -> bytes:
    """Return a key as an entity tag, which is a quoted string."""
    return b'"' + key.encode("ascii") + b'"'
