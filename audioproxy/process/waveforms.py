"""Waveforms: ffmpeg decodes into a pipe, and a thread reduces what comes out of it."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from functools import partial
from tempfile import SpooledTemporaryFile
from threading import Event

import numpy as np
from twisted.logger import Logger

from audioproxy.errors import Refusal, RenderFailed
from audioproxy.media.peaks import SAMPLE, Reduction, Shape, serialize
from audioproxy.process.encoder import Encoder
from audioproxy.threads import InThread, forget, outlast

# Bytes that are reduced at a time: whole frames, and few enough to stay in a CPU's cache.
_CHUNK = 256 * 1024
# Bytes of blocks that are kept in memory; more of them, for many pixels, go into a file.
_IN_MEMORY = 4 * 1024 * 1024
# Milliseconds without a sample after which a reader looks whether the child is still there.
_PATIENCE = 500

_log = Logger()


class Waveforms:
    """Draws the waveform of what an ffmpeg decodes."""

    def __init__(self, encoder: Encoder, in_thread: InThread) -> None:
        """Prepare to draw.

        :param in_thread: each drawing takes one thread for as long as its child runs.
        """
        self._encoder = encoder
        self._in_thread = in_thread

    async def draw(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        output: int,
        timeout: float,
        shape: Shape,
    ) -> None:
        """Decode once and write the document of the waveform.

        :param arguments: a command that puts out bare samples of 16 bits.
        :param output: the descriptor that is written to, when everything is decoded.
        :param timeout: seconds.
        :raises NothingDecoded: where there is not one sample.
        :raises InvalidOptions: for a waveform that its serialization cannot hold.
        :raises RenderTimeout, UndecodableSource, RenderFailed: as `Encoder.encode`.
        """
        spool = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        try:
            reduction = Reduction(shape, spool)
            await self._decode(arguments, descriptors, timeout, reduction)
            write = partial(_write_document, reduction, shape, output)
            await outlast(self._in_thread(write))
        except OSError as error:
            _log.warn("a waveform cannot be kept: {error}", error=error)
            raise RenderFailed("The waveform could not be kept.") from error
        finally:
            # A large file takes its time to be removed.
            forget(self._in_thread, spool.close)

    async def _decode(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int],
        timeout: float,
        reduction: Reduction,
    ) -> None:
        readable, writable = os.pipe()
        ended = Event()
        try:
            reading = self._in_thread(partial(_read_pipe, readable, reduction, ended))
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
            await outlast(reading)
        if refusal is not None:
            raise refusal


def _read_pipe(readable: int, reduction: Reduction, ended: Event) -> None:
    """Reduce what comes out of a pipe until its end.

    :param ended: set when the child is dead. A process that it left behind may hold the pipe
        open for ever.
    """
    with open(readable, "rb", buffering=0) as pipe:
        buffer = bytearray(_CHUNK)
        room = memoryview(buffer)
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        filled = 0
        while True:
            over = ended.is_set()
            if not poll.poll(_PATIENCE):
                if over:
                    break
                continue
            count = pipe.readinto(room[filled:])
            if not count:
                break
            filled += count
            if filled == _CHUNK:
                reduction.add(np.frombuffer(buffer, SAMPLE))
                filled = 0
    # Whole frames alone: a child that was killed may have left a part of one.
    filled -= filled % reduction.frame_bytes
    reduction.add(np.frombuffer(room[:filled], SAMPLE))


def _write_document(reduction: Reduction, shape: Shape, output: int) -> None:
    with open(output, "wb", closefd=False) as document:
        document.writelines(serialize(reduction.finish(), shape))
