"""Places in Ogg Vorbis, Opus and FLAC."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.ogg_pages import drop_packets, find_pages, with_checksum
from audioproxy.media.reading import Malformed, SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.seeking import ogg as ogg_module
from audioproxy.media.seeking.ogg import find_in_ogg
from tests.support.audio import find_length_of, search
from tests.support.flac import crc, frame
from tests.support.ogg import (
    OPUS_HEAD,
    PACKET,
    damage,
    flac,
    number,
    opus,
    page,
    seal,
    setup_header,
    split,
    vorbis,
)
from tests.support.probes import Probe
from tests.support.strategies import DETERMINISTIC

SERIAL = b"0001"
#: Samples that the decoder of Opus leaves out at the start, and those that are decoded ahead: of
#: music, and of speech.
PRESKIP, PREROLL, SPEECH_PREROLL = 312, 36000, 96000
#: Modes of a short block of 256 samples and of a long one of 2048.
SETUP = setup_header((0, 1))
SHORT, LONG = b"\0", b"\2"
#: The first bytes of Opus packets of a single frame, by their number of samples.
OPUS_PACKETS = {120: b"\x80", 960: b"\xf8", 2880: b"\x18"}


PROBES = {
    codec: Probe("ogg", codec, None, False, sample_rate=rate)
    for codec, rate in (("opus", 48000), ("vorbis", 44100), ("flac", 44100))
}


def length_of(file: bytes, codec: str = "opus") -> SourceLength:
    """Return the length of a file; Hypothesis draws another one if it is not found."""
    length = find_length_of(file, PROBES[codec])
    assume(length is not None)
    assert length is not None
    return length


def seek(
    file: bytes,
    first: int,
    last: int | None = None,
    codec: str = "opus",
    length: SourceLength | None = None,
) -> SeekPoint | None:
    """Return the place for a sample, if there is one.

    :param length: the length of the file, if it is not found.
    """
    length = length or length_of(file, codec)
    return search(find_in_ogg(len(file), PROBES[codec], length, first, last), file)


def find(file: bytes, first: int, last: int | None = None) -> SeekPoint:
    """Return the place for a sample of Opus."""
    point = seek(file, first, last)
    assert point is not None, first
    return point


def read_packets(file: bytes) -> tuple[list[bytes], list[int]]:
    """Return the packets of a file, and how many of them end on each page."""
    packets, counts, packet = [], [], b""
    for each in split(file):
        lacing, at, count = each[27 : 27 + each[26]], 27 + each[26], 0
        for size in lacing:
            packet, at = packet + each[at : at + size], at + size
            if size < 255:
                packets.append(packet)
                packet, count = b"", count + 1
        counts.append(count)
    return packets, counts


def constant_opus(pages: int = 40, packets: int = 5, serial: bytes = SERIAL) -> list[bytes]:
    """Return the pages of audio of a stream of packets of 960 samples."""
    return [
        page(
            960 * packets * (index + 1),
            *[PACKET + bytes((index, each)) for each in range(packets)],
            flags=4 * (index == pages - 1),
            serial=serial,
        )
        for index in range(pages)
    ]


class Stream:
    """A stream of packets of several lengths, on pages that begin anywhere in a packet.

    :ivar durations: the number of samples that each packet adds to the position.
    :ivar packets: each is another one.
    """

    def __init__(self, codec: str, kinds: Sequence[int], fills: Sequence[int]) -> None:
        self.codec = codec
        if codec == "opus":
            self.durations = [(120, 960, 2880)[kind] for kind in kinds]
            starts = [OPUS_PACKETS[duration] for duration in self.durations]
        elif codec == "vorbis":
            sizes = [(256, 2048, 2048)[kind] for kind in kinds]
            self.durations = [0, *((a + b) // 4 for a, b in pairwise(sizes))]
            starts = [LONG if size == 2048 else SHORT for size in sizes]
        else:
            starts = [frame(bytes((index,))) for index in range(len(kinds))]
            self.durations = [4096] * len(kinds)
        # Other bytes than those of the name of a page.
        self.packets = [
            start + struct.pack(">H", index) + b"x" * fill
            for index, (start, fill) in enumerate(zip(starts, fills, strict=False))
        ]
        self.ends = list(accumulate(self.durations))

    def file(self, cuts: Sequence[int]) -> bytes:
        """Return a file.

        :param cuts: numbers of segments of pages. The first page ends with the first packet.
        """
        segments = [
            (size, index)
            for index, packet in enumerate(self.packets)
            for size in (*[255] * (len(packet) // 255), len(packet) % 255)
        ]
        pages, begin, sizes = [], 0, [len(self.packets[0]) // 255 + 1, *cuts]
        content = b"".join(self.packets)
        while begin < len(segments):
            count = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            part = segments[begin : begin + count]
            is_continued = begin > 0 and segments[begin - 1][0] == 255
            ended = [index for size, index in part if size < 255]
            granule = self.ends[ended[-1]] if ended else -1
            is_last = begin + count >= len(segments)
            lacing = bytes(size for size, _ in part)
            header = b"OggS\0" + bytes((is_continued + 4 * is_last,)) + struct.pack("<q", granule)
            header += SERIAL + bytes(8) + bytes((len(lacing),)) + lacing
            pages.append(header + content[: sum(lacing)])
            content = content[sum(lacing) :]
            begin += count
        return seal({"opus": opus, "vorbis": _vorbis, "flac": flac}[self.codec](*pages))


def _vorbis(*pages: bytes) -> bytes:
    return vorbis(*pages, setup=SETUP)


@st.composite
def streams(draw: st.DrawFn) -> tuple[Stream, bytes]:
    """Draw a stream, and a file of it."""
    codec = draw(st.sampled_from(("opus", "vorbis", "flac")))
    count = draw(st.integers(40, 100))
    kinds = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    # The last part of a packet may be empty.
    start = {"opus": 3, "vorbis": 3, "flac": len(frame(b"\0")) + 2}[codec]
    fill = st.sampled_from((0, 9, 200, 255 - start, 510 - start, 700))
    stream = Stream(codec, kinds, draw(st.lists(fill, min_size=count, max_size=count)))
    return stream, stream.file(draw(st.lists(st.integers(1, 9), min_size=1, max_size=40)))


class PlaceTests(SynchronousTestCase):
    """`find_in_ogg`"""

    def test_any_stream(self) -> None:
        """A decoder of the excerpt begins with a packet ahead of the sample, or that has it.

        All packets behind that follow. The place is the last one that fits, but for a packet that
        goes on from one page to the next. It is known how many samples the first page gives.
        """
        found = 0

        @settings(DETERMINISTIC, max_examples=60)
        @given(streams(), st.floats(0.02, 0.99))
        def check(drawn: tuple[Stream, bytes], share: float) -> None:
            nonlocal found
            stream, file = drawn
            length = length_of(file, stream.codec)
            first = int(share * length.samples)
            point = seek(file, first, codec=stream.codec, length=length)
            assume(point is not None)
            assert point is not None
            found += 1
            excerpt = point.head + file[point.offset :]
            self.assertEqual(seal(excerpt), excerpt)
            packets, counts = read_packets(excerpt)
            headers = {"opus": 2, "vorbis": 3, "flac": 2}[stream.codec]
            begin = stream.packets.index(packets[headers])
            self.assertEqual(packets[headers:], stream.packets[begin:])
            skipped = preroll = 0
            if stream.codec == "opus":
                is_speech = stream.durations[0] == 2880
                skipped, preroll = PRESKIP, SPEECH_PREROLL if is_speech else PREROLL
            # The first block of Vorbis gives no samples.
            is_vorbis = stream.codec == "vorbis"
            starts = [0, *stream.ends][is_vorbis:]
            self.assertEqual(point.sample, starts[begin] - skipped)
            self.assertEqual(point.first_stamp, starts[begin])
            self.assertLessEqual(point.sample, first - preroll)
            for later in starts[begin + 2 :][:1]:
                self.assertGreater(later - skipped, first - preroll)
            # The first page of audio is the one behind those of headers.
            pages = 2
            ended = begin + counts[pages]
            self.assertEqual(point.unstamped, sum(stream.durations[begin + is_vorbis : ended]))

        check()
        # Most streams have a place.
        self.assertGreater(found, 30)

    def test_opus(self) -> None:
        """The headers let the decoder leave out nothing, and the rest begins with a packet."""
        file = seal(opus(*constant_opus()))
        for first, packet in (
            (100_000, (100_000 + PRESKIP - PREROLL) // 960),
            (100 * 960 - PRESKIP + PREROLL - 1, 99),
            (100 * 960 - PRESKIP + PREROLL, 100),
            (40 * 4800 - PRESKIP - 1, (40 * 4800 - 1 - PREROLL) // 960),
        ):
            point = find(file, first)
            self.assertEqual(point.sample, packet * 960 - PRESKIP)
            self.assertEqual((point.demuxer, point.first_stamp), ("ogg", packet * 960))
            first_header, tags, begin = split(point.head)
            without_delay = OPUS_HEAD[:10] + bytes(2) + OPUS_HEAD[12:]
            self.assertEqual(first_header, seal(page(0, without_delay, flags=2)))
            self.assertEqual(tags, split(file)[1])
            self.assertEqual(begin[18:22], struct.pack("<I", packet // 5 + 2))

    def test_speech(self) -> None:
        """More of speech is decoded ahead, as its pitch is predicted over longer times."""
        # A hybrid of both counts as speech.
        for config, samples, preroll in ((15, 960, 96000), (16, 120, 36000), (31, 960, 36000)):
            toc = bytes((config << 3,))
            pages = [
                page(samples * 50 * (index + 1), *[toc + bytes(9)] * 50, flags=4 * (index == 49))
                for index in range(50)
            ]
            first = samples * 50 * 49
            point = find(seal(opus(*pages)), first)
            expected = (first + PRESKIP - preroll) // samples * samples - PRESKIP
            self.assertEqual(point.sample, expected, config)

    def test_no_place(self) -> None:
        """Near the start, and past the end, there is none."""
        file = seal(opus(*constant_opus()))
        for first in (0, 4800 - PRESKIP + PREROLL, 40 * 4800 - PRESKIP + PREROLL, 1 << 40):
            self.assertIsNone(seek(file, first), first)
        self.assertIsNotNone(seek(file, 4801 - PRESKIP + PREROLL))

    def test_not_sought(self) -> None:
        """Opus whose positions do not count its samples has none."""
        pages = constant_opus()
        cut = seal(
            opus(
                *[
                    each[:6] + struct.pack("<q", 4800 * n + 5300) + each[14:]
                    for n, each in enumerate(pages)
                ]
            )
        )
        trimmed = seal(opus(*pages[:-1], page(40 * 4800 - 5000, PACKET, flags=4)))
        for file in (cut, trimmed):
            self.assertFalse(length_of(file).seekable)
            self.assertIsNone(seek(file, 100_000))

    def test_first_page(self) -> None:
        """A stream whose first page does not have the position of its samples has none."""
        for begin, is_found in ((0, True), (4096, False)):
            pages = [
                page(begin + 4096 * (index + 1), frame(bytes((index,))), flags=4 * (index == 29))
                for index in range(30)
            ]
            point = seek(seal(flac(*pages)), 50_000, codec="flac")
            self.assertEqual(point is not None, is_found)
        # Blocks of unknown sizes.
        blocks = [page(1024 * index, LONG + b"x", flags=4 * (index == 29)) for index in range(30)]
        whole = SourceLength(1024 * 29, is_stated_only=True)
        known, unknown = vorbis(*blocks, setup=SETUP), vorbis(*blocks)
        for file, is_found in ((known, True), (unknown, False)):
            point = seek(seal(file), 20_000, codec="vorbis", length=whole)
            self.assertEqual(point is not None, is_found)

    def test_long_stream(self) -> None:
        """Pages are found in a stream of any bit rate: where it changes, in a few more steps."""
        sizes = [*[2] * 300, *[1200] * 300]
        for order in (sizes, sizes[::-1]):
            pages = [
                page(
                    4800 * (index + 1),
                    *[PACKET + bytes((index % 251, each)) + bytes(size) for each in range(5)],
                    flags=4 * (index == len(order) - 1),
                )
                for index, size in enumerate(order)
            ]
            file = seal(opus(*pages))
            for first in (400_000, 1_300_000, 1_439_000, 1_500_000, 2_700_000):
                expected = (first + PRESKIP - PREROLL) // 960 * 960 - PRESKIP
                self.assertEqual(find(file, first).sample, expected)
        self.assert_bounded("_MOST_STEPS", 1, file, 1_439_000, is_found=False)

    def assert_bounded(
        self,
        name: str,
        most: int,
        file: bytes,
        first: int,
        last: int | None = None,
        *,
        is_found: bool,
    ) -> None:
        """Require that a search has a place, or none, under a lower bound than the real one."""
        self.patch(ogg_module, name, most)
        self.assertEqual(seek(file, first, last) is not None, is_found, (first, last, most))

    def test_end(self) -> None:
        """The end is a whole page that ends at the last needed sample, or behind it."""
        file = seal(opus(*constant_opus()))
        self.assertIsNone(find(file, 100_000).is_end)
        point = find(file, 100_000, 110_000)
        assert point.is_end is not None
        pages = split(file)
        # The page with the position 110 400.
        last = 2 + 22
        self.assertFalse(point.is_end(b"".join(pages[:last])))
        self.assertTrue(point.is_end(b"".join(pages[last - 1 : last + 1])))
        self.assertTrue(point.is_end(b"some bytes" + pages[last]))
        self.assertTrue(point.is_end(pages[-1]))
        self.assertFalse(point.is_end(pages[last][:-1]))
        self.assertFalse(point.is_end(damage(pages[last], 0)))
        other = seal(b"".join(constant_opus(serial=b"0002")))
        self.assertFalse(point.is_end(other))

    def test_damaged_ends(self) -> None:
        """The search for the end stops at sixteen damaged pages: all behind it is copied, too.

        Pages of other streams, and those ahead of the end, are not compared.
        """
        file = seal(opus(*constant_opus()))
        point = find(file, 100_000, 110_000)
        assert point.is_end is not None
        pages = split(file)
        end, ahead, other = pages[30], pages[10], seal(page(1 << 40, PACKET, serial=b"0002"))
        damaged = damage(end, 0)
        for before, is_found in (
            ([damaged] * 15, True),
            ([damaged] * 16, False),
            ([b"OggS\0"] * 100, True),
            ([ahead, damage(ahead, 0)] * 50, True),
            ([other] * 100, True),
        ):
            self.assertIs(point.is_end(b"".join(before) + end), is_found)

    def test_long_excerpts(self) -> None:
        """Less than a limit is copied, by an estimate; a longer excerpt would be too slow."""
        file = seal(opus(*constant_opus(200)))
        for first, last, share in (
            (100_000, None, (960_000 - 64_320) / 960_000),
            (700_000, None, (960_000 - 664_320) / 960_000),
            (100_000, 110_000, (110_312 - 64_320) / 960_000),
            (100_000, 900_000, (900_312 - 64_320) / 960_000),
        ):
            estimate = round(share * len(file))
            for limit, is_found in ((estimate - 2000, False), (estimate + 2000, True)):
                self.assert_bounded("MOST_COPIED", limit, file, first, last, is_found=is_found)

    def test_large_headers(self) -> None:
        """All pages of headers are copied, among them pictures."""
        part = b"\xff" * 255 + bytes(255 * 255)
        tags = [
            b"OggS\0"
            + bytes((index > 0,))
            + struct.pack("<q", -1)
            + SERIAL
            + bytes(8)
            + b"\xff"
            + part
            for index in range(20)
        ]
        pages = page(0, OPUS_HEAD, flags=2), *tags, page(0, b"", flags=1), *constant_opus()
        file = seal(number(*pages))
        point = find(file, 100_000)
        self.assertEqual(split(point.head)[1:22], split(file)[1:22])
        self.assertEqual(read_packets(split(point.head)[-1])[0][0], PACKET + b"\x0d\x01")


class DamagedTests(SynchronousTestCase):
    """Files in which the search finds something else than pages that follow each other"""

    def test_damaged(self) -> None:
        """ffmpeg leaves out damaged pages, so no excerpt begins with one, or ahead of one."""
        file = seal(opus(*constant_opus()))
        # The packet with the place is on the page with the position 67 200.
        first, at = 100_000, 2 + 13
        self.assertIsNotNone(seek(file, first))
        for index, is_found in (
            (at - 1, False),
            (at, False),
            (at - 2, True),
            (at + 1, True),
            (2, True),
        ):
            self.assertEqual(seek(damage(file, index), first) is not None, is_found, index)

    @settings(DETERMINISTIC, max_examples=60)
    @given(
        streams(),
        st.floats(0.02, 0.99),
        st.lists(
            st.tuples(st.sampled_from(("byte", "number", "granule")), st.integers(1, 99)),
            min_size=1,
            max_size=3,
        ),
        st.one_of(st.integers(-3, 3), st.integers(-(1 << 40), 1 << 40)),
    )
    def test_any_damage(
        self, drawn: tuple[Stream, bytes], share: float, wrong: list[tuple[str, int]], by: int
    ) -> None:
        """Pages with other bytes, numbers or positions leave the place as it is, or none."""
        stream, file = drawn
        length = length_of(file, stream.codec)
        first = int(share * length.samples)
        whole = seek(file, first, codec=stream.codec, length=length)
        pages = split(file)
        for kind, place in wrong:
            # Not the headers, and not the last page, which may be trimmed.
            index = 2 + place * (len(pages) - 3) // 100
            if kind == "byte":
                pages = split(damage(b"".join(pages), index))
                continue
            at, form = (18, "<i") if kind == "number" else (6, "<q")
            (value,) = struct.unpack_from(form, pages[index], at)
            value = max(-(1 << 31), min(value + by, (1 << 31) - 1))
            changed = bytearray(pages[index])
            struct.pack_into(form, changed, at, value)
            pages[index] = seal(bytes(changed))
        point = seek(b"".join(pages), first, codec=stream.codec, length=length)
        if point is not None:
            # The bytes behind the place may be damaged.
            self.assertEqual(point, whole)

    def test_gap(self) -> None:
        """No place is at a page whose packets do not lead to its position."""
        pages = constant_opus()
        # The page with the place begins later, as after a pause.
        changed = [
            each[:6] + struct.pack("<q", 4800 * (n + 1) + 960 * (n >= 13)) + each[14:]
            for n, each in enumerate(pages)
        ]
        file = seal(opus(*changed))
        self.assertIsNone(seek(file, 100_000))
        self.assertIsNotNone(seek(file, 106_000))
        # A page is missing.
        file = seal(opus(*pages))
        gone = split(file)
        del gone[2 + 13]
        self.assertIsNone(seek(b"".join(gone), 100_000))

    def test_nothing(self) -> None:
        """Where no undamaged page is near a place, the search ends."""
        pages = [
            page(960 * (index + 1), PACKET + bytes(4000), flags=4 * (index == 299))
            for index in range(300)
        ]
        file = seal(opus(*pages))
        self.assertIsNotNone(seek(file, 180_000))
        # Other bytes.
        at = sum(map(len, split(file)[:152]))
        other = file[:at] + bytes(400_000) + file[at:]
        self.assertIsNone(seek(other, 180_000, length=length_of(file)))
        self.assertIsNotNone(seek(other, 80_000, length=length_of(file)))
        for index in range(100, 220):
            file = damage(file, index)
        self.assertIsNone(seek(file, 180_000))


class PagesTests(SynchronousTestCase):
    """`find_pages`, `with_checksum` and `drop_packets`"""

    @DETERMINISTIC
    @given(st.binary(max_size=300))
    def test_checksum(self, content: bytes) -> None:
        """The checksum is that of RFC 3533, 6, whatever was in its place."""
        plain = page(1, content)
        checksum = crc(plain, 0x04C1_1DB7, 32)[::-1]
        expected = plain[:22] + checksum + plain[26:]
        for stated in (bytes(4), b"\xff" * 4):
            self.assertEqual(with_checksum(expected[:22] + stated + expected[26:]), expected)

    def test_most_damaged(self) -> None:
        """Bytes with more than sixteen damaged pages are not searched: checksums take time."""
        whole = seal(number(*constant_opus(2)))
        first, last = split(whole)
        for wrong in (damage(first, 0), b"OggS\0", seal(page(5, PACKET, serial=b"0002"))):
            found = find_pages(first + wrong * 16 + last, 0, SERIAL)
            self.assertEqual([each.number for each in found], [0, 1])
            self.assertRaises(Malformed, find_pages, first + wrong * 17 + last, 0, SERIAL)

    def test_drop_packets(self) -> None:
        """Packets are left with the position; the end of one from the page ahead counts as one.

        Empty packets do not count.
        """
        for flags, packets, count, left in (
            (0, (b"aa", b"b", b"cc"), 1, (b"b", b"cc")),
            (0, (b"aa", b"", b"cc"), 2, ()),
            (0, (b"a" * 300, b"c"), 1, (b"c",)),
            (1, (b"", b"b", b"c"), 1, (b"b", b"c")),
            (1, (b"a", b"b"), 0, (b"a", b"b")),
        ):
            whole = seal(page(4711, *packets, flags=flags))
            (found,) = find_pages(whole, 0, SERIAL)
            self.assertEqual(drop_packets(whole, found, count), seal(page(4711, *left)), packets)
