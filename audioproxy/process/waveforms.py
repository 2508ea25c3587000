"""Waveforms: ffmpeg decodes into a pipe, and a thread reduces what comes out of it."""

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

# Bytes of blocks that are kept in memory; more of them, for many pixels, go into a file.
_IN_MEMORY = 4 * 1024 * 1024
# Bytes that wait between the two, as many as Linux gives to anyone.
_PIPE = 1024 * 1024

_log = Logger()


class Waveforms:
    """Draws the waveform of what an ffmpeg decodes."""

    def __init__(self, encoder: Encoder, in_thread: ThreadRunner) -> None:
        """Prepare to draw.

        :param in_thread: each drawing takes one thread for as long as its child runs.
        """
        self._encoder = encoder
        self._in_thread = in_thread

    async def render_waveform(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        output: int,
        timeout: float,
        shape: WaveformSpec,
        limit: int,
    ) -> None:
        """Decode once and write the document of the waveform.

        :param arguments: a command that puts out bare samples of 16 bits.
        :param output: the descriptor that is written to, when everything is decoded.
        :param timeout: seconds.
        :param limit: bytes of the document.
        :raises OutputTooLarge: for a document of more.
        :raises NothingDecoded: where there is not one sample.
        :raises InvalidOptions: for a waveform that its serialization cannot hold.
        :raises RenderTimeout, UndecodableSource, RenderFailed: as `Encoder.encode`.
        """
        spool = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        try:
            read = partial(_read_pipe, shape, spool)
            drawing = await self._decode(arguments, descriptors, timeout, read)
            await await_uncancelled(self._in_thread(partial(drawing.write, output, limit)))
        except OutputTooLarge as refusal:
            _log.warn("a waveform was dropped: {why}", why=refusal.message)
            raise
        except OSError as error:
            _log.warn("a waveform cannot be kept: {error}", error=error)
            raise RenderFailed("The waveform could not be kept.") from error
        finally:
            # A large file takes its time to be removed.
            run_detached(self._in_thread, spool.close)

    async def _decode(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        timeout: float,
        read: Callable[[int, Event], WaveformReader],
    ) -> WaveformReader:
        readable, writable = os.pipe()
        # A decoder that waits for its reader at every turn is a fifth slower. Where all have taken
        # too much for their pipes already, or there is no such call, the usual size has to do.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, _PIPE)
        ended = Event()
        try:
            reading = self._in_thread(partial(read, readable, ended))
        except OSError:
            os.close(readable)
            os.close(writable)
            raise
        refusal: Refusal | None = None
        try:
            await self._encoder.pour(arguments, descriptors, writable, timeout)
        except Refusal as failed:
            refusal = failed
        finally:
            ended.set()
            # The reader's own failure goes first: ffmpeg knows of a broken pipe only.
            drawing = await await_uncancelled(reading)
        if refusal is not None:
            raise refusal
        return drawing


def _read_pipe(
    shape: WaveformSpec, spool: IO[bytes], readable: int, ended: Event
) -> WaveformReader:
    # The decoder hears of whatever goes wrong here by the end of its pipe.
    with open(readable, "rb", buffering=0) as pipe:
        # numpy is a fifth of the memory of a service that draws nothing, and of its start's time.
        from audioproxy.process.waveform_reader import WaveformReader

        drawing = WaveformReader(shape, spool)
        drawing.read(pipe, ended)
    return drawing
