"""Detection of encrypted audio in MP4 and QuickTime files."""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UndecodableSource
from audioproxy.media.encryption import is_encrypted
from tests.support.audio import run_in_memory
from tests.support.mp4 import box, full_box
from tests.support.mpeg import ID3

PROTECTION = box(b"sinf", box(b"frma", b"mp4a"), full_box(b"schm", b"cenc\0\1\0\0"))


def entry(name: bytes, *boxes: bytes, version: int = 0) -> bytes:
    """Return a sample entry; later versions are those of QuickTime, with more fields."""
    fields = bytes(6) + struct.pack(">HH", 1, version) + bytes(18 + {0: 0, 1: 16, 2: 36}[version])
    return box(name, fields, *boxes)


def track(*entries: bytes, handler: bytes = b"soun") -> bytes:
    table = full_box(b"stsd", struct.pack(">I", len(entries)) + b"".join(entries))
    header = full_box(b"hdlr", bytes(4) + handler + bytes(12))
    return box(b"trak", box(b"mdia", header, box(b"minf", box(b"stbl", table))))


def movie(*tracks: bytes) -> bytes:
    return box(b"moov", full_box(b"mvhd", bytes(96)), *tracks)


def detected(file: bytes) -> bool:
    return run_in_memory(lambda read: is_encrypted(read, len(file)), file)


CLEAR = track(entry(b"mp4a", box(b"esds", bytes(40))))
TYPE = box(b"ftyp", b"M4A ")


class EncryptionTests(SynchronousTestCase):
    """`is_encrypted`"""

    def test_tag(self) -> None:
        """A file behind an ID3v2 tag is refused: ffmpeg would read other bytes of it."""
        error = self.assertRaises(UndecodableSource, detected, ID3 + TYPE + movie(CLEAR))
        self.assertIn("tag", error.message)

    def test_encrypted(self) -> None:
        """Encrypted audio is detected by its sample entry, or the protection scheme in it."""
        self.assertTrue(detected(TYPE + movie(track(entry(b"mp4a"), entry(b"enca", PROTECTION)))))
        for sound in (
            *(entry(name) for name in (b"enca", b"drms", b"aavd")),
            *(
                entry(b"mp4a", box(b"esds", bytes(40)), PROTECTION, version=version)
                for version in (0, 1, 2)
            ),
        ):
            self.assertTrue(detected(TYPE + movie(track(sound))), sound)

    def test_anywhere(self) -> None:
        """The index may be at either end of a file, or ahead of fragments or a missing end."""
        index, data = movie(track(entry(b"enca", PROTECTION))), box(b"mdat", bytes(300_000))
        large = struct.pack(">I4sQ", 1, b"mdat", 16 + 300_000) + bytes(300_000)
        for file in (
            TYPE + index + data,
            TYPE + data + index,
            TYPE + large + index,
            TYPE + index + (box(b"moof", bytes(50)) + data) * 99,
            TYPE + index + data[:1000],
        ):
            self.assertTrue(detected(file))

    def test_other_tracks(self) -> None:
        """Only the first audio track counts."""
        encrypted = track(entry(b"enca", PROTECTION))
        picture = track(entry(b"encv", PROTECTION), handler=b"vide")
        self.assertTrue(detected(TYPE + movie(picture, encrypted, CLEAR)))
        self.assertFalse(detected(TYPE + movie(picture, CLEAR, encrypted)))

    def test_clear(self) -> None:
        """A clear file is not taken for an encrypted one, whatever its audio data contains."""
        data = box(b"mdat", PROTECTION, b"enca", movie(track(entry(b"enca"))))
        for file in (TYPE + movie(CLEAR) + data, TYPE + data + movie(CLEAR)):
            self.assertFalse(detected(file))

    def test_malformed(self) -> None:
        """A file of another form counts as clear."""
        whole = TYPE + movie(track(entry(b"enca")))
        for file in (
            *(whole[:size] for size in range(0, len(whole) - 40, 7)),
            *(whole.replace(name, b"xxxx") for name in (b"moov", b"hdlr", b"stbl", b"stsd")),
            *(TYPE + movie(track()), TYPE + movie()),
            # More boxes and entries than files have, and an index that takes too many reads.
            box(b"free") * 300 + whole,
            TYPE + movie(track(*[entry(b"mp4a")] * 17, entry(b"enca"))),
            TYPE + box(b"mdat", bytes(1_100_000)) * 20 + movie(track(entry(b"enca"))),
        ):
            self.assertFalse(detected(file), file[:60])
