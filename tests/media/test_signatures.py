"""The demuxer that the first bytes of a source prove."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.inputs import DEMUXERS
from audioproxy.media.signatures import SIGNATURES, identify, may_be_misdetected
from tests.support.audio import run_in_memory

_WAVE64 = "726966662e91cf11a5d628db04c10000 f000000000000000 77617665f3acd3118cd100c04f8edb8a"

#: The first bytes of files, and the demuxer that they prove.
HEADS = (
    (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
    (b"RF64\xff\xff\xff\xffWAVEds64", "wav"),
    (b"BW64\xff\xff\xff\xffWAVEds64", "wav"),
    (bytes.fromhex(_WAVE64), "w64"),
    (b"FORM\0\0\0\0AIFFCOMM", "aiff"),
    (b"FORM\0\0\0\0AIFCFVER", "aiff"),
    (b"FORM\0\0\0\x008SVXVHDR", "iff"),
    (b"FRM8\0\0\0\0\0\0\0\0DSD FVER", "iff"),
    (b"caff\0\1\0\0desc", "caf"),
    (b".snd\0\0\0\x18", "au"),
    (b"DSD \x1c\0\0\0", "dsf"),
    (b"fLaC\0\0\0\x22", "flac"),
    (b"\x1aE\xdf\xa3\x9f\x42\x86\x81\1", "matroska"),
    (b"\0\0\0\x20ftypM4A ", "mov"),
    (b"\0\0\0\x08wide\0\1\0\0mdat", "mov"),
    # AVI and MIDI in RIFF, a picture in FORM, MPEG-TS, MPEG audio, and no audio at all.
    (b"RIFF\0\0\0\0AVI LIST", None),
    (b"RIFF\0\0\0\0RMIDdata", None),
    (b"FORM\0\0\0\0ILBMBMHD", None),
    (b"RIFF\0\0\0\0", None),
    (b"RIFX\0\0\0\0WAVEfmt ", None),
    (b"G@\0\x10", None),
    (b"\xff\xfb\x90\x64", None),
    (b"ID3", None),
    (b"", None),
)


class IdentifyTests(SynchronousTestCase):
    """`identify`"""

    def identify(self, source: bytes) -> str | None:
        """Return the demuxer of a source in memory."""
        return run_in_memory(lambda read: identify(read, len(source)), source)

    def test_heads(self) -> None:
        """A signature names its demuxer, also after ID3v2 tags."""
        tag = b"ID3\x04\0\0\0\0\0\x05hello"
        for head, demuxer in HEADS:
            for source in (head + bytes(60), tag + head + bytes(60), tag + tag + head + bytes(60)):
                self.assertEqual(self.identify(source), demuxer, source)

    def test_whitelist(self) -> None:
        """No demuxer is named that ffmpeg may not open (D43)."""
        self.assertEqual(set(SIGNATURES), {demuxer for _, demuxer in HEADS if demuxer})
        self.assertLessEqual(set(SIGNATURES), set(DEMUXERS.split(",")))

    def test_needed(self) -> None:
        """The signature is read for MPEG-TS, and where ffprobe finds nothing; else it costs none.

        A loud tone in a wav file is no MPEG-TS, whatever ffprobe says.
        """
        for form, failed, expected in (
            (b"mpegts", False, True),
            (b"wav", False, False),
            (b"mov,mp4", False, False),
            (b"", True, True),
        ):
            probed = b'{\n    "format": {\n        "format_name": "%b"\n    }\n}\n' % form
            self.assertIs(may_be_misdetected(probed, failed=failed), expected, form)
