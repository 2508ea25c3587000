"""What is recorded with a stored variant, besides its bytes and response headers (D58).

A store keeps the record as short texts by name: in the trailer of a file, and as metadata of an
object. Its time is the Last-Modified of the variant. The rest serves to find the variants of a
source, and to verify bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING, Self

from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.request import VariantRequest
from audioproxy.grammar.sources import Source

if TYPE_CHECKING:
    # A node without remote sources and buckets loads no HTTP client.
    from audioproxy.http_client.client import Response

# Metadata of an object has at most 2 KB, which is the number of bytes of all names and values (S3,
# "Working with object metadata"). A part is left for metadata that is not part of the record.
_MAX_BYTES = 1900
# OpenStack Swift has no longer values (max_meta_value_length).
_MAX_VALUE = 256
# Options whose text is longer are recorded without `cb`, so that there is always room for them.
_MAX_OPTIONS_BYTES = 1000

#: The names of an object's metadata begin with the first of these, and those of its record with the
#: second.
OBJECT_METADATA_PREFIX = "x-amz-meta-"
METADATA_PREFIX = OBJECT_METADATA_PREFIX + "audioproxy-"

# Header values can hold these bytes unchanged. Spaces are excluded: signatures of S3 requests merge
# several into one.
_VISIBLE = re.compile(rb"[!-~]*")
_BASE64 = "base64:"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """The record of one variant.

    ``source``, ``validator`` and ``build`` are empty where they are unknown, or too long. Digests
    are in lower-case hex.

    :ivar options: the canonical options, as far as they are recorded.
    :ivar source_sha256: of the canonical source.
    :ivar stored: Unix seconds.
    :ivar source: its address (`audioproxy.grammar.sources.Source.address`).
    :ivar validator: of the source when it was rendered.
    :ivar sha256: of the variant's bytes; empty until the store has read them.
    :ivar build: of the ffmpeg that made the variant (`audioproxy.process.programs`).
    :ivar cache_tag: the header with the tag of the source for caches in front, and the tag. An
        object has it as metadata; it is not one of the `texts`.
    """

    options: str
    source_sha256: str
    stored: int
    source: bytes | None = None
    validator: bytes = b""
    sha256: str = ""
    build: str = ""
    cache_tag: tuple[str, str] | None = None

    @classmethod
    def of(
        cls,
        request: VariantRequest,
        validator: bytes,
        now: float,
        header: CacheTagHeader | None = None,
        build: str = "",
    ) -> Self:
        """Return the record of a variant that is stored now; ``build`` is visible ASCII."""
        source = request.source
        options = request.canonical
        if len(options) > _MAX_OPTIONS_BYTES:
            options = "/".join(each for each in options.split("/") if not each.startswith("cb:"))
        return cls(
            options,
            digest_of(source),
            int(now),
            source.address,
            validator,
            build=build,
            cache_tag=None if header is None else header.line(source.canonical),
        )

    @classmethod
    def read(cls, texts: Mapping[str, str]) -> Self | None:
        """Return the record of what `texts` made, in pieces or not; None for any others.

        Texts with other names are skipped: later versions may record more.
        """
        try:
            record = cls(
                _join(texts, "options"),
                texts["source-sha256"],
                int(texts["stored"]),
                _decode(_join(texts, "source")) or None,
                _decode(_join(texts, "validator")),
                texts["sha256"],
                _join(texts, "build"),
            )
            digests = record.source_sha256, record.sha256
            is_record = record.options and all(map(_SHA256.fullmatch, digests))
            return record if is_record else None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            return None

    @classmethod
    def of_object(cls, response: Response) -> Self | None:
        return cls.read(response.headers_with_prefix(METADATA_PREFIX))

    def texts(self) -> dict[str, str]:
        texts = {
            "options": self.options,
            "source-sha256": self.source_sha256,
            "sha256": self.sha256,
            "stored": str(self.stored),
        }
        size = sum(_metadata_size(name, text) for name, text in texts.items())
        optional = (
            ("source", _encode(self.source or b"")),
            ("validator", _encode(self.validator)),
            ("build", self.build),
        )
        for name, text in optional:
            added = _metadata_size(name, text)
            if text and size + added <= _MAX_BYTES:
                texts[name] = text
                size += added
        return texts

    @property
    def least(self) -> Self:
        """The record as far as the service and the removal of a source need it."""
        options = _without_names(self.options)
        return replace(self, options=options, source=None, validator=b"", build="")

    def metadata(self) -> dict[str, str]:
        """Return the headers of an object: the record in numbered pieces, and the cache tag."""
        texts = self.texts()
        lines = {
            METADATA_PREFIX + name: piece
            for whole in texts
            for name, piece in _split(whole, texts[whole])
        }
        if self.cache_tag is not None:
            header, tag = self.cache_tag
            lines[OBJECT_METADATA_PREFIX + header.removeprefix(OBJECT_METADATA_PREFIX)] = tag
        return lines


def digest_of(source: Source) -> str:
    return hashlib.sha256(source.canonical).hexdigest()


def _encode(value: bytes) -> str:
    if _VISIBLE.fullmatch(value) and not value.startswith(_BASE64.encode("ascii")):
        return value.decode("ascii")
    return _BASE64 + base64.b64encode(value).decode("ascii")


def _decode(text: str) -> bytes:
    if not text.startswith(_BASE64):
        return text.encode("ascii")
    return base64.b64decode(text.removeprefix(_BASE64), validate=True)


def _without_names(options: str) -> str:
    return "/".join(each for each in options.split("/") if not each.startswith(("cb:", "dl:")))


def _split(name: str, text: str) -> list[tuple[str, str]]:
    if len(text) <= _MAX_VALUE:
        return [(name, text)]
    starts = range(0, len(text), _MAX_VALUE)
    pieces = [
        (f"{name}-{number}", text[start : start + _MAX_VALUE])
        for number, start in enumerate(starts, 1)
    ]
    # Nodes of before December 2026 read no pieces. They need options; the other texts may be
    # missing, and a part of one would be wrong.
    return [(name, _without_names(text)), *pieces] if name == "options" else pieces


def _join(texts: Mapping[str, str], name: str) -> str:
    """Return a text of a record, whether it was split or not; empty where there is none."""
    numbered = takewhile(texts.__contains__, (f"{name}-{number}" for number in count(1)))
    return "".join(texts[each] for each in numbered) or texts.get(name, "")


def _metadata_size(name: str, text: str) -> int:
    return sum(len(METADATA_PREFIX + each + part) for each, part in _split(name, text))
