"""The demuxer of a source whose first bytes prove its container.

FFmpeg 9 takes loud periodic samples for packets of MPEG-TS, with a higher score than that of a wav
header, and with the same score as other headers. It then opens the wrong demuxer, or none at all.
"""

from __future__ import annotations

from typing import NamedTuple

from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.lengths.reading import Reader, ReadRange, read_range, skip_id3


class Signature(NamedTuple):
    """Bytes at the start of a source, or after its ID3v2 tags.

    :ivar demuxer: ffmpeg's name of the only demuxer that they fit.
    :ivar start: the first bytes.
    :ivar offset: where further bytes are.
    :ivar kinds: the further bytes, one of which is there; none are needed if it is empty.
    """

    demuxer: str
    start: bytes
    offset: int = 0
    kinds: tuple[bytes, ...] = ()


#: Containers that may hold samples as they are, or cover art, ahead of everything else. In all
#: others, samples are compressed, or are cut into pieces that look like nothing else.
SIGNATURES = (
    Signature("wav", b"RIFF", 8, (b"WAVE",)),
    Signature("wav", b"RF64", 8, (b"WAVE",)),
    Signature("wav", b"BW64", 8, (b"WAVE",)),
    # The GUIDs of Sony Wave64.
    Signature(
        "w64",
        bytes.fromhex("726966662e91cf11a5d628db04c10000"),
        24,
        (bytes.fromhex("77617665f3acd3118cd100c04f8edb8a"),),
    ),
    Signature("aiff", b"FORM", 8, (b"AIFF", b"AIFC")),
    Signature("iff", b"FORM", 8, (b"8SVX", b"16SV", b"MAUD")),
    Signature("iff", b"FRM8", 12, (b"DSD ",)),
    Signature("caf", b"caff"),
    Signature("au", b".snd"),
    Signature("dsf", b"DSD "),
    Signature("flac", b"fLaC"),
    Signature("matroska", b"\x1aE\xdf\xa3"),
    Signature("mov", b"", 4, (b"ftyp", b"moov", b"mdat", b"wide")),
)

_LONGEST = max(s.offset + max(map(len, (s.start, *s.kinds))) for s in SIGNATURES)


async def identify(read: ReadRange, size: int) -> str | None:
    """Return the demuxer of a source by its first bytes; None where they prove nothing.

    :param size: bytes of the source.
    """
    return await run_reader(read, size, _identify(size))


def may_be_misdetected(probed: bytes, *, failed: bool) -> bool:
    """Return whether the demuxer that ffprobe has opened, if any, needs the proof of `identify`.

    :param probed: the output of ffprobe.
    :param failed: ffprobe has found nothing that it can decode.
    """
    return failed or b'"format_name": "mpegts"' in probed


def _identify(size: int) -> Reader[str | None]:
    offset = yield from skip_id3()
    head = yield from read_range(offset, min(_LONGEST, size - offset))
    return next((s.demuxer for s in SIGNATURES if _fits(s, head)), None)


def _fits(signature: Signature, head: bytes) -> bool:
    kind = head[signature.offset :]
    return head.startswith(signature.start) and (
        not signature.kinds or kind.startswith(signature.kinds)
    )
