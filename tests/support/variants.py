"""Variants as the stores keep them, without a render."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from audioproxy.grammar.request import VariantRequest
from audioproxy.urls import Variant, read_source
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.variants.stored_file import make_trailer

HEADERS = VariantHeaders("audio/mpeg", "public, max-age=31536000, immutable")


@dataclass(frozen=True, slots=True)
class StoredVariant:
    """A variant: its key, its bytes, and its record with their digest."""

    key: str
    data: bytes
    record: VariantRecord

    @classmethod
    def of(
        cls,
        source: str | bytes = "local://piece.wav",
        options: str = "f:mp3",
        validator: bytes = b"1-2",
        data: bytes = b"some audio",
        build: str = "",
    ) -> StoredVariant:
        """Return the variant of a source."""
        request = VariantRequest.of(Variant.read(options).options, read_source(source))
        record = VariantRecord.of(request, validator, 1_800_000_000, build=build)
        return cls(request.key, data, replace(record, sha256=hashlib.sha256(data).hexdigest()))

    @property
    def without_record(self) -> StoredVariant:
        """The variant as it would be stored without a record."""
        return replace(self, record=replace(self.record, sha256=""))

    def write(self, root: Path, *, used: int | None = None) -> Path:
        """Store the variant in a folder, and return the path of its file.

        :param used: Unix seconds at which it was stored and used; now by default.
        """
        path = root / self.key[:2] / self.key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self.data + make_trailer(len(self.data), HEADERS, self.record))
        if used is not None:
            os.utime(path, (used, used))
        return path

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the variant's object in a bucket."""
        return self.record.metadata()


def neighbors(key: str) -> list[str]:
    """Return paths that are no variant, but nearly look like the one of a key."""
    shard = key[:2]
    other = f"{int(shard, 16) ^ 1:02x}"
    return [
        "master.wav",
        f"{shard}/master.wav",
        f"{shard}/{key.upper()}",
        f"{shard}/{key[:-1]}",
        f"{shard}/{key}0",
        f"{shard}/{key}.wav",
        f"{shard}/.{key}",
        f"{other}/{key}",
        f"{shard.upper()}x/{key}",
        f".scratch/{key}",
        f"{shard}/deeper/{key}",
    ]
