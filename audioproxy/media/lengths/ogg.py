"""Lengths of Ogg Vorbis, Opus and FLAC files, from the granule position of the last page.

A position counts the samples up to the end of its page, so it has to agree with the packets of the
page and with the page ahead. RFC 7845 describes Opus in Ogg, RFC 9639, 10.1, FLAC, and the Vorbis I
specification, A.2, Vorbis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from audioproxy.media.lengths.flac import FRAME_HEADER, parse_frame_header
from audioproxy.media.lengths.ogg_pages import (
    CONTINUED,
    LAST,
    Page,
    first_audio_page,
    last_pages,
    read_packets,
    read_page,
)
from audioproxy.media.lengths.vorbis import MODES, Blocks
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

# Bytes of the identification header of FLAC before the stream information, and of both.
_FLAC_IDENTIFICATION, _FLAC_INFORMATION = 17, 51
# The byte of the identification header of Vorbis that has the sizes of blocks.
_VORBIS_BLOCKS = 28
_OPUS_RATE = 48000
#: Where the first packet of Opus has the number of samples that precede the first one.
PRESKIP = slice(10, 12)
# Milliseconds of an Opus frame, by the configuration of a packet (RFC 6716, 3.1).
_SILK, _HYBRID, _CELT = (10, 20, 40, 60), (10, 20), (2.5, 5, 10, 20)
_OPUS_FRAMES = _SILK * 3 + _HYBRID * 2 + _CELT * 4
# Positions that were converted from milliseconds are off by less than a 500th of a second.
_ROUNDING = 500

#: Returns the least and the largest number of samples of packets, which it is given with the packet
#: ahead of them: None at the start of a stream, empty where it is not known.
PacketCount: TypeAlias = Callable[[Sequence[bytes], bytes | None], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OggStream:
    """What the start of a stream tells. The first packet, or its start, is the head.

    :ivar page: the first one of audio.
    :ivar longest: number of samples of the longest block of Vorbis.
    """

    first: Page
    page: Page
    head: bytes
    count: PacketCount
    longest: int = 0

    def count_first(self) -> Reader[tuple[int, int]]:
        (packets,) = yield from read_packets([self.page])
        return self.count(packets, None)


def read_start(probe: Probe) -> Reader[OggStream]:
    first = yield from read_page(0)
    head = yield from read_range(first.start, min(_FLAC_INFORMATION, first.end - first.start))
    if head[:8] == b"OpusHead" and probe.sample_rate == _OPUS_RATE:
        page = yield from first_audio_page(first, headers=2)
        return OggStream(first, page, head, count_opus)
    if head[:7] == b"\x01vorbis" and len(head) > _VORBIS_BLOCKS:
        page = yield from first_audio_page(first, headers=3)
        start = max(first.end, page.offset - MODES)
        setup = yield from read_range(start, page.offset - start)
        blocks = Blocks.parse(head[_VORBIS_BLOCKS], setup)
        return OggStream(first, page, head, blocks.count, blocks.longest)
    headers = int.from_bytes(head[7:9], "big")
    if head[:5] != b"\x7fFLAC" or len(head) < _FLAC_INFORMATION or not headers:
        raise Malformed
    page = yield from first_audio_page(first, headers=headers + 1)
    count = partial(_count_flac, head[_FLAC_IDENTIFICATION:])
    return OggStream(first, page, head, count)


def read_opus(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an Ogg Opus file.

    A file that was cut out of a longer stream does not begin at the first sample of the stream. A
    recording of WebRTC may begin ahead of it. A file whose clock differs from that of its samples
    (D70) is recognized by its second page.
    ffmpeg trims the last page down to its granule position if the page is marked as the last one.
    """
    stream = yield from read_start(probe)
    page = stream.page
    start = page.granule - (yield from stream.count_first())[0]
    pages = yield from last_pages(stream.first, page, size)
    last = pages[-1]
    if page.end < last.offset:
        second = yield from read_page(page.end)
        _, packets = yield from read_packets([page, second])
        if second.granule not in (-1, page.granule + count_opus(packets)[0]):
            raise Malformed
    end = last.granule
    if last != page:
        before, all_samples, _ = yield from _read_end(pages, count_opus, _OPUS_RATE)
        if before < page.granule:
            raise Malformed
        end = min(max(last.granule, before), all_samples)
        if not last.flags & LAST:
            if last.granule > all_samples:
                raise Malformed
            end = all_samples
    elif start > 0 or not last.flags & LAST:
        raise Malformed
    else:
        # The only page may be trimmed.
        start = 0
    is_whole = not start and end == last.granule and bool(last.flags & LAST)
    return SourceLength(end - start - preskip(stream), is_stated_only=True, seekable=is_whole)


