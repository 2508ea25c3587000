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

from audioproxy.errors import UpstreamUnavailable
from audioproxy.files.scratch_files import AnonymousFile
from audioproxy.sources.https import OpenHttpsSource
from audioproxy.sources.https_origin import OriginClient
from audioproxy.sources.https_states import RangedSource
from audioproxy.sources.local import OpenLocalSource
from audioproxy.variants import s3, stored_file
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.s3 import S3VariantStore, StoredObject
from audioproxy.variants.scratch_folder import NamedFile, ScratchFolder
from tests.soak.injection import Bugs, Patch, wrap

BUGS = Bugs()
detected_by = BUGS.detected_by


# variants in a folder


@detected_by("responses")
def drop_checksum() -> Patch:
    """A damaged record is read."""
    return stored_file, "zlib", SimpleNamespace(crc32=lambda data: 0)


@detected_by("responses")
def accept_truncated_variant() -> Patch:
    """A truncated variant is read."""

    def read(original: Callable[[str], Any], path: str) -> Any:
        found = original(path)
        with suppress(OSError, ValueError):
            if found is None:
                data = Path(path).read_bytes()
                record = data.rindex(b'{"size"')
                size = json.JSONDecoder().raw_decode(data[record:].decode("latin-1"))[0]["size"]
                with tempfile.NamedTemporaryFile() as whole:
                    whole.write(bytes(size - record) + data)
                    whole.flush()
                    found = original(whole.name)
        return found

    return wrap(stored_file, "open_variant", read)


@detected_by("end")
def keep_abandoned_scratch() -> Patch:
    """Scratch files of a dead node are never removed."""

    def lock(original: Callable[..., None], descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            raise BlockingIOError("another process holds the lock")
        original(descriptor, operation)

    return wrap(fcntl, "flock", lock)


@detected_by("other errors")
def give_up_store() -> Patch:
    """A store that was away is not used again."""
    opened: list[ScratchFolder] = []

    def open_once(original: Callable[..., None], self: ScratchFolder) -> None:
        if self in opened:
            raise FileNotFoundError("the store was away")
        opened.append(self)
        original(self)

    return wrap(ScratchFolder, "open", open_once)


@detected_by("tests.variants.test_files")
def fill_disk() -> Patch:
    """A full disk is not noticed."""

    async def create(original: Callable[..., Any], *words: Any) -> Any:
        try:
            return await original(*words)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return NamedFile(os.path.join(tempfile.mkdtemp(), "output"))

    return wrap(FileVariantStore, "create", create)


# variants in a bucket


@detected_by("responses")
def take_outage_for_miss() -> Patch:
    """An outage of the bucket looks like a missing variant."""

    async def lookup(original: Callable[..., Any], self: S3VariantStore, key: str) -> Any:
        with suppress(UpstreamUnavailable):
            return await original(self, key)

    return wrap(S3VariantStore, "lookup", lookup)


@detected_by("responses")
def read_range_from_start() -> Patch:
    """A range of a stored object begins at its first byte."""

    def open_range(original: Callable[..., Any], self: Any, start: int, stop: int) -> Any:
        return original(self, 0, stop - start)

    return wrap(StoredObject, "open_range", open_range)


@detected_by("bucket")
def upload_with_wrong_key() -> Patch:
    """A variant is uploaded under another key."""

    def commit(original: Callable[..., Any], self: Any, key: str, *words: Any) -> Any:
        return original(self, key[::-1], *words)

    return wrap(S3VariantStore, "commit", commit)


@detected_by("tests.variants.test_s3")
def upload_once() -> Patch:
    """A failed upload is not repeated."""
    return s3, "Unavailable", ZeroDivisionError


# scratch files


@detected_by("tests.variants.test_scratch_folder")
def leave_temporary_folder() -> Patch:
    """A scratch file that TMPDIR refuses is created in another directory."""

    def create(
        original: Callable[..., None], self: AnonymousFile, *words: Any, **more: Any
    ) -> None:
        try:
            original(self, *words, **more)
        except OSError:
            original(self, folder=tempfile.gettempdir())

    return wrap(AnonymousFile, "__init__", create)


# local sources


@detected_by("tests.sources.test_local")
def probe_each_spelling() -> Patch:
    """Spellings of one local file do not share its probe."""

    def create(original: Callable[..., None], self: OpenLocalSource, *words: Any) -> None:
        original(self, *words)
        self.identity = b"%d" % id(self)

    return wrap(OpenLocalSource, "__init__", create)


# https sources


@detected_by("tests.sources.test_https")
def ignore_changed_origin() -> Patch:
    """A source that changes at its origin is not noticed."""

    async def unchanged(self: OpenHttpsSource) -> bool:
        return True

    return OpenHttpsSource, "unchanged", unchanged


@detected_by("tests.sources.test_https")
def follow_redirects_anywhere() -> Patch:
    """A redirect may lead to a host that is not on the allowlist."""

    def look_up(original: Callable[..., Any], self: OriginClient, *words: Any) -> Any:
        return original(replace(self, allowlist=("*",)), *words)

    return wrap(OriginClient, "look_up", look_up)


@detected_by("tests.sources.test_https")
def trust_any_range() -> Patch:
    """A source is read in place although its origin limits its ranges."""

    async def passes_test(self: RangedSource) -> bool:
        return True

    return RangedSource, "passes_test", passes_test
