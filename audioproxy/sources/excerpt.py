"""Excerpts of sources: headers, and a part of what follows them, in a scratch file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TypeVar

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.errors import Refusal, RenderFailed, reason_of
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.seeking.point import SeekPoint
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import OpenSource, SourceFile

# Bytes that are copied at once. Where their content tells the end, it is each time twice as many, so
# that not much more is copied than needed, which may be remote.
_LEAST_PIECE, _LARGEST_PIECE = 128 * 1024, 1 << 20
# Bytes that are examined together with the next piece: a page of Ogg may be in both.
_OVERLAP = 64 * 1024

T = TypeVar("T")

_log = Logger()


class Excerpt:
    """What a child reads in place of the source."""

    def __init__(self, source: OpenSource, descriptor: int) -> None:
        self._source = source
        self._descriptor = descriptor

    @property
    def failure(self) -> Refusal | None:
        """Why the source could not be read."""
        return self._source.failure

    @contextmanager
    def inherit(self) -> Iterator[Mapping[int, int]]:
        """Return the descriptor of the file, which a child inherits."""
        yield {SOURCE_DESCRIPTOR: self._descriptor}


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
    :param space: where the file is created.
    :raises RenderFailed: where it cannot be written.
    :raises Refusal: where the source cannot be read, or not before the deadline.
    """
    try:
        file = await space.create()
    except OSError as error:
        raise _refuse(error) from error
    with closing(file):
        copying = _copy(source, point, skipped, file.descriptor, run_in_thread)
        await deadline.limit(copying)
        yield Excerpt(source, file.descriptor)


async def _copy(
    source: OpenSource,
    point: SeekPoint,
    skipped: int,
    descriptor: int,
    run_in_thread: ThreadRunner,
) -> None:
    assert source.size is not None

    async def in_thread(work: Callable[[], T]) -> T:
        try:
            # The descriptor is closed next.
            return await await_uncancelled(run_in_thread(work))
        except OSError as error:
            raise _refuse(error) from error

    await in_thread(partial(_write, descriptor, point.head))
    end = source.size if point.end is None else min(source.size, skipped + point.end)
    offset, before, is_over = skipped + point.offset, b"", False
    count = _LARGEST_PIECE if point.is_end is None else _LEAST_PIECE
    while not is_over and offset < end:
        piece = await source.read(offset, min(count, end - offset))
        if not piece:
            # The source is shorter than it was, which the render notices at its end.
            return
        is_over = await in_thread(partial(_append, descriptor, before, piece, point.is_end))
        offset, before = offset + len(piece), piece[-_OVERLAP:]
        count = min(2 * count, _LARGEST_PIECE)


def _append(
    descriptor: int, before: bytes, piece: bytes, is_end: Callable[[bytes], bool] | None
) -> bool:
    """Write a piece, and return whether the last needed sample ends in it.

    :param before: the end of the piece ahead of it.
    """
    _write(descriptor, piece)
    return is_end is not None and is_end(before + piece)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _refuse(error: OSError) -> RenderFailed:
    _log.warn("a part of a source cannot be copied to TMPDIR: {why}", why=reason_of(error))
    return RenderFailed("A part of the source could not be copied to the disk.")
