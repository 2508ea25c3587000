"""Where the audio of a file begins and ends: between tags, and with whole frames."""

from __future__ import annotations

from collections.abc import Callable

from audioproxy.media.reading import Malformed, Reader, read_range

# ID3v2 tags at the start of a source; files have one, or two.
_MOST_TAGS = 8
# Bytes at the end of a stream of frames in which two frames follow each other.
_TAIL = 8 * 1024

#: Frames at both ends of a stream that a decoder may drop.
INCOMPLETE_FRAMES = 2


def skip_id3(offset: int = 0) -> Reader[int]:
    """Return the offset after the ID3v2 tags at an offset."""
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
        tag_size, flags = (int.from_bytes(footer[at : at + 4], "little") for at in (12, 20))
        has_header = bool(flags >> 31)
        end -= tag_size + (32 if has_header else 0)
    return max(0, end)


def end_of_frames(start: int, end: int, frame_length: Callable[[bytes], int]) -> Reader[int]:
    """Return the offset after the last of the frames that follow each other near the end.

    :param frame_length: returns the length of the frame whose bytes it is given, or 0.
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
    """Return a lower bound of the frames of a stream, and check that audio fills it to its end."""
    found = yield from end_of_frames(start, end, frame_length)
    return (found - start) // longest - INCOMPLETE_FRAMES
