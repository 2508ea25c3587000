"""The file that one attempt of a render writes: headers, which may state a length, and audio."""

from __future__ import annotations

import os

from audioproxy.errors import DiskFailed
from audioproxy.files.scratch_files import ScratchFile
from audioproxy.files.whole_transfers import read_whole, write_whole
from audioproxy.media.command.encoding import StatedLength
from audioproxy.observe.log_context import Logger

_log = Logger()


class EncodedFile:
    """A scratch file that an encoder appends to, and that the store takes over.

    A stated length is written into the headers, before a reader sees them.
    """

    def __init__(
        self,
        scratch: ScratchFile,
        header_bytes: int = 0,
        stated_length: StatedLength | None = None,
    ) -> None:
        """Prepare an empty file for an encoder, which writes at most so many bytes of headers."""
        self.scratch = scratch
        self._stated_length = stated = stated_length
        self._patched = stated is None
        self._prefix = b""
        self._header_bytes = header_bytes
        if stated is not None:
            self._prefix = stated.header.prefix(stated.form)
            self._header_bytes += len(self._prefix)
            self._header_bytes += stated.header.muxer_bytes if stated.muxer else 0
            self._write(self._prefix, 0)
            # The encoder inherits the offset of the descriptor.
            os.lseek(scratch.descriptor, len(self._prefix), os.SEEK_SET)

    @property
    def written(self) -> int:
        try:
            return os.fstat(self.scratch.descriptor).st_size
        except OSError as error:
            raise self._refuse(error) from error

    def encoded_bytes(self, size: int) -> int:
        return max(0, size - len(self._prefix))

    def has_audio(self, size: int) -> bool:
        return size > self._header_bytes

    def readable(self, written: int) -> int:
        """Return how many of the first bytes are final.

        Headers that have to be changed are final when audio follows them, and so they are complete.
        """
        if not self._patched:
            if not self.has_audio(written):
                return 0
            self._patch(written)
        return written

    def complete(self) -> None:
        """Complete the headers and the end of the file of an encoder that has ended."""
        stated, size = self._stated_length, self.written
        if stated is not None and size > len(self._prefix):
            if not self._patched:
                self._patch(size)
            self._write(stated.header.suffix(stated.form, size), size)

    def read(self, offset: int, limit: int) -> bytes:
        return os.pread(self.scratch.descriptor, limit, offset)

    def read_whole(self, offset: int, count: int) -> bytes:
        try:
            return read_whole(self.scratch.descriptor, count, offset)
        except OSError as error:
            raise self._refuse(error) from error

    def _patch(self, written: int) -> None:
        """Write the stated length into the headers, which are complete; only once."""
        stated = self._stated_length
        assert stated is not None
        header = self.read_whole(0, min(self._header_bytes, written))
        for offset, data in list(stated.header.patches(stated.form, header)):
            self._write(data, offset)
        self._patched = True

    def _write(self, data: bytes, offset: int) -> None:
        try:
            write_whole(self.scratch.descriptor, data, offset)
        except OSError as error:
            raise self._refuse(error) from error

    def _refuse(self, error: OSError) -> DiskFailed:
        path = self.scratch.path or "in TMPDIR"
        _log.warn("the output file {path} fails: {error}", path=path, error=error)
        return DiskFailed.of(error)
