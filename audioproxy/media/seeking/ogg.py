"""Places in Ogg Vorbis, Opus and FLAC, found by the granule positions of pages.

The decoder gets the pages of headers, and those from the place on. It knows nothing of positions:
the packets of the first page tell which sample is the first one that it outputs.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

from audioproxy.media.lengths.ogg import PRESKIP, OggStream, preskip, read_start
from audioproxy.media.lengths.ogg_pages import (
    LAST,
    Page,
    find_pages,
    last_pages,
    read_packets,
    with_checksum,
)
from audioproxy.media.lengths.reading import Malformed, Reader, SourceLength, read_range
from audioproxy.media.probe import Probe
from audioproxy.media.seeking.point import PREROLL, SeekPoint

# Bytes that are searched for pages at once, and those of them ahead of the estimated place.
_WINDOW, _AHEAD = 128 * 1024, 48 * 1024
# Steps that go by the mean bit rate; each of the further ones halves what is left.
_ESTIMATES, _MOST_STEPS = 4, 12
_OPUS = b"OpusHead"
# Bytes of headers, among them pictures.
_MOST_HEADERS = 16 << 20


def find_in_ogg(
    size: int, probe: Probe, length: SourceLength, first: int, last: int | None
) -> Reader[SeekPoint]:
    """Return the place from which decoding gives a sample.

    :param length: which the ends of the file confirm.
    :param first: the sample.
    :param last: the sample after the last needed one; None for all.
    :raises Malformed: where the start is near, where pages contradict each other, or where the file
        is not one whole stream.
    """
    stream = yield from read_start(probe)
    # Positions must count the samples from the start of the file.
    least, most = yield from stream.count_first()
    if not least == most == stream.page.granule:
        raise Malformed
    is_opus = probe.codec == "opus"
    if is_opus and not length.seekable:
        raise Malformed
    skipped = preskip(stream) if is_opus else 0
    # Blocks of Vorbis and frames of FLAC depend on no others than these.
    position = first + skipped - (PREROLL * probe.sample_rate if is_opus else 0)
    *_, end = yield from last_pages(stream.first, stream.page, size)
    page = yield from _find_page(stream, end, position)
    begin, count = yield from _first_samples(stream, page, size)
    head = yield from _read_headers(stream)
    is_end = None if last is None else partial(_has_later, stream.first.serial, last + skipped)
    return SeekPoint(begin - skipped, page.offset, "ogg", head, begin, count, is_end)


def _find_page(stream: OggStream, end: Page, position: int) -> Reader[Page]:
    """Return the last page that ends at a position or ahead of it.

    :param end: the last page of the stream.
    :raises Malformed: where it is the first one, or none is certain.
    """
    low, high = stream.page, end
    if not low.granule < position < high.granule:
        raise Malformed
    for step in range(_MOST_STEPS):
        span = high.offset - low.end
        place = span // 2
        if step < _ESTIMATES:
            place = span * (position - low.granule) // (high.granule - low.granule)
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


def _first_samples(stream: OggStream, page: Page, size: int) -> Reader[tuple[int, int]]:
    """Return the position of the first sample that a decoder outputs, which starts at a page.

    :returns: the number of samples up to the next position, too.

    :raises Malformed: where two pages with ends of packets disagree.
    """
    data = yield from read_range(page.offset, min(_WINDOW, size - page.offset))
    pages = find_pages(data, page.offset, page.serial)
    if any(later.offset != before.end for before, later in pairwise(pages)):
        raise Malformed
    listed = yield from read_packets(pages)
    ends = [(page, packets) for page, packets in zip(pages, listed, strict=True) if packets]
    if len(ends) < 2:
        raise Malformed
    (first, packets), (second, more) = ends[:2]
    least, most = stream.count(more, packets[-1])
    samples = second.granule - first.granule
    # The last page may be trimmed.
    fits = samples == least or (samples < least and second.flags & LAST)
    if least != most or not fits:
        raise Malformed
    count, _ = stream.count(packets, None)
    return first.granule - count, count


def _read_headers(stream: OggStream) -> Reader[bytes]:
    """Return the pages of headers, which let a decoder of Opus leave out no samples."""
    count = stream.page.offset
    if count > _MOST_HEADERS:
        raise Malformed
    head = yield from read_range(0, count)
    if not stream.head.startswith(_OPUS):
        return head
    place = stream.first.start + PRESKIP.start
    begin = head[:place] + bytes(2) + head[place + 2 : stream.first.end]
    return with_checksum(begin) + head[stream.first.end :]


def _has_later(serial: bytes, position: int, data: bytes) -> bool:
    """Return whether some bytes have the header of a page that ends at a position or behind it."""
    found = re.finditer(b"OggS\0.(.{8})" + re.escape(serial), data, re.DOTALL)
    return any(int.from_bytes(page[1], "little", signed=True) >= position for page in found)
