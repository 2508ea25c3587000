"""Readers of source lengths: generators that request byte ranges of a source.

A reader yields the ranges that it needs, is sent their bytes, and returns the length. So it does no
I/O, and the bytes may come from a file, from a server or from a test.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

# ID3v2 tags at the start of a source; files have one, or two.
_MOST_TAGS = 8
# Bytes at the end of a stream of frames in which two frames follow each other.
_TAIL = 8 * 1024

#: The longest gap, in seconds; time stamps that jump further are damaged.
LONGEST_GAP = 600
#: Frames at both ends of a stream that a decoder may drop.
INCOMPLETE_FRAMES = 2

T = TypeVar("T")

#: Requests ``(offset, count)`` and is sent the bytes; fewer than ``count`` only at the end.
Reader: TypeAlias = Generator[tuple[int, int], bytes, T]

#: Returns up to a number of bytes from an offset of a source.
ReadRange: TypeAlias = Callable[[int, int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class SourceLength:
    """The length of a source.

    :ivar samples: number of samples of each channel, at the rate that the probe reports.
    :ivar exact: the source has exactly this many samples; otherwise it has at least this many.
    :ivar ends_in_padding: the decoder outputs the encoder's padding after the last sample.
    :ivar is_stated_only: the end of the source agrees, but does not prove the number. An mp3 header
        may state the right size and a wrong number. Ogg streams that were joined have several ends.
    :ivar frame_samples: number of samples of each frame, if all but the last have as many, and a
        seek to the start of a frame is faster; otherwise 0.
    :ivar block: number of samples by which decoders may miss the end, since that is within a frame;
        otherwise 0.
    :ivar seekable: a seek by time leads to the right sample, as far as the ends and the tables of
        the file tell: it is one stream, and its time stamps have no gaps.
    :ivar delay: number of samples that the decoder outputs ahead of the first one.
    :ivar has_gaps: packets of an MP4 file begin later than the ones ahead of them end (D70), or
        those of an Ogg FLAC file may do so.
    :ivar first_stamp: the time stamp of the first sample, counted in samples, where versions of
        ffmpeg disagree on how much of the encoder's delay they leave out; otherwise None.
    :ivar data_offset: of the first sample in the file, for uncompressed audio; otherwise 0.
    """

    samples: int
    exact: bool = True
    ends_in_padding: bool = False
    is_stated_only: bool = False
    frame_samples: int = 0
    block: int = 0
    seekable: bool = False
    delay: int = 0
    has_gaps: bool = False
    first_stamp: int | None = None
    data_offset: int = 0

    def moved(self, count: int) -> SourceLength:
        """Return a copy for a file with more bytes ahead of it."""
        offset = self.data_offset + count if self.data_offset else 0
        return replace(self, data_offset=offset)


class Malformed(Exception):
    """The source does not have the form of its container."""


def read_range(offset: int, count: int) -> Reader[bytes]:
    """Request a range and return its bytes.

    :raises Malformed: where the source ends before the end of the range.
    """
    if count < 0:
        raise Malformed
    data = yield offset, count
    if len(data) < count:
        raise Malformed
    return data


def read_inner(start: int, running: Reader[T]) -> Reader[T]:
    """Return the result of a reader of what a source holds from an offset on."""
    try:
        offset, count = next(running)
        while True:
            offset, count = running.send((yield start + offset, count))
    except StopIteration as ended:
        result: T = ended.value
        return result


def skip_id3(offset: int = 0) -> Reader[int]:
    """Return the offset after the ID3v2 tags at an offset.

    :raises Malformed: for more tags than files have.
    """
    for _ in range(_MOST_TAGS):
        header = yield from read_range(offset, 10)
        if not header.startswith(b"ID3"):
            return offset
        offset += id3_bytes(header)
    raise Malformed


def id3_bytes(header: bytes) -> int:
    """Return the size of an ID3v2 tag by its first 10 bytes (ID3v2.4 structure, 3.1)."""
    size = 0
    for byte in header[6:10]:
        size = size << 7 | byte & 0x7F
    has_footer = bool(header[5] & 0x10)
    return size + (20 if has_footer else 10)


def end_before_tags(size: int) -> Reader[int]:
    """Return the offset at which the audio ends: before an ID3v1 and an APEv2 tag at the end."""
    end = size
    if end >= 128 and (yield from read_range(end - 128, 3)) == b"TAG":
        end -= 128
    footer = yield from read_range(max(0, end - 32), min(end, 32))
    if footer.startswith(b"APETAGEX"):
        tag_size = int.from_bytes(footer[12:16], "little")
        has_header = bool(int.from_bytes(footer[20:24], "little") >> 31)
        end -= tag_size + (32 if has_header else 0)
    return max(0, end)


def end_of_frames(start: int, end: int, frame_length: Callable[[bytes], int]) -> Reader[int]:
    """Return the offset after the last of the frames that follow each other near the end.

    :param frame_length: returns the length of the frame whose bytes it is given, or 0.
    :raises Malformed: where no two frames follow each other there.
    """
    offset = max(start, end - _TAIL)
    tail = yield from read_range(offset, end - offset)
    for at in range(len(tail)):
        length = frame_length(tail[at : at + 8])
        if length and frame_length(tail[at + length :][:8]):
            while length:
                at += length
                length = frame_length(tail[at : at + 8])
            return min(offset + at, end)
    raise Malformed


def count_frames(
    start: int, end: int, frame_length: Callable[[bytes], int], longest: int
) -> Reader[int]:
    """Return a lower bound of the frames of a stream, and check that audio fills it to its end.

    :param frame_length: as that of `end_of_frames`.
    :param longest: the most bytes of a frame.
    :raises Malformed: where no two frames follow each other near the end.
    """
    found = yield from end_of_frames(start, end, frame_length)
    return (found - start) // longest - INCOMPLETE_FRAMES
