"""The scratch files of a render's output, and the write-back to the variant store."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.errors import RenderFailed
from audioproxy.grammar.request import VariantRequest
from audioproxy.log_context import Logger
from audioproxy.render.output import RenderOutput
from audioproxy.scratch_files import ScratchFile, ScratchSpace
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import VariantStore

_log = Logger()


@dataclass(frozen=True, slots=True)
class RenderStorage:
    """The places for the output of renders.

    :ivar store: None where nothing is stored.
    :ivar space: takes the output if there is no store, or if the store accepts no new file.
    """

    store: VariantStore | None
    space: ScratchSpace


class WriteBack:
    """The scratch files of one render, and the write-back of the last of them.

    :ivar possible: the store can take over the scratch file.
    """

    def __init__(self, storage: RenderStorage) -> None:
        self.possible = storage.store is not None
        self._store = storage.store
        self._space = storage.space

    async def create_in_store(self, seconds: float) -> ScratchFile | None:
        """Return a scratch file that the store can take over; None where the store creates none."""
        if self._store is None:
            return None
        try:
            return await self._store.create(seconds)
        except OSError as error:
            _log.warn("the store accepts no file, so a render is not stored: {error}", error=error)
            self.possible = False
            return None

    async def create_outside_store(self, seconds: float) -> ScratchFile:
        """Return a scratch file for an output that is not stored.

        :raises RenderFailed: where none can be created.
        """
        try:
            return await self._space.create(seconds)
        except OSError as error:
            _log.warn("no scratch file can be created: {error}", error=error)
            raise RenderFailed("No file could be created for the output.") from error

    async def commit(self, request: VariantRequest, output: RenderOutput) -> bool:
        """Store a complete output, and return whether the store has it now."""
        if self._store is None or not self.possible:
            return False
        headers = VariantHeaders.of(request.options)
        try:
            await self._store.commit(request.key, output.scratch, output.size, headers)
        except Exception as error:
            _log.warn("write-back of {key} failed: {error}", key=request.key, error=error)
            return False
        _log.debug("the render of {key} is stored", key=request.key)
        return True
