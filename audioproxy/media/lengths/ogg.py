"""Lengths of Ogg Vorbis, Opus and FLAC files, from the granule position of the last page.

RFC 3533 describes pages, RFC 7845 Opus in them, RFC 9639, 10.1, FLAC, and the Vorbis I
specification, A.2, Vorbis.
"""

from __future__ import annotations

from typing import NamedTuple

from audioproxy.media.lengths.flac import FRAME_HEADER, parse_frame_header
from audioproxy.media.lengths.reading import Malformed, Reader, SourceLength, read_range
from audioproxy.media.probe import Probe

_PAGE_HEADER = 27
_LARGEST_PAGE = _PAGE_HEADER + 255 + 255 * 255
# Pages of headers: those of a tag with a picture.
_MOST_HEADER_PAGES = 2048
_CONTINUED, _FIRST, _LAST = 1, 2, 4
# Bytes of the identification header of FLAC before the stream information, and of both.
_FLAC_IDENTIFICATION, _FLAC_INFORMATION = 17, 51
_OPUS_RATE = 48000
# Milliseconds of an Opus frame, by the configuration of a packet (RFC 6716, 3.1).
_SILK, _HYBRID, _CELT = (10, 20, 40, 60), (10, 20), (2.5, 5, 10, 20)
_OPUS_FRAMES = _SILK * 3 + _HYBRID * 2 + _CELT * 4


class _Page(NamedTuple):
    offset: int
    flags: int
    granule: int
    serial: bytes
    lacing: bytes
    start: int

    @property
    def end(self) -> int:
        return self.start + sum(self.lacing)

    @property
    def packets(self) -> int:
        """The number of packets that end on the page."""
        return sum(size < 255 for size in self.lacing)


