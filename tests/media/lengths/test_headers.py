"""Container headers that state the length of an output."""

from __future__ import annotations

import struct
from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.headers import (
    FLAC_LENGTH,
    MP3_LENGTH,
    WAV_LENGTH,
    LengthHeader,
    OutputForm,
    fragmented_mp4_length,
)
from audioproxy.media.lengths.mpeg_frame import RATES, FrameHeader

CD = OutputForm(44100, 44100, 2, sample_bytes=2)
FORMAT = b"fmt " + struct.pack("<I", 16) + bytes(16)


def patched(length: LengthHeader, form: OutputForm, header: bytes) -> bytes:
    """Return a header after its patches."""
    changed = bytearray(header)
    for offset, data in length.patches(form, header):
        changed[offset : offset + len(data)] = data
    assert len(changed) == len(header)
    return bytes(changed)


class WavTests(SynchronousTestCase):
    """wav: RIFF, and RF64 for more than 4 GiB"""

    def test_sizes(self) -> None:
        """The sizes and the number of samples are exact, and an odd size is padded."""
        mono = OutputForm(5, 44100, 1, sample_bytes=3)
        for form, riff, data in ((CD, 176448, 176400), (mono, 48 + 16, 15)):
            header = WAV_LENGTH.prefix(form)
            header += b"RIFF\xff\xff\xff\xffWAVE" + FORMAT + b"data\xff\xff\xff\xff"
            expected = b"RIFF" + struct.pack("<I", riff) + b"WAVE" + FORMAT
            expected += b"fact" + struct.pack("<II", 4, form.samples)
            expected += b"data" + struct.pack("<I", data)
            self.assertEqual(patched(WAV_LENGTH, form, header), expected)
        suffix = WAV_LENGTH.suffix
        self.assertEqual((suffix(CD, 176456), suffix(mono, 71)), (b"", b"\0"))

    def test_64_bits(self) -> None:
        """From 4 GiB on, RF64 has the sizes (EBU Tech 3306)."""
        muxer = WAV_LENGTH.muxer
        largest = OutputForm(2**30 - 24, 44100, 2, sample_bytes=2)
        self.assertEqual(muxer(largest), [])
        large = replace(largest, samples=2**30 - 23)
        self.assertEqual(muxer(large), ["-rf64", "always"])
        header = bytes(12) + b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<I", 28) + bytes(28)
        header += FORMAT + b"data\xff\xff\xff\xff"
        found = patched(WAV_LENGTH, large, header)
        size = large.data_bytes
        self.assertEqual(struct.unpack_from("<QQQ", found, 20), (84 + size, size, large.samples))
        self.assertEqual((found[4:8], found[-4:]), (b"\xff" * 4,) * 2)
        self.assertEqual(found[-20:-8], b"fact" + struct.pack("<II", 4, large.samples))


class OtherContainerTests(SynchronousTestCase):
    """flac and m4a"""

    def test_samples(self) -> None:
        """The low 36 bits of eight bytes of STREAMINFO are the number of samples."""
        header = b"fLaC\0\0\0\x22" + bytes(10) + bytes.fromhex("0ac442f000000000") + bytes(16)
        for samples, field in ((44100, "0ac442f00000ac44"), (2**36 - 1, "0ac442ffffffffff")):
            found = patched(FLAC_LENGTH, replace(CD, samples=samples), header)
            self.assertEqual(found[18:26].hex(), field)

    def test_durations(self) -> None:
        """Movie, track and media have the duration, with the encoder's delay of 1024 samples."""
        header = b"\0\0\0\x6cmvhd" + struct.pack(">IIIII", 0, 0, 0, 1000, 0)
        header += b"\0\0\0\x5ctkhd" + struct.pack(">IIIIII", 3, 0, 0, 1, 0, 0)
        header += b"\0\0\0\x20mdhd" + struct.pack(">IIIII", 0, 0, 0, 44100, 0)
        found = patched(fragmented_mp4_length(1024), CD, header)
        durations = [struct.unpack_from(">I", found, at)[0] for at in (24, 56, 84)]
        self.assertEqual(durations, [1024, 1024, 45124])
        self.assertEqual(
            patched(fragmented_mp4_length(1024), replace(CD, samples=2**32), header), header
        )


class Mp3Tests(SynchronousTestCase):
    """mp3"""

    def test_header_frame(self) -> None:
        """The frame states the number of frames, the delay and the padding, and has no audio."""
        prefix = MP3_LENGTH.prefix
        for version, rates in RATES.items():
            for rate in rates:
                for channels, kbps, varies in (
                    *((1, 40, True), (2, 124, True), (2, 184, True), (2, 1000, True)),
                    *((1, 64, False), (2, 128, False), (2, 8, False)),
                ):
                    form = OutputForm(10 * rate, rate, channels, kbps=kbps, varies=varies)
                    frame = prefix(form)
                    header = FrameHeader.parse(frame)
                    assert header is not None
                    self.assertEqual(bytes(header), frame[:4])
                    self.assertEqual((header.length, header.rate), (len(frame), rate))
                    self.assertEqual((header.version, header.channels), (version, channels))
                    at = 4 + header.side_information
                    tag = b"Xing" if varies else b"Info"
                    self.assertEqual(frame[at : at + 17], tag + frame[at + 4 : at + 12] + b"LAME3")
                    flags, frames = struct.unpack_from(">II", frame, at + 4)
                    delays = int.from_bytes(frame[at + 33 : at + 36], "big")
                    decoded = frames * header.samples - (delays >> 12) - (delays & 0xFFF)
                    self.assertEqual((flags, delays >> 12, decoded), (1, 576, form.samples))
                    if varies:
                        # Readers that go by the bit rate seek too early rather than too late.
                        lower = [rate for rate in header.bitrates if rate <= max(kbps, 64)]
                        self.assertEqual(header.kbps, lower[-1])
                    elif kbps not in header.bitrates:
                        self.assertEqual(header.kbps, 64)
                    elif kbps != 8:
                        self.assertEqual(header.kbps, kbps)

    def test_checksum(self) -> None:
        """The checksum of the tag is that of the bytes before it (LAME)."""
        frame = MP3_LENGTH.prefix(CD)
        value = 0
        for bit in (byte >> n & 1 for byte in frame[:82] for n in range(8)):
            value = value >> 1 ^ (0xA001 if (value ^ bit) & 1 else 0)
        self.assertEqual(frame[82:84], value.to_bytes(2, "big"))

    def test_other_bytes(self) -> None:
        """Other layers, reserved values and free formats are no frame headers."""
        for text in ("", "fffb50", "fffd5044", "ffeb5044", "fffb0044", "fffbf044", "fffb5c44"):
            self.assertIsNone(FrameHeader.parse(bytes.fromhex(text)), text)
