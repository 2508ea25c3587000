"""Any number of stored variants in the service's own layout, copied from one render."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audioproxy.urls import Variant
from audioproxy.variants.files import variant_path
from bench.client import read
from bench.programs import Service

#: Options of a quarter of a second of audio, which is 4 KB.
SMALL = "f:mp3/br:128/t:0:0.25"

_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Stock:
    """Stored variants whose sources may be missing: a stored variant needs no source.

    :ivar paths: signed path of each variant.
    :ivar body: bytes of each variant.
    :ivar etag: ETag of the rendered variant, whose path is the first.
    """

    paths: Sequence[str]
    body: bytes
    etag: str


def stock(ours: Service, store: Path, options: str, source: str, names: Sequence[str]) -> Stock:
    """Render a variant, and store copies of it as variants of other sources.

    :param source: a file below the local root.
    :param names: names of the other sources.
    """
    path = ours.path(options, source)
    _, body = read(ours.base, path)
    stored = placed(store, options, source)
    deadline = time.monotonic() + _PATIENCE
    while not stored.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} was not stored")
        time.sleep(0.01)
    headers, again = read(ours.base, path)
    if again != body:
        raise RuntimeError("what was stored is not what was rendered")
    for name in names:
        copy = placed(store, options, name)
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(stored.read_bytes())
    paths = [path, *(ours.path(options, name) for name in names)]
    return Stock(paths, body, headers["etag"])


def placed(store: Path, options: str, source: str) -> Path:
    """Return the file of a stored variant."""
    return Path(variant_path(str(store), Variant.read(options).key(f"local://{source}")))


def names(count: int) -> list[str]:
    """Return file names as in a music collection."""
    return [f"albums/artist-{n % 97}/track-{n}.wav" for n in range(count)]
