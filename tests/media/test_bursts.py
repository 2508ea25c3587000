"""Encoded audio in the place of samples: the bytes that tell."""

from __future__ import annotations

import random
import struct
from itertools import product

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.bursts import find_burst
from tests.media.lengths.test_wav import run

PREAMBLE = [0xF872, 0x4E1F]
#: The first words of bursts: the preamble, the codec, and the size.
SYNCS = {
    "AC-3": [*PREAMBLE, 1, 0x3000],
    "MPEG audio": [*PREAMBLE, 5, 0x3000],
    "AAC": [*PREAMBLE, 7, 0x3000],
    "E-AC-3": [*PREAMBLE, 21, 0x3000],
    "TrueHD": [*PREAMBLE, 22, 0x3000],
    "DTS": [*PREAMBLE, 11, 0x3000],
    "encoded audio": [*PREAMBLE, 0x1F03, 32],
}
#: The fields of a frame of DTS, behind its sync: their bits, and their values.
FRAME = {
    "type": (1, 1),
    "missing": (5, 31),
    "checksum": (1, 0),
    "blocks": (7, 15),
    "size": (14, 2011),
    "arrangement": (6, 2),
    "rate": (4, 13),
    "more": (42, 5 << 37),
}


def frames(bits: int, period: int, count: int = 6, **fields: int) -> list[int]:
    """Return frames of DTS in words of 16 or 14 bits, each as many words long."""
    text = format(0x7FFE_8001, "032b")
    for name, (width, value) in FRAME.items():
        text += format(fields.get(name, value), f"0{width}b")
    text = text[: 7 * bits]
    head = [int(text[at : at + bits], 2) for at in range(0, len(text), bits)]
    # Words of 14 bits have the sign in the other two.
    head = [word | (0xC000 if bits == 14 and word >> 13 else 0) for word in head]
    return bursts_of(head, period, count)


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

    def test_dts(self) -> None:
        """DTS without bursts is found: one frame behind the other, or padded to its time."""
        size = FRAME["size"][1] + 1
        for bits, inside in product((16, 14), (0, 1, 300)):
            for period in (-(-8 * size // bits), 1024):
                values = frames(bits, period)[inside:]
                swapped = [(word & 0xFF) << 8 | word >> 8 for word in values]
                for each in (values, swapped):
                    self.assertEqual(self.find([0] * 5 + each), "DTS", (bits, inside, period))

    def test_coincidences(self) -> None:
        """What begins like a frame, and is none that another one follows, is audio."""
        for name, value in (
            *(("type", 0), ("missing", 30), ("blocks", 14), ("size", 94)),
            *(("arrangement", 16), ("rate", 0)),
        ):
            for bits in (16, 14):
                self.assertIsNone(self.find(frames(bits, 1024, **{name: value})), name)
        for bits, period in product((16, 14), (1006 - 2, 1024 - 1, 3000)):
            self.assertIsNone(self.find(frames(bits, period)))
            self.assertIsNone(self.find(frames(bits, 9000, 1)))
        # Many of these are not examined further.
        often = frames(16, 20, 9 * 64)
        self.assertIsNone(self.find(often + frames(16, 1024)))
        for sync in (
            [*PREAMBLE, 0, 9],
            [*PREAMBLE, 1, 0],
            [*PREAMBLE, 0x20, 9],
            [*PREAMBLE, 129, 9],
        ):
            self.assertIsNone(self.find(bursts_of(sync)))
        self.assertIsNone(self.find(bursts_of(SYNCS["AC-3"], count=1)))

    def test_square_waves(self) -> None:
        """Loud square waves, whose samples are the words of a sync, are audio."""
        for high, low in ((0x7FFE, 0x8001), (0x0180, 0xFE7F), (0x1FFF, 0xE800), (0xF872, 0x4E1F)):
            for length in (1, 2, 50):
                values = ([high] * length + [low] * length) * (20_000 // length)
                self.assertIsNone(self.find(values), (high, length))
                self.assertIsNone(self.find(values[length - 1 :]), (high, length))

    def test_cut_off(self) -> None:
        """A sync at the end of a source is nothing, however short the source is."""
        for values in (frames(16, 1024)[:2], frames(14, 1024)[:3], SYNCS["AC-3"], [*PREAMBLE, 1]):
            for zeros in (0, 1, 30_000):
                self.assertIsNone(self.find([0] * zeros + values))

    def test_forms(self) -> None:
        """Words are the upper 16 bits of integers, or floats, in both byte orders."""
        swapped = [(word & 0xFF) << 8 | word >> 8 for word in bursts_of(SYNCS["AC-3"])]
        for kind, order in product(("s16", "s24", "s32", "f32", "f64"), ("le", "be")):
            for values in (bursts_of(SYNCS["AC-3"]), swapped):
                for zeros in (0, 9999):
                    codec = f"pcm_{kind}{order}"
                    self.assertEqual(self.find([0] * zeros + values, codec), "AC-3", codec)

    def test_lower_bits(self) -> None:
        """Samples with more than 16 bits are no words."""
        for codec, place in (("pcm_s24le", 0), ("pcm_s24be", 2), ("pcm_s32le", 1)):
            samples = bytearray(pack(bursts_of(SYNCS["AC-3"]), codec))
            samples[place + 12 * 9] = 1
            self.assertIsNone(run(find_burst(0, len(samples), codec, 8000), bytes(samples)))

    def test_begins_inside(self) -> None:
        """A recording that begins inside a burst is found, whatever the form of its samples."""
        for codec in ("pcm_s16le", "pcm_s24be", "pcm_s32le", "pcm_f64le"):
            for inside in (1, 9000):
                values = bursts_of(SYNCS["E-AC-3"], 12_288)[inside:]
                self.assertEqual(self.find(values, codec), "E-AC-3", (codec, inside))
        # Bursts of TrueHD, which are the longest, are found at their start.
        self.assertEqual(self.find(bursts_of(SYNCS["TrueHD"], 30_720)), "TrueHD")

    def test_audio(self) -> None:
        """Audio is none, and a sync word that is alone in it is a coincidence."""
        audio = words(40_000)
        self.assertIsNone(self.find(audio))
        for values in (bursts_of(SYNCS["AC-3"]), frames(14, 1024), frames(16, 1024)):
            self.assertIsNone(self.find([*audio[:100], *values[:1000], *audio]))
            # At an odd offset, it is no word.
            file = bytes(45) + pack(values, "pcm_s16le")
            self.assertIsNone(run(find_burst(44, len(file), "pcm_s16le", 8000), file))

    def test_first_block_decides(self) -> None:
        """What begins with other samples is audio, whatever follows."""
        first = words(25 * 1024)
        self.assertIsNone(self.find(first + bursts_of(SYNCS["AC-3"])))

    def test_zeros(self) -> None:
        """Zeros of up to ten seconds are skipped, and not those that follow; silence is audio."""
        rate = 3000
        for seconds, expected in ((9, "AC-3"), (19, None)):
            zeros = [0] * (rate * seconds)
            values = zeros + bursts_of(SYNCS["AC-3"])
            # The block that decides may begin up to ten seconds after the start.
            self.assertEqual(self.find(values, rate=rate), expected)
        # Of a high rate, fewer seconds are read.
        values = [0] * (3 * 1024 * 1024 + 9000) + bursts_of(SYNCS["AC-3"])
        self.assertIsNone(self.find(values, rate=10**6))
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
