"""ffmpeg as a decoder: it outputs into a pipe, and a thread reads the pipe."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import RawIOBase
from threading import Event
from typing import TypeVar

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.errors import Refusal
from audioproxy.media.command.decoding import Pipeline
from audioproxy.process.ffmpeg import Ffmpeg, open_pipe
from audioproxy.sources.interfaces import SourceFile

# Seconds for which a reader lets the pipe fill. Otherwise each write of a decoder would wake it and
# take a CPU from a decoder. In this time, a pipe of 1 MiB takes what a fast decoder outputs.
_FILLING = 0.003

# Milliseconds without a byte after which a reader checks whether the child has ended.
_POLL_TIMEOUT = 500

_INT = struct.Struct("i")

T = TypeVar("T")


class DecoderPipe:
    """The read end of a decoder's stdout.

    :param ended: set when the child is dead. What it left behind may hold the pipe open.
    :param poll_timeout: milliseconds without a byte after which a read checks for that.
    """

    def __init__(self, pipe: RawIOBase, ended: Event, poll_timeout: int = _POLL_TIMEOUT) -> None:
        self._pipe = pipe
        self._ended = ended
        self._poll_timeout = poll_timeout
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        # Bytes from which there is no wait for more: a decoder waits where the pipe is full.
        self._plenty = 0
        with suppress(AttributeError):
            self._plenty = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 4

    def readinto(self, room: memoryview) -> int:
        """Read bytes into ``room`` and return their number; 0 at the end of the output."""
        while True:
            ended = self._ended.is_set()
            if self._poll.poll(self._poll_timeout):
                available = fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(_INT.size))
                if _INT.unpack(available)[0] < min(len(room), self._plenty):
                    self._ended.wait(_FILLING)
                return self._pipe.readinto(room) or 0
            if ended:
                return 0


@dataclass(frozen=True, slots=True)
class Decoder:
    """Runs ffmpeg with a pipe as its stdout, and a function that reads the pipe in a thread."""

    ffmpeg: Ffmpeg
    in_thread: ThreadRunner

    async def decode(
        self,
        pipeline: Pipeline,
        source: SourceFile,
        deadline: Deadline,
        read: Callable[[DecoderPipe], T],
    ) -> T:
        """Run ffmpeg, and return the result of ``read`` when both have succeeded.

        :param read: called in a thread. What it raises is raised here: ffmpeg reports it only as a
            broken pipe.
        :raises Refusal: as `Encoding.wait`.
        """
        readable, writable = open_pipe()
        ended, failed = Event(), Event()

        def read_pipe() -> T:
            # Any failure here closes the pipe, which ends the decoder.
            with open(readable, "rb", buffering=0) as pipe:
                try:
                    return read(DecoderPipe(pipe, ended))
                except BaseException:
                    failed.set()
                    raise

        try:
            reading = self.in_thread(read_pipe)
        except OSError:
            os.close(readable)
            os.close(writable)
            raise
        refusal: Refusal | None = None
        try:
            await self.ffmpeg.run_to_pipe(pipeline, source, writable, deadline, failed.is_set)
        except Refusal as error:
            refusal = error
        finally:
            ended.set()
            try:
                result = await await_uncancelled(reading)
            except Exception as error:
                # The samples up to a failure of the source are not worth a complaint.
                raise source.failure or error from None
        if refusal is not None:
            raise refusal
        return result
