"""Small sources that make decoders and filters take gigabytes, or a CPU for minutes."""

from __future__ import annotations

import struct

from twisted.internet.defer import Deferred, gatherResults

from tests.media.lengths.test_mp4 import box
from tests.media.lengths.test_pcm import chunk, wav
from tests.support.service import ServiceCase, fetch, short_flac, signed

#: The least AP_MAX_CHILD_MEMORY; ffmpeg 9 needs more than 128 MiB for the stacks of its threads.
MEMORY = 384 << 20


def claiming_m4a(samples: int, tracks: int = 1) -> bytes:
    """Return a file of some hundred bytes whose sample tables claim a number of samples."""
    entry = struct.pack(">6xH8xHHHHI", 1, 2, 16, 0, 0, 44_100 << 16)
    tables = (
        box(b"stsd", struct.pack(">II", 0, 1), box(b"mp4a", entry)),
        box(b"stts", struct.pack(">IIII", 0, 1, samples, 1024)),
        box(b"stsc", struct.pack(">IIIII", 0, 1, 1, samples, 1)),
        box(b"stsz", struct.pack(">III", 0, 400, samples)),
        box(b"stco", struct.pack(">III", 0, 1, 600)),
    )
    media = box(
        b"mdia",
        box(b"mdhd", struct.pack(">IIIIIHH", 0, 0, 0, 44_100, samples, 0, 0)),
        box(b"hdlr", struct.pack(">II", 0, 0), b"soun", bytes(13)),
        box(b"minf", box(b"smhd", bytes(8)), box(b"stbl", *tables)),
    )
    traks = [
        box(b"trak", box(b"tkhd", struct.pack(">IIIIII", 7, 0, 0, n, 0, 9), bytes(60)), media)
        for n in range(1, tracks + 1)
    ]
    header = box(b"mvhd", struct.pack(">IIIII", 0, 0, 0, 44_100, samples), bytes(80))
    return (
        box(b"ftyp", b"M4A \0\0\0\0M4A ") + box(b"moov", header, *traks) + box(b"mdat", bytes(400))
    )


def low_rate_wav(rate: int, frames: int) -> bytes:
    """Return a mono file of 16 bits with a sample rate in Hz."""
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    return wav(chunk(b"fmt ", form), chunk(b"data", b"\1\0" * frames))


class HungrySourceTests(ServiceCase):
    """A service whose children may take 128 MiB"""

    def setUp(self) -> None:
        super().setUp()
        self.add("short.flac", short_flac())

    async def test_claimed_samples(self) -> None:
        """Tables that claim millions of samples are a 415; other clients notice nothing."""
        self.add("one.m4a", claiming_m4a(1 << 26))
        self.add("four.m4a", claiming_m4a(1 << 26, 4))
        port = self.start(max_child_memory=MEMORY, variant_store=None).port
        requests = [signed(f"/f:mp3/plain/local://{name}.m4a") for name in ("one", "four")]
        hungry = [Deferred.fromCoroutine(fetch(port, each)) for each in requests * 4]
        other = [signed(f"/f:mp3/br:{rate}/plain/local://short.flac") for rate in (64, 96, 128)]
        for response in await gatherResults(
            [Deferred.fromCoroutine(fetch(port, each)) for each in other], consumeErrors=True
        ):
            self.assertEqual((200, True), (response.status, response.complete))
        for response in await gatherResults(hungry, consumeErrors=True):
            self.assertEqual((415, "undecodable_source"), (response.status, response.error))
        info = await fetch(port, signed("/info/plain/local://four.m4a"))
        self.assertIn(info.status, (200, 415))

    async def test_low_rates(self) -> None:
        """A sample rate of 1 Hz is resampled piece by piece: its renders are whole."""
        self.add("low.wav", low_rate_wav(1, 300))
        port = self.start(max_child_memory=MEMORY).port
        for options, size in (("f:wav/sr:48000", 300 * 48_000 * 2), ("f:mp3", 300 * 64_000 // 8)):
            response = await fetch(port, signed(f"/{options}/plain/local://low.wav"))
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertApproximates(size, len(response.body), 10_000)
