"""The keys of variants and of info documents, and their entity tags."""

from __future__ import annotations

import hashlib

from audioproxy.grammar.options import VariantOptions


def cache_key(options: VariantOptions, canonical_source: bytes) -> str:
    """Return the cache key of a variant: lower-case hex SHA-256 of three lines (D5).

    These are the byte revision of the output format, the canonical options, and the canonical
    source without a newline. Versions of the service that make different bytes share no key.
    """
    return _key(options.format.revision, options, canonical_source)


def all_cache_keys(options: VariantOptions, canonical_source: bytes) -> tuple[str, ...]:
    """Return the keys of a variant under every byte revision of its format, the newest first."""
    revisions = range(options.format.revision, 0, -1)
    return tuple(_key(revision, options, canonical_source) for revision in revisions)


def _key(revision: int, options: VariantOptions, canonical_source: bytes) -> str:
    lines = f"{revision}\n{options.canonical()}\n".encode("ascii")
    return hashlib.sha256(lines + canonical_source).hexdigest()


def info_key(canonical_source: bytes, validator: bytes) -> str:
    """Return the ETag of an info document: lower-case hex SHA-256.

    :param validator: changes with the bytes of the source; its form depends on the storage.
    """
    return hashlib.sha256(canonical_source + b"\n" + validator).hexdigest()


def etag(key: str) -> bytes:
    """Return a key as an entity tag, which is a quoted string."""
    return b'"' + key.encode("ascii") + b'"'
