"""An index of the frames of a stream, which is read from its start on, in pieces of any size."""

from __future__ import annotations

from array import array

from audioproxy.media.reading import Malformed, Reader, read_range
from audioproxy.media.seeking.frames import HEADER, FrameStream

# Frames between two entries: 5 to 12 seconds at the usual rates.
_STEP = 256
# The number of entries, of 8 bytes each: five days of mp3.
_MOST_ENTRIES = 1 << 16


class FrameIndex:
    """The offsets of some frames, up to the place where the reading has come.

    :ivar offset: of the first frame that was not read.
    :ivar is_over: the end was reached, or something else than a frame, or the limit of entries.
    """

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.offset = stream.first
        self.frames = 0
        self.is_over = stream.first + HEADER > stream.end
        self._entries = array("Q")

    def left(self, most: int) -> int:
        """Return how many bytes to read at ``offset``, at most so many, where it is not over."""
        return min(most, self.stream.end - self.offset)

    def add(self, data: bytes) -> None:
        found, end = self.stream.form.follow(data)
        self._entries.extend(self.offset + at for at in found[-self.frames % _STEP :: _STEP])
        self.offset += end
        self.frames += len(found)
        # Behind something else than a frame, ffmpeg finds the next one its own way. A file
        # that has become shorter has no frame, either.
        is_broken = not found or end + HEADER <= len(data)
        is_full = len(self._entries) >= _MOST_ENTRIES
        self.is_over = is_broken or is_full or self.offset + HEADER > self.stream.end

    def find_offset(self, number: int) -> Reader[int]:
        """Return the offset of a frame that was read, unless the file has changed meanwhile."""
        entry, more = divmod(number, _STEP)
        begin, *later = self._entries[entry : entry + 2]
        end = min((*later, self.offset)) + HEADER
        data = yield from read_range(begin, min(end, self.stream.end) - begin)
        found, _ = self.stream.form.follow(data)
        if more >= len(found):
            raise Malformed
        return begin + found[more]
