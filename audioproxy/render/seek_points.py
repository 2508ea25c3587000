"""Finds the places at which decoding starts, and keeps the indexes that it reads for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from cachetools import LRUCache
from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.python.failure import Failure

from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.errors import Refusal, RenderFailed
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.trim import requested_samples
from audioproxy.media.lengths.containers import read_behind, read_length, run_reader
from audioproxy.media.probe import Probe
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.seeking.frame_index import FrameIndex
from audioproxy.media.seeking.frames import KINDS, FrameStream, find_offset, find_start, read_stream
from audioproxy.media.seeking.matroska import find_in_matroska
from audioproxy.media.seeking.ogg import find_in_ogg
from audioproxy.media.seeking.wavpack import find_in_wavpack
from audioproxy.observe.log_context import Logger
from audioproxy.sources.interfaces import OpenSource

# Sources whose indexes are kept.
_MOST_INDEXES = 64
# Bytes that are read at once for an index: each time twice as many, up to a limit, so that a place
# near the start of a remote source does not need much of it.
_LEAST_PIECE, _LARGEST_PIECE = 128 * 1024, 1 << 20

# The searches in containers whose parts state their positions.
_BY_POSITIONS = {"ogg": find_in_ogg, "wv": find_in_wavpack, "matroska": find_in_matroska}

_log = Logger()


@dataclass(frozen=True, slots=True)
class _Entry:
    """The index of one version of a source, and the lock under which it grows."""

    index: FrameIndex
    lock: DeferredLock = field(default_factory=DeferredLock)


class SeekPoints:
    def __init__(self, run_in_thread: ThreadRunner) -> None:
        self._run_in_thread = run_in_thread
        # By identity, where that is certain.
        self._indexes: LRUCache[bytes, _Entry] = LRUCache(_MOST_INDEXES)

    async def find(
        self, source: OpenSource, options: VariantOptions, probe: Probe
    ) -> SeekPoint | None:
        """Return the place at which decoding starts; None for the start, or a seek by ffmpeg."""
        if source.size is None or not Needs.of(options, probe).point:
            return None
        first, last = requested_samples(options, probe.sample_rate)
        size, read = source.size - probe.skipped, read_behind(source.read, probe)
        find = _BY_POSITIONS.get(probe.container)
        if find is not None:
            length = probe.length
            if length is None or probe.measured:
                length = await read_length(source.read, source.size, probe)
            if length is None:
                return None
            return await run_reader(read, size, find(size, probe, length, first, last))
        stream = await _read_stream(source, probe)
        number = 0 if stream is None else stream.number_before(first, probe.sample_rate)
        if stream is None or not number:
            return None
        is_past_end = stream.samples is not None and (last is None or last > stream.samples)
        # What a decode of the whole leaves out must be the end, and parts must have all frames.
        must_end = is_past_end or probe.in_parts
        if must_end and not await self._is_end_stated(source, stream, probe):
            return None
        if stream.mean is not None:
            locate = partial(find_offset, stream, stream.mean)
            point = await run_reader(read, size, find_start(stream, locate, number))
            if point is not None:
                return point
        index = await self._read_frames(source, stream, probe, number)
        if number >= index.frames:
            return None
        return await run_reader(read, size, find_start(stream, index.find_offset, number))

    async def _is_end_stated(self, source: OpenSource, stream: FrameStream, probe: Probe) -> bool:
        """Return whether a source ends with the padding that its header states.

        A header may state the right size and a wrong number of frames, so these are counted.
        """
        assert source.size is not None
        length = probe.length or await read_length(source.read, source.size, probe)
        if length is None or not length.exact or length.samples != stream.samples:
            return False
        if stream.mean is not None and not probe.in_parts:
            return True
        return (await self._read_frames(source, stream, probe)).frames == stream.frames

    async def has_samples(self, source: OpenSource, probe: Probe, samples: int) -> bool:
        """Return whether the frames of a source show that it has at least so many samples."""
        if source.size is None or probe.kind not in KINDS:
            return False
        stream = await _read_stream(source, probe)
        if stream is None:
            return False
        number = stream.number_behind(samples)
        if stream.mean is not None:
            return number <= stream.frames
        return number <= (await self._read_frames(source, stream, probe, number)).frames

    @asynccontextmanager
    async def index_meanwhile(
        self, source: OpenSource, options: VariantOptions, probe: Probe
    ) -> AsyncIterator[None]:
        """Index the frames of a source that is rendered whole, in the background of a block.

        A source of which parts may be missing is not read for this.
        """
        running: Deferred[None] | None = None
        is_whole = options.t is None and source.descriptor is not None
        # Another request would not find the index.
        is_kept = source.has_certain_identity()
        if is_whole and is_kept and probe.kind in KINDS:
            running = Deferred.fromCoroutine(self._index(source, probe))
            running.addErrback(_log_failure)
        try:
            yield
        finally:
            if running is not None:
                running.cancel()

    async def _index(self, source: OpenSource, probe: Probe) -> None:
        stream = await _read_stream(source, probe)
        if stream is not None and stream.mean is None:
            await self._read_frames(source, stream, probe)

    def _entry(self, source: OpenSource, stream: FrameStream) -> _Entry:
        identity, is_certain = source.identity, source.has_certain_identity()
        entry = self._indexes.get(identity) if is_certain else None
        if entry is None:
            entry = _Entry(FrameIndex(stream))
            if is_certain:
                self._indexes[identity] = entry
        return entry

    async def _read_frames(
        self, source: OpenSource, stream: FrameStream, probe: Probe, number: int | None = None
    ) -> FrameIndex:
        """Return the index of a source up to a frame, or as far as there are any; None for all.

        Several renders may read one source. They take turns with each piece.
        """
        entry, piece = self._entry(source, stream), _LEAST_PIECE
        read = read_behind(source.read, probe)
        index = entry.index
        while True:
            await entry.lock.acquire()
            try:
                # Another render may have read them meanwhile.
                if index.is_over or (number is not None and index.frames > number):
                    return index
                data = await read(index.offset, index.left(piece))
                # A thread cannot be cancelled, and changes the index.
                await await_uncancelled(self._run_in_thread(partial(index.add, data)))
            except OSError as error:
                raise RenderFailed("The source could not be read.") from error
            finally:
                entry.lock.release()
            piece = min(2 * piece, _LARGEST_PIECE)


async def _read_stream(source: OpenSource, probe: Probe) -> FrameStream | None:
    assert source.size is not None
    size = source.size - probe.skipped
    return await run_reader(read_behind(source.read, probe), size, read_stream(size, probe))


def _log_failure(failure: Failure) -> None:
    if failure.check(CancelledError, Refusal) is None:
        _log.failure("a source cannot be indexed", failure)
