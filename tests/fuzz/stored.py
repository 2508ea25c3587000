"""Files in the store: each is either a complete variant with its headers, or ignored."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.variants.files import FileVariantStore
from tests.support.processes import open_descriptors, opened_since
from tests.variants.test_files import store_in

KEY = "ab" + "0" * 62
BODY = bytes(range(256)) * 2
_MAGIC = b"APVARNT1"
# Number of bytes to read; larger than any file of this target.
_MORE = 1 << 20


def sealed(body: bytes, record: bytes) -> bytes:
    """Return a stored file: a body, a record, and the record's right checksum (architecture.md)."""
    return body + record + struct.pack(">II", len(record), zlib.crc32(record)) + _MAGIC


RECORD = json.dumps(
    {
        "size": len(BODY),
        "content_type": "audio/mpeg",
        "cache_control": "public, max-age=31536000",
        "content_disposition": "attachment",
    }
).encode("ascii")
WHOLE = sealed(BODY, RECORD)


def check_stored(content: bytes, is_sealed: bool) -> None:
    """Assert that the store finds a valid variant, and returns only what a file contains.

    :param content: of the file.
    :param is_sealed: whether it is the valid body, with any record and its right checksum.
    """
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, KEY[:2], KEY)
        path.parent.mkdir()
        path.write_bytes(content)
        before = open_descriptors()
        opened = store_in(Path(root))
        found = _lookup(opened)
        assert _lookup(opened) == found, "a second lookup, which needs no thread, differs"
        if found is None:
            assert content != WHOLE, "a valid variant is not found"
        else:
            size, body = found
            assert body == content[:size], "the body differs from the file"
            if not is_sealed:
                # The body has no checksum: only its length can be verified.
                trailer = content[size:]
                assert (size, trailer) == (len(BODY), WHOLE[size:]), content
        assert not opened_since(before), "a descriptor is left open"


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
