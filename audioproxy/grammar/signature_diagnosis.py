"""Diagnosis of common signing mistakes from the signature that they produce.

Such a signature comes from a holder of the key, or is an altered copy of a correct one. So the
diagnosis reveals nothing new.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator

from audioproxy.grammar.signature import sign, verify
from audioproxy.grammar.values import percent_decode

_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{64}")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{43}=*")
_EXPECTED_FORM = "base64url without padding is expected"
# Maximum bytes of a path that is diagnosed. Each mistake that is tried costs a digest of the whole
# path, and longer paths are unlikely while a signer is debugged.
_LONGEST = 2048


def diagnose_signature(key: bytes, salt: bytes, path: bytes, signature: bytes) -> str | None:
    """Return the mistake that explains a wrong signature, or None if it is unknown.

    :param path: the path that should have been signed; see `audioproxy.grammar.signature.sign`.
    :returns: the end of a sentence, with what would be right.
    """
    digest, spelling = _normalize(signature)
    if digest is None or len(path) > _LONGEST:
        return None
    if verify(key, salt, path, digest):
        return spelling
    for made, why in _mistaken_signatures(key, salt, path):
        if hmac.compare_digest(made, digest):
            return why
    return None


def _normalize(signature: bytes) -> tuple[bytes | None, str]:
    """Return a signature in the spelling of `sign`, and how the given spelling differs."""
    if _HEXADECIMAL.fullmatch(signature):
        raw = base64.urlsafe_b64encode(binascii.unhexlify(signature)).rstrip(b"=")
        return raw, f"its digest is right, and written in hexadecimal; {_EXPECTED_FORM}"
    if not _ENCODED.fullmatch(signature):
        return None, ""
    raw = signature.rstrip(b"=").translate(bytes.maketrans(b"+/", b"-_"))
    if raw == signature.rstrip(b"="):
        return raw, f"its digest is right, and has too much padding; {_EXPECTED_FORM}"
    return raw, f"its digest is right, and in the alphabet with + and /; {_EXPECTED_FORM}"


def _mistaken_signatures(key: bytes, salt: bytes, path: bytes) -> Iterator[tuple[bytes, str]]:
    bytes_wanted = "the bytes that the hexadecimal digits encode are expected"
    for to_hex in (bytes.hex, lambda raw: raw.hex().upper()):
        key_text, salt_text = to_hex(key).encode("ascii"), to_hex(salt).encode("ascii")
        for made, what in (
            (sign(key_text, salt_text, path), "the text of AP_KEY and AP_SALT"),
            (sign(key_text, salt, path), "the text of AP_KEY"),
            (sign(key, salt_text, path), "the text of AP_SALT"),
        ):
            yield made, f"it was made with {what}; {bytes_wanted}"
    yield sign(key, b"", path), "it was made without AP_SALT; the salt precedes the path"
    yield sign(salt, key, path), "AP_KEY and AP_SALT were swapped; the salt precedes the path"
    yield (
        sign(key, salt, path[1:]),
        "the path was signed without its leading slash, which is part of it",
    )
    try:
        decoded = percent_decode(path)
    except ValueError:
        return
    yield (
        sign(key, salt, decoded),
        "the path was decoded before it was signed; sign it as it is sent",
    )
