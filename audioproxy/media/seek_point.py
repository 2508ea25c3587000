"""The place at which decoding starts, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Bytes of a source that are copied for a place, at most; otherwise it is decoded from its start.
MOST_COPIED = 64 << 20
#: Codecs with samples that depend a little on where decoding starts: noise, and predicted energies.
DEPENDING_ON_START = ("aac", "opus")
#: Seconds that are decoded ahead of a place, for the state that a codec carries from frame to
#: frame: the bit reservoir of mp3, and the overlap of transforms.
PREROLL = 1
# Steps of a search that go by the mean bit rate; each of the further ones halves what is left.
_ESTIMATES = 4


@dataclass(frozen=True, slots=True)
class SeekPoint:
    """A place from which a decoder outputs the samples that a decode of the whole source has.

    It is a function of the source's bytes and of ``t`` alone, however it was found (D78).

    :ivar sample: number of samples of the source ahead of the first one that the decoder outputs.
    :ivar offset: of the first byte that the decoder reads, from the start of the container.
    :ivar demuxer: the one that reads what begins there.
    :ivar head: bytes that the decoder needs ahead of the place, so that it reads a copy; empty
        where every frame stands alone, and it reads the source itself.
    :ivar first_stamp: the time stamp of the first sample, counted in samples.
    :ivar unstamped: number of samples at the start that ffmpeg may give another time stamp: those
        of the first page of Ogg (findings/ffmpeg-ogg-flac-start.sh).
    :ivar is_end: returns whether some bytes of the source have the end of the last needed sample;
        None where all up to ``end`` are needed.
    :ivar least: number of bytes from the place on that are copied without a search for the end.
    :ivar stop: the sample after the last one that a decode of the whole source has, where a decoder
        that starts at the place outputs more; None where it does not.
    :ivar end: the offset after the last byte that the decoder needs; None for the end of the
        source.
    """

    sample: int
    offset: int
    demuxer: str
    head: bytes = b""
    first_stamp: int = 0
    unstamped: int = 0
    is_end: Callable[[bytes], bool] | None = None
    least: int = 0
    stop: int | None = None
    end: int | None = None


def estimate_place(step: int, span: int, samples: int, all_samples: int) -> int:
    """Return how far from the start of a span a step of a search looks for a sample."""
    return span * samples // all_samples if step < _ESTIMATES else span // 2
