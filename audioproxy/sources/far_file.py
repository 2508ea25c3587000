"""One version of a remote source: a sparse file that fills as it is read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedCalls, SharedResult
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled, run_detached
from audioproxy.errors import Refusal, RenderFailed, UpstreamUnavailable, reason_of
from audioproxy.media.diagnostics import one_line
from audioproxy.observe.log_context import Logger
from audioproxy.sources.blocks import BLOCK, BlockFile, NoHoles
from audioproxy.sources.fetch import Fetch, Part, Version, abandon

# Blocks that are requested at a place to which a reader has jumped. One that reads on from there
# gets a request for all that follows.
_JUMP = 4
# Bytes ahead of the end from which on a jump is for an index or for tags, and all of it is needed.
_INDEX = 2 * 1024 * 1024
#: Bytes that are fetched ahead of a reader: at first, and at most. They double while it reads on.
_LEAST_AHEAD, _MOST_AHEAD = 512 * 1024, 8 * 1024 * 1024
# A fetch that is to bring no more than this is not given up: its connection is used again.
_SHORT = 512 * 1024
#: Bytes of a file in use that are not given back: those that are fetched ahead.
LEAST_KEPT = _MOST_AHEAD + _INDEX

_log = Logger()


class Reader:
    """The place of one reader of a far file, for reading ahead.

    :ivar stop: where it will stop, by estimate; None for the end.
    """

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.fetch: Fetch | None = None
        self._ahead = _LEAST_AHEAD

    def follow(self, fetch: Fetch, block: int) -> None:
        self._ahead = min(2 * self._ahead, _MOST_AHEAD) if fetch is self.fetch else _LEAST_AHEAD
        self.fetch = fetch
        fetch.extend((block + 1) * BLOCK + self._ahead)


@dataclass(eq=False, repr=False)
class FarFile:
    """The blocks of one version of a source, and the fetches that bring them.

    :ivar blocks: as large as the source; as long as its size is not known, as it may be.
    :ivar make_room: called after each write, and with True where the disk is full.
    :ivar size: bytes; None as long as they are not known.
    :ivar is_whole: the origin serves no ranges, so one response brings all of it, in order.
    :ivar is_kept: no block of it may be given back.
    :ivar free: bytes that were free on the disk after the last write.
    :ivar failure: why no more of this version can be had; None while that is possible.
    """

    version: Version
    blocks: BlockFile
    size: int | None
    clock: IReactorTime
    run_in_thread: ThreadRunner
    make_room: Callable[[FarFile, bool], Coroutine[Any, Any, None]]
    can_punch: bool = True
    free: int = 0
    failure: Refusal | None = None

    def __post_init__(self) -> None:
        self.is_whole = self.is_kept = self.version.is_whole
        # Writes and punches of one file do not overlap.
        self._lock = DeferredLock()
        self._waiting: dict[int, SharedResult[None]] = {}
        self._fetches: dict[Fetch, Deferred[None]] = {}
        self._readers: dict[Fetch, set[Reader]] = {}
        self._copies: SharedCalls[None, None] = SharedCalls()
        # Fired when the size of a source is known that did not state it.
        self._sized: SharedResult[None] = SharedResult()
        self._is_closed = False

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there, and stays."""
        return self.is_kept and self.size is not None and self.blocks.is_complete

    @property
    def is_partial(self) -> bool:
        """Whether it lacks bytes that nobody can ask for alone."""
        return self.is_whole and not self.is_complete

    def begin(self, part: Part | None, stop: int | None) -> None:
        """Fetch the start, or all of a source without ranges; None is an unknown end."""
        self._start(0, stop, None, part)

    def prefetch(self, offset: int, coming: Deferred[Part] | None = None) -> None:
        """Fetch all from a place on, if it is not there; what is coming begins ahead of it."""
        assert self.size is not None
        block = offset // BLOCK
        if block not in self.blocks and self._find(block) is None:
            self._start(block * BLOCK, self.size, None, coming)
        else:
            abandon(coming, Part.discard)

    def want(self, block: int, reader: Reader) -> Deferred[None]:
        """Return a Deferred that fires when a block is there, or fails with a `Refusal`.

        The block may be gone again when it is read.
        """
        if self._is_closed or block * BLOCK >= self.blocks.size:
            return fail(RenderFailed("The source has no such place, or is closed."))
        if block in self.blocks:
            return succeed(None)
        if self.failure is not None:
            return fail(self.failure)
        waiting = self._waiting.setdefault(block, SharedResult()).wait()
        fetch = self._find(block) or self._begin(block, reader)
        if fetch is not reader.fetch:
            self.leave(reader)
        if fetch in self._readers:
            self._readers[fetch].add(reader)
            fetch.is_needed = True
            reader.follow(fetch, block)
        return waiting

    def leave(self, reader: Reader) -> None:
        """End the reading of a reader, and the fetch that nobody else needs."""
        fetch, reader.fetch = reader.fetch, None
        if fetch is None or fetch not in self._readers:
            return
        self._readers[fetch].discard(reader)
        if self._readers[fetch] or self.is_whole:
            return
        assert fetch.stop is not None
        if fetch.stop - fetch.position <= _SHORT:
            fetch.extend(fetch.stop)
        else:
            # Nobody waits for what it brings while it ends.
            running = self._fetches.pop(fetch, None)
            if running is not None:
                running.cancel()

    def rest(self) -> None:
        """Request nothing again as long as nobody reads the file. What is on its way may come."""
        for fetch in self._fetches:
            fetch.is_needed = False

    def complete(self) -> Deferred[None]:
        """Fetch all that is missing, keep it, and return a Deferred that fires at its end.

        The copy ends when nobody waits for it any more. What has come by then remains.
        """
        return self._copies.join(None, lambda: self.bring(self.blocks.size))

    async def bring(self, stop: int) -> None:
        """Fetch all that is missing ahead of a place, and keep the file."""
        self.is_kept = True
        reader, block = Reader(), 0
        try:
            # The size may become known.
            while block * BLOCK < min(stop, self.blocks.size):
                if block not in self.blocks:
                    await self.want(block, reader)
                block += 1
            if self.size is None and stop >= self.blocks.size:
                await self._sized.wait()
        except BaseException:
            self.is_kept = self.is_whole
            raise
        finally:
            self.leave(reader)

    def close(self) -> None:
        """End all fetches, and remove the file. No more of it is read by this process."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, {}
        for waiter in (*waiting.values(), self._sized):
            waiter.fire(Failure(RenderFailed("The source is closed.")))
        fetches, self._fetches = self._fetches, {}
        for running in fetches.values():
            running.cancel()
        # When the last write is over.
        self._lock.run(run_detached, self.run_in_thread, self.blocks.close)

    async def give_back(self, count: int) -> None:
        await self._lock.acquire()
        try:
            if self._is_closed or self.is_kept:
                return
            oldest = list(self.blocks.unmark_oldest(count))

            def punch() -> None:
                for block in oldest:
                    self.blocks.punch(block)

            await await_uncancelled(self.run_in_thread(punch))
        except NoHoles:
            self.can_punch = False
        except OSError as error:
            _log.warn("space in TMPDIR cannot be given back: {why}", why=reason_of(error))
            self.can_punch = False
        finally:
            self._lock.release()

    def _find(self, block: int) -> Fetch | None:
        place = block * BLOCK
        for fetch in self._fetches:
            is_near = self.is_whole or place - fetch.position <= _INDEX
            if (
                fetch.position < place + BLOCK
                and is_near
                and (fetch.stop is None or place < fetch.stop)
            ):
                return fetch
        return None

    def _begin(self, block: int, reader: Reader) -> Fetch:
        """Fetch from a block on.

        A reader that has read up to the block gets all that follows, up to what is there already,
        or up to where it will stop. A request that ends there leaves its connection to others.
        """
        assert self.size is not None
        place, next_block = block * BLOCK, self.blocks.next_present(block)
        reads_on = block == 0 or block - 1 in self.blocks
        if not reads_on and self.size - place > _INDEX:
            next_block = min(next_block, block + _JUMP)
        elif reader.stop is not None and place < reader.stop:
            next_block = min(next_block, -(-reader.stop // BLOCK))
        stop = min(self.size, next_block * BLOCK)
        later = [each.position // BLOCK * BLOCK for each in self._fetches]
        stop = min([stop, *(each for each in later if each > place)])
        return self._start(place, stop, place)

    def _start(
        self,
        start: int,
        stop: int | None,
        bound: int | None,
        part: Part | Deferred[Part] | None = None,
    ) -> Fetch:
        most = self.blocks.size if self.size is None else None
        fetch = Fetch(self.version, self.clock, start, stop, self._write, bound, most)
        self._readers[fetch] = set()
        running = Deferred.fromCoroutine(fetch.run(part))
        self._fetches[fetch] = running
        running.addCallbacks(lambda _: self._note_end(fetch)).addErrback(self._note_failure, fetch)
        running.addErrback(lambda failure: _log.failure("a fetch cannot be ended", failure))
        return fetch

    async def _write(self, fetch: Fetch, data: bytearray) -> None:
        try:
            await self._write_locked(fetch, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            await self.make_room(self, True)
            await self._write_locked(fetch, data)
        await self.make_room(self, False)

    async def _write_locked(self, fetch: Fetch, data: bytearray) -> None:
        await self._lock.acquire()
        try:
            if self._is_closed:
                raise CancelledError
            write = partial(self.blocks.write, fetch.position, data)
            self.free = await await_uncancelled(self.run_in_thread(write))
            start, fetch.position = fetch.position, fetch.position + len(data)
            is_end = fetch.position == self.blocks.size
            self._mark(start, fetch.position if is_end else fetch.position // BLOCK * BLOCK)
        finally:
            self._lock.release()

    def _mark(self, start: int, stop: int) -> None:
        self.blocks.mark(start, stop)
        self._wake(range(start // BLOCK, -(-stop // BLOCK)))

    def _wake(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if (waiter := self._waiting.pop(block, None)) is not None:
                waiter.fire(None)

    def _note_end(self, fetch: Fetch) -> None:
        if self.size is None and not self._is_closed:
            self.size = fetch.position
            self.blocks.truncate(self.size)
            self._mark(self.size // BLOCK * BLOCK, self.size)
            self._sized.fire(None)
            # These see the end of the file now.
            self._wake(list(self._waiting))
        self._discard(fetch)

    def _note_failure(self, failure: Failure, fetch: Fetch) -> None:
        if failure.check(CancelledError) and not self.is_whole:
            self._discard(fetch)
            return
        refusal = _as_refusal(failure)
        is_temporary = isinstance(refusal, UpstreamUnavailable) or not failure.check(Refusal)
        if self.is_whole or not is_temporary:
            self.failure = self.failure or refusal
        self._fetches.pop(fetch, None)
        if self.failure is not None:
            self._sized.fire(Failure(self.failure))
        for block in list(self._waiting):
            if self.failure is not None or self._find(block) is None:
                self._waiting.pop(block).fire(Failure(refusal))
        self._discard(fetch)

    def _discard(self, fetch: Fetch) -> None:
        """Forget a fetch. Who still waits for a block that it was to bring gets another one."""
        self._fetches.pop(fetch, None)
        for reader in self._readers.pop(fetch, ()):
            if reader.fetch is fetch:
                reader.fetch = None
        for block in list(self._waiting):
            if not self.is_whole:
                # A fetch that is found may wait for a reader ahead of the block.
                reader = Reader()
                reader.follow(self._find(block) or self._begin(block, reader), block)


def _as_refusal(failure: Failure) -> Refusal:
    """Return what clients get for the failure of a fetch, and log one that is not the origin's."""
    error = failure.value
    if isinstance(error, Refusal):
        return error
    if isinstance(error, OSError):
        why = one_line(reason_of(error).encode())
        _log.warn("a source cannot be written to TMPDIR: {why}", why=why)
        return RenderFailed("The source could not be written to the disk.")
    if not isinstance(error, CancelledError):
        _log.failure("a remote source cannot be read", failure)
    return RenderFailed("The source is no longer read.")
