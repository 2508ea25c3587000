"""Excerpts of sources: headers, and a part of what follows them, in a scratch file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Event

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.errors import Refusal, RenderFailed, UpstreamUnavailable, reason_of
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.files.whole_transfers import read_up_to, write_next
from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.reading import Reader
from audioproxy.media.seek_point import MOST_COPIED, SeekPoint
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import OpenSource, SourceFile

# Bytes that are copied at once; each time twice as many, where their content may tell the end. Not
# much more is copied than needed, which may be remote.
_LEAST_PIECE, _LARGEST_PIECE = 128 * 1024, 1 << 20
# Bytes that are copied at most. Where a place was found, fewer were expected.
_MOST_COPIED = 4 * MOST_COPIED
# Bytes that are examined together with the next piece: a page of Ogg may be in both.
_OVERLAP = 64 * 1024

_log = Logger()


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What a child reads in place of the source."""

    source: OpenSource
    descriptor: int

    @property
    def failure(self) -> Refusal | None:
        return self.source.failure

    def inherit(self) -> AbstractContextManager[Mapping[int, int]]:
        return nullcontext({SOURCE_DESCRIPTOR: self.descriptor})


@asynccontextmanager
async def open_excerpt(
    source: OpenSource,
    point: SeekPoint,
    skipped: int,
    space: AnonymousSpace,
    run_in_thread: ThreadRunner,
    deadline: Deadline,
) -> AsyncIterator[SourceFile]:
    """Copy what a decoder needs from a place on, for the length of a block.

    :param skipped: bytes of the source ahead of its container.
    """
    try:
        file = await space.create()
    except OSError as error:
        raise _refuse(error) from error
    with closing(file):
        copying = _copy(file.descriptor, point, source.size or 0, skipped)
        await deadline.limit(_run(copying, source, run_in_thread))
        yield Excerpt(source, file.descriptor)


async def _run(copying: Reader[None], source: OpenSource, run_in_thread: ThreadRunner) -> None:
    """Copy in threads. Where all of the source is there, that takes a single one."""
    data: bytes | None = None
    try:
        if source.descriptor is not None:
            # The descriptors are closed next.
            stop = Event()
            work = partial(_read_all, copying, source.descriptor, stop)
            await await_uncancelled(run_in_thread(work), stop.set)
            return
        while True:
            wanted = await await_uncancelled(run_in_thread(partial(_advance, copying, data)))
            if wanted is None:
                return
            data = await source.read(*wanted)
    except OSError as error:
        raise _refuse(error) from error


def _read_all(copying: Reader[None], descriptor: int, stop: Event) -> None:
    wanted = _advance(copying)
    while wanted is not None and not stop.is_set():
        offset, count = wanted
        try:
            data = read_up_to(descriptor, count, offset)
        except OSError as error:
            _log.warn("a source cannot be read: {why}", why=reason_of(error))
            raise UpstreamUnavailable from error
        wanted = _advance(copying, data)


def _advance(copying: Reader[None], data: bytes | None = None) -> tuple[int, int] | None:
    """Return the next range; None at the end."""
    try:
        return next(copying) if data is None else copying.send(data)
    except StopIteration:
        return None


def _copy(descriptor: int, point: SeekPoint, size: int, skipped: int) -> Reader[None]:
    """Request what a decoder needs from a place on, and write it."""
    write_next(descriptor, point.head)
    offset = begin = skipped + point.offset
    end = size if point.end is None else min(size, skipped + point.end)
    # Up to here, the end is not searched.
    until = end if point.is_end is None else min(end, offset + point.least)
    before, is_over, count = b"", False, _LEAST_PIECE
    while not is_over and offset < end:
        if offset < until:
            piece = yield offset, min(_LARGEST_PIECE, until - offset)
        else:
            piece = yield offset, min(count, end - offset)
            count = min(2 * count, _LARGEST_PIECE)
        if not piece:
            # The source is shorter than it was, which the render notices at its end.
            return
        if offset - begin > _MOST_COPIED:
            raise RenderFailed("The positions in the source do not lead to the end of the part.")
        write_next(descriptor, piece)
        if point.is_end is not None and offset >= until:
            is_over = point.is_end(before + piece[:_OVERLAP]) or point.is_end(piece)
        offset, before = offset + len(piece), piece[-_OVERLAP:]


def _refuse(error: OSError) -> RenderFailed:
    _log.warn("a part of a source cannot be copied to TMPDIR: {why}", why=reason_of(error))
    return RenderFailed("A part of the source could not be copied to the disk.")
