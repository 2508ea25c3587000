"""From a signed path to a request: signature, ``exp``, options, source, cache key, in this order.

Everything that reads a URL calls these functions: the server, its fast path (through the cache of
verified paths), and the commands ``verify`` and ``explain``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from audioproxy.errors import Expired, InvalidSignature, NotFound
from audioproxy.grammar.cache_key import cache_key, etag
from audioproxy.grammar.option_parser import parse_expiry, parse_options, refuse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.segments import SignedPath, split_target
from audioproxy.grammar.signature import verify
from audioproxy.grammar.signature_diagnosis import diagnose_for_pairs
from audioproxy.grammar.sources import Source, read_source

#: The word that replaces a signature where AP_ALLOW_INSECURE is set.
INSECURE = b"insecure"


def expired(exp: int | None, now: float) -> bool:
    """Return whether a URL has expired; the second that ``exp`` names is still served (D14)."""
    return exp is not None and math.floor(now) > exp


def clamp(seconds: int, exp: int | None, now: float) -> int:
    """Return a lifetime in seconds that ends no later than ``exp``, and is never negative."""
    return seconds if exp is None else max(0, min(seconds, exp - math.floor(now)))


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The pairs of key and salt that verify signatures, the current one first (D55)."""

    pairs: tuple[tuple[bytes, bytes], ...]
    allow_insecure: bool = False

    def verify(self, path: SignedPath) -> int | None:
        """Return the index of the pair that signed a path, or None for the word ``insecure``.

        :raises InvalidSignature: with a diagnosis if the holder of the key made a common mistake.
        """
        if path.signature == INSECURE:
            if self.allow_insecure:
                return None
            raise InvalidSignature(
                "The word insecure is not accepted as a signature; sign the path, or set"
                " AP_ALLOW_INSECURE for experiments."
            )
        if not self.pairs:
            raise InvalidSignature("No signature can match, since AP_KEY is not set.")
        # All pairs are tried, so that the time does not depend on which of them matches.
        matches = [verify(key, salt, path.signed, path.signature) for key, salt in self.pairs]
        if True in matches:
            return matches.index(True)
        diagnosis = diagnose_for_pairs(self.pairs, path.signed, path.signature)
        raise InvalidSignature(
            diagnosis and f"The signature does not match: {diagnosis}.", diagnosis
        )


@dataclass(frozen=True, slots=True)
class VariantRequest:
    """A request for a variant.

    :ivar exp: the last Unix second in which the request is served, or None.
    :ivar tag: the entity tag, which is the key as a quoted string.
    """

    options: VariantOptions
    source: Source
    exp: int | None
    canonical: str
    key: str
    tag: bytes

    @classmethod
    def of(cls, options: VariantOptions, source: Source, exp: int | None = None) -> VariantRequest:
        key = cache_key(options, source.canonical)
        return cls(options, source, exp, options.canonical(), key, etag(key))

    def is_expired(self, now: float) -> bool:
        return expired(self.exp, now)


@dataclass(frozen=True, slots=True)
class InfoRequest:
    source: Source


def parse_request(signed: bytes, now: float | None) -> VariantRequest | InfoRequest:
    """Return the request of a path whose signature was verified.

    :raises Expired: where ``exp`` has passed, even if the path has other errors.
    :raises InvalidOptions, NotFound: for wrong options, and for a missing or malformed source.
    """
    target = split_target(signed)
    if target is None:
        raise NotFound("plain/ or enc/ and a source are expected")
    if target.info:
        refuse_options(target.options)
        return InfoRequest(read_source(target.form, target.source))
    if now is not None and expired(parse_expiry(target.options), now):
        raise Expired
    options, exp = parse_options(target.options)
    return VariantRequest.of(options, read_source(target.form, target.source), exp)
