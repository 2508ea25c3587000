"""Diagnosis of wrong signatures: common mistakes of signers, and changes to a URL on its way.

Such a signature comes from a holder of the key, or is an altered copy of a correct one. So the
diagnosis reveals nothing new.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from audioproxy.grammar.segments import MEDIA
from audioproxy.grammar.signature import sign, verify
from audioproxy.grammar.values import percent_decode

_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{64}")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{43}=*")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_ESCAPED_PADDING = re.compile(rb"(?:%3[Dd])+\Z")
_EXPECTED_FORM = "base64url without padding is expected"
# Parts of a path that caches, CDNs and their rewriting rules change.
_MERGED_SLASHES = re.compile(rb"/plain/(?:local|s3|https):/(?!/)", re.IGNORECASE)
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
# Maximum bytes of a path that is diagnosed. Each mistake that is tried costs a digest of the whole
# path, and longer paths are unlikely while a signer is debugged.
_LONGEST = 2048


def diagnose_for_pairs(
    pairs: Sequence[tuple[bytes, bytes]], path: bytes, signature: bytes
) -> str | None:
    """Return the mistake that explains a wrong signature, or None if it is unknown.

    :param pairs: each a key and its salt: the current pair, and then the previous ones.
    :returns: as `diagnose_signature`.
    """
    for number, (key, salt) in enumerate(pairs):
        if why := diagnose_signature(key, salt, path, signature):
            return f"{why} (with pair {number} of AP_PREVIOUS_KEY)" if number else why
    for (key, _), (_, salt) in permutations(pairs, 2):
        if len(path) <= _LONGEST and verify(key, salt, path, signature):
            return "it was made with the key of one pair and the salt of another"
    return None


def diagnose_signature(key: bytes, salt: bytes, path: bytes, signature: bytes) -> str | None:
    """Return the mistake that explains a wrong signature, or None if it is unknown.

    :param path: the path that should have been signed; see `audioproxy.grammar.signature.sign`.
    :returns: the end of a sentence, with what would be right.
    """
    if len(path) > _LONGEST:
        return None
    if signature == MEDIA:
        named, _, rest = path[1:].rpartition(b"/")[0].partition(b"/")
        if verify(key, salt, b"/" + rest, named):
            return "the balancer in front has to remove /media and the name at the end"
    digest, spelling = _normalize(signature)
    if digest is None:
        return None
    if verify(key, salt, path, digest):
        return spelling
    for original, change in _paths_before(path):
        if verify(key, salt, original, digest):
            return f"{change} on the way to this service; it was right before"
    for made, why in _mistaken_signatures(key, salt, path):
        if hmac.compare_digest(made, digest):
            return why
    return None


def _normalize(signature: bytes) -> tuple[bytes | None, str]:
    """Return a signature in the spelling of `sign`, and how the given spelling differs."""
    if _HEXADECIMAL.fullmatch(signature):
        raw = base64.urlsafe_b64encode(binascii.unhexlify(signature)).rstrip(b"=")
        return raw, f"its digest is right, and written in hexadecimal; {_EXPECTED_FORM}"
    if (padding := _ESCAPED_PADDING.search(signature)) is not None:
        raw = signature[: padding.start()].translate(_URL_SAFE)
        return raw, f"its digest is right, and its padding is percent-encoded; {_EXPECTED_FORM}"
    if not _ENCODED.fullmatch(signature):
        return None, ""
    raw = signature.rstrip(b"=").translate(_URL_SAFE)
    if raw == signature.rstrip(b"="):
        return raw, f"its digest is right, and has too much padding; {_EXPECTED_FORM}"
    return raw, f"its digest is right, and in the alphabet with + and /; {_EXPECTED_FORM}"


def _paths_before(path: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield paths that may have become this one, and the change."""
    if path.endswith(b"/"):
        yield path[:-1], "a slash was added to the path"
    if (merged := _MERGED_SLASHES.search(path)) is not None:
        end = merged.end()
        yield path[:end] + b"/" + path[end:], "two slashes of the path were merged"
    for spelled in (
        _ESCAPE.sub(lambda escape: escape[0].upper(), path),
        _ESCAPE.sub(lambda escape: escape[0].lower(), path),
    ):
        if spelled != path:
            yield spelled, "the letters of %XX in the path were changed"


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
