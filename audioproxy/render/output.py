"""The output of one render, on disk, which any number of clients read while it grows."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from audioproxy.errors import DiskFull, OutputTooLarge, Refusal, RenderFailed
from audioproxy.files.scratch_files import ScratchFile
from audioproxy.media.command.encoding import StatedLength
from audioproxy.observe.log_context import Logger
from audioproxy.process.ffmpeg import Encoding

# Seconds between two checks of the file's size. Until the first audio, checks are frequent, since
# clients wait for it. Later they are rare, so that each finds a large chunk: some seconds of audio.
_INTERVAL_BEFORE_AUDIO = 0.001
_INTERVAL_AFTER_AUDIO = 0.03

_log = Logger()


class RenderOutput:
    """A growing file and its followers.

    The encoder appends to the file. Each reader keeps its own offset and reads at its own pace, so
    a reader that lags costs no more memory than any other (D38). The file is closed when the render
    and the last reader have released it.

    :ivar size: bytes that readers can read so far.
    :ivar limit: bytes that readers get at most, however large the file is (D52).
    :ivar ended: no bytes will be added.
    :ivar failure: why the output will never be the whole variant, or None.
    """

    def __init__(
        self,
        scratch: ScratchFile,
        limit: int,
        header_bytes: int = 0,
        stated_length: StatedLength | None = None,
        on_change: Callable[[RenderOutput], object] = lambda output: None,
    ) -> None:
        """Prepare an empty file for the encoder.

        :param header_bytes: the most bytes of headers that the encoder writes before any audio.
        :param stated_length: the length that is written into the headers, before a reader sees
            them.
        :param on_change: called with the output on every change, ahead of the followers.
        :raises RenderFailed: where the file cannot be written.
        """
        self.size = 0
        self.limit = limit
        self.ended = False
        self.failure: Refusal | None = None
        self._stated_length = stated_length
        self._patched = stated_length is None
        self._prefix = b""
        self._header_bytes = header_bytes
        self._scratch = scratch
        self._on_change = on_change
        self._holders = 1
        self._followers: dict[object, Callable[[], None]] = {}
        if stated_length is not None:
            self._begin(stated_length)

    @property
    def descriptor(self) -> int:
        """The descriptor that the encoder inherits as its stdout."""
        return self._scratch.descriptor

    @property
    def scratch(self) -> ScratchFile:
        """The scratch file, which the store takes over."""
        return self._scratch

    @property
    def encoded_bytes(self) -> int:
        """Bytes that the encoder has written and readers can read."""
        return max(0, self.size - len(self._prefix))

    @property
    def has_audio(self) -> bool:
        """Whether readers can read more than headers."""
        return self.size > self._header_bytes

    async def watch(self, encoding: Encoding, clock: IReactorTime) -> bytes:
        """Check the file while the encoder runs, and return the end of its stderr on success.

        :raises OutputTooLarge: past the limit.
        :raises Refusal: as `Encoding.wait`.
        """
        checking: IDelayedCall

        def check() -> None:
            nonlocal checking
            try:
                if encoding.is_readable:
                    self.update_size()
            except Refusal as refusal:
                encoding.stop(refusal)
            except Exception:
                _log.failure("the check of an output failed")
                encoding.stop(RenderFailed())
            else:
                interval = _INTERVAL_AFTER_AUDIO if self.has_audio else _INTERVAL_BEFORE_AUDIO
                checking = clock.callLater(interval, check)

        checking = clock.callLater(_INTERVAL_BEFORE_AUDIO, check)
        try:
            return await encoding.wait()
        finally:
            if checking.active():
                checking.cancel()

    def update_size(self) -> None:
        """Check the file's size, and notify the followers of new bytes.

        Headers that have to be changed become readable when audio follows them, and so they are
        complete.

        :raises OutputTooLarge: past the limit. The followers learn of it at once: the encoder may
            take some time to die.
        """
        size = os.fstat(self._scratch.descriptor).st_size
        if not self._patched:
            if size <= self._header_bytes:
                return
            self._patch()
        readable = min(size, self.limit)
        has_grown = readable > self.size
        self.size = max(readable, self.size)
        if size > self.limit:
            refusal = OutputTooLarge()
            _log.warn("the encoder was stopped: {why}", why=refusal.message)
            self.end(refusal)
            raise refusal
        if has_grown:
            self._notify()

    def complete(self) -> None:
        """Complete the file of an encoder that has ended without an error.

        :raises OutputTooLarge: past the limit.
        :raises RenderFailed: where the file cannot be written.
        """
        stated = self._stated_length
        size = os.fstat(self._scratch.descriptor).st_size
        if stated is not None and size > len(self._prefix):
            self._patch()
            self._write(stated.header.suffix(stated.form, size), size)
        self.update_size()

    def end(self, failure: Refusal | None = None) -> None:
        """Record that no bytes will be added; only the first call has an effect."""
        if not self.ended:
            self.ended = True
            self.failure = failure
            self._notify()

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``; ``b""`` where there are none yet."""
        return os.pread(self._scratch.descriptor, max(0, min(limit, self.size - offset)), offset)

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
            self._scratch.close()

    def _begin(self, stated: StatedLength) -> None:
        self._prefix = stated.header.prefix(stated.form)
        self._header_bytes += len(self._prefix) + (stated.header.muxer_bytes if stated.muxer else 0)
        self._write(self._prefix, 0)
        # The encoder inherits the offset of the descriptor.
        os.lseek(self._scratch.descriptor, len(self._prefix), os.SEEK_SET)

    def _patch(self) -> None:
        """Write the stated length into the headers, which are complete; only once."""
        stated = self._stated_length
        if stated is None or self._patched:
            return
        header = os.pread(self._scratch.descriptor, self._header_bytes, 0)
        for offset, data in list(stated.header.patches(stated.form, header)):
            self._write(data, offset)
        self._patched = True

    def _write(self, data: bytes, offset: int) -> None:
        try:
            written = os.pwrite(self._scratch.descriptor, data, offset)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            _log.warn("the length of an output cannot be written: {error}", error=error)
            if DiskFull.explains(error):
                raise DiskFull from error
            raise RenderFailed("The output could not be written to the disk.") from error

    def _notify(self) -> None:
        self._on_change(self)
        # A notified follower may add or remove others.
        for token, follower in list(self._followers.items()):
            if token in self._followers:
                follower()
