"""Files in the store: each is either a complete variant with its headers, or ignored."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.response_headers import VariantHeaders
from tests.fuzz.draws import Draws
from tests.support.processes import open_descriptors, opened_since

KEY = "ab" + "0" * 62
BODY = bytes(range(256)) * 2
HEADERS = VariantHeaders("audio/mpeg", "public, max-age=31536000", "attachment")
_MAGIC = b"APVARNT1"
# Number of bytes to read; larger than any file of this target.
_MORE = 1 << 20


def sealed(body: bytes, record: bytes) -> bytes:
    """Return a stored file: a body, a record, and the record's right checksum (architecture.md)."""
    return body + record + struct.pack(">II", len(record), zlib.crc32(record)) + _MAGIC


RECORD = json.dumps({"size": len(BODY), **HEADERS._asdict()}).encode("ascii")
WHOLE = sealed(BODY, RECORD)

Store = Callable[[str], FileVariantStore]


def open_store(root: str) -> FileVariantStore:
    """Return a store that works without threads."""
    calls = BlockingCalls(Clock(), execute)
    return FileVariantStore(root, calls, calls)


def check_stored(data: bytes, store: Store = open_store) -> None:
    """Assert that the store finds a valid variant, and returns only what a file contains.

    :param data: the kind of the file, then its content. The kinds are arbitrary bytes, a valid file
        with one slice replaced, and a valid body with an arbitrary record and its right checksum.
    """
    draws = Draws(data)
    kind = draws.one_of(("any", "mutated", "sealed"))
    if kind == "any":
        content = draws.rest
    elif kind == "mutated":
        content = _spliced(draws)
    else:
        content = sealed(BODY, draws.rest)
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, KEY[:2], KEY)
        path.parent.mkdir()
        path.write_bytes(content)
        before = open_descriptors()
        opened = store(root)
        found = _lookup(opened)
        assert _lookup(opened) == found, "a second lookup, which needs no thread, differs"
        if found is None:
            assert content != WHOLE, "a valid variant is not found"
        else:
            size, body = found
            assert body == content[:size], "the body differs from the file"
            if kind != "sealed":
                # The body has no checksum: only its length can be verified.
                trailer = content[size:]
                assert (size, trailer) == (len(BODY), WHOLE[size:]), content
        assert not opened_since(before), "a descriptor is left open"


def _spliced(draws: Draws) -> bytes:
    # One offset and one length, so that a small input can change any byte of the file.
    at = (draws.byte() * 256 + draws.byte()) % (len(WHOLE) + 1)
    until = at + draws.byte()
    return WHOLE[:at] + draws.rest + WHOLE[until:]


def _lookup(store: FileVariantStore) -> tuple[int, bytes] | None:
    async def look() -> tuple[int, bytes] | None:
        found = await store.lookup(KEY)
        if found is None:
            return None
        with closing(found):
            assert found.read(found.size, 1) == b"", "the trailer can be read"
            return found.size, found.read(0, _MORE)

    results: list[Any] = []
    Deferred.fromCoroutine(look()).addBoth(results.append)
    assert not isinstance(results[0], Failure), results
    return results[0]
