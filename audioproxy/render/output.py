"""The output of one render, on disk, which any number of clients read while it grows."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater

from audioproxy.errors import DiskFailed, OutputDiffers, OutputTooLarge, Refusal, RenderFailed
from audioproxy.files.scratch_files import ScratchFile
from audioproxy.observe.log_context import Logger
from audioproxy.process.ffmpeg import Encoding
from audioproxy.render.encoded_file import EncodedFile

# Seconds between two checks of the file's size. Until the first audio, checks are frequent, since
# clients wait for it. Later they are rare, so that each finds a large chunk: some seconds of audio.
_INTERVAL_BEFORE_AUDIO = 0.001
_INTERVAL_AFTER_AUDIO = 0.03
# Bytes of two files that are compared at a time, on the reactor thread.
_COMPARED = 1024 * 1024

_log = Logger()


class RenderOutput:
    """Growing bytes and their followers.

    Each reader keeps its own offset, so one that lags costs no more memory than any other (D38).
    The file is closed when the render and the last reader have released it.

    A render may begin anew in another file. Its bytes are compared with those that readers have had
    a chance to read. When they are found equal, readers go on with the other file (D63).

    :ivar size: bytes that readers can read so far.
    :ivar limit: bytes that readers get at most, however large the file is (D52).
    :ivar failure: why the output will never be the whole variant, or None.
    """

    def __init__(self, file: EncodedFile, limit: int) -> None:
        self.size = 0
        self.limit = limit
        self.ended = False
        self.failure: Refusal | None = None
        self._file = file
        self._following: EncodedFile | None = None
        self._compared = 0
        self._has_more_to_compare = False
        self._holders = 1
        self._followers: dict[object, Callable[[], None]] = {}

    @property
    def descriptor(self) -> int:
        return self._file.scratch.descriptor

    @property
    def scratch(self) -> ScratchFile:
        return self._file.scratch

    @property
    def encoded_bytes(self) -> int:
        return self._file.encoded_bytes(self.size)

    @property
    def has_audio(self) -> bool:
        return self._file.has_audio(self.size)

    @property
    def written(self) -> int:
        return self._written_file.written

    def begin_anew(self, file: EncodedFile) -> None:
        """Begin anew in another file, behind the bytes that readers have."""
        unused = self._following
        if self.has_audio:
            self._following, self._compared = file, 0
        else:
            # No reader has a byte.
            unused, self._file, self.size = self._file, file, 0
        if unused is not None:
            unused.scratch.close()

    async def first_audio(self, encoding: Encoding, clock: IReactorTime) -> None:
        """Return when readers can read audio, or the encoder has succeeded without."""
        await self._watch(encoding, clock, lambda: self.has_audio)

    async def rest(self, encoding: Encoding, clock: IReactorTime) -> bytes:
        """Check the file until the encoder has succeeded, and return the end of its stderr.

        :raises OutputTooLarge: past the limit, while the encoder may still run.
        """
        return await self._watch(encoding, clock, lambda: False)

    async def _watch(
        self, encoding: Encoding, clock: IReactorTime, is_over: Callable[[], bool]
    ) -> bytes:
        over = encoding.wait()
        checking: IDelayedCall

        def check() -> None:
            nonlocal checking
            refusal: Refusal | None = None
            try:
                # What the encoder finds out, it prints ahead of the bytes that are wrong.
                written = self.written
                if encoding.is_readable:
                    self.update_size(written)
            except Refusal as error:
                refusal = error
            except Exception:
                _log.failure("the check of an output failed")
                refusal = RenderFailed()
            if over.called:
                # A reader that could not read on was the last one, and has cancelled the render.
                return
            if refusal is not None:
                over.errback(refusal)
            elif is_over():
                over.callback(b"")
            else:
                checking = clock.callLater(self._interval, check)

        checking = clock.callLater(self._interval, check)
        try:
            return await over
        finally:
            if checking.active():
                checking.cancel()

    @property
    def _interval(self) -> float:
        is_rare = self.has_audio and not self._has_more_to_compare
        return _INTERVAL_AFTER_AUDIO if is_rare else _INTERVAL_BEFORE_AUDIO

    def update_size(self, written: int) -> None:
        """Make the file readable up to ``written``, up to which nothing is wrong."""
        size = self._written_file.readable(written)
        readable = min(size, self.limit)
        if not self._catch_up(readable):
            return
        has_grown = readable > self.size
        self.size = max(readable, self.size)
        if size > self.limit:
            refusal = OutputTooLarge()
            _log.warn("the encoder was stopped: {why}", why=refusal.message)
            raise refusal
        if has_grown:
            self._notify()

    async def complete(self, clock: IReactorTime) -> None:
        """Complete the file of an encoder that has ended without an error."""
        self._written_file.complete()
        written = self.written
        self.update_size(written)
        while self._following is not None:
            if not self._has_more_to_compare:
                raise OutputDiffers
            pause: Deferred[None] = deferLater(clock, 0)
            await pause
            self.update_size(written)

    def end(self, failure: Refusal | None = None) -> None:
        """Record that no bytes will be added; only the first call has an effect."""
        if not self.ended:
            self.ended = True
            self.failure = failure
            self._notify()

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``; ``b""`` where there are none yet."""
        return self._file.read(offset, max(0, min(limit, self.size - offset)))

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` on every change from now on; return a function that ends the calls.

        The follower keeps the file open until then.
        """
        token = object()
        self._followers[token] = follower
        self._holders += 1

        def leave() -> None:
            if self._followers.pop(token, None) is not None:
                self.release()

        return leave

    def release(self) -> None:
        """Release one hold on the file; the last release closes it."""
        self._holders -= 1
        if not self._holders:
            for file in (self._file, self._following):
                if file is not None:
                    file.scratch.close()

    @property
    def _written_file(self) -> EncodedFile:
        return self._following or self._file

    def _catch_up(self, readable: int) -> bool:
        """Compare a part of what readers have; return whether they can read on."""
        file = self._following
        if file is None:
            return True
        stop = min(readable, self.size)
        count = min(_COMPARED, max(0, stop - self._compared))
        data = file.read_whole(self._compared, count)
        try:
            sent = self._file.read_whole(self._compared, count)
        except DiskFailed as refusal:
            # That is not the disk of the new file.
            raise RenderFailed("What was sent cannot be read from the disk any more.") from refusal
        if data != sent:
            raise OutputDiffers
        self._compared += count
        self._has_more_to_compare = count == _COMPARED
        if self._compared < self.size:
            return False
        self._file.scratch.close()
        self._file, self._following = file, None
        return True

    def _notify(self) -> None:
        # A notified follower may add or remove others.
        for token, follower in list(self._followers.items()):
            if token in self._followers:
                follower()
