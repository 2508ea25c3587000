"""Places in Ogg Vorbis, Opus and FLAC, found by the granule positions of pages.

The decoder gets the pages of headers, and those from the place on. It knows nothing of positions:
the packets of the first page tell which sample is the first one that it outputs.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

from audioproxy.media.lengths.ogg import PRESKIP, OggStream, preskip, read_start
from audioproxy.media.lengths.ogg_pages import (
    CONTINUED,
    LAST,
    MOST_DAMAGED,
    Page,
    drop_packets,
    find_pages,
    last_pages,
    page_at,
    read_packets,
    read_page,
    with_checksum,
)
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range
from audioproxy.media.seek_point import MOST_COPIED, SeekPoint, estimate_place

# Samples of Opus that are decoded ahead of a place. RFC 7845, 4.6, recommends 80 ms. Behind these,
# samples are the same to the last bit: of music, and nearly always of speech, whose pitch is
# predicted over longer times (measured at 12 to 160 kbit/s with frames of 2.5 to 60 ms).
_PREROLL_OF_MUSIC, _PREROLL_OF_SPEECH = 36000, 96000
# The configurations of packets of speech (RFC 6716, 3.1).
_SPEECH = range(16)
# Bytes that are searched for pages at once, and those of them ahead of the estimated place.
_WINDOW, _AHEAD = 128 * 1024, 48 * 1024
_MOST_STEPS = 12
_OPUS = b"OpusHead"


def find_in_ogg(
    size: int, probe: Probe, length: SourceLength, first: int, last: int | None
) -> Reader[SeekPoint]:
    """Return the place from which decoding gives a sample, unless it is near the start.

    :param length: which the ends of the file confirm.
    :param last: the sample after the last needed one; None for all.
    """
    stream = yield from read_start(probe)
    # Positions must count the samples from the start of the file.
    (packets,) = yield from read_packets([stream.page])
    least, most = stream.count(packets, None)
    if not packets or not least == most == stream.page.granule:
        raise Malformed
    # Blocks of Vorbis and frames of FLAC depend on no others than the one that decoding starts at.
    skipped = preroll = 0
    if probe.codec == "opus":
        if not length.seekable:
            raise Malformed
        skipped = preskip(stream)
        preroll = preroll_of_opus(packets[0])
    *_, end = yield from last_pages(stream.first, stream.page, size)
    page = yield from _find_page(stream, end, first + skipped - preroll)
    start = yield from _find_packet(stream, page, first + skipped - preroll)
    head = (yield from _read_headers(stream)) + start.page
    is_end = None if last is None else partial(_has_later, stream.first.serial, last + skipped)
    begin = start.position
    # By the mean bit rate behind the place.
    share = 1.0 if last is None else (last + skipped - begin) / max(1, end.granule - begin)
    needed = round(share * (size - start.following))
    if len(head) + needed > MOST_COPIED:
        raise Malformed
    return SeekPoint(
        begin - skipped,
        start.following,
        "ogg",
        head,
        first_stamp=begin,
        unstamped=start.samples,
        is_end=is_end,
        least=needed * 3 // 4,
    )


def preroll_of_opus(packet: bytes) -> int:
    """Return the number of samples that are decoded ahead of a place, by the first packet."""
    return _PREROLL_OF_SPEECH if packet[0] >> 3 in _SPEECH else _PREROLL_OF_MUSIC


class _Start(NamedTuple):
    """The packet at which decoding starts, on a page that begins with it.

    :ivar following: the offset of the page behind that.
    :ivar position: of the first sample that a decoder outputs.
    :ivar samples: number of samples that it outputs of the page.
    """

    page: bytes
    following: int
    position: int
    samples: int


def _find_page(stream: OggStream, end: Page, position: int) -> Reader[Page]:
    """Return the last page that ends at a position or ahead of it, but not the first one."""
    low, high = stream.page, end
    if not low.granule < position < high.granule:
        raise Malformed
    for step in range(_MOST_STEPS):
        span, samples = high.offset - low.end, high.granule - low.granule
        place = estimate_place(step, span, position - low.granule, samples)
        begin = low.end + max(0, min(place - _AHEAD, span - _WINDOW))
        data = yield from read_range(begin, min(_WINDOW, high.offset - begin))
        pages = [page for page in find_pages(data, begin, low.serial) if page.granule >= 0]
        if any(
            later.granule < before.granule or later.number <= before.number
            for before, later in pairwise((low, *pages, high))
        ):
            raise Malformed
        below = [page for page in pages if page.granule <= position]
        above = pages[len(below) :]
        is_found = (below or begin == low.end) and (above or begin + len(data) == high.offset)
        if not pages and not is_found:
            raise Malformed
        low, high = (below or [low])[-1], (above or [high])[0]
        if is_found:
            return low
    raise Malformed


def _find_packet(stream: OggStream, page: Page, position: int) -> Reader[_Start]:
    """Return the last packet from which a decoder gives the sample at a position.

    The page ends there or ahead. The packets of the next one must lead to the position of that.
    """
    following = yield from read_page(page.end)
    data = yield from read_range(page.offset, following.end - page.offset)
    # ffmpeg leaves out damaged pages.
    is_intact = find_pages(data, page.offset, page.serial) == [page, following]
    ahead, packets = yield from read_packets([page, following])
    if not (is_intact and ahead and packets) or following.number != page.number + 1:
        raise Malformed
    least, samples = stream.count(packets, ahead[-1])
    difference = following.granule - page.granule
    # The last page may be trimmed.
    fits = difference == samples or (difference < samples and following.flags & LAST)
    if least != samples or not fits:
        raise Malformed
    end = page.granule + samples
    # A packet that begins on one page and ends on the next one is no start.
    is_begun = int(bool(following.flags & CONTINUED))
    for skipped in range(len(packets) - 1, is_begun - 1, -1):
        count, _ = stream.count(packets[skipped:], None)
        if end - count <= position:
            return (yield from _start_at(following, skipped, end - count, count))
    count, _ = stream.count(ahead[-1:], None)
    skipped = len(ahead) - 1 + bool(page.flags & CONTINUED)
    return (yield from _start_at(page, skipped, page.granule - count, count))


def _start_at(page: Page, skipped: int, position: int, samples: int) -> Reader[_Start]:
    data = yield from read_range(page.offset, page.end - page.offset)
    return _Start(drop_packets(data, page, skipped), page.end, position, samples)


def _read_headers(stream: OggStream) -> Reader[bytes]:
    head = yield from read_range(0, stream.page.offset)
    if not stream.head.startswith(_OPUS):
        return head
    place = stream.first.start + PRESKIP.start
    begin = head[:place] + bytes(2) + head[place + 2 : stream.first.end]
    return with_checksum(begin) + head[stream.first.end :]


def _has_later(serial: bytes, position: int, data: bytes) -> bool:
    """Return whether some bytes have an undamaged page that ends at a position or behind it."""
    at, damaged = -1, 0
    while damaged < MOST_DAMAGED and (at := data.find(b"OggS\0", at + 1)) >= 0:
        granule = int.from_bytes(data[at + 6 : at + 14], "little", signed=True)
        if data[at + 14 : at + 18] == serial and granule >= position:
            # A checksum takes long, so only those of such pages are compared.
            if page_at(data, at, serial) is not None:
                return True
            damaged += 1
    return False
