"""Waveforms: threads reduce the samples that ffmpeg decodes, or that need no decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from tempfile import SpooledTemporaryFile
from threading import Event
from typing import IO, TYPE_CHECKING

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled, run_detached
from audioproxy.concurrency.workers import all_results
from audioproxy.errors import DiskFailed, NothingDecoded, OutputTooLarge, RenderFailed, reason_of
from audioproxy.files.scratch_files import DEFAULT_FOLDER
from audioproxy.media.waveform_pixels import CoarseBlocks, frames_per_pixel
from audioproxy.media.waveform_spec import Pass, UnusualSamples, WaveformSpec
from audioproxy.observe.log_context import Logger
from audioproxy.process.decoder import Decoder
from audioproxy.sources.interfaces import SourceFile

if TYPE_CHECKING:
    from audioproxy.media.waveform import Reduction, Waveform
    from audioproxy.process.waveform_reader import SampleStream

# Bytes of blocks that are kept in memory. More blocks, for many pixels, go into a file.
_MAX_MEMORY_BYTES = 4 * 1024 * 1024

# The modules with numpy are imported late, and in a thread, so that a service without waveforms
# does not load it. That saves a fifth of its memory and of its start time.

_log = Logger()


class _SpoolError(Exception):
    """The file of the blocks fails. The text gives the reason."""


class _UnevenPart(Exception):
    """A part of a waveform has other samples than it should have."""


@dataclass(frozen=True, slots=True)
class Waveforms:
    """Renders waveforms, of sources that ffmpeg decodes and of uncompressed samples.

    :ivar folder: of the blocks that do not fit into ``max_memory`` bytes.
    """

    decoder: Decoder
    in_thread: ThreadRunner
    folder: str = DEFAULT_FOLDER
    max_memory: int = _MAX_MEMORY_BYTES

    async def write(
        self,
        whole: Pass,
        source: SourceFile,
        descriptor: int | None,
        spec: WaveformSpec,
        output: int,
        limit: int,
        deadline: Deadline,
        parts: Sequence[Pass] = (),
        part_ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Reduce a source, and then write the document of its waveform.

        :param whole: the pass over all samples. It is repeated if the number of frames is another
            one than expected.
        :param descriptor: of the file that has the samples that need no decoder, if there are any.
        :param limit: bytes of the document.
        :param parts: passes over consecutive parts, which run side by side in place of that over
            all. If one has other samples than it should have, all are discarded.
        :param part_ended: called when one of the parts has ended in any way.
        :raises InvalidOptions: for a waveform that its serialization cannot hold.
        :raises Refusal: as `Encoding.wait`, and for a larger document, or one without a sample.
        """
        run = _Run(self, source, descriptor, spec, output, limit, deadline)
        try:
            if parts:
                try:
                    await run.write_parts(parts, part_ended)
                    return
                except (_UnevenPart, UnusualSamples) as error:
                    _log.debug("the parts of a waveform are not used: {why}", why=repr(error))
            await run.write_whole(whole)
        except _SpoolError as error:
            # This disk may be another one than that of the output.
            _log.warn("the samples of a waveform cannot be kept in TMPDIR: {error}", error=error)
            raise RenderFailed("The waveform could not be written to the disk.") from error
        except OutputTooLarge as refusal:
            _log.warn("a waveform was dropped: {why}", why=refusal.message)
            raise
        except DiskFailed as refusal:
            _log.warn("a waveform cannot be written: {error}", error=refusal.__cause__)
            raise
        except OSError as error:
            _log.warn("a waveform cannot be written: {error}", error=error)
            raise RenderFailed("The waveform could not be written to the disk.") from error


@dataclass(frozen=True, slots=True)
class _Run:
    """The passes of one waveform."""

    waveforms: Waveforms
    source: SourceFile
    descriptor: int | None
    spec: WaveformSpec
    output: int
    limit: int
    deadline: Deadline

    async def write_whole(self, whole: Pass) -> None:
        try:
            await self._write_pass(whole)
        except UnusualSamples:
            # ffmpeg converts them.
            await self.write_whole(replace(whole, samples=None))
        except CoarseBlocks as coarse:
            try:
                await self._write_pass(replace(whole, frames=coarse.frames))
            except CoarseBlocks:
                raise RenderFailed("Two passes had different numbers of samples.") from None

    async def _write_pass(self, whole: Pass) -> None:
        # Nothing is written where this raises CoarseBlocks or UnusualSamples.
        block = 1 if whole.frames is None else frames_per_pixel(whole.frames, whole.pixels)
        with self._spool() as spool:
            reduction = await self._reduce(whole, block, spool)
            await self._write_document(reduction.finish)

    async def write_parts(self, parts: Sequence[Pass], part_ended: Callable[[], object]) -> None:
        first = parts[0]
        assert first.frames is not None
        pixel = first.frames // first.pixels

        async def reduce(part: Pass, spool: IO[bytes]) -> Reduction:
            try:
                reduction = await self._reduce(part, pixel, spool)
            except NothingDecoded:
                raise _UnevenPart from None
            finally:
                part_ended()
            if reduction.frames != part.frames:
                raise _UnevenPart
            return reduction

        with ExitStack() as stack:
            spools = [stack.enter_context(self._spool()) for _ in parts]
            reductions = await all_results(map(reduce, parts, spools))

            def join() -> Waveform:
                import numpy as np

                from audioproxy.media.waveform import Waveform

                return Waveform(pixel, np.concatenate([part.pixels(pixel) for part in reductions]))

            await self._write_document(join)

    async def _reduce(self, taken: Pass, block: int, spool: IO[bytes]) -> Reduction:
        spec = replace(self.spec, pixels=taken.pixels)
        samples, descriptor, stop = taken.samples, self.descriptor, Event()

        def reduce(stream: SampleStream) -> Reduction:
            from audioproxy.process.waveform_reader import reduce_samples

            try:
                return reduce_samples(spec, spool, block, stream)
            except OSError as error:
                raise _SpoolError(reason_of(error)) from error

        if samples is None or descriptor is None:
            decoder = self.waveforms.decoder
            return await decoder.decode(taken.pipeline, self.source, self.deadline, reduce)

        def read_samples() -> Reduction:
            from audioproxy.process.waveform_reader import PcmReader

            return reduce(PcmReader(samples, descriptor, self.deadline, stop))

        return await await_uncancelled(self.waveforms.in_thread(read_samples), stop.set)

    async def _write_document(self, finish: Callable[[], Waveform]) -> None:
        def write() -> None:
            from audioproxy.process.waveform_reader import write_document

            try:
                waveform = finish()
            except OSError as error:
                raise _SpoolError(reason_of(error)) from error
            try:
                write_document(waveform, self.spec, self.output, self.limit)
            except OSError as error:
                raise DiskFailed.of(error) from error

        await await_uncancelled(self.waveforms.in_thread(write))

    @contextmanager
    def _spool(self) -> Iterator[IO[bytes]]:
        waveforms = self.waveforms
        spool = SpooledTemporaryFile(waveforms.max_memory, dir=waveforms.folder)  # noqa: SIM115
        try:
            yield spool
        finally:
            # The removal of a large file takes time.
            run_detached(self.waveforms.in_thread, spool.close)
