"""Where wav files have their samples."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.pcm import SampleForm
from audioproxy.media.lengths.wav import MUCH_SPACE, WavFile, find_samples, read_form
from audioproxy.media.reading import Malformed, Reader, T
from tests.media.lengths.test_pcm import found
from tests.support.riff import FORM, INFO, SOUND, START, chunk, stating, wav


def noisy(count: int) -> bytes:
    """Return bytes without a name of a chunk in them."""
    return (SOUND * (count // len(SOUND) + 1))[:count]


def run(reader: Reader[T], source: bytes) -> T:
    """Return the result of a reader of a source in memory; raise Malformed where it does."""
    try:
        request = next(reader)
        while True:
            offset, count = request
            request = reader.send(source[offset : offset + count])
    except StopIteration as ended:
        result: T = ended.value
        return result


def locate(file: bytes) -> WavFile:
    """Return where a file in memory has its samples."""
    return run(find_samples(len(file)), file)


def headed(name: bytes, form: bytes, order: str) -> Iterator[bytes]:
    """Yield files with a format chunk, ahead of the samples and behind them."""
    parts = chunk(b"fmt ", form, order=order), chunk(b"data", bytes(8), order=order)
    yield wav(*parts, name=name)
    yield wav(*reversed(parts), name=name)


class SizeTests(SynchronousTestCase):
    """The end of the samples"""

    def assert_ends(self, file: bytes, samples: int, more: int = 0) -> None:
        """Assert the bytes of samples of a file, and those that ffmpeg plays in addition."""
        where = locate(file)
        ends = where.end - where.start, where.stated_end - where.end
        self.assertEqual(ends, (samples, more), file[-40:])

    def test_believed(self) -> None:
        """A size is believed where chunks, tags, zeros, or nothing follow the samples."""
        for behind in (
            *(b"", INFO, INFO + INFO, chunk(b"abcd", b"xyz") + INFO, chunk(b"abcd", b"wxyz")),
            *(b"TAG" + bytes(125), b"ID3\x04" + bytes(20), b"id3 \xff\xff\xff\xff" + SOUND),
            *(bytes(64), bytes(3000), bytes(64) + SOUND, b"odd", bytes(20)),
        ):
            self.assert_ends(stating(len(SOUND), behind), len(SOUND))

    def test_many_chunks(self) -> None:
        """Of more than 64 chunks, those at the end are found from there."""
        for count in (60, 70):
            self.assert_ends(stating(len(SOUND), chunk(b"abcd", b"") * count), len(SOUND))

    def test_odd(self) -> None:
        """The byte that pads an odd size may be missing."""
        for data in (SOUND[:-1], SOUND[:-1] + b"\0"):
            for behind in (b"", INFO, INFO + INFO):
                file = wav(FORM, b"data" + struct.pack("<I", len(SOUND) - 1) + data + behind)
                self.assert_ends(file, len(SOUND) - 1)

    def test_too_small(self) -> None:
        """Where more samples follow, they count: all of the file, or up to its last chunks."""
        for size in (16, 1000, 999):
            for behind in (b"", INFO, INFO + INFO, chunk(b"abcd", b"xyz") + INFO):
                less = size - len(SOUND)
                self.assert_ends(stating(size, behind), len(SOUND), less)

    def test_unknown(self) -> None:
        """Without a size, the samples reach to the last chunks, or to the end (D57)."""
        for size in (0, 0xFFFF_FFFF):
            for behind in (b"", INFO, INFO + INFO, chunk(b"abcd", b"xyz") + INFO[:-1] + b"\0"):
                self.assert_ends(stating(size, behind), len(SOUND), len(behind))
            self.assert_ends(wav(FORM, chunk(b"data", b"", size), INFO), 0, len(INFO))

    def test_large_chunk(self) -> None:
        """Chunks of known names at the end are found within 2 MiB; if a size is stated, in 64 KiB.

        Chunks of other names are found within 64 KiB.
        """
        large, other = chunk(b"id3 ", noisy(300_001)), chunk(b"abcd", noisy(70_000))
        for size in (0, 0xFFFF_FFFF):
            for behind in (large, large + INFO, INFO + large + chunk(b"abcd", b"xyz")):
                self.assert_ends(stating(size, behind), len(SOUND), len(behind))
            self.assert_ends(stating(size, other), len(SOUND) + len(other))
            huge = chunk(b"id3 ", noisy(2_200_000))
            self.assert_ends(stating(size, huge), len(SOUND) + len(huge))
        self.assert_ends(stating(16, large), len(SOUND) + len(large), 16 - len(SOUND) - len(large))

    def test_many_names(self) -> None:
        """Names of chunks in the samples are no chunks, and a bounded number is examined."""
        spam, large = b"LIST" * 6000, chunk(b"LIST", b"LIST" * 20_000)
        for behind in (spam, INFO + large):
            self.assert_ends(stating(0, behind), len(SOUND) + len(behind))

    def test_tags(self) -> None:
        """Tags at the end are not played where the file states no size."""
        id3 = b"ID3\3\0\0\0\0\2\x2c" + noisy(300)
        ape = b"APETAGEX" + struct.pack("<IIII8x", 2000, 32, 0, 0)
        for tags in (b"TAG" + noisy(125), id3, INFO + id3, ape, id3 + b"TAG" + noisy(125)):
            self.assert_ends(stating(0, tags), len(SOUND), len(tags))

    def test_agreeing(self) -> None:
        """A size that agrees with that of the form is believed if less than 64 KiB follows."""
        for data in (SOUND, SOUND[:-1], SOUND[:-1] + b"\0"):
            size = len(data.rstrip(b"\0"))
            for chunks in (b"", chunk(b"abcd", b"wxyz"), chunk(b"abcd", b"xyz")):
                form = FORM + b"data" + struct.pack("<I", size) + data + chunks
                file = b"RIFF" + struct.pack("<I", 4 + len(form)) + b"WAVE" + form
                for behind in (
                    *(b"\nmade by hand in 2024\n", b"bplist00" + noisy(99), b"\xff" * 512),
                    *(b"LYRICSBEGIN" + noisy(99), SOUND, noisy(65_000)),
                ):
                    self.assert_ends(file + behind, size)
                # A recorder that lost power had updated all of its sizes.
                self.assertGreater(locate(file + b"\xff" + noisy(65_536)).end, len(file))
        sizes = chunk(b"ds64", struct.pack("<QQQI", 72 + len(SOUND), len(SOUND), 500, 0))
        file = wav(sizes, FORM, chunk(b"data", SOUND, 0xFFFF_FFFF), name=b"RF64")
        self.assertEqual(len(file), 80 + len(SOUND))
        self.assert_ends(file + b"made by hand in 2024", len(SOUND))

    def test_empty(self) -> None:
        """A data chunk without samples, and chunks behind it, precede those of another one."""
        empty = chunk(b"data", b"")
        for ahead in (empty, empty + INFO, empty + empty):
            for behind in (b"", INFO):
                where = locate(wav(FORM, ahead, chunk(b"data", SOUND), behind))
                start = START + len(ahead)
                self.assertEqual((where.start, where.end), (start, start + len(SOUND)))
                # The samples are opened without the container.
                self.assertNotEqual(where.stated_end, where.end)
        many = empty + chunk(b"LIST", b"") * 70 + chunk(b"data", SOUND)
        self.assertEqual(locate(wav(FORM, many)).start, START)

    def test_wrapped(self) -> None:
        """A recording of more than 4 GiB states its size modulo 2^32, whatever it has there."""
        for behind in (b"", INFO):
            for more in (1, 2):
                head = wav(FORM, chunk(b"data", b"", 800))
                end = START + 800 + (more << 32)
                size = end + len(behind)
                reader, pieces = find_samples(size), {0: head, end: behind}
                request = next(reader)
                with self.assertRaises(StopIteration) as stopped:
                    while True:
                        offset, count = request
                        at = max(place for place in pieces if place <= offset)
                        data = pieces[at][offset - at :][:count]
                        # Silence, and a size that is believed if nothing else tells.
                        request = reader.send(data.ljust(min(count, size - offset), b"\0"))
                where = stopped.exception.value
                self.assertEqual((where.end, where.stated_end), (end, START + 800))

    def test_cut_off(self) -> None:
        """A file that ends before its samples has those that are there."""
        self.assert_ends(stating(3 * len(SOUND)), len(SOUND))

    def test_64_bits(self) -> None:
        """A 64-bit size of 0 is none: the size of the chunk counts, if it has one."""
        sizes = chunk(b"ds64", bytes(28))
        for size in (len(SOUND), 0xFFFF_FFFF):
            file = wav(sizes, FORM, chunk(b"data", SOUND, size), INFO, name=b"RF64")
            # ffmpeg plays nothing.
            self.assert_ends(file, len(SOUND), -len(SOUND))

    def test_big_endian(self) -> None:
        """The sizes of RIFX are big-endian, also those of the chunks at its end."""
        behind = chunk(b"LIST", b"INFO", order=">I")
        for size in (len(SOUND), 16, 0):
            where = locate(stating(size, behind, name=b"RIFX"))
            self.assertEqual((where.end - where.start, where.big_endian), (len(SOUND), True))
        self.assertFalse(locate(stating(0)).big_endian)

    def test_space(self) -> None:
        """Much that is no chunk is zeros, or further samples, of more than a MiB."""
        for behind, expected in (
            (bytes(MUCH_SPACE + 1), True),
            (bytes(MUCH_SPACE + 1) + SOUND, True),
            (bytes(MUCH_SPACE), False),
            (chunk(b"JUNK", bytes(MUCH_SPACE)), False),
            (SOUND * 600, True),
        ):
            file = stating(len(SOUND), behind)
            self.assertIs(locate(file).has_space, expected)

    def test_other_files(self) -> None:
        """Other files are no wav files."""
        for file in (b"RIFF", b"RIFF\0\0\0\0AVI LIST", b"OggS" + bytes(90), wav(FORM)):
            self.assertRaises(Malformed, locate, file)

    def test_length(self) -> None:
        """The length is that of the samples that the file has, not of those that it states."""
        for size in (len(SOUND), 16, 0):
            self.assertEqual(found(stating(size, INFO), "wav"), 500)
        self.assertEqual(found(stating(len(SOUND), name=b"RIFX"), "wav", "pcm_s16be"), 500)


class FormTests(SynchronousTestCase):
    """`read_form`"""

    def test_forms(self) -> None:
        """Integers, floats, A-law and µ-law of both byte orders are read, also as extensible."""
        for tag, bits, codec in (
            *((1, 8, "u8"), (1, 16, "s16"), (1, 24, "s24"), (1, 32, "s32")),
            *((3, 32, "f32"), (3, 64, "f64"), (6, 8, "alaw"), (7, 8, "mulaw")),
        ):
            for name, order in ((b"RIFF", "<"), (b"RIFX", ">")):
                base = 2, 8000, bits * 2000, bits // 4, bits
                plain = struct.pack(order + "HHIIHH", tag, *base)
                extended = struct.pack(order + "HHIIHH", 0xFFFE, *base)
                more = struct.pack(order + "HHII", 22, bits - 4, 3, tag)
                short = struct.pack(order + "HHIHH", 22, bits - 4, 3, tag, 0)
                byte_order = {"<": "le", ">": "be"}[order] if bits > 8 else ""
                for form, valid in (
                    *((plain, bits), (plain + b"\0\0", bits)),
                    *((extended + more, bits - 4), (extended + short, bits - 4)),
                ):
                    expected = SampleForm(f"pcm_{codec}{byte_order}", 8000, 2, valid, "stereo")
                    for file in headed(name, form, order + "I"):
                        self.assertEqual(run(read_form(locate(file)), file), expected)

    def test_speakers(self) -> None:
        """The speakers of more than two channels are those of the format, if they fit."""
        for channels, speakers, layout in (
            *((1, 0, "mono"), (4, 0x33, "quad"), (6, 0x3F, "5.1"), (6, 0x60F, "5.1(side)")),
            *((8, 0x63F, "7.1"), (6, 0x33, None), (3, 7, None)),
        ):
            form = struct.pack(">HHIIHH", 0xFFFE, channels, 8000, 0, 2 * channels, 16)
            form += struct.pack(">HHII", 22, 16, speakers, 1)
            (file, _) = headed(b"RIFX", form, ">I")
            found = run(read_form(locate(file)), file)
            self.assertEqual(found and found.layout, layout, speakers)

    def test_others(self) -> None:
        """Other codecs, and forms that contradict themselves, are none of these."""
        for form in (
            *((2, 2, 8000, 0, 8, 4), (1, 2, 8000, 0, 4, 12), (3, 2, 8000, 0, 4, 16)),
            *((1, 2, 8000, 0, 8, 16), (1, 0, 8000, 0, 0, 16), (1, 2, 0, 0, 4, 16)),
        ):
            (file, _) = headed(b"RIFF", struct.pack("<HHIIHH", *form), "<I")
            self.assertIsNone(run(read_form(locate(file)), file), form)