def preskip(stream: OggStream) -> int:
    return int.from_bytes(stream.head[PRESKIP], "little")


def read_vorbis(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of a file, whose last packet ffmpeg trims to the position of its page."""
    stream = yield from read_start(probe)
    page, longest = stream.page, stream.longest
    pages = yield from last_pages(stream.first, page, size)
    last = pages[-1]
    # ffmpeg outputs the whole first page of a stream whose beginning was cut off.
    if not last.flags & LAST or probe.audio.first_time_stamp < -longest // 2:
        raise Malformed
    least, most = yield from stream.count_first()
    if last != page:
        if not least - longest <= page.granule <= most + longest // 2:
            raise Malformed
        before, least, most = yield from _read_end(pages, stream.count, probe.sample_rate)
        least = max(least, before + longest)
    rounding = probe.sample_rate // _ROUNDING
    if not least - longest <= last.granule <= most + rounding:
        raise Malformed
    return SourceLength(last.granule, is_stated_only=True, block=longest)


def read_flac_in_ogg(size: int, probe: Probe) -> Reader[SourceLength]:
    """Read the length of an Ogg FLAC file, which may be cut out of a longer stream."""
    stream = yield from read_start(probe)
    page, information = stream.page, stream.head[_FLAC_IDENTIFICATION:]

    def read_frame(offset: int) -> Reader[tuple[int, int]]:
        data = yield from read_range(offset, min(FRAME_HEADER, size - offset))
        frame = parse_frame_header(data, information)
        if frame is None:
            raise Malformed
        return frame

    start, _ = yield from read_frame(page.start)
    first_end = sum((yield from read_frame(_last_packet(page))))
    *_, last = yield from last_pages(stream.first, page, size)
    end = sum((yield from read_frame(_last_packet(last))))
    # ffmpeg decodes all of each frame, whatever the position of its page says.
    if not last.flags & LAST or last.granule - page.granule != end - first_end:
        raise Malformed
    # It counts the first page from 0, so the end of that page is no gap in a file that was cut out.
    is_cut = page.granule != first_end - start
    return SourceLength(end - start, is_stated_only=True, has_gaps=not is_cut)


def _read_end(pages: Sequence[Page], count: PacketCount, rate: int) -> Reader[tuple[int, int, int]]:
    """Return the position ahead of the last page, and the least and the largest one after it."""
    listed = yield from read_packets(pages)
    position, ahead = -1, b""
    for page, packets in zip(pages[:-1], listed, strict=False):
        # A page on which no packet ends has no position.
        if page.granule >= 0:
            # It does not begin ahead of the end of another one.
            if 0 <= position > page.granule - count(packets, ahead)[0] + rate // _ROUNDING:
                raise Malformed
            position = page.granule
        ahead = packets[-1] if packets else ahead
    if position < 0:
        raise Malformed
    least, most = count(listed[-1], ahead)
    return position, position + least, position + most


def count_opus(packets: Sequence[bytes], ahead: bytes | None = None) -> tuple[int, int]:
    """Return the number of samples of Opus packets (RFC 6716, 3.1 and 3.2), as both."""
    samples = int(sum(_opus_samples(packet) for packet in packets))
    return samples, samples


def _count_flac(
    information: bytes, packets: Sequence[bytes], ahead: bytes | None = None
) -> tuple[int, int]:
    frames = [parse_frame_header(packet[:FRAME_HEADER], information) for packet in packets]
    samples = sum(0 if frame is None else frame[1] for frame in frames)
    return samples, samples


def _opus_samples(packet: bytes) -> float:
    code = packet[0] & 3
    frames = (1, 2, 2, packet[1] & 0x3F if len(packet) > 1 else 0)[code]
    return frames * _OPUS_FRAMES[packet[0] >> 3] * _OPUS_RATE / 1000


def _last_packet(page: Page) -> int:
    """Return the offset of the last whole packet of a page. ffmpeg writes an empty one after it."""
    found = None
    begin = end = page.start
    is_whole = not page.flags & CONTINUED
    for length in page.lacing:
        end += length
        if length < 255:
            found = begin if is_whole and end > begin else found
            begin, is_whole = end, True
    if found is None:
        raise Malformed
    return found
