"""The scratch files of a render's output, and the write-back to the variant store."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from cachetools import TTLCache
from twisted.internet.interfaces import IReactorTime

from audioproxy.errors import DiskFailed, DiskFull, RenderFailed
from audioproxy.files.scratch_files import ScratchFile, ScratchSpace
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.request import VariantRequest
from audioproxy.observe.log_context import Logger
from audioproxy.render.output import RenderOutput
from audioproxy.variants.interfaces import NoRoom, VariantStore
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders

_REMEMBERED_KEYS = 4096
_REMEMBERED_SECONDS = 600

_log = Logger()


@dataclass(frozen=True, slots=True)
class RenderStorage:
    """The places for the output of renders.

    :ivar space: takes the output if there is no store, or if the store accepts no new file.
    :ivar build: returns the build of ffmpeg that a render would use now; empty where it is unknown.
    :ivar oversized: keys of variants that have filled the disk of the store lately.
    """

    store: VariantStore | None
    space: ScratchSpace
    clock: IReactorTime
    cache_tag: CacheTagHeader | None = None
    timed: Callable[[], AbstractContextManager[None]] = nullcontext
    build: Callable[[], str] = str
    oversized: TTLCache[str, bool] = field(init=False)

    def __post_init__(self) -> None:
        memory = TTLCache[str, bool](_REMEMBERED_KEYS, _REMEMBERED_SECONDS, self.clock.seconds)
        object.__setattr__(self, "oversized", memory)


class WriteBack:
    """The scratch files of one render, and the write-back of the last of them.

    :ivar possible: the store can take over the scratch file.
    """

    def __init__(self, storage: RenderStorage, key: str) -> None:
        self.possible = storage.store is not None
        self._storage = storage
        self._build = ""
        self._key = key
        self._has_own_disk = False

    async def create_in_store(self, seconds: float) -> ScratchFile | None:
        storage = self._storage
        if storage.store is None or not self.possible:
            return None
        if self._key in storage.oversized:
            _log.warn("{key} is not stored: it filled the disk of the store", key=self._key)
            self.possible = False
            return None
        # The encoder starts next. By the time of the commit, ffmpeg may have been replaced.
        self._build = storage.build()
        try:
            scratch = await storage.store.create(seconds)
        except OSError as error:
            _log.warn("the store accepts no file, so a render is not stored: {error}", error=error)
            self.possible = False
            return None
        # The scratch files of a bucket are in TMPDIR.
        self._has_own_disk = scratch.path is not None
        return scratch

    def leave_store(self, refusal: DiskFailed) -> bool:
        """Keep this render out of the store, whose disk fails; return whether its file was there.

        A variant that has filled the disk, and no other, is kept out for a while.
        """
        was_there, self.possible = self.possible and self._has_own_disk, False
        if not was_there:
            _log.warn("the disk of TMPDIR fails: {why}", why=refusal.message)
            return False
        _log.warn(
            "{key} is not stored: the disk of the store fails: {why}",
            key=self._key,
            why=refusal.message,
        )
        if isinstance(refusal, DiskFull):
            self._storage.oversized[self._key] = True
        return True

    async def create_outside_store(self, seconds: float) -> ScratchFile:
        try:
            return await self._storage.space.create(seconds)
        except OSError as error:
            _log.warn("no scratch file can be created in TMPDIR: {error}", error=error)
            raise RenderFailed("No file could be created for the output.") from error

    async def commit(self, request: VariantRequest, output: RenderOutput, validator: bytes) -> bool:
        """Store a complete output, and return whether the store has it now.

        :raises NoRoom: where the bound of the store leaves no room for the output.
        """
        storage = self._storage
        if storage.store is None or not self.possible:
            return False
        key, headers, tag = request.key, VariantHeaders.of(request.options), storage.cache_tag
        record = VariantRecord.of(request, validator, time.time(), tag, self._build)
        try:
            with storage.timed():
                await storage.store.commit(key, output.scratch, output.size, headers, record)
        except NoRoom:
            raise
        except Exception as error:
            _log.warn("write-back of {key} failed: {error}", key=key, error=error)
            return False
        _log.debug("the render of {key} is stored", key=key)
        return True
