"""The first samples of flac files that look like noise."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from itertools import pairwise, product

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media import flac_frames
from audioproxy.media.flac_frames import read_noise
from audioproxy.media.lengths.reading import Malformed
from tests.media.lengths.test_wav import run

#: The header of the residuals of one partition: the method and the order of partitions.
_ONE_PARTITION = "000000"
BLOCK = 4096


def number(value: int, width: int) -> str:
    """Return the bits of a number in two's complement."""
    return format(value & (1 << width) - 1, f"0{width}b") if width else ""


def noise(count: int = BLOCK, seed: int = 1, width: int = 16) -> list[int]:
    """Return pseudorandom samples."""
    source = random.Random(seed)
    top = 1 << width - 1
    return [source.randrange(-top, top) for _ in range(count)]


def rice(values: Iterable[int], parameter: int = 14) -> str:
    """Return one partition of residuals."""
    codes = []
    for value in values:
        folded = value << 1 ^ value >> 63
        codes.append("0" * (folded >> parameter) + "1" + number(folded, parameter))
    return _ONE_PARTITION + number(parameter, 4) + "".join(codes)


def verbatim(samples: list[int], width: int = 16) -> str:
    """Return a subframe without a prediction."""
    return "00000010" + "".join(number(sample, width) for sample in samples)


def constant(value: int, width: int = 16) -> str:
    """Return a subframe of one value."""
    return "00000000" + number(value, width)


def fixed(samples: list[int], order: int, width: int = 16, parameter: int = 14) -> str:
    """Return a subframe of a fixed predictor."""
    residuals = samples
    for _ in range(order):
        residuals = [after - before for before, after in pairwise(residuals)]
    first = "".join(number(sample, width) for sample in samples[:order])
    return "0" + number(8 + order, 6) + "0" + first + rice(residuals, parameter)


