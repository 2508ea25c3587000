"""Readers of source lengths: generators that request byte ranges of a source.

A reader yields the ranges that it needs, is sent their bytes, and returns the length. So it does no
I/O, and the bytes may come from a file, from a server or from a test. It raises `Malformed` where
it finds nothing that it can rely on.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

#: The longest gap, in seconds; time stamps that jump further are damaged.
LONGEST_GAP = 600

T = TypeVar("T")

#: Requests ``(offset, count)`` and is sent the bytes; fewer than ``count`` only at the end.
Reader: TypeAlias = Generator[tuple[int, int], bytes, T]

#: Returns up to a number of bytes from an offset of a source.
ReadRange: TypeAlias = Callable[[int, int], Awaitable[bytes]]

Order: TypeAlias = Literal["little", "big"]


@dataclass(frozen=True, slots=True)
class SourceLength:
    """The length of a source, in samples of each channel at the rate that the probe reports.

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
        return replace(self, data_offset=self.data_offset and self.data_offset + count)


class Malformed(Exception):
    """The source does not have the form of its container."""


def read_range(offset: int, count: int) -> Reader[bytes]:
    """Return a range of bytes; raise `Malformed` where the source ends within it."""
    if count < 0:
        raise Malformed
    data = yield offset, count
    if len(data) < count:
        raise Malformed
    return data


def read_number(offset: int, count: int, order: Order = "big") -> Reader[int]:
    return int.from_bytes((yield from read_range(offset, count)), order)


def read_fields(offset: int, form: struct.Struct) -> Reader[tuple[Any, ...]]:
    return form.unpack((yield from read_range(offset, form.size)))


def read_inner(start: int, running: Reader[T]) -> Reader[T]:
    """Return the result of a reader of what a source holds from an offset on."""
    try:
        offset, count = next(running)
        while True:
            offset, count = running.send((yield start + offset, count))
    except StopIteration as ended:
        result: T = ended.value
        return result
