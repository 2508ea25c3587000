"""The demuxer of a source whose first bytes prove its container.

FFmpeg 9 takes loud periodic samples for packets of MPEG-TS, with a higher score than that of a wav
header, and with the same score as other headers. It then opens the wrong demuxer, or none at all.
"""

from __future__ import annotations

import re

from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.lengths.reading import Reader, ReadRange, read_range, skip_id3

# The GUIDs of Sony Wave64.
_W64_RIFF = re.escape(bytes.fromhex("726966662e91cf11a5d628db04c10000"))
_W64_WAVE = re.escape(bytes.fromhex("77617665f3acd3118cd100c04f8edb8a"))

#: The first bytes of a source, or those after its ID3v2 tags, by the only demuxer that they fit.
#: The containers are those that may hold samples as they are, or cover art, ahead of all else.
SIGNATURES = {
    "wav": rb"(?:RIFF|RF64|BW64)....WAVE",
    "w64": _W64_RIFF + rb".{8}" + _W64_WAVE,
    "aiff": rb"FORM....AIF[FC]",
    "iff": rb"FORM....(?:8SVX|16SV|MAUD)|FRM8.{8}DSD ",
    "caf": rb"caff",
    "au": rb"\.snd",
    "dsf": rb"DSD ",
    "flac": rb"fLaC",
    "matroska": rb"\x1aE\xdf\xa3",
    "mov": rb"....(?:ftyp|moov|mdat|wide)",
}
_ANY = re.compile(
    b"|".join(b"(?P<%b>%b)" % (name.encode(), form) for name, form in SIGNATURES.items()), re.DOTALL
)
# Bytes of the longest signature.
_LONGEST = 40


async def identify(read: ReadRange, size: int) -> str | None:
    """Return the demuxer of a source by its first bytes; None where they prove nothing.

    :param size: bytes of the source.
    """
    return await run_reader(read, size, _identify(size))


def may_be_misdetected(probed: bytes, *, failed: bool) -> bool:
    """Return whether ffprobe may have opened the wrong demuxer, or found none.

    :param probed: the output of ffprobe.
    :param failed: ffprobe has found nothing that it can decode.
    """
    return failed or b'"format_name": "mpegts"' in probed


def _identify(size: int) -> Reader[str | None]:
    offset = yield from skip_id3()
    found = _ANY.match((yield from read_range(offset, min(_LONGEST, size - offset))))
    return found.lastgroup if found else None
