"""The parts of a raw request path. Nothing is decoded here."""

from __future__ import annotations

from dataclasses import dataclass

#: A segment that is exactly one of these starts the source (D1).
SOURCE_FORMS = (b"plain", b"enc")

#: The segment before the signature of a URL that ends in the name of a file, which the signature
#: does not cover. A balancer removes both before the service sees the path.
MEDIA = b"media"


@dataclass(frozen=True, slots=True)
class SignedPath:
    """A path, split after its first segment.

    ``signed`` is the exact byte sequence that the signature covers, with its leading ``/``.
    """

    signature: bytes
    signed: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a signed path: option segments and a source, or an info document's source."""

    info: bool
    options: tuple[bytes, ...]
    form: bytes
    source: bytes


def split_signature(path: bytes) -> SignedPath | None:
    """Split ``/{signature}/...``; return None for a path with fewer than two segments."""
    if not path.startswith(b"/"):
        return None
    signature, slash, rest = path[1:].partition(b"/")
    return SignedPath(signature, slash + rest) if slash else None


def is_info(signed: bytes) -> bool:
    return signed.startswith(b"/info/")


def split_target(signed: bytes) -> Target | None:
    """Split a signed path into options and source; return None where no source begins (D1)."""
    segments = signed[1:].split(b"/")
    start = next((i for i, segment in enumerate(segments) if segment in SOURCE_FORMS), None)
    if start is None:
        return None
    info = is_info(signed)
    options = tuple(segments[1 if info else 0 : start])
    return Target(info, options, segments[start], b"/".join(segments[start + 1 :]))
