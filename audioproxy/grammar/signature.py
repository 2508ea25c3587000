"""The signature of a path: base64url(HMAC-SHA256(key, salt + path))."""

from __future__ import annotations

import base64
import hashlib
import hmac

#: Length of an unpadded base64url SHA-256 digest: ceil(32 * 8 / 6).
_UNPADDED_LENGTH = 43


def sign(key: bytes, salt: bytes, path: bytes) -> bytes:
    """Return the unpadded signature of the raw bytes after ``/{signature}``, with their slash."""
    digest = hmac.new(key, salt + path, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=")


def verify(key: bytes, salt: bytes, path: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` is that of ``path``, unpadded or padded with one ``=``.

    The texts are compared in constant time, so a non-canonical final character never matches.
    """
    if len(signature) == _UNPADDED_LENGTH + 1 and signature.endswith(b"="):
        signature = signature[:-1]
    return hmac.compare_digest(sign(key, salt, path), signature)
