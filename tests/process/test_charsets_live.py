"""Names of services in MPEG-TS: their character sets need modules of the C library."""

from __future__ import annotations

import tempfile

from twisted.trial.unittest import SkipTest

from audioproxy.process.spawn import Launcher
from tests.support.audio import convert, silence, write_wav
from tests.support.programs import FFPROBE
from tests.support.service import PATIENCE
from tests.support.warm_programs import WarmCase

PACKET = 188
CYRILLIC = "Радио"
# ETSI EN 300 468, annex A.2: a name without a first byte below 0x20 is in ISO 6937.
NAMES = [
    b"\xc2Eb\xe1",
    b"\x01" + CYRILLIC.encode("iso8859-5"),
    *(bytes([first]) + b"\xb0\xa1\xb5\xd5" for first in range(2, 0x20)),
    *(bytes([0x10, 0, part]) + b"\xc1\xe1\xd2\xe4" for part in range(1, 16)),
]


def checksum(section: bytes) -> bytes:
    """Return the CRC-32 of a section in MPEG-TS."""
    crc = 0xFFFFFFFF
    for byte in section:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ 0x04C11DB7 * (crc >> 31)) & 0xFFFFFFFF
    return crc.to_bytes(4, "big")


def describe_services() -> bytes:
    """Return a service description table with a service of each name, as packets of MPEG-TS."""
    services = b""
    # ffmpeg describes service 1.
    for number, name in enumerate(NAMES, 2):
        # A service descriptor: the type, no provider, and the name
        descriptor = bytes([0x48, 3 + len(name), 1, 0, len(name)]) + name
        services += number.to_bytes(2, "big") + bytes([0xFC, 0x80, len(descriptor)]) + descriptor
    size = 8 + len(services) + 4
    section = bytes([0x42, 0xF0 | size >> 8, size & 255, 0, 1, 0xC1, 0, 0, 0, 1, 0xFF]) + services
    data = b"\0" + section + checksum(section)
    parts = [data[at : at + PACKET - 4] for at in range(0, len(data), PACKET - 4)]
    return b"".join(
        bytes([0x47, 0x40 * (not number), 0x11, 0x10 | number]) + part.ljust(PACKET - 4, b"\xff")
        for number, part in enumerate(parts)
    )


class CharsetTests(WarmCase):
    """ffprobe, linked once"""

    async def test_services(self) -> None:
        """A linked ffprobe reads names in all character sets of DVB, as another one does."""
        # The first conversion of a run may open descriptors that stay open.
        sound = convert(write_wav(silence(48000, 4800)), *"-c:a mp2 -f mpegts".split())
        warm = await self.open(FFPROBE)
        if warm.obstacle is not None:
            raise SkipTest(warm.obstacle)
        with tempfile.TemporaryFile() as source:
            source.write(describe_services() + sound)
            source.flush()

            async def list_services(launcher: Launcher) -> str:
                words = [FFPROBE, "-v", "error", "-show_programs", "file:/dev/fd/3"]
                descriptors = {3: source.fileno()}
                child = launcher.launch(words, descriptors, PATIENCE, stdout_limit=1 << 20)
                return (await child.wait()).stdout.decode("utf-8", "surrogateescape")

            expected = await list_services(self.cold_launcher)
            if CYRILLIC not in expected:
                raise SkipTest("the C library has no modules of character sets")
            self.assertEqual(expected, await list_services(self.launcher))