def read_opus(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an Ogg Opus file.

    A file that was cut out of a longer stream does not begin at the first sample of the stream. A
    recording of WebRTC may begin ahead of it. A file whose clock differs from that of its samples
    (D70) is recognized by its second page.
    ffmpeg trims the last page down to its granule position if the page is marked as the last one.
    """
    first = yield from _read_page(0)
    head = yield from read_range(first.start, 12)
    if head[:8] != b"OpusHead" or probe.sample_rate != _OPUS_RATE:
        raise Malformed
    page = yield from _first_audio_page(first, headers=2)
    start = page.granule - (yield from _opus_samples(page))
    before, last = yield from _last_pages(first, size)
    if page.end < before.offset:
        second = yield from _read_page(page.end)
        if not (yield from _follows(page, second)):
            raise Malformed
    end = last.granule
    if last != page:
        if last.flags & _CONTINUED or before.granule < page.granule:
            raise Malformed
        all_samples = before.granule + (yield from _opus_samples(last))
        end = min(max(last.granule, before.granule), all_samples)
        if not last.flags & _LAST:
            if last.granule > all_samples:
                raise Malformed
            end = all_samples
    elif start > 0 or not last.flags & _LAST:
        raise Malformed
    else:
        # The only page may be trimmed.
        start = 0
    delay = int.from_bytes(head[10:], "little")
    is_whole = not start and end == last.granule and bool(last.flags & _LAST)
    return SourceLength(end - start - delay, is_stated_only=True, seekable=is_whole)


def read_flac_in_ogg(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an Ogg FLAC file, which may be cut out of a longer stream."""
    first = yield from _read_page(0)
    head = yield from read_range(first.start, _FLAC_INFORMATION)
    headers = int.from_bytes(head[7:9], "big")
    if head[:5] != b"\x7fFLAC" or not headers:
        raise Malformed
    information = head[_FLAC_IDENTIFICATION:]
    page = yield from _first_audio_page(first, headers=headers + 1)
    start, _ = yield from _read_flac_frame(page.start, information, size)
    first_end = sum((yield from _read_flac_frame(_last_packet(page), information, size)))
    _, last = yield from _last_pages(first, size)
    end = sum((yield from _read_flac_frame(_last_packet(last), information, size)))
    # ffmpeg decodes all of each frame, whatever the position of its page says.
    if not last.flags & _LAST or last.granule - page.granule != end - first_end:
        raise Malformed
    # It counts the first page from 0, so the end of that page is no gap in a file that was cut out.
    is_cut = page.granule != first_end - start
    return SourceLength(end - start, is_stated_only=True, has_gaps=not is_cut)


def _read_flac_frame(offset: int, information: bytes, size: int) -> Reader[tuple[int, int]]:
    """Return the first sample and the number of samples of a frame."""
    data = yield from read_range(offset, min(FRAME_HEADER, size - offset))
    frame = parse_frame_header(data, information)
    if frame is None:
        raise Malformed
    return frame


def _last_packet(page: _Page) -> int:
    """Return the offset of the last packet that begins and ends on a page.

    ffmpeg writes an empty packet behind the last one.

    :raises Malformed: for a page without such a packet.
    """
    packets: list[int] = []
    begin = end = page.start
    is_whole = not page.flags & _CONTINUED
    for length in page.lacing:
        end += length
        if length < 255:
            packets += [begin] if is_whole and end > begin else []
            begin, is_whole = end, True
    if not packets:
        raise Malformed
    return packets[-1]


def read_vorbis(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an Ogg Vorbis file."""
    first = yield from _read_page(0)
    head = yield from read_range(first.start, 29)
    if head[:7] != b"\x01vorbis":
        raise Malformed
    page = yield from _first_audio_page(first, headers=3)
    # Two long blocks overlap by half.
    longest = 1 << (head[28] >> 4)
    # ffmpeg outputs the whole first page of a stream whose beginning was cut off.
    is_cut = probe.first_time_stamp < -longest // 2
    if page.granule > page.packets * longest // 2 or is_cut:
        raise Malformed
    before, last = yield from _last_pages(first, size)
    if not last.flags & _LAST or last.granule < before.granule:
        raise Malformed
    return SourceLength(last.granule, is_stated_only=True, block=longest)


def _read_page(offset: int) -> Reader[_Page]:
    header = yield from read_range(offset, _PAGE_HEADER)
    if header[:5] != b"OggS\0":
        raise Malformed
    lacing = yield from read_range(offset + _PAGE_HEADER, header[26])
    granule = int.from_bytes(header[6:14], "little", signed=True)
    start = offset + _PAGE_HEADER + len(lacing)
    return _Page(offset, header[5], granule, header[14:18], lacing, start)


def _first_audio_page(first: _Page, headers: int) -> Reader[_Page]:
    """Return the page after those of the header packets.

    :raises Malformed: for a file of several streams.
    """
    page, packets = first, first.packets
    if not first.flags & _FIRST:
        raise Malformed
    for _ in range(_MOST_HEADER_PAGES):
        page = yield from _read_page(page.end)
        if page.serial != first.serial or page.flags & _FIRST:
            raise Malformed
        if packets == headers:
            return page
        packets += page.packets
    raise Malformed


def _last_pages(first: _Page, size: int) -> Reader[tuple[_Page, _Page]]:
    """Return the last two pages.

    :raises Malformed: where the file does not end with a whole page of the first stream.
    """
    pages: list[_Page] = []
    for length in (_LARGEST_PAGE, 2 * _LARGEST_PAGE):
        start = max(0, size - length)
        tail = yield from read_range(start, size - start)
        pages, at = [], len(tail)
        while len(pages) < 2 and (at := tail.rfind(b"OggS\0", 0, at)) >= 0:
            page = yield from _read_page(start + at)
            if page.end == (pages[-1].offset if pages else size):
                pages.append(page)
        if len(pages) != 1:
            break
    if len(pages) < 2 or any(page.serial != first.serial for page in pages):
        raise Malformed
    last, before = pages
    if last.granule < 0:
        raise Malformed
    return before, last


def _opus_samples(page: _Page) -> Reader[int]:
    """Return the number of samples of all packets on a page."""
    data = yield from read_range(page.start, page.end - page.start)
    samples, at, begins = 0.0, 0, True
    for size in page.lacing:
        if begins:
            samples += _packet_samples(data[at : at + size])
        begins = size < 255
        at += size
    return int(samples)


def _follows(page: _Page, following: _Page) -> Reader[bool]:
    """Return whether the position of a page is that of the page ahead of it, and its packets."""
    if following.flags & _CONTINUED:
        return True
    return following.granule == page.granule + (yield from _opus_samples(following))


def _packet_samples(packet: bytes) -> float:
    """Return the number of samples of an Opus packet (RFC 6716, 3.1 and 3.2)."""
    if not packet:
        return 0
    code = packet[0] & 3
    frames = (1, 2, 2, packet[1] & 0x3F if len(packet) > 1 else 0)[code]
    return frames * _OPUS_FRAMES[packet[0] >> 3] * _OPUS_RATE / 1000
