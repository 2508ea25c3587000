"""Lengths of Ogg Vorbis and Ogg Opus files, from the granule position of the last page.

RFC 3533 describes pages, RFC 7845 Opus in them, and the Vorbis I specification, A.2, Vorbis.
"""

from __future__ import annotations

from typing import NamedTuple

from audioproxy.media.lengths.reading import Malformed, Reader, SourceLength, read_range
from audioproxy.media.probe import Probe

_PAGE_HEADER = 27
_LARGEST_PAGE = _PAGE_HEADER + 255 + 255 * 255
# Pages of headers: those of a tag with a picture.
_MOST_HEADER_PAGES = 2048
_FIRST, _LAST = 2, 4
_OPUS_RATE = 48000
# Milliseconds of an Opus frame, by the configuration of a packet (RFC 6716, 3.1).
_SILK, _HYBRID, _CELT = (10, 20, 40, 60), (10, 20), (2.5, 5, 10, 20)
_OPUS_FRAMES = _SILK * 3 + _HYBRID * 2 + _CELT * 4


class _Page(NamedTuple):
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
    """Read the length of an Ogg Opus file."""
    first = yield from _read_page(0)
    head = yield from read_range(first.start, 12)
    if head[:8] != b"OpusHead" or probe.sample_rate != _OPUS_RATE:
        raise Malformed
    page = yield from _first_audio_page(first, headers=2)
    packets = yield from read_range(page.start, page.end - page.start)
    if page.granule > _opus_samples(page.lacing, packets):
        # The stream does not begin at its first sample: it was cut out of a longer one.
        raise Malformed
    samples = yield from _last_granule(first, size)
    delay = int.from_bytes(head[10:], "little")
    return SourceLength(samples - delay, is_stated_only=True, seekable=True)


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
    samples = yield from _last_granule(first, size)
    return SourceLength(samples, is_stated_only=True, block=longest)


def _read_page(offset: int) -> Reader[_Page]:
    header = yield from read_range(offset, _PAGE_HEADER)
    if header[:5] != b"OggS\0":
        raise Malformed
    lacing = yield from read_range(offset + _PAGE_HEADER, header[26])
    granule = int.from_bytes(header[6:14], "little", signed=True)
    start = offset + _PAGE_HEADER + len(lacing)
    return _Page(header[5], granule, header[14:18], lacing, start)


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


def _last_granule(first: _Page, size: int) -> Reader[int]:
    """Return the granule position of the last page.

    :raises Malformed: where the file does not end with the last page of the first stream.
    """
    start = max(0, size - _LARGEST_PAGE)
    tail = yield from read_range(start, size - start)
    page = yield from _read_page(start + max(0, tail.rfind(b"OggS\0")))
    is_last = page.end == size and page.flags & _LAST
    if page.serial != first.serial or not is_last or page.granule < 0:
        raise Malformed
    return page.granule


def _opus_samples(lacing: bytes, data: bytes) -> float:
    """Return the number of samples of all packets on a page."""
    samples, at, begins = 0.0, 0, True
    for size in lacing:
        if begins:
            samples += _packet_samples(data[at : at + size])
        begins = size < 255
        at += size
    return samples


def _packet_samples(packet: bytes) -> float:
    """Return the number of samples of an Opus packet (RFC 6716, 3.1 and 3.2)."""
    if not packet:
        return 0
    code = packet[0] & 3
    frames = (1, 2, 2, packet[1] & 0x3F if len(packet) > 1 else 0)[code]
    return frames * _OPUS_FRAMES[packet[0] >> 3] * _OPUS_RATE / 1000
