"""The demuxer that the first bytes of a source prove."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.inputs import DEMUXERS
from audioproxy.media.signatures import (
    FRAME_LENGTHS,
    SIGNATURES,
    Signature,
    identify,
    may_be_misdetected,
)
from tests.support.audio import run_in_memory
from tests.support.mpeg import ID3

_WAVE64 = "726966662e91cf11a5d628db04c10000 f000000000000000 77617665f3acd3118cd100c04f8edb8a"

#: The first bytes of files, and the demuxer that they prove.
HEADS = (
    (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
    (b"RF64\xff\xff\xff\xffWAVEds64", "wav"),
    (b"BW64\xff\xff\xff\xffWAVEds64", "wav"),
    (b"RIFX\0\0\0\0WAVEfmt ", "wav"),
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
    (b"OggS\0\2", "ogg"),
    (b"wvpk\0\1\0\0", "wv"),
    (b"TTA1\1\0", "tta"),
    (b"MAC \x96\x0f", "ape"),
    (b"tBaK\1\0", "tak"),
    (b"MP+\7", "mpc"),
    (b"MPCKSH", "mpc8"),
    (b"#!AMR-WB\n", "amr"),
    (bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"), "asf"),
    (b"\x7f\xfe\x80\x01", "dts"),
    (b"\xfe\x7f\x01\x80", "dts"),
    (b"\x1f\xff\xe8\0", "dts"),
    (b"\xff\x1f\0\xe8", "dts"),
    (b"\0\0\0\x20ftypM4A ", "mov"),
    (b"\0\0\0\x08wide\0\1\0\0mdat", "mov"),
    # AVI and MIDI in RIFF, a picture in FORM, MPEG-TS, MPEG audio, and no audio at all.
    (b"RIFF\0\0\0\0AVI LIST", None),
    (b"RIFF\0\0\0\0RMIDdata", None),
    (b"FORM\0\0\0\0ILBMBMHD", None),
    (b"RIFF\0\0\0\0", None),
    (b"G@\0\x10", None),
    (b"\xff\xfb\x90\x64", None),
    (b"ID3", None),
    (b"", None),
)


#: The start of a frame with its length, for each demuxer of bare frames.
FRAMES = (
    ("aac", b"\xff\xf1\x50\x80\x0c\x9f\xfc", 100),
    ("loas", b"\x56\xe0\x61", 100),
    ("ac3", b"\x0b\x77\0\0\x14\x40", 768),
    ("ac3", b"\x0b\x77\0\0\x94\x50", 1152),
    ("ac3", b"\x0b\x77\0\0\x55\x40", 836),
    ("ac3", b"\x0b\x77\0\0\x54\x40", 834),
    ("eac3", b"\x0b\x77\1\x7f\x34\x80", 768),
    ("mp3", b"\xff\xfb\x90\x64", 417),
)


def find(source: bytes, probed: bytes = b"") -> Signature | None:
    """Return the signature of a source in memory."""
    return run_in_memory(lambda read: identify(read, len(source), probed), source)


class IdentifyTests(SynchronousTestCase):
    """`identify`"""

    def test_heads(self) -> None:
        """A signature names its demuxer, also after ID3v2 tags and zeros.

        Offsets in MP4 count from the start of the file, so ffmpeg reads none behind a tag.
        """
        for head, demuxer in HEADS:
            expected = None if demuxer is None else Signature(demuxer)
            self.assertEqual(find(head + bytes(60)), expected, head)
            for tags in (ID3, ID3 + ID3, ID3 + bytes(70_000), ID3 + bytes(9) + ID3 + bytes(9)):
                found = find(tags + head.lstrip(b"\0") + bytes(60))
                if demuxer in (None, "mov"):
                    self.assertIsNone(found, head)
                else:
                    expected = Signature(str(demuxer), len(tags), tags.endswith(b"\0"))
                    self.assertEqual(found, expected, head)
        self.assertIsNone(find(ID3 + b"\x01\0\0\0mdat" + bytes(60)))

    def test_frames(self) -> None:
        """Three frames in a row prove a stream of frames, fewer do not."""
        self.assertEqual({name for name, *_ in FRAMES}, set(FRAME_LENGTHS))
        for name, head, length in FRAMES:
            frame = head + bytes(length - len(head))
            self.assertEqual(find(ID3 + 3 * frame), Signature(name, len(ID3)), head)
            self.assertIsNone(find(ID3 + 2 * frame + bytes(99)), head)
            for cut in range(len(head)):
                self.assertIsNone(find(ID3 + 2 * frame + head[:cut]), head)

    def test_false_frames(self) -> None:
        """Headers with values that no frame has are none."""
        for head in (
            *(b"\x0b\x77\0\0\xd4\x40", b"\x0b\x77\0\0\x26\x40"),
            *(b"\xff\xf1\x50\x80\0\x1f\xfc", b"\xff\xf7\x50\x80\x0c\x9f\xfc"),
        ):
            self.assertIsNone(find(ID3 + 3 * (head + bytes(94))), head)

    def test_mp3(self) -> None:
        """What ffprobe has found is not opened again.

        So it is for mp3 behind tags: ffmpeg skips them itself, and reads them. Behind zeros, it
        ignores the delay that the encoder states.
        """
        frames = 4 * (b"\xff\xfb\x90\x64" + bytes(413))
        self.assertEqual(find(ID3 + frames, b'"format_name": "wav"'), Signature("mp3", len(ID3)))
        self.assertIsNone(find(ID3 + frames, b'"format_name": "mp3"'))
        for zeros in (ID3 + bytes(99), ID3 + bytes(99) + ID3):
            found = find(zeros + frames, b'"format_name": "mp3"')
            self.assertEqual(found, Signature("mp3", len(zeros), follows_zeros=True))
        flac = b"fLaC" + bytes(60)
        self.assertIsNone(find(flac, b'"format_name": "flac"'))
        self.assertEqual(find(ID3 + flac, b'"format_name": "flac"'), Signature("flac", len(ID3)))

    def test_zeros(self) -> None:
        """Zeros are skipped behind a tag alone, and not without end."""
        self.assertIsNone(find(bytes(20) + b"fLaC" + bytes(60)))
        self.assertIsNone(find(ID3 + bytes((1 << 20) + 70_000) + b"fLaC" + bytes(60)))
        self.assertIsNone(find(ID3 + bytes(99)))
        self.assertIsNone(find(9 * (ID3 + bytes(9)) + b"fLaC" + bytes(60)))

    def test_whitelist(self) -> None:
        """No demuxer is named that ffmpeg may not open (D43)."""
        self.assertEqual(set(SIGNATURES), {demuxer for _, demuxer in HEADS if demuxer})
        self.assertLessEqual({*SIGNATURES, *FRAME_LENGTHS}, set(DEMUXERS.split(",")))

    def test_needed(self) -> None:
        """The signature is read where ffprobe is unsure, or finds nothing.

        A loud tone in a wav file is no MPEG-TS, whatever ffprobe says. Other sources cost no read.
        """
        for form, score, failed, expected in (
            (b"mpegts", 50, False, True),
            (b"wav", 99, False, False),
            (b"mov,mp4", 100, False, False),
            (b"mp3", 51, False, False),
            (b"mp3", 50, False, False),
            (b"mp3", 48, False, True),
            (b"ac3", 51, False, True),
            (b"aac", 51, False, False),
            (b"", 100, True, True),
        ):
            fields = b'\n        "format_name": "%b",\n        "probe_score": %d' % (form, score)
            probed = b'{\n    "format": {' + fields + b"\n    }\n}\n"
            self.assertIs(may_be_misdetected(probed, failed=failed), expected, form)
        self.assertFalse(may_be_misdetected(b"{}", failed=False))

    def test_delay(self) -> None:
        """The signature of mp3 is read if much precedes the first frame, which states no delay."""
        for name, position, start, expected in (
            *(("mp3", 0, "0.000000", False), ("mp3", 1441, "0.000000", False)),
            *(("mp3", 7035, "0.000000", True), ("mp3", 7035, "0.025057", False)),
            *(("aac", 7035, "0.000000", False), ("mp3", None, "0.000000", False)),
        ):
            packets = [] if position is None else [{}, {"pos": str(position)}, {"pos": "9999"}]
            form = {"format_name": name, "start_time": start, "probe_score": 51}
            stream = {"start_time": start}
            output = {"packets": packets, "streams": [stream], "format": form}
            probed = json.dumps(output, indent=4).encode()
            found = may_be_misdetected(probed, failed=False)
            self.assertIs(found, expected, (name, position, start))
