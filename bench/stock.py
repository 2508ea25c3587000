"""Any number of stored variants in the service's own layout, copied from one render."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audioproxy.urls import Variant
from audioproxy.variants.files import variant_path
from bench.client import read
from bench.programs import Service

_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Stock:
    """Stored variants whose sources may be missing: a stored variant needs no source.

    :ivar names: names of the sources.
    :ivar paths: signed path of each variant.
    :ivar body: bytes of each variant.
    :ivar etag: ETag of the rendered variant, whose path is the first.
    """

    names: Sequence[str]
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
    stored = Path(placed(store, options, source))
    deadline = time.monotonic() + _PATIENCE
    while not stored.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} was not stored")
        time.sleep(0.01)
    headers, again = read(ours.base, path)
    if again != body:
        raise RuntimeError("what was stored is not what was rendered")
    data = stored.read_bytes()
    for name in names:
        put(placed(store, options, name), data)
    paths = [path, *(ours.path(options, name) for name in names)]
    return Stock([source, *names], paths, body, headers["etag"])


def placed(store: Path, options: str, source: str) -> str:
    """Return the file of a stored variant."""
    return variant_path(str(store), Variant.read(options).key(f"local://{source}"))


def put(path: str, data: bytes) -> None:
    """Write a file and create its folder."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def names(count: int) -> list[str]:
    """Return file names as in a music collection."""
    return [f"albums/artist-{n % 97}/track-{n}.wav" for n in range(count)]
