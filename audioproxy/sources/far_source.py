"""An open remote source, which children read as a file whose blocks arrive on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.errors import Refusal, RenderFailed, SourceTooLarge, UndecodableSource, reason_of
from audioproxy.files.whole_transfers import read_in_thread, read_whole
from audioproxy.media.inputs import (
    MAP_DESCRIPTOR,
    QUESTIONS_DESCRIPTOR,
    SOURCE_DESCRIPTOR,
    Input,
    local_input,
)
from audioproxy.observe.log_context import Logger
from audioproxy.sources.blocks import BLOCK
from audioproxy.sources.far_file import FarFile, Reader
from audioproxy.sources.far_files import FarFiles
from audioproxy.sources.fetch import Part, Version, abandon
from audioproxy.sources.interfaces import Look
from audioproxy.sources.questions import Questions

#: Bytes of the start that are requested with the state of a source, for a stat and for a render.
STAT_BYTES, START_BYTES = 64 * 1024, 256 * 1024
#: Bytes of the end that are requested ahead of the size, where that needs another connection. They
#: have all blocks of `_END_BYTES`.
LAST_BYTES = 2 * BLOCK
# Bytes of the end that are requested before anybody asks: indexes, tags, last pages. ffprobe reads
# more of MPEG-TS, for its duration.
_END_BYTES, _END_BYTES_OF_TS = 64 * 1024, 250_000
_TS_PACKET, _TS_SYNC = 188, 0x47
# How much more of a source than its share of the time may be read: its bit rate may vary.
_MARGIN = 1.1
# Share of a probe's time that it waits for the end of a source without ranges.
_SHARE = 0.5

T = TypeVar("T")

_log = Logger()


@dataclass(frozen=True, slots=True)
class Found:
    """A source as its origin states it.

    :ivar place: the source, in its canonical form.
    :ivar validator: empty where the origin states none.
    :ivar size: bytes; None where the origin does not state them.
    :ivar start: a response that has begun already.
    :ivar end: a response with the last bytes that has begun already, or fails.
    :ivar unreadable: why the bytes cannot be read as a source; empty where they can.
    """

    place: bytes
    validator: bytes
    size: int | None
    version: Version
    start: Part | None = None
    end: Deferred[Part] | None = None
    unreadable: str = ""

    def drop(self) -> None:
        if self.start is not None:
            self.start.discard()
        abandon(self.end, Part.discard)


@dataclass(frozen=True, slots=True)
class FarReading:
    """What all remote sources of a node share.

    :ivar reactor: provides readers of sockets.
    :ivar can_preload: returns whether children can read far files now. Otherwise sources are copied
        before they are read.
    :ivar copy_timeout: seconds for such a copy.
    """

    reactor: Any
    clock: IReactorTime
    files: FarFiles
    run_in_thread: ThreadRunner
    can_preload: Callable[[], Coroutine[Any, Any, bool]]
    max_size: int
    copy_timeout: float

    def open(self, found: Found, *, reads: bool) -> FarSource:
        """Return a source; one whose bytes will be read requests the first ones now."""
        if not reads or found.unreadable:
            found.drop()
            found = replace(found, start=None, end=None)
        source = FarSource(self, found)
        if reads and not found.unreadable:
            # Where no file can be created, the first read says so.
            with suppress(Refusal):
                source.begin()
        return source


class FarSource:
    """A remote source that is open for one request."""

    def __init__(self, reading: FarReading, found: Found) -> None:
        self.validator = found.validator
        self.identity = found.place + b"\n" + found.validator
        self.failure: Refusal | None = None
        self._reading = reading
        self._found = found
        self._file: FarFile | None = None
        self._reader = Reader()
        self._questions: set[Questions] = set()
        # The requests that let a child look at the source, each of which may outlive `close`.
        self._looking = 0
        self._is_closed = False
        # Children cannot ask for blocks, so they get the file when it has all that they may read.
        self._is_copied = False
        # How much of the source the next child reads, by estimate.
        self._share = 1.0

    @property
    def size(self) -> int | None:
        return self._found.size if self._file is None else self._file.size

    @property
    def descriptor(self) -> int | None:
        file = self._file
        return file.blocks.readable if file is not None and file.is_complete else None

    def has_certain_identity(self) -> bool:
        """Return whether the bytes that are read are certainly those of the validator."""
        return bool(self.validator) and self.failure is None

    def begin(self) -> FarFile:
        """Request the start of the source, unless it is there already, and return the file."""
        if self._file is not None:
            return self._file
        if self._is_closed and not self._looking:
            raise RenderFailed("The source is closed.")
        found, files = self._found, self._reading.files
        # What has begun is used once.
        self._found = replace(found, start=None, end=None)
        identity = self.identity if self.validator else None
        file = None if identity is None else files.find(identity)
        try:
            is_new = file is None
            if file is None:
                file = files.create(found.version, found.size, identity)
            files.use(file)
        except BaseException:
            found.drop()
            raise
        self._file = file
        if not is_new:
            found.drop()
            return file
        size = 0 if file.is_whole or found.size is None else found.size
        file.begin(found.start, file.size if file.is_whole else min(START_BYTES, size))
        if size <= START_BYTES:
            abandon(found.end, Part.discard)
        elif found.end is not None:
            file.prefetch(size - _END_BYTES, found.end)
        else:
            Deferred.fromCoroutine(self._fetch_end(file, size)).addErrback(lambda _: None)
        return file

    @contextmanager
    def inherit(self) -> Iterator[Mapping[int, int]]:
        file = self.begin()
        if self._is_copied or self.descriptor is not None:
            yield {SOURCE_DESCRIPTOR: file.blocks.readable}
            return
        stop = None if file.size is None else int(file.size * self._share * _MARGIN) + _END_BYTES
        reader, files = Reader(stop), self._reading.files

        def ended(is_fault: bool) -> None:
            if is_fault and self.failure is None:
                self.failure = RenderFailed("A reader of the source has failed.")
            self._questions.discard(questions)
            file.leave(reader)
            files.release(file)

        files.use(file)
        try:
            questions = Questions(
                self._reading.reactor, lambda block: self._bring(file, block, reader), ended
            )
        except OSError:
            files.release(file)
            raise
        self._questions.add(questions)
        try:
            yield {
                SOURCE_DESCRIPTOR: file.blocks.readable,
                QUESTIONS_DESCRIPTOR: questions.theirs.fileno(),
                MAP_DESCRIPTOR: file.blocks.readable_map,
            }
        except BaseException as error:
            questions.close()
            if isinstance(error, OSError):
                # The fork server was lost this moment. The next attempt waits for another one.
                self.failure = RenderFailed("A reader of the source could not be started.")
            raise
        finally:
            questions.started()

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        self._looking += 1
        try:
            if self._found.unreadable:
                raise UndecodableSource(self._found.unreadable)
            file = self.begin()
            if not await self._reading.can_preload():
                return await self._inspect_copy(file, deadline, look)
            if not file.is_partial:
                return await look(local_input())
            share = Deadline(self._reading.clock, deadline.left() * _SHARE)
            try:
                if file.size is None:
                    # Nobody knows where its end is.
                    await share.limit(self._copied(file.complete()))
                return await share.limit(look(local_input()))
            except (TimeoutError, SourceTooLarge):
                return await look(local_input(seekable=False))
        finally:
            self._looking -= 1
            self._release_if_closed()

    async def _inspect_copy(self, file: FarFile, deadline: Deadline, look: Look[T]) -> T:
        """Return what a child sees of a copy; of a source that is too large, of its start."""
        self._is_copied = True
        is_large = file.size is not None and file.size > self._reading.max_size
        bringing = file.bring(self._reading.max_size) if is_large else file.complete()
        try:
            # The time of the probe is for sources that take long to understand.
            await deadline.exempt(self._copied(bringing), self._reading.copy_timeout)
        except SourceTooLarge:
            is_large = True
        return await look(local_input(seekable=not is_large))

    async def input(self, deadline: Deadline, share: float = 1.0) -> Input:
        self._share = share
        if self._found.unreadable:
            raise UndecodableSource(self._found.unreadable)
        file = self.begin()
        if file.failure is not None and not file.is_complete:
            # It is opened anew, as long as no client has got anything.
            self.failure = file.failure
            raise file.failure
        self._is_copied = not await self._reading.can_preload()
        if self._is_copied or file.size is None:
            await deadline.limit(self._copy(file))
        return local_input()

    async def complete(self, deadline: Deadline) -> None:
        file = self.begin()
        if file.is_whole:
            await deadline.limit(self._copy(file))

    async def read(self, offset: int, count: int) -> bytes:
        file, blocks = self.begin(), range(offset // BLOCK, -(-(offset + count) // BLOCK))
        while True:
            for block in blocks:
                if block not in file.blocks:
                    await self._bring(file, block, self._reader)
            marks = file.blocks.marks(offset, count)
            try:
                data = await read_in_thread(
                    self._reading.run_in_thread, file.blocks.readable, offset, count
                )
            except OSError as error:
                _log.warn("a source cannot be read from TMPDIR: {why}", why=reason_of(error))
                raise RenderFailed("The source could not be read from the disk.") from error
            # Otherwise blocks have been given back meanwhile.
            if 0 not in marks and file.blocks.marks(offset, count) == marks:
                return data

    async def unchanged(self) -> bool:
        return self.failure is None

    def close(self) -> None:
        self._is_closed = True
        self._release_if_closed()

    def _release_if_closed(self) -> None:
        # The request that opened the source may close it while others share its probe.
        if not self._is_closed or self._looking:
            return
        for questions in list(self._questions):
            questions.close()
        file, self._file = self._file, None
        if file is not None:
            file.leave(self._reader)
            self._reading.files.release(file)

    def _bring(self, file: FarFile, block: int, reader: Reader) -> Deferred[None]:
        if self.failure is not None:
            # What the source is for has failed, whatever a child still asks for.
            return fail(self.failure)
        return file.want(block, reader).addErrback(self._note_failure)

    def _note_failure(self, failure: Failure) -> Failure:
        if self.failure is None and isinstance(failure.value, Refusal):
            self.failure = failure.value
        return failure

    async def _copy(self, file: FarFile) -> None:
        SourceTooLarge.check(file.size, self._reading.max_size)
        await self._copied(file.complete())

    async def _copied(self, bringing: Awaitable[None]) -> None:
        """Wait for a copy. One that is too large is no failure where its start is enough."""
        try:
            await bringing
        except SourceTooLarge:
            raise
        except Refusal as refusal:
            self.failure = self.failure or refusal
            raise

    async def _fetch_end(self, file: FarFile, size: int) -> None:
        """Fetch the end of the source, which most containers need, when the start is there."""
        await file.want(START_BYTES // BLOCK - 1, self._reader)
        start = read_whole(file.blocks.readable, _TS_PACKET + 1, 0)
        is_ts = start[0] == start[-1] == _TS_SYNC
        file.prefetch(size - (_END_BYTES_OF_TS if is_ts else _END_BYTES))
