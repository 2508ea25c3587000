"""Lower bounds of lengths, for containers whose exact length cannot be confirmed."""

from __future__ import annotations

from audioproxy.media.lengths.ebml import read_segment
from audioproxy.media.lengths.ends import count_frames, end_before_tags, skip_id3
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, SourceLength, read_range

# ISO/IEC 14496-3, 4.5.3.1: bits of one channel in one frame, at most.
_AAC_FRAME_BYTES = 6144 // 8
#: The sample rates of AAC by their index, 0 for reserved ones; and the samples of a frame.
AAC_RATES = (
    *(96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000),
    *(0, 0, 0, 0),
)
AAC_SAMPLES = 1024
_ADTS_HEADER = 7

# Seconds by which the stated duration may exceed the decoded one. Times are in milliseconds, and
# the duration may include the encoder's delay.
_MARGIN = 1


def adts_form(header: bytes) -> tuple[int, int]:
    """Return the rate and the channels by an ADTS header, each 0 where it states none."""
    if header[0] != 0xFF or header[1] & 0xF6 != 0xF0:
        raise Malformed
    return AAC_RATES[header[2] >> 2 & 0x0F], (header[2] & 1) << 2 | header[3] >> 6


def adts_length(data: bytes) -> int:
    """Return the bytes of a frame of AAC by its header (ISO/IEC 14496-3, 1.A.2); 0 without one."""
    if len(data) < _ADTS_HEADER or data[0] != 0xFF or data[1] & 0xF6 != 0xF0:
        return 0
    return (data[3] & 3) << 11 | data[4] << 3 | data[5] >> 5


def read_adts(size: int, probe: Probe) -> Reader[SourceLength]:
    start = yield from skip_id3()
    header = yield from read_range(start, _ADTS_HEADER)
    rate, channels = adts_form(header)
    if not rate:
        raise Malformed
    end = yield from end_before_tags(size)

    def frame_length(data: bytes) -> int:
        length = adts_length(data)
        return length if data[:3] == header[:3] and length > _ADTS_HEADER else 0

    most_channels = channels if 0 < channels < 7 else 8
    largest = _AAC_FRAME_BYTES * most_channels + _ADTS_HEADER + 2
    frames = yield from count_frames(start, end, frame_length, largest)
    # HE-AAC doubles the rate.
    return SourceLength(frames * AAC_SAMPLES * probe.sample_rate // rate, exact=False)


def read_matroska(size: int, probe: Probe) -> Reader[SourceLength]:
    """Return the duration that the header states, less a second."""
    yield from read_segment(size)
    if not probe.exact or probe.duration is None:
        raise Malformed
    return SourceLength(int((probe.duration - _MARGIN) * probe.sample_rate), exact=False)
