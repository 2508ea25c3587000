"""Frame headers of mp3: MPEG-1, MPEG-2 and MPEG-2.5, layer III.

The tables are those of ISO/IEC 11172-3, 2.4.2.3, and 13818-3; MPEG-2.5 is an extension that LAME
writes.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The rates in Hz of each version, by index. The key has the bits of the version field.
RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_VERSIONS = {rate: version for version, rates in RATES.items() for rate in rates}
_MPEG_1 = 3
_MPEG_1_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG_2_KBPS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_JOINT_STEREO, _MONO = 1, 3
_ORIGINAL = 4


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame header without a checksum; ``padding`` is 1 where the frame is one byte longer.

    Each version has rates of its own, in Hz.
    """

    kbps: int
    rate: int
    channels: int
    padding: int = 0

    @classmethod
    def parse(cls, data: bytes) -> FrameHeader | None:
        if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE6 != 0xE2:
            return None
        version, bitrate_index, rate_index = data[1] >> 3 & 3, data[2] >> 4, data[2] >> 2 & 3
        if version not in RATES or not 0 < bitrate_index < 15 or rate_index == 3:
            return None
        kbps, rate = _bitrates(version)[bitrate_index], RATES[version][rate_index]
        return cls(kbps, rate, 1 if data[3] >> 6 == _MONO else 2, data[2] >> 1 & 1)

    def __bytes__(self) -> bytes:
        """Return the header of a frame; two channels are joint stereo."""
        bitrate_index = self.bitrates.index(self.kbps)
        rate_index = RATES[self.version].index(self.rate)
        mode = _MONO if self.channels == 1 else _JOINT_STEREO
        return bytes(
            (
                0xFF,
                0xE3 | self.version << 3,
                bitrate_index << 4 | rate_index << 2 | self.padding << 1,
                mode << 6 | _ORIGINAL,
            )
        )

    @property
    def version(self) -> int:
        return _VERSIONS[self.rate]

    @property
    def bitrates(self) -> tuple[int, ...]:
        """The bit rates of the version in kbps, by index; 0 stands for a free format."""
        return _bitrates(self.version)

    @property
    def samples(self) -> int:
        return 1152 if self.version == _MPEG_1 else 576

    @property
    def length(self) -> int:
        return self.length_at(self.kbps) + self.padding

    def length_at(self, kbps: int) -> int:
        """Return the bytes of a frame without padding that differs in its bit rate."""
        return (144 if self.version == _MPEG_1 else 72) * kbps * 1000 // self.rate

    @property
    def side_information(self) -> int:
        """Bytes between the header and the audio."""
        if self.version == _MPEG_1:
            return 17 if self.channels == 1 else 32
        return 9 if self.channels == 1 else 17


def _bitrates(version: int) -> tuple[int, ...]:
    return _MPEG_1_KBPS if version == _MPEG_1 else _MPEG_2_KBPS


def tag_checksum(data: bytes) -> int:
    """Return the checksum of an encoder's header frame: the polynomial 0x8005, lowest bit first."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 if value & 1 else value >> 1
    return value
