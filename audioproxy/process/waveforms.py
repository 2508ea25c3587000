"""Waveforms: a thread reduces the samples that ffmpeg decodes, or that need no decoder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from tempfile import SpooledTemporaryFile
from threading import Event
from typing import IO, TYPE_CHECKING

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled, run_detached
from audioproxy.errors import DiskFull, OutputTooLarge, RenderFailed, reason_of
from audioproxy.files.scratch_files import DEFAULT_FOLDER
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.waveform_spec import PcmSamples, UnusualSamples, WaveformSpec
from audioproxy.observe.log_context import Logger
from audioproxy.process.decoder import Decoder
from audioproxy.sources.interfaces import SourceFile

if TYPE_CHECKING:
    from audioproxy.process.waveform_reader import SampleStream, WaveformReader

# Bytes of blocks that are kept in memory. More blocks, for many pixels, go into a file.
_MAX_MEMORY_BYTES = 4 * 1024 * 1024

_log = Logger()


class _SpoolError(Exception):
    """The file of the blocks cannot be written. The text gives the reason."""


class Waveforms:
    """Renders waveforms, of sources that ffmpeg decodes and of uncompressed samples."""

    def __init__(
        self, decoder: Decoder, in_thread: ThreadRunner, folder: str = DEFAULT_FOLDER
    ) -> None:
        """Create a renderer of waveforms.

        :param in_thread: reads uncompressed samples, and writes the documents.
        :param folder: of temporary files.
        """
        self._decoder = decoder
        self._in_thread = in_thread
        self._folder = folder

    async def write(
        self,
        pipeline: Pipeline,
        samples: PcmSamples | None,
        descriptor: int | None,
        source: SourceFile,
        spec: WaveformSpec,
        output: int,
        limit: int,
        deadline: Deadline,
    ) -> None:
        """Reduce a source once, and then write the document of its waveform.

        :param pipeline: decodes the source to raw 16-bit samples.
        :param samples: those that need no decoder, where all of the source is there.
        :param descriptor: of the file that has them.
        :param output: the descriptor that the document is written to.
        :param limit: bytes of the document.
        :raises OutputTooLarge: for a larger document.
        :raises NothingDecoded: where there is no sample.
        :raises InvalidOptions: for a waveform that its serialization cannot hold.
        :raises Refusal: as `Encoding.wait`.
        """
        if samples is not None and descriptor is not None:
            # ffmpeg converts unusual samples. Nothing is written of them.
            with suppress(UnusualSamples):
                stop = Event()

                def read_file(spool: IO[bytes]) -> Awaitable[WaveformReader]:
                    work = partial(_read_samples, samples, descriptor, deadline, stop, spec, spool)
                    return await_uncancelled(self._in_thread(work), stop.set)

                await self._write(read_file, output, limit)
                return

        def read_pipe(spool: IO[bytes]) -> Awaitable[WaveformReader]:
            read = partial(_reduce, spec, spool, None)
            return self._decoder.decode(pipeline, source, deadline, read)

        await self._write(read_pipe, output, limit)

    async def _write(
        self,
        read: Callable[[IO[bytes]], Awaitable[WaveformReader]],
        output: int,
        limit: int,
    ) -> None:
        """Write the document of samples that ``read`` reduces."""
        spool = SpooledTemporaryFile(_MAX_MEMORY_BYTES, dir=self._folder)  # noqa: SIM115
        try:
            reader = await read(spool)
            await await_uncancelled(self._in_thread(partial(reader.write, output, limit)))
        except _SpoolError as error:
            # This disk may be another one than that of the output.
            _log.warn("the samples of a waveform cannot be written to TMPDIR: {error}", error=error)
            raise RenderFailed("The waveform could not be written to the disk.") from error
        except OutputTooLarge as refusal:
            _log.warn("a waveform was dropped: {why}", why=refusal.message)
            raise
        except OSError as error:
            _log.warn("a waveform cannot be written: {error}", error=error)
            if DiskFull.explains(error):
                raise DiskFull from error
            raise RenderFailed("The waveform could not be written to the disk.") from error
        finally:
            # The removal of a large file takes time.
            run_detached(self._in_thread, spool.close)


# The modules with numpy are imported late, so that a service without waveforms does not load it.
# That saves a fifth of its memory and of its start time.


def _reduce(
    spec: WaveformSpec, spool: IO[bytes], frames: int | None, stream: SampleStream
) -> WaveformReader:
    from audioproxy.process.waveform_reader import WaveformReader

    reader = WaveformReader(spec, spool, frames)
    try:
        reader.read(stream)
    except OSError as error:
        raise _SpoolError(reason_of(error)) from error
    return reader


def _read_samples(
    samples: PcmSamples,
    descriptor: int,
    deadline: Deadline,
    stop: Event,
    spec: WaveformSpec,
    spool: IO[bytes],
) -> WaveformReader:
    from audioproxy.process.pcm_reader import PcmReader

    stream = PcmReader(samples, descriptor, deadline, stop)
    return _reduce(spec, spool, samples.frames, stream)
