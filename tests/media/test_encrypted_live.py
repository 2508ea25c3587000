"""Encrypted sources, and clear ones that look like them: what ffprobe and the boxes tell (D64)."""

from __future__ import annotations

import struct
from functools import cache

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import EncryptedSource
from tests.support.audio import convert_all, noise, probe, write_wav
from tests.support.matroska import ENCODINGS, TRACK, TRACKS, element

ENCRYPTION = (
    "-encryption_scheme cenc-aes-ctr -encryption_key 00112233445566778899aabbccddeeff"
    " -encryption_kid ffeeddccbbaa99887766554433221100"
)
FORMS = {
    "aac": f"-c:a aac {ENCRYPTION} -f mp4",
    "first": f"-c:a aac {ENCRYPTION} -movflags +faststart -f mp4",
    "fragmented": f"-c:a aac {ENCRYPTION} -movflags empty_moov+frag_keyframe -f mp4",
    "opus": f"-c:a libopus {ENCRYPTION} -f mp4",
    "mp3": f"-c:a libmp3lame {ENCRYPTION} -f mp4",
    "m4a": "-c:a aac -f mp4",
    "mov": "-c:a alac -f mov",
    "mka": "-c:a flac -f matroska",
    "asf": "-c:a wmav2 -f asf",
}
#: The content encryption object of ASF.
ASF_ENCRYPTION = bytes.fromhex("fbb3112223bdd211b4b700a0c955fc6e")


@cache
def sources() -> dict[str, bytes]:
    """Return half a second of noise in each form."""
    return convert_all(write_wav(noise(48000, 24000, 2)), FORMS)


def encrypted_asf() -> bytes:
    """Return an ASF file with the data of a protection scheme."""
    # Secret data, protection type, key and license, each with its length.
    fields = struct.pack("<I4s", 4, b"key\0") * 4
    source = sources()["asf"]
    added = ASF_ENCRYPTION + struct.pack("<Q", 24 + len(fields)) + fields
    size, count = struct.unpack_from("<QI", source, 16)
    header = struct.pack("<QI", size + len(added), count + 1)
    return source[:16] + header + source[28:30] + added + source[30:]


def encrypted_mka() -> bytes:
    """Return a Matroska file whose track has an encryption key."""
    source = sources()["mka"]
    # ContentEncodings: one for all frames, of the kind encryption, with a key of 16 bytes.
    encryption = element("5035", element("47e1", b"\5"), element("47e2", bytes(16)))
    encoding = element("5033", b"\1") + encryption
    added = element(ENCODINGS, element("6240", encoding))
    tracks = source.index(b"\x16\x54\xae\x6b")
    # The size of the only track has eight bytes, and that of the segment becomes unknown.
    entry = source.index(b"\xae\x01\0\0\0\0\0\0", tracks) + 9
    length = source[entry - 1]
    content = element(TRACK, source[entry : entry + length], added)
    body = source[:tracks] + element(TRACKS, content) + source[entry + length :]
    segment = body.index(b"\x18\x53\x80\x67") + 4
    return body[:segment] + b"\x01" + b"\xff" * 7 + body[segment + 8 :]


class EncryptedTests(SynchronousTestCase):
    """Encrypted sources"""

    def test_refused(self) -> None:
        """The probe refuses encrypted sources with 415, for info and renders."""
        made = sources()
        for name, source in {
            **{name: made[name] for name in ("aac", "first", "fragmented", "opus", "mp3")},
            **{
                code.decode(): made["m4a"].replace(b"mp4a", code, 1)
                for code in (b"drms", b"aavd", b"enca")
            },
            "truncated": made["first"][:-100],
            "asf": encrypted_asf(),
            "mka": encrypted_mka(),
        }.items():
            error = self.assertRaises(EncryptedSource, probe, source)
            self.assertEqual(error.status, 415, name)