def frame(
    *subframes: str, channels: int = 1, block: str = "1100", rate: str = "1001", more: str = ""
) -> bytes:
    """Return a frame of 16 bits; its checksums are zeros.

    :param more: bits of the block size and of the rate that follow the number.
    """
    head = "1" * 13 + "000" + block + rate + number(channels, 4) + "1000" + "0" * 8 + more
    text = head + "0" * 8 + "".join(subframes)
    text += "0" * (-len(text) % 8 + 16)
    return int(text, 2).to_bytes(len(text) // 8, "big")


def words_of(left: list[int], right: list[int]) -> bytes:
    """Return samples as big-endian words."""
    return b"".join(struct.pack(">hh", *pair) for pair in zip(left, right, strict=True))


SILENCE = frame(constant(0), constant(0))
LEFT, RIGHT = noise(seed=1), noise(seed=2)
NOISE = frame(verbatim(LEFT), verbatim(RIGHT))
WORDS = words_of(LEFT, RIGHT)


class NoiseTests(SynchronousTestCase):
    """`read_noise`"""

    def read(self, *frames: bytes, depth: int = 16, rate: int = 44100) -> bytes:
        """Read a file of frames behind some other bytes."""
        file = bytes(99) + b"".join(frames)
        return run(read_noise(99, len(file), rate, depth), file)

    def test_subframes(self) -> None:
        """Samples are those of every kind of subframe."""
        for first in (verbatim(LEFT), *(fixed(LEFT, order) for order in range(3))):
            self.assertEqual(self.read(frame(first, verbatim(RIGHT))), WORDS)
        # A predictor of order 1 with the coefficient 2, and a shift by 1.
        predicted = fixed(LEFT, 1)
        head = "0" + number(32, 6) + "0" + number(LEFT[0], 16)
        own = head + number(3, 4) + number(1, 5) + number(2, 4) + predicted[8 + 16 :]
        self.assertEqual(self.read(frame(own, verbatim(RIGHT))), WORDS)

    def test_channels(self) -> None:
        """The second channel may be a difference, or both are sum and difference."""
        sides = [left - right for left, right in zip(LEFT, RIGHT, strict=True)]
        middles = [left + right >> 1 for left, right in zip(LEFT, RIGHT, strict=True)]
        for channels, subframes, widths in (
            (8, (verbatim(LEFT), verbatim(sides, 17)), (16, 17)),
            (9, (verbatim(sides, 17), verbatim(RIGHT)), (17, 16)),
            (10, (verbatim(middles), verbatim(sides, 17)), (16, 17)),
        ):
            quiet = frame(*(constant(0, width) for width in widths), channels=channels)
            loud = frame(*subframes, channels=channels)
            self.assertEqual(self.read(quiet, loud), WORDS, channels)

    def test_constant(self) -> None:
        """A channel may be constant, and samples may lack their lower bits."""
        zeros = [0] * BLOCK
        self.assertEqual(self.read(frame(constant(0), verbatim(RIGHT))), words_of(zeros, RIGHT))
        upper = [sample >> 4 << 4 for sample in LEFT]
        wasted = "00000011" + "0001" + verbatim([sample >> 4 for sample in upper], 12)[8:]
        self.assertEqual(self.read(frame(wasted, verbatim(RIGHT))), words_of(upper, RIGHT))
        self.assertEqual(self.read(frame(constant(5), constant(5))), b"")

    def test_music(self) -> None:
        """Residuals of few bits are no noise, and nothing of them is decoded."""
        quiet = noise(width=10)
        for parameter, expected in ((8, b""), (10, b""), (11, words_of(quiet, RIGHT))):
            first = fixed(quiet, 0, parameter=parameter)
            self.assertEqual(self.read(frame(first, verbatim(RIGHT)), NOISE)[:999], expected[:999])

    def test_headers(self) -> None:
        """Block sizes and rates may have bytes of their own behind the number of a frame."""
        for block, more, count in (
            *(("0001", "", 192), ("0010", "", 576), ("0110", number(99, 8), 100)),
            ("0111", number(299, 16), 300),
        ):
            for rate, bits in (("1001", 0), ("1100", 8), ("1101", 16), ("1110", 16)):
                left, right = noise(count), noise(count)
                file = frame(
                    *(verbatim(left), verbatim(right)),
                    block=block,
                    rate=rate,
                    more=more + "0" * bits,
                )
                self.assertEqual(self.read(file), words_of(left, right), (block, rate))

    def test_zeros(self) -> None:
        """Up to ten seconds of silence are skipped, in any number of reads."""
        for count, rate, expected in (
            *((1, 44100, WORDS), (5000, 4_000_000, WORDS), (107, 44100, WORDS)),
            *((109, 44100, b""), (1, 409, b"")),
        ):
            self.assertEqual(self.read(SILENCE * count, NOISE, rate=rate), expected, count)

    def test_end(self) -> None:
        """Frames are decoded up to the longest burst, or to the end of what is read."""
        self.assertEqual(self.read(NOISE * 3), WORDS * 2)
        self.assertEqual(self.read(NOISE, NOISE[:-9000]), WORDS)
        self.assertLess(len(WORDS) // 4, flac_frames._MOST_SAMPLES)

    def test_malformed(self) -> None:
        """Damaged files, other numbers of channels, and odd codes are left to ffmpeg."""
        one = "0001"
        for file in (
            *(b"\xff\xfb\x90\x64" * 99, NOISE[:3], frame(verbatim(LEFT), channels=0)),
            frame(constant(1), verbatim(RIGHT), block="0000"),
            frame(constant(1), constant(1), block="1111"),
            frame("01111110" + "0" * 999, channels=1),
            # A reserved kind, too many wasted bits, a reserved method, and residuals without a
            # code; a partition that is shorter than the order, and residuals that are cut off.
            *(frame("00001010" + "0" * 99), frame("00000011" + "0" * 16 + one + "0" * 99)),
            *(frame("00010000" + "11" + "0" * 99), frame("00010000" + "000000" + "1111")),
            frame("00011000" + "0" * 64 + "00" + "1100" + "0" * 99),
            *(frame("00010000" + _ONE_PARTITION + "0001" + "01" * 9), frame("00010000")[:7]),
            frame("1" + "0" * 99),
        ):
            self.assertRaises(Malformed, self.read, file)

    def test_endless_code(self) -> None:
        """A code that does not end is found at once, however many zeros follow."""
        silence = frame("00010000" + _ONE_PARTITION + "0001" + "0" * 300_000)
        self.assertRaises(Malformed, self.read, silence)

    def test_any_bits(self) -> None:
        """Damaged frames give words, or are left to ffmpeg; nothing else is raised."""
        source = random.Random(7)
        frames = [NOISE, frame(fixed(LEFT, 2), fixed(RIGHT, 1)), SILENCE + NOISE]
        for whole, _ in product(frames, range(60)):
            broken = bytearray(whole)
            for _ in range(3):
                broken[source.randrange(200)] = source.randrange(256)
            try:
                words = self.read(bytes(broken[: source.randrange(1, len(broken))]))
            except Malformed:
                continue
            self.assertEqual(len(words) % 4, 0)
