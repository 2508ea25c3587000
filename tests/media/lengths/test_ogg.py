"""Lengths of Ogg Vorbis and Ogg Opus files."""

from __future__ import annotations

import struct

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.reading import SourceLength
from audioproxy.media.probe import Probe
from tests.support.audio import find_length_of

OPUS_HEAD = b"OpusHead\1\2" + struct.pack("<H", 312) + bytes(7)
VORBIS_HEAD = b"\1vorbis" + bytes(21) + b"\xb8\1"
# One frame of 20 ms.
PACKET = b"\xfcpacket"


def page(granule: int, *packets: bytes, flags: int = 0, serial: bytes = b"0001") -> bytes:
    """Return a page of whole packets."""
    lacing = b"".join(b"\xff" * (len(p) // 255) + bytes((len(p) % 255,)) for p in packets)
    header = b"OggS\0" + bytes((flags,)) + struct.pack("<q", granule) + serial + bytes(8)
    return header + bytes((len(lacing),)) + lacing + b"".join(packets)


def opus(*pages: bytes, head: bytes = OPUS_HEAD) -> bytes:
    return page(0, head, flags=2) + page(0, b"OpusTags" + bytes(300)) + b"".join(pages)


def vorbis(*pages: bytes) -> bytes:
    return page(0, VORBIS_HEAD, flags=2) + page(0, b"\3vorbis", b"\5vorbis") + b"".join(pages)


def found(file: bytes, codec: str = "opus", rate: int = 48000) -> int | None:
    """Return the number of samples that is found; joined streams would have other numbers.

    Only Opus is sought in. A Vorbis file may end within its longest block.
    """
    length = find_length_of(file, Probe("ogg", codec, None, False, sample_rate=rate))
    if length is None:
        return None
    if codec == "opus":
        assert length == SourceLength(length.samples, is_stated_only=True, seekable=True)
    else:
        assert length == SourceLength(length.samples, is_stated_only=True, block=2048)
    return length.samples


class OggTests(SynchronousTestCase):
    """`read_opus` and `read_vorbis`"""

    def test_last_page(self) -> None:
        """The last page tells the length; that of opus includes the decoder's delay."""
        self.assertEqual(found(opus(page(1000, *[PACKET] * 2, flags=4))), 1000 - 312)
        two = page(1920, *[PACKET] * 2), page(50_000, PACKET, flags=4)
        self.assertEqual(found(opus(*two)), 50_000 - 312)
        self.assertEqual(found(vorbis(*two), "vorbis", 44100), 50_000)

    def test_packets(self) -> None:
        """All forms of opus packets have their number of samples (RFC 6716, 3.1)."""
        for first, milliseconds in (
            (b"\x00", 10),
            (b"\x18", 60),
            (b"\x61", 20),
            (b"\x82", 5),
            (b"\xfb\x03", 60),
            (b"\xfb", 0),
            (b"", 0),
        ):
            samples = milliseconds * 48
            last = page(90_000, PACKET, flags=4)
            packets = (first + bytes(300) if len(first) > 1 else first, PACKET)
            self.assertEqual(found(opus(page(samples + 960, *packets), last)), 90_000 - 312)
            self.assertIsNone(found(opus(page(samples + 961, *packets), last)), first)

    def test_unknown(self) -> None:
        """Files that are cut, chained or multiplexed have no known length."""
        whole, last = page(1920, *[PACKET] * 2), page(9000, PACKET, flags=4)
        other = page(9000, PACKET, flags=4, serial=b"0002")
        # A page in the middle of a packet.
        endless = page(-1, bytes(255))[:26] + b"\1\xff" + bytes(255)
        begins = page(0, OPUS_HEAD, flags=2, serial=b"0002")
        for file in (
            *(b"", b"OggS", opus(), opus(whole), opus(whole, last)[:-1], opus(whole, last) + b"\0"),
            *(opus(whole, other), opus(begins, whole, last), opus(whole, page(-1, flags=4))),
            *(page(0, OPUS_HEAD) + page(0, b"t") + last, opus(last, head=b"Speex   " + bytes(20))),
            # The stream was cut out of a longer one.
            opus(page(50_000, PACKET), last),
            opus(page(300, PACKET, flags=4)),
            page(0, OPUS_HEAD, flags=2) + b"Ogg?" + bytes(99),
            page(0, OPUS_HEAD, flags=2) + endless * 2050,
        ):
            self.assertIsNone(found(file), file[:80])
        self.assertIsNone(found(opus(whole, last), rate=44100))
        for file in (vorbis(page(99_999, PACKET), last), opus(whole, last)):
            self.assertIsNone(found(file, "vorbis", 44100))
