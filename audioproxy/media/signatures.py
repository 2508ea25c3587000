"""The demuxer of a source whose first bytes prove its container.

FFmpeg 9 takes loud periodic samples for packets of MPEG-TS, with a higher score than that of a wav
header, and with the same score as other headers. It then opens the wrong demuxer, or none at all.

Every version reads at most 1 MiB before it chooses. Where a larger ID3v2 tag comes first, it
chooses mp3, whatever follows the tag. It does not find the audio behind several tags, nor behind
zeros after a tag. FFmpeg 9 skips tags only ahead of containers that are known to have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.lengths.ends import skip_id3
from audioproxy.media.lengths.lower_bounds import adts_length
from audioproxy.media.lengths.mpeg_frame import FrameHeader
from audioproxy.media.reading import Malformed, Reader, ReadRange, read_range

# The GUIDs of Sony Wave64 and of ASF.
_W64_RIFF = re.escape(bytes.fromhex("726966662e91cf11a5d628db04c10000"))
_W64_WAVE = re.escape(bytes.fromhex("77617665f3acd3118cd100c04f8edb8a"))
_ASF = re.escape(bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"))
# Frames of 16 and of 14 bits a word, in both byte orders (ETSI TS 102 114, 5.3).
_DTS = rb"\x7f\xfe\x80\x01|\xfe\x7f\x01\x80|\x1f\xff\xe8\0|\xff\x1f\0\xe8"

#: The first bytes of a source, or those after its ID3v2 tags, by the only demuxer that they fit.
SIGNATURES = {
    "wav": rb"(?:RIFF|RF64|BW64|RIFX)....WAVE",
    "w64": _W64_RIFF + rb".{8}" + _W64_WAVE,
    "aiff": rb"FORM....AIF[FC]",
    "iff": rb"FORM....(?:8SVX|16SV|MAUD)|FRM8.{8}DSD ",
    "caf": rb"caff",
    "au": rb"\.snd",
    "dsf": rb"DSD ",
    "flac": rb"fLaC",
    "matroska": rb"\x1aE\xdf\xa3",
    "mov": rb"....(?:ftyp|moov|mdat|wide)",
    "ogg": rb"OggS\0",
    "wv": rb"wvpk",
    "tta": rb"TTA1",
    "ape": rb"MAC ",
    "tak": rb"tBaK",
    "mpc": rb"MP\+[\x07\x17]",
    "mpc8": rb"MPCK",
    "amr": rb"#!AMR",
    "asf": _ASF,
    "dts": _DTS,
}
_ANY = re.compile(
    b"|".join(b"(?P<%b>%b)" % (name.encode(), form) for name, form in SIGNATURES.items()), re.DOTALL
)
# Bytes of the longest signature.
_LONGEST = 40

#: A demuxer that reads ID3v2 tags in every version, and opens whatever follows them.
TAG_DEMUXER = "flac"

# Offsets in MP4 count from the start of the file, so ffmpeg does not find what follows a tag.
_COUNTS_FROM_START = "mov"

# Bytes that are searched for frames, and frames that follow each other.
_SEARCHED = 32 * 1024
_FRAMES = 3
# Bytes of the longest frame of mp3, which an encoder's header fills.
_LONGEST_FRAME = 1441
# Runs of tags and zeros; zeros after a tag; and the part of them that is read at a time.
_MOST_RUNS = 4
_MOST_ZEROS = 1 << 20
_ZEROS = 64 * 1024

# What ffprobe prints of a container and its score. Up to the score of the extension of a file's
# name, it is unsure. Of some containers it is sure wrongly: of MPEG-TS, and of bare frames ahead of
# which FFmpeg 9 does not skip tags.
_NAME = re.compile(rb'^ *"format_name": "(\w+)', re.MULTILINE)
_SCORE = re.compile(rb'^ *"probe_score": (\d+)', re.MULTILINE)
_POSITION = re.compile(rb'^ *"pos": "(\d+)', re.MULTILINE)
_START = re.compile(rb'^ *"start_time": "([^"]+)', re.MULTILINE)
_LEAST_SURE_SCORE = 50
_NEVER_SURE = (b"mpegts", b"loas", b"ac3", b"eac3", b"dts")

# Bit rates of AC-3 in kbps, and the bytes of a frame for each of them at 48 and 32 kHz (ATSC A/52,
# 5.4.1.4).
_AC3_KBPS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)
_AC3_FACTORS = {0: 4, 2: 6}
_AC3_LAST = 10


class Signature(NamedTuple):
    """What the first bytes of a source prove.

    :ivar start: bytes of tags and zeros ahead of the container.
    :ivar follows_zeros: there are zeros among them.
    """

    demuxer: str
    start: int = 0
    follows_zeros: bool = False


async def identify(read: ReadRange, size: int, probed: bytes = b"") -> Signature | None:
    """Return the signature of a source; None where it proves nothing that ffprobe has not found.

    :param probed: the output of ffprobe.
    """
    found = await run_reader(read, size, _identify(size))
    if found is not None and found.demuxer.encode() == _name_of(probed):
        # ffmpeg reads tags ahead of mp3, too. Behind zeros, it ignores the delay of the encoder.
        is_needed = found.follows_zeros if found.demuxer == "mp3" else found.start
        return found if is_needed else None
    return found


def may_be_misdetected(probed: bytes, *, failed: bool) -> bool:
    """Return whether ffprobe may have opened the wrong demuxer, or found none.

    :param probed: the output of ffprobe.
    :param failed: ffprobe has found nothing that it can decode.
    """
    score, name = _SCORE.search(probed), _name_of(probed)
    is_unsure = score is not None and int(score[1]) < _LEAST_SURE_SCORE
    return failed or is_unsure or name in _NEVER_SURE or (name == b"mp3" and _lacks_delay(probed))


def _lacks_delay(probed: bytes) -> bool:
    """Return whether more than a frame precedes the first packet, which has no encoder's delay.

    Files of usual encoders have one.
    """
    first, start = _POSITION.search(probed), _START.search(probed)
    if first is None or start is None:
        return False
    return int(first[1]) > _LONGEST_FRAME and not start[1].strip(b"0.")


def _name_of(probed: bytes) -> bytes:
    found = _NAME.search(probed)
    return found[1] if found else b""


def _identify(size: int) -> Reader[Signature | None]:
    start, follows_zeros = yield from _skip_tags(size)
    found = _ANY.match((yield from read_range(start, min(_LONGEST, size - start))))
    if found is not None:
        name = str(found.lastgroup)
        if start and name == _COUNTS_FROM_START:
            return None
        return Signature(name, start, follows_zeros)
    data = yield from read_range(start, min(_SEARCHED, size - start))
    for name, frame_length in FRAME_LENGTHS.items():
        if _holds_frames(data, frame_length):
            return Signature(name, start, follows_zeros)
    return None


def _skip_tags(size: int) -> Reader[tuple[int, bool]]:
    """Return the offset after the ID3v2 tags at the start and zeros, and if there are zeros."""
    start, follows_zeros = 0, False
    for _ in range(_MOST_RUNS):
        behind = yield from skip_id3(start)
        if behind == start:
            return start, follows_zeros
        start = yield from _skip_zeros(behind, size)
        follows_zeros = follows_zeros or start > behind
    raise Malformed


def _skip_zeros(start: int, size: int) -> Reader[int]:
    last = min(size, start + _MOST_ZEROS)
    while start < last:
        data = yield from read_range(start, min(_ZEROS, size - start))
        audio = data.lstrip(b"\0")
        start += len(data) - len(audio)
        if audio:
            return start
    raise Malformed


def _holds_frames(data: bytes, frame_length: Callable[[bytes], int]) -> bool:
    at = 0
    for _ in range(_FRAMES):
        length = frame_length(data[at : at + 8])
        if not length:
            return False
        at += length
    return True


def _loas_length(data: bytes) -> int:
    """Return the bytes of a frame of AAC (ISO/IEC 14496-3, 1.7.2)."""
    if len(data) < 3 or data[0] != 0x56 or data[1] & 0xE0 != 0xE0:
        return 0
    return ((data[1] & 0x1F) << 8 | data[2]) + 3


def _ac3_length(data: bytes) -> int:
    if len(data) < 6 or data[:2] != b"\x0b\x77" or data[5] >> 3 > _AC3_LAST:
        return 0
    rate, code = data[4] >> 6, data[4] & 0x3F
    if rate == 3 or code >> 1 >= len(_AC3_KBPS):
        return 0
    kbps = _AC3_KBPS[code >> 1]
    if rate in _AC3_FACTORS:
        return kbps * _AC3_FACTORS[rate]
    return 2 * (96000 * kbps // 44100 + (code & 1))


def _eac3_length(data: bytes) -> int:
    """Return the bytes of a frame of E-AC-3 (ATSC A/52, E.1.3.1.3)."""
    if len(data) < 6 or data[:2] != b"\x0b\x77" or data[5] >> 3 <= _AC3_LAST:
        return 0
    return 2 * (((data[2] & 7) << 8 | data[3]) + 1)


def _mp3_length(data: bytes) -> int:
    found = FrameHeader.parse(data)
    return 0 if found is None else found.length


#: The bytes of a frame by its first ones, or 0, for the demuxers of bare frames.
FRAME_LENGTHS: dict[str, Callable[[bytes], int]] = {
    "aac": adts_length,
    "loas": _loas_length,
    "ac3": _ac3_length,
    "eac3": _eac3_length,
    "mp3": _mp3_length,
}
