"""Bugs in sources, variants and scratch files, as `tests.soak.bugs` describes them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from twisted.python.failure import Failure

from audioproxy.errors import UpstreamUnavailable
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.sources.blocks import BLOCK, BlockFile
from audioproxy.sources.far_source import FarSource
from audioproxy.sources.https_origin import OriginClient
from audioproxy.sources.local import OpenLocalSource
from audioproxy.sources.origin_state import OriginState
from audioproxy.variants import s3, stored_file
from audioproxy.variants.files import FileVariantStore, variant_path
from audioproxy.variants.s3 import S3VariantStore, StoredObject
from audioproxy.variants.scratch_folder import NamedFile, ScratchFolder
from audioproxy.variants.usage import StoreUsage
from tests.soak.injection import Bugs

BUGS = Bugs()
constant, replace_, wrap = BUGS.constant, BUGS.replace, BUGS.wrap


# variants in a folder

constant(
    "A damaged record is read.",
    stored_file,
    "zlib",
    SimpleNamespace(crc32=lambda data: 0),
    "responses",
)


@wrap(FileVariantStore, "lookup", "responses")
async def accept_truncated_variant(original: Callable[..., Any], store: Any, key: str) -> Any:
    """A truncated variant is read."""
    found = await original(store, key)
    with suppress(OSError, ValueError):
        if found is None:
            root = os.environ["AP_VARIANT_STORE"].removeprefix("file://")
            data = Path(variant_path(root, key)).read_bytes()
            record = data.rindex(b'{"size"')
            size = json.JSONDecoder().raw_decode(data[record:].decode("latin-1"))[0]["size"]
            with tempfile.NamedTemporaryFile() as whole:
                whole.write(bytes(size - record) + data)
                whole.flush()
                found = stored_file.open_variant(whole.name)
    return found


@wrap(fcntl, "flock", "end")
def keep_abandoned_scratch(original: Callable[..., None], descriptor: int, operation: int) -> None:
    """Scratch files of a dead node are never removed."""
    if operation & fcntl.LOCK_NB:
        raise BlockingIOError("another process holds the lock")
    original(descriptor, operation)


# Folders that were opened once.
opened: list[ScratchFolder] = []


@wrap(ScratchFolder, "open", "other errors")
def give_up_store(original: Callable[..., None], self: ScratchFolder) -> None:
    """A store that was away is not used again."""
    if self in opened:
        raise FileNotFoundError("the store was away")
    opened.append(self)
    original(self)


@wrap(FileVariantStore, "create", "tests.variants.test_files")
async def fill_disk(original: Callable[..., Any], *words: Any) -> Any:
    """A full disk is not noticed."""
    try:
        return await original(*words)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return NamedFile(os.path.join(tempfile.mkdtemp(), "output"))


@wrap(StoreUsage, "add", "operator")
def store_without_counting(
    original: Callable[..., None], self: StoreUsage, scratch: str, path: str
) -> None:
    """A stored variant is not counted."""
    os.rename(scratch, path)


# variants in a bucket


@wrap(S3VariantStore, "lookup", "responses")
async def take_outage_for_miss(original: Callable[..., Any], self: S3VariantStore, key: str) -> Any:
    """An outage of the bucket looks like a missing variant."""
    with suppress(UpstreamUnavailable):
        return await original(self, key)


@wrap(StoredObject, "open_range", "responses")
def read_range_from_start(original: Callable[..., Any], self: Any, start: int, stop: int) -> Any:
    """A range of a stored object begins at its first byte."""
    return original(self, 0, stop - start)


@wrap(S3VariantStore, "commit", "bucket")
def upload_with_wrong_key(original: Callable[..., Any], self: Any, key: str, *words: Any) -> Any:
    """A variant is uploaded under another key."""
    return original(self, key[::-1], *words)


constant(
    "A failed upload is not repeated.",
    s3,
    "Unavailable",
    ZeroDivisionError,
    "tests.variants.test_s3",
)


# scratch files


@wrap(AnonymousFile, "__init__", "tests.variants.test_scratch_folder")
def leave_temporary_folder(
    original: Callable[..., None], self: AnonymousFile, *words: Any, **more: Any
) -> None:
    """A scratch file that TMPDIR refuses is created in another directory."""
    try:
        original(self, *words, **more)
    except OSError:
        original(self, folder=tempfile.gettempdir())


# local sources


@wrap(OpenLocalSource, "__init__", "tests.sources.test_local")
def probe_each_spelling(original: Callable[..., None], self: OpenLocalSource, *words: Any) -> None:
    """Spellings of one local file do not share its probe."""
    original(self, *words)
    self.identity = b"%d" % id(self)


# remote sources


@replace_(OriginState, "matches", "tests.sources.test_https")
def mix_versions(self: OriginState, later: OriginState) -> bool:
    """The ranges of a source may be of different versions."""
    return True


@wrap(OriginClient, "look_up", "tests.sources.test_https")
def follow_redirects_anywhere(original: Callable[..., Any], self: OriginClient, *words: Any) -> Any:
    """A redirect may lead to a host that is not on the allowlist."""
    return original(replace(self, allowlist=("*",)), *words)


@wrap(BlockFile, "mark", "tests.sources.test_far_file")
def mark_early(original: Callable[..., None], self: BlockFile, start: int, stop: int) -> None:
    """A block can be read before all of it has arrived."""
    original(self, start, min(self.size, stop + BLOCK))


@replace_(FarSource, "_note_failure", "tests.sources.test_far_source")
def forget_failure(self: FarSource, failure: Failure) -> Failure:
    """What ffmpeg makes of the part of a source that it could read counts as whole."""
    return failure
