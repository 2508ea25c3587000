"""Encoded audio in the place of samples: the bytes that tell."""

from __future__ import annotations

import random
import struct
from itertools import product

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media import bursts
from audioproxy.media.bursts import find_burst
from tests.media.lengths.test_wav import run

PREAMBLE = [0xF872, 0x4E1F]
SYNCS = {
    "AC-3": [*PREAMBLE, 1],
    "MPEG audio": [*PREAMBLE, 5],
    "AAC": [*PREAMBLE, 7],
    "E-AC-3": [*PREAMBLE, 21],
    "TrueHD": [*PREAMBLE, 22],
    "encoded audio": [*PREAMBLE, 0x1F03],
    "DTS": [0x7FFE, 0x8001],
}
DTS_14 = [0x1FFF, 0xE800, 0x07F1]
DTS_IN_BURSTS = [*PREAMBLE, 11]


def words(count: int, seed: int = 1) -> list[int]:
    """Return words that hold no sync."""
    return [1 + word % 0x7000 for (word,) in struct.iter_unpack("<H", payload(count, seed))]


def payload(count: int, seed: int) -> bytes:
    """Return pseudorandom bytes of a number of words."""
    return random.Random(seed).randbytes(2 * count)


def bursts_of(sync: list[int], period: int = 3072, count: int = 6) -> list[int]:
    """Return bursts that begin with a sync word and repeat."""
    return [word for n in range(count) for word in [*sync, *words(period - len(sync), seed=n)]]


def pack(values: list[int], codec: str) -> bytes:
    """Return words as the samples of a codec, which are full scale in all of them."""
    signed = np.array(values, "<u2").view("<i2").astype(np.int64)
    order = ">" if codec.endswith("be") else "<"
    bits = int(codec[5:].rstrip("bel"))
    if codec.startswith("pcm_f"):
        return (signed / 32768).astype(f"{order}f{bits // 8}").tobytes()
    wide = (signed << (bits - 16)).astype(f"{order}i{8 if bits == 24 else bits // 8}")
    if bits != 24:
        return wide.tobytes()
    octets = wide.view(np.uint8).reshape(-1, 8)
    return octets[:, 5:].tobytes() if order == ">" else octets[:, :3].tobytes()


class BurstTests(SynchronousTestCase):
    """`find_burst`"""

    def find(self, values: list[int], codec: str = "pcm_s16le", rate: int = 8000) -> str | None:
        """Return what samples encode, which are behind a header of 44 bytes."""
        file = bytes(44) + pack(values, codec)
        return run(find_burst(44, len(file), codec, rate), file)

    def test_codecs(self) -> None:
        """The codec of each kind of burst is named, at once and after zeros."""
        for (name, sync), zeros in product(SYNCS.items(), (0, 2, 50_001)):
            self.assertEqual(self.find([0] * zeros + bursts_of(sync)), name)
        self.assertEqual(self.find(bursts_of(DTS_14)), "DTS")
        self.assertEqual(self.find(bursts_of(DTS_IN_BURSTS)), "DTS")

    def test_forms(self) -> None:
        """Words are the upper 16 bits of integers, or floats, in both byte orders."""
        swapped = [(word & 0xFF) << 8 | word >> 8 for word in bursts_of(SYNCS["AC-3"])]
        for kind, order in product(("s16", "s24", "s32", "f32", "f64"), ("le", "be")):
            for values in (bursts_of(SYNCS["AC-3"]), swapped):
                for zeros in (0, 9999):
                    codec = f"pcm_{kind}{order}"
                    self.assertEqual(self.find([0] * zeros + values, codec), "AC-3", codec)

    def test_begins_inside(self) -> None:
        """A recording that begins inside a burst has two of them within the longest period."""
        for period in (3072, 30_720):
            inside = bursts_of(SYNCS["TrueHD"], period)[period - 900 :]
            self.assertEqual(self.find(inside), "TrueHD")

    def test_audio(self) -> None:
        """Audio is none, and a sync word that is alone in it is a coincidence."""
        audio = words(40_000)
        self.assertIsNone(self.find(audio))
        for sync in (SYNCS["AC-3"], DTS_14):
            self.assertIsNone(self.find([*audio[:100], *sync, *audio]))
            # At an odd offset, it is no word.
            file = bytes(45) + pack(bursts_of(sync), "pcm_s16le")
            self.assertIsNone(run(find_burst(44, len(file), "pcm_s16le", 8000), file))

    def test_first_block_decides(self) -> None:
        """What begins with other samples is audio, whatever follows."""
        first = words(bursts._BLOCK)
        self.assertIsNone(self.find(first + bursts_of(SYNCS["AC-3"])))

    def test_zeros(self) -> None:
        """Zeros of up to ten seconds are skipped, and not those that follow; silence is audio."""
        rate = 3000
        for seconds, expected in ((9, "AC-3"), (11, None)):
            zeros = [0] * (rate * seconds)
            values = zeros + bursts_of(SYNCS["AC-3"])
            # The block that decides may begin up to ten seconds after the start.
            self.assertEqual(self.find(values, rate=rate), expected)
        self.assertIsNone(self.find([0] * 9000))
        self.assertIsNone(self.find([]))

    def test_other_samples(self) -> None:
        """Samples of 8 bits, and floats that are no multiples of 1/32768, hold no words."""
        file = pack(bursts_of(SYNCS["AC-3"]), "pcm_s16le")
        for codec in ("pcm_u8", "pcm_s8", "pcm_alaw", "pcm_bluray"):
            self.assertIsNone(run(find_burst(0, len(file), codec, 8000), file))
        for value in (0.3, 1.0, float("nan"), float("inf")):
            floats = struct.pack("<f", value) + pack(bursts_of(SYNCS["AC-3"]), "pcm_f32le")
            self.assertIsNone(run(find_burst(0, len(floats), "pcm_f32le", 8000), floats))
