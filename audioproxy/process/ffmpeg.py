"""ffmpeg as a child process: with a growing output file, with a pipe, or to measure a source."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.concurrency.threads import await_uncancelled
from audioproxy.errors import NothingDecoded, OutputTooLarge, Refusal, RenderFailed, RenderTimeout
from audioproxy.media.command.decoding import KEPT_LINES, PIECE_LIMIT, Pipeline
from audioproxy.media.command.progress import REPORT, describe_progress
from audioproxy.media.diagnostics import (
    filled_disk,
    lacks_end,
    lacks_silence,
    lost_output,
    lost_reader,
    one_line,
    verdict,
)
from audioproxy.observe.log_context import Logger
from audioproxy.process.child import Child, ChildTimeout, Exit, describe_exit, log_failure
from audioproxy.process.spawn import Launcher, SpawnFailed
from audioproxy.sources.interfaces import SourceFile

# Bytes that `-progress` may print in one decode pass. ffmpeg prints a dozen short lines at a time,
# by default twice a second, and here once an hour (`measure_arguments`).
_PROGRESS_LIMIT = 8 * 1024 * 1024
# Without a single sample, ffmpeg 7 prints N/A, where ffmpeg 5 prints 0.
_TOTAL_SIZE = re.compile(rb"^total_size=(?:(\d+)|N/A)$", re.MULTILINE)

# Bytes that a pipe can hold: the most that Linux grants to every user by default.
_PIPE_SIZE = 1024 * 1024

_log = Logger()


def open_pipe() -> tuple[int, int]:
    """Return the read and the write end of a large pipe.

    A decoder that often waits for its reader is a fifth slower.
    """
    readable, writable = os.pipe()
    # All pipes together may have reached the user's limit, or the system has no such call.
    with suppress(OSError, AttributeError):
        fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    return readable, writable


@dataclass(frozen=True, slots=True)
class _Run:
    """The run of an encoder.

    :ivar begun: seconds of the deadline that were over when it was started.
    """

    pipeline: Pipeline
    deadline: Deadline
    begun: float

    @property
    def command(self) -> list[str]:
        program, *words = self.pipeline.encoder
        return [program, *REPORT, *words]

    def describe_progress(self, status: bytes) -> str | None:
        expected, elapsed = self.pipeline.seconds, self.deadline.elapsed
        return describe_progress(status, expected, self.begun, elapsed)


class Encoding:
    """A running encoder, whose stdout is a file."""

    def __init__(self, child: Child, run: _Run, source: SourceFile, decoder: Child | None) -> None:
        self._child, self._run, self._source, self._decoder = child, run, source, decoder
        self._is_stopped = False
        self._printed: tuple[bytes | None, ...] = ()
        self._is_readable = False
        self._ended: SharedResult[bytes] = SharedResult()
        Deferred.fromCoroutine(self._run_to_end()).addBoth(self._ended.fire)

    @property
    def is_readable(self) -> bool:
        """Whether readers may see what it has written so far.

        No reader sees what precedes the first audio. Nor what follows a failure of the source or
        the disk, or the loss of silence: a filter that looks ahead, such as loudnorm, ends with
        other samples than the source has.

        :raises IrregularSource: where the source needs another pipeline.
        """
        if self._source.failure is not None:
            return False
        # The encoder takes the end of a decoder that failed for the end of the source.
        decoder = self._decoder
        if decoder and not decoder.is_sound:
            return False
        decoder_stderr = decoder.read_stderr() if decoder else b""
        stderr = self._child.read_stderr()
        if decoder_stderr is None or stderr is None:
            return False
        # This is asked each millisecond until there is audio, and a search takes as long.
        if (printed := (decoder_stderr, stderr)) != self._printed:
            self._run.pipeline.check(stderr)
            lacks_audio = lacks_silence(stderr) or filled_disk(stderr) or lost_output(stderr)
            self._is_readable = self._run.pipeline.has_checked(stderr) and not lacks_audio
            self._printed = printed
        return self._is_readable

    def wait(self) -> Deferred[bytes]:
        """Return the end of its stderr, when it has succeeded. Cancelling this stops nothing.

        :raises IrregularSource: where the source needs another pipeline.
        :raises Refusal: why the source could not be read, or else that of `verdict`.
        """
        return self._ended.wait()

    async def close(self) -> None:
        """Stop the encoder unless it has ended, and wait for its end, whatever that is."""
        if not self._ended.fired:
            self._is_stopped = True
            self._child.stop()
            with suppress(Refusal):
                await await_uncancelled(self.wait(), self._child.stop)

    async def _run_to_end(self) -> bytes:
        try:
            ended = await self._child.wait()
        except ChildTimeout as error:
            # A child that was stopped may die only after the deadline.
            if self._is_stopped:
                raise RenderTimeout from None
            raise _timed_out(error.status, self._run) from None
        if self._is_stopped:
            raise RenderFailed
        _check(ended, self._run)
        return ended.stderr


@dataclass(frozen=True, slots=True)
class Ffmpeg:
    """Runs ffmpeg, and maps each of its possible ends to a return value or a refusal."""

    launcher: Launcher

    @asynccontextmanager
    async def encode(
        self, pipeline: Pipeline, source: SourceFile, output: int, limit: int, deadline: Deadline
    ) -> AsyncIterator[Encoding]:
        """Run an encoder for the length of a block, which waits for its end.

        The child's stdout is the output file itself. No byte passes through this process on its way
        to the disk, and no slow client can slow the encoder (D38).

        :param output: the descriptor that becomes the child's stdout.
        :param limit: bytes; the kernel stops a child that writes more (D52).
        """
        run = _Run(pipeline, deadline, deadline.elapsed)
        async with self._decoder(pipeline, source, deadline) as (opened, stdin, decoder):
            stdio = {**stdin, 1: output}
            child = self._launch(run.command, opened, deadline, stdio, output_limit=limit)
            encoding = Encoding(child, run, source, decoder)
            try:
                try:
                    yield encoding
                finally:
                    await encoding.close()
            except Refusal:
                if source.failure is not None:
                    raise source.failure from None
                raise

    async def run_to_pipe(
        self,
        pipeline: Pipeline,
        source: SourceFile,
        pipe: int,
        deadline: Deadline,
        has_reader_failed: Callable[[], bool],
    ) -> None:
        """Run ffmpeg with a pipe as its stdout, and return when it has succeeded.

        :param pipe: the write end. It is closed here, so that the reader sees the end of the pipe.
        :param has_reader_failed: called when the child has ended. If so, the child reports only a
            broken pipe, and its failure is neither logged nor raised.
        :raises Refusal: as `Encoding.wait`.
        """
        with ExitStack() as held:
            held.callback(os.close, pipe)
            run = _Run(pipeline, deadline, deadline.elapsed)
            async with self._decoder(pipeline, source, deadline) as (opened, stdin, _):
                child = self._launch(run.command, opened, deadline, {**stdin, 1: pipe})
                held.close()
                ended = await _wait(child, run)
                if not has_reader_failed():
                    _check(ended, run)

    async def measure(
        self, arguments: Sequence[str], source: SourceFile, deadline: Deadline
    ) -> int:
        """Run `measure_arguments`, and return how many samples it decoded."""
        ended = await self._run_to_end(arguments, source, deadline, _PROGRESS_LIMIT)
        sizes = _TOTAL_SIZE.findall(ended.stdout)
        if not sizes:
            raise _refusal(ended)
        return int(sizes[-1] or 0)

    async def read_piece(
        self, arguments: Sequence[str], source: SourceFile, deadline: Deadline
    ) -> bytes:
        """Return what `piece_arguments` outputs."""
        return (await self._run_to_end(arguments, source, deadline, PIECE_LIMIT)).stdout

    async def _run_to_end(
        self, arguments: Sequence[str], source: SourceFile, deadline: Deadline, stdout_limit: int
    ) -> Exit:
        child = self._launch(arguments, source, deadline, stdout_limit=stdout_limit)
        ended = await _wait(child)
        _check(ended)
        return ended

    @asynccontextmanager
    async def _decoder(
        self, pipeline: Pipeline, source: SourceFile, deadline: Deadline
    ) -> AsyncIterator[tuple[SourceFile | None, Mapping[int, int], Child | None]]:
        """Run the decoder of an irregular source, and raise its failure, whatever the encoder did.

        Yield the source of its encoder or else the encoder's stdin, and the decoder.
        """
        if pipeline.decoder is None:
            yield source, {}, None
            return
        with ExitStack() as held:
            readable, writable = open_pipe()
            held.callback(os.close, readable)
            try:
                decoder = self._launch(pipeline.decoder, source, deadline, {1: writable})
            finally:
                os.close(writable)
            try:
                yield None, {0: readable}, decoder
            finally:
                # An encoder that has ended before its decoder has read all that it needs.
                is_needless = decoder.is_running
                held.close()
                decoder.stop()
                ended = await _wait(decoder)
                if not is_needless and not lost_reader(ended.stderr):
                    _check(ended)

    def _launch(
        self,
        arguments: Sequence[str],
        source: SourceFile | None,
        deadline: Deadline,
        stdio: Mapping[int, int] | None = None,
        *,
        stdout_limit: int = 0,
        output_limit: int | None = None,
    ) -> Child:
        try:
            return self.launcher.launch(
                arguments,
                stdio or {},
                deadline.left(),
                source=source,
                stdout_limit=stdout_limit,
                keep_pattern=KEPT_LINES,
                output_limit=output_limit,
            )
        except SpawnFailed as error:
            _log.error("the encoder cannot be started: {error}", error=error)
            raise RenderFailed("The encoder could not be started.") from error


async def _wait(child: Child, run: _Run | None = None) -> Exit:
    try:
        return await child.wait()
    except ChildTimeout as error:
        raise _timed_out(error.status, run) from None


def _timed_out(status: bytes, run: _Run | None) -> Refusal:
    # Its log line says how far the encoder has come.
    return _stopped(RenderTimeout(), None if run is None else run.describe_progress(status))


def _stopped(refusal: Refusal, more: str | None = None) -> Refusal:
    why = refusal.message if more is None else f"{refusal.message} {more}"
    _log.warn("the encoder was stopped: {why}", why=why)
    return refusal


def _check(ended: Exit, run: _Run | None = None) -> None:
    """Raise a refusal if the encoder failed.

    It exits with 0 without memory for silence, and ffmpeg 5 also where its last bytes are lost.
    """
    if run is not None:
        run.pipeline.check(ended.stderr, succeeded=ended.ok)
    if not ended.ok or lacks_silence(ended.stderr) or lacks_end(ended.stderr):
        raise _refusal(ended, run)


def _refusal(ended: Exit, run: _Run | None = None) -> Refusal:
    cause = verdict(ended.signal_name, ended.stderr)
    if cause is RenderTimeout:
        return _timed_out(ended.status, run)
    if cause is OutputTooLarge:
        return _stopped(OutputTooLarge())
    if cause is NothingDecoded:
        # The caller may know the cause and try again, so the caller logs the failure.
        return NothingDecoded(f"{describe_exit(ended)}: {one_line(ended.stderr)}")
    log_failure("encoder", ended, cause)
    return (cause or RenderFailed)()
