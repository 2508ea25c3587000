"""Waveforms: ffmpeg decodes into a pipe, and a thread reduces the samples that it reads there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from tempfile import SpooledTemporaryFile
from threading import Event
from typing import IO, TYPE_CHECKING

from audioproxy.errors import OutputTooLarge, Refusal, RenderFailed
from audioproxy.log_context import Logger
from audioproxy.media.waveform_spec import WaveformSpec
from audioproxy.process.encoder import Encoder
from audioproxy.threads import ThreadRunner, await_uncancelled, run_detached

if TYPE_CHECKING:
    from audioproxy.process.waveform_reader import WaveformReader

# Bytes of blocks that are kept in memory. More blocks, for many pixels, go into a file.
_MAX_MEMORY_BYTES = 4 * 1024 * 1024
# Bytes that the pipe can hold: the most that Linux grants to every user by default.
_PIPE_SIZE = 1024 * 1024

_log = Logger()


class Waveforms:
    """Renders the waveforms of sources that ffmpeg decodes."""

    def __init__(self, encoder: Encoder, in_thread: ThreadRunner) -> None:
        """Create a renderer of waveforms.

        :param encoder: runs ffmpeg as the decoder of each source.
        :param in_thread: each waveform takes one thread for as long as its child runs.
        """
        self._encoder = encoder
        self._in_thread = in_thread

    async def render_waveform(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        output: int,
        timeout: float,
        spec: WaveformSpec,
        limit: int,
    ) -> None:
        """Decode a source once, and write the document of its waveform.

        :param arguments: a command that outputs raw 16-bit samples.
        :param output: the descriptor that the document is written to after decoding.
        :param timeout: seconds.
        :param limit: bytes of the document.
        :raises OutputTooLarge: for a larger document.
        :raises NothingDecoded: where no sample is decoded.
        :raises InvalidOptions: for a waveform that its serialization cannot hold.
        :raises RenderTimeout, UndecodableSource, RenderFailed: as `Encoder.encode`.
        """
        spool = SpooledTemporaryFile(_MAX_MEMORY_BYTES)  # noqa: SIM115
        try:
            read = partial(_read_pipe, spec, spool)
            reader = await self._decode(arguments, descriptors, timeout, read)
            await await_uncancelled(self._in_thread(partial(reader.write, output, limit)))
        except OutputTooLarge as refusal:
            _log.warn("a waveform was dropped: {why}", why=refusal.message)
            raise
        except OSError as error:
            _log.warn("a waveform cannot be written: {error}", error=error)
            raise RenderFailed("The waveform could not be written to the disk.") from error
        finally:
            # The removal of a large file takes time.
            run_detached(self._in_thread, spool.close)

    async def _decode(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        timeout: float,
        read: Callable[[int, Event], WaveformReader],
    ) -> WaveformReader:
        readable, writable = os.pipe()
        # A decoder that often waits for its reader is a fifth slower. The pipe keeps its default
        # size where all pipes together have reached the user's limit, or where the system has no
        # such call.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        ended = Event()
        try:
            reading = self._in_thread(partial(read, readable, ended))
        except OSError:
            os.close(readable)
            os.close(writable)
            raise
        refusal: Refusal | None = None
        try:
            await self._encoder.run_to_pipe(arguments, descriptors, writable, timeout)
        except Refusal as failed:
            refusal = failed
        finally:
            ended.set()
            # The reader's own failure is raised first: ffmpeg reports it only as a broken pipe.
            reader = await await_uncancelled(reading)
        if refusal is not None:
            raise refusal
        return reader


def _read_pipe(spec: WaveformSpec, spool: IO[bytes], readable: int, ended: Event) -> WaveformReader:
    # Any failure here closes the pipe, which ends the decoder.
    with open(readable, "rb", buffering=0) as pipe:
        # Imported late, so that a service without waveforms does not load numpy. That saves a fifth
        # of its memory and of its start time.
        from audioproxy.process.waveform_reader import WaveformReader

        reader = WaveformReader(spec, spool)
        reader.read(pipe, ended)
    return reader
