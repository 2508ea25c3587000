"""flac files that begin with what looks like noise."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from itertools import pairwise, product

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.flac_frames import find_noise
from audioproxy.media.reading import Malformed
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
    *subframes: str,
    channels: int = 1,
    block: str = "1100",
    rate: str = "1001",
    more: str = "",
    depth: str = "100",
) -> bytes:
    """Return a frame; its checksums are zeros.

    :param depth: the code of the bits of a sample.
    :param more: bits of the block size and of the rate that follow the number.
    """
    head = "1" * 13 + "000" + block + rate + number(channels, 4) + depth + "0" * 9 + more
    text = head + "0" * 8 + "".join(subframes)
    text += "0" * (-len(text) % 8 + 16)
    return int(text, 2).to_bytes(len(text) // 8, "big")


SILENCE = frame(constant(0), constant(0))
LEFT, RIGHT = noise(seed=1), noise(seed=2)
NOISE = frame(verbatim(LEFT), verbatim(RIGHT))
QUIET = noise(width=9)
MUSIC = fixed(QUIET, 1, parameter=7)
#: Zeros, and a few other samples.
LATE = [0] * (BLOCK - 9) + [99] * 9


class NoiseTests(SynchronousTestCase):
    """`find_noise`"""

    def find(self, *frames: bytes, depth: int = 16, rate: int = 44100) -> int | None:
        """Examine a file of frames behind some other bytes."""
        file = bytes(99) + b"".join(frames)
        return run(find_noise(99, len(file), rate, depth), file)

    def test_subframes(self) -> None:
        """Noise is told by every kind of subframe, in either channel."""
        # A predictor of order 1 with the coefficient 2, and a shift by 1.
        head = "0" + number(32, 6) + "0" + number(LEFT[0], 16)
        own = head + number(3, 4) + number(1, 5) + number(2, 4) + fixed(LEFT, 1)[8 + 16 :]
        for subframe in (verbatim(LEFT), own, *(fixed(LEFT, order) for order in range(3))):
            self.assertEqual(self.find(frame(subframe, MUSIC)), 0)
            self.assertEqual(self.find(frame(MUSIC, subframe)), 0)
            self.assertEqual(self.find(frame(constant(0), subframe)), 0)
        self.assertIsNone(self.find(frame(constant(5), constant(0)), NOISE))

    def test_channels(self) -> None:
        """A channel that is a difference has one more bit."""
        for channels, widths in ((8, (16, 17)), (9, (17, 16)), (10, (16, 17))):
            quiet = frame(*(constant(0, width) for width in widths), channels=channels)
            music = [constant(9, width) for width in widths]
            side = widths.index(17)
            for parameter, expected in ((11, None), (12, BLOCK)):
                music[side] = fixed(QUIET, 1, 17, parameter)
                found = self.find(quiet, frame(*music, channels=channels))
                self.assertEqual(found, expected, (channels, parameter))

    def test_music(self) -> None:
        """Residuals of few bits are no noise, fewer where no prediction is found."""
        for parameter, order, expected in (
            *((8, 1, None), (10, 1, None), (11, 1, 0), (6, 0, None), (7, 0, 0)),
        ):
            coded = fixed(QUIET, order, parameter=parameter)
            self.assertEqual(self.find(frame(coded, coded), frame(MUSIC, MUSIC)), expected)

    def test_depth(self) -> None:
        """The bits that count are those without the empty ones; fewer than 16 are no words."""
        for depth, code in ((24, "110"), (24, "000")):
            for wasted, parameter, expected in (
                *((8, 7, 0), (8, 6, None), (0, 14, None), (0, 15, 0)),
            ):
                method = "01" if parameter > 14 else "00"
                coded = method + "0000" + number(parameter, 5 if method == "01" else 4)
                coded += ("1" + "0" * parameter) * BLOCK
                kind = "001000" + ("1" + "0" * (wasted - 1) + "1" if wasted else "0")
                loud = frame("0" + kind + coded, constant(1, 24), depth=code)
                self.assertEqual(self.find(loud, depth=depth), expected, (wasted, parameter))
        for depth, code in ((8, "001"), (12, "010"), (8, "000")):
            loud = frame(verbatim(LEFT, depth), verbatim(LEFT, depth), depth=code)
            self.assertIsNone(self.find(loud, depth=depth))

    def test_partitions(self) -> None:
        """Noise in any partition tells, and residuals may have no code."""
        half = BLOCK // 2
        quiet = number(3, 4) + "1000" * half
        plain = number(15, 4) + number(16, 5) + "01" * 8 * half
        zeros = number(15, 4) + number(0, 5)
        noisy = number(12, 4) + ("1" + "0" * 12) * half
        for first, second, expected in (
            *((quiet, noisy, 0), (quiet, plain, 0), (zeros, noisy, 0), (quiet, quiet, None)),
        ):
            coded = "00010000" + "00" + "0001" + first + second
            self.assertEqual(self.find(frame(coded, constant(0)), frame(MUSIC, MUSIC)), expected)

    def test_begins_late(self) -> None:
        """If noise begins at the end of a frame that is zeros before, the next frame tells."""
        for order in (0, 1):
            late = fixed(LATE, order, parameter=6)
            first = frame(late, late)
            self.assertEqual(self.find(SILENCE, first, NOISE), 2 * BLOCK)
            self.assertEqual(self.find(first, SILENCE, NOISE), 2 * BLOCK)
            self.assertIsNone(self.find(SILENCE, first, frame(MUSIC, MUSIC), NOISE))
            self.assertIsNone(self.find(first, first, frame(MUSIC, MUSIC), NOISE))
            self.assertIsNone(self.find(first, first, NOISE))
        begun = fixed([7, *LATE[1:]], 1, parameter=7)
        self.assertIsNone(self.find(frame(begun, begun), NOISE))
        self.assertIsNone(self.find(frame(begun, constant(0)), NOISE))

    def test_headers(self) -> None:
        """Block sizes and rates may have bytes of their own behind the number of a frame."""
        for block, more, count in (
            *(("0001", "", 192), ("0010", "", 576), ("0110", number(99, 8), 100)),
            ("0111", number(299, 16), 300),
        ):
            for rate, bits in (("1001", 0), ("1100", 8), ("1101", 16), ("1110", 16)):
                tail = more + "0" * bits
                file = frame(constant(0), constant(0), block=block, rate=rate, more=tail)
                self.assertEqual(self.find(file, NOISE), count, (block, rate))
        # Of one of them, the size is cut where bits are converted.
        file = frame(constant(0), constant(0), block="0111", more=number(299, 16))
        self.assertEqual(self.find(SILENCE * 3, file * 600, NOISE), 3 * BLOCK + 600 * 300)

    def test_zeros(self) -> None:
        """Up to ten seconds of silence are skipped, in any number of reads and a few frames."""
        for count, rate, expected in (
            *((1, 44100, BLOCK), (4000, 4_000_000, 4000 * BLOCK), (107, 44100, 107 * BLOCK)),
            *((109, 44100, None), (1, 409, None), (4097, 4_000_000, None)),
        ):
            self.assertEqual(self.find(SILENCE * count, NOISE, rate=rate), expected, count)

    def test_malformed(self) -> None:
        """Damaged files, other numbers of channels, and odd codes are left to ffmpeg."""
        one = "0001"
        for file in (
            *(b"\xff\xfb\x90\x64" * 99, NOISE[:3], frame(verbatim(LEFT), channels=0)),
            frame(constant(1), verbatim(RIGHT), block="0000"),
            frame(constant(1), constant(1), block="1111"),
            frame("01111110" + "0" * 999, channels=1)[:20],
            # A reserved kind, too many wasted bits, a reserved method; partitions that are shorter
            # than the order, or do not fill the block; residuals that are cut off.
            *(frame("00001010" + "0" * 99), frame("00000011" + "0" * 16 + one + "0" * 99)),
            *(frame("00010000" + "11" + "0" * 99), frame("1" + "0" * 99)),
            frame("00011000" + "0" * 64 + "00" + "1100" + "0" * 99),
            frame("00010000" + "00" + "0001", block="0110", more=number(98, 8)),
            *(frame("00010000" + _ONE_PARTITION + "0001" + "01" * 9), frame("00010000")[:7]),
        ):
            self.assertRaises(Malformed, self.find, file)

    def test_endless_code(self) -> None:
        """A code that does not end is found at once, however many zeros follow."""
        silence = frame("00010000" + _ONE_PARTITION + "0001" + "0" * 300_000)
        self.assertRaises(Malformed, self.find, silence)

    def test_any_bits(self) -> None:
        """Damaged frames are noise, other audio, or left to ffmpeg; nothing else is raised."""
        source = random.Random(7)
        frames = [NOISE, frame(fixed(LEFT, 2), fixed(RIGHT, 1)), SILENCE + NOISE]
        for whole, _ in product(frames, range(60)):
            broken = bytearray(whole)
            for _ in range(3):
                broken[source.randrange(200)] = source.randrange(256)
            with contextlib.suppress(Malformed):
                found = self.find(bytes(broken[: source.randrange(1, len(broken))]))
                self.assertIn(found, (None, 0, BLOCK))
