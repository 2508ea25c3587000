"""Lengths of Ogg Vorbis, Opus and FLAC files."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.lengths.vorbis import Blocks
from audioproxy.media.reading import SourceLength
from tests.support.audio import find_length_of
from tests.support.flac import frame
from tests.support.ogg import OPUS_HEAD, PACKET, flac, number, opus, page, setup_header, vorbis
from tests.support.probes import Probe


def found(file: bytes, codec: str = "opus", rate: int = 48000) -> int | None:
    """Return the number of samples that is found; joined streams would have other numbers.

    Only Opus is sought in. A Vorbis file may end within its longest block. Whether one of FLAC may
    have gaps is another test.
    """
    length = find_length_of(file, Probe("ogg", codec, None, False, sample_rate=rate))
    if length is None:
        return None
    block = 2048 if codec == "vorbis" else 0
    seekable = codec == "opus" and length.seekable
    assert length == SourceLength(
        length.samples,
        is_stated_only=True,
        block=block,
        seekable=seekable,
        has_gaps=length.has_gaps,
    )
    return length.samples


def is_seekable(file: bytes) -> bool:
    """Return whether an Opus file is sought in."""
    length = find_length_of(file, Probe("ogg", "opus", None, False, sample_rate=48000))
    return length is not None and length.seekable


class OggTests(SynchronousTestCase):
    """`read_opus` and `read_vorbis`"""

    def test_last_page(self) -> None:
        """The last page tells the length; that of opus includes the decoder's delay."""
        self.assertEqual(found(opus(page(1000, *[PACKET] * 2, flags=4))), 1000 - 312)
        two = page(1920, *[PACKET] * 2), page(2500, PACKET, flags=4)
        self.assertEqual(found(opus(*two)), 2500 - 312)
        self.assertTrue(is_seekable(opus(*two)))
        self.assertEqual(found(vorbis(*two), "vorbis", 44100), 2500)

    def test_end(self) -> None:
        """A wrong position of the last page of opus neither adds nor removes whole pages.

        ffmpeg trims the page to its position if the page is marked as the last one, and decodes all
        of it otherwise. Phones write wrong positions, and no mark.
        """
        first = page(1920, *[PACKET] * 2)
        for granule, flags, end in (
            (1921, 4, 1921),
            (1920, 4, 1920),
            (1000, 4, 1920),
            (0, 4, 1920),
            (90_000, 4, 2880),
            (2500, 0, 2880),
            (0, 0, 2880),
        ):
            file = opus(first, page(granule, PACKET, flags=flags))
            self.assertEqual(found(file), end - 312, (granule, flags))
            self.assertEqual(is_seekable(file), flags == 4 and granule == end, (granule, flags))
        # A gap, or a packet that begins on the page before.
        self.assertIsNone(found(opus(first, page(3000, PACKET))))
        self.assertIsNone(found(opus(first, page(2500, PACKET, flags=5))))

    def test_cut(self) -> None:
        """A file that was cut out of a longer stream has the length of its own pages."""
        for start in (1, 27_000_000_000):
            pages = page(start + 1920, *[PACKET] * 2), page(start + 2500, PACKET, flags=4)
            self.assertEqual(found(opus(*pages)), 2500 - 312)
            self.assertFalse(is_seekable(opus(*pages)))

    def test_clock(self) -> None:
        """No length follows from positions that are not those of the samples (D70)."""
        pages = [page(960 * number + 40 * number, PACKET) for number in range(1, 9)]
        self.assertIsNone(found(opus(*pages, page(8640, PACKET, flags=4))))

    def test_continued(self) -> None:
        """A packet that goes on from another page counts where it ends."""
        # The packet of 510 bytes has a last part of 0 bytes.
        begun = bytearray(page(960, PACKET, PACKET.ljust(510)))
        begun[26] -= 1
        del begun[27 + begun[26]]
        rest = page(1920, b"", flags=1), page(2880, PACKET), page(3840, PACKET, flags=4)
        self.assertEqual(found(opus(bytes(begun), *rest)), 3840 - 312)
        # One whose beginning or end is missing does not.
        for pages in ((page(960, PACKET), *rest), (bytes(begun), *rest[1:])):
            self.assertIsNone(found(opus(*pages)))

    def test_fixed_serials(self) -> None:
        """Files that were joined are found by the numbers and positions of their pages.

        The serial number of reproducible files is the same. That of others is drawn at random, and
        files that were joined have two of them, or far more pages than the last one states.
        """
        packets = [PACKET + bytes(240)] * 10

        def pages(count: int, serial: bytes) -> list[bytes]:
            body = [
                page(9600 * (index + 1), *packets, flags=4 * (index == count - 1), serial=serial)
                for index in range(count)
            ]
            return [page(0, OPUS_HEAD, flags=2, serial=serial), page(0, b"t", serial=serial), *body]

        for serial in (bytes(4), b"\1\0\0\0", b"0001"):
            whole = number(*pages(90, serial))
            self.assertEqual(found(whole), 90 * 9600 - 312)
            for count in (3, 20, 40, 90, 400):
                joined = number(*pages(count, serial)) + whole
                is_found = serial != b"0001" or count > 45
                self.assertEqual(found(joined), None if is_found else 90 * 9600 - 312, count)
        # The header of another file among the last pages, and a page of another stream inside.
        short = number(*pages(3, bytes(4)))
        self.assertIsNone(found(number(*pages(90, bytes(4))) + short))
        other = pages(90, bytes(4))
        other[47] = page(0, *packets, serial=b"0002")
        self.assertIsNone(found(number(*other)))
        # A page without a position is no contradiction, and none near a place is one.
        other[47] = page(-1, *packets, serial=bytes(4))
        self.assertEqual(found(number(*other)), 90 * 9600 - 312)
        other[47] = bytes(300_000)
        self.assertIsNone(found(number(*other[:47]) + other[47] + number(*other)[-40_000:]))

    def test_steps(self) -> None:
        """A step back among the last pages leaves the length unknown; one ahead is a gap."""
        pages = [page(960 * count, PACKET) for count in range(1, 9)]
        for step, samples in ((-500, None), (20_000, 7 * 960 + 20_000 - 312)):
            later = page(6 * 960 + step, PACKET), page(7 * 960 + step, PACKET, flags=4)
            self.assertEqual(found(opus(*pages[:5], *later)), samples)
        # The last pages are right, but begin anew.
        packets = [PACKET] * 40
        restarted = page(38_400, *packets), page(76_800, *packets), *pages, *pages
        self.assertIsNone(found(opus(*restarted, page(9 * 960, PACKET, flags=4))))
        # A page on which no packet ends has no position.
        end = page(-1), page(9 * 960, PACKET, flags=4)
        self.assertEqual(found(opus(*pages, *end)), 9 * 960 - 312)
        self.assertIsNone(found(opus(page(960, PACKET), *[page(-1)] * 9, end[1])))

    def test_vorbis_blocks(self) -> None:
        """The position of the last page of Vorbis agrees with the blocks of its packets."""
        # Two modes, of a short block and of a long one of 2048 samples.
        modes = setup_header((0, 1))
        long, short = b"\2", b"\0"
        first = page(4096, *[long] * 5)

        def ended(granule: int, *packets: bytes, setup: bytes = modes) -> int | None:
            return found(
                vorbis(first, page(granule, *packets, flags=4), setup=setup), "vorbis", 44100
            )

        for granule, packets, is_right in (
            *((6144, [long, long], True), (6100, [long, long], True), (6300, [long, long], False)),
            *((4096 + 576 + 128, [short, short], True), (5200, [short, short], False)),
            *((4000, [long], False), (26_000, [long, long], False)),
        ):
            expected = granule if is_right else None
            self.assertEqual(ended(granule, *packets), expected, (granule, packets))
        alone = page(2000, long, long, long, flags=4)
        self.assertEqual(found(vorbis(alone, setup=modes), "vorbis", 44100), 2000)
        self.assertEqual(Blocks.parse(0xB8, bytes(5) + b"\x80").modes, (256,))
        # Modes that cannot be read leave the sizes of all blocks.
        for setup in (b"\5vorbis", b"", setup_header((0, 1))[:-3]):
            self.assertEqual(ended(5200, short, short, setup=setup), 5200)
            self.assertIsNone(ended(6300, short, short, setup=setup))

    def test_early_start(self) -> None:
        """A recording of WebRTC, whose first page begins ahead of its time, is played whole."""
        pages = page(1632, *[PACKET] * 2), page(2592, PACKET, flags=4)
        self.assertEqual(found(opus(*pages)), 2880 - 312)

    def test_flac(self) -> None:
        """The length of Ogg FLAC counts from its first page, too (RFC 9639, 10.1)."""
        blocks = [frame(bytes((number,))) for number in range(4)]
        short = frame(b"\2", 6, b"\x63")
        first, last = page(8192, *blocks[:2]), page(8292, short, flags=4)
        self.assertEqual(found(flac(first, last), "flac", 44100), 8292)
        large = page(8192, *[block.ljust(300) for block in blocks[:2]])
        self.assertEqual(found(flac(large, last), "flac", 44100), 8292)
        later = page(98_192, *blocks[1:3]), page(102_288, blocks[3], flags=4)
        self.assertEqual(found(flac(*later), "flac", 44100), 3 * 4096)
        self.assertEqual(found(flac(page(4096, blocks[0], flags=4)), "flac", 44100), 4096)
        # The number of a frame in blocks of different sizes is that of its first sample.
        uneven = (
            page(4096, frame(b"\0", sync=0xF9)),
            page(4196, frame(b"\xe1\x80\x80", 6, b"\x63", sync=0xF9), flags=4),
        )
        self.assertEqual(found(flac(*uneven), "flac", 44100), 4196)
        for file in (
            opus(first, last),
            flac(first, last, headers=0),
            # No frame, no end mark, a wrong position, a packet that begins on another page.
            flac(page(8192, PACKET), last),
            flac(first, page(8292, short)),
            flac(first, page(8191, short, flags=4)),
            flac(first, page(9000, short, flags=4)),
            flac(first, page(8292, short, flags=5)),
        ):
            self.assertIsNone(found(file, "flac", 44100), file[:80])

    def test_gaps_in_flac(self) -> None:
        """Time stamps of FLAC that was cut out of a longer stream do not count as gaps."""
        blocks = [frame(bytes((number,))) for number in range(3)]
        for start, has_gaps in ((0, True), (90_000, False)):
            pages = page(start + 8192, *blocks[:2]), page(start + 12288, blocks[2], b"", flags=4)
            file = flac(*pages)
            length = find_length_of(file, Probe("ogg", "flac", None, False, sample_rate=44100))
            assert length is not None
            self.assertEqual((length.samples, length.has_gaps), (12288, has_gaps))

    def test_packets(self) -> None:
        """All forms of opus packets have their number of samples (RFC 6716, 3.1)."""
        for first, milliseconds in (
            (b"\x00", 10),
            (b"\x18", 60),
            (b"\x61", 20),
            (b"\x82", 5),
            (b"\xfb\x03", 60),
            (b"\xfb", 0),
            (b"", 0),
        ):
            samples = milliseconds * 48 + 960
            packets = (first + bytes(300) if len(first) > 1 else first, PACKET)
            whole = opus(page(samples, *packets), page(samples + 500, PACKET, flags=4))
            self.assertEqual(found(whole), samples + 500 - 312)
            self.assertTrue(is_seekable(whole))
            cut = opus(page(samples + 1, *packets), page(samples + 501, PACKET, flags=4))
            self.assertFalse(is_seekable(cut))

    def test_unknown(self) -> None:
        """Files that are cut, chained or multiplexed have no known length."""
        whole, last = page(1920, *[PACKET] * 2), page(9000, PACKET, flags=4)
        other = page(9000, PACKET, flags=4, serial=b"0002")
        # A page in the middle of a packet.
        endless = page(-1, bytes(255))[:26] + b"\1\xff" + bytes(255)
        begins = page(0, OPUS_HEAD, flags=2, serial=b"0002")
        for file in (
            *(b"", b"OggS", opus(), opus(whole), opus(whole, last)[:-1], opus(whole, last) + b"\0"),
            *(opus(whole, other), opus(begins, whole, last), opus(whole, page(-1, flags=4))),
            *(page(0, OPUS_HEAD) + page(0, b"t") + last, opus(last, head=b"Speex   " + bytes(20))),
            # One page may be cut at both ends.
            opus(page(50_000, PACKET, flags=4)),
            opus(page(300, PACKET, flags=4)),
            opus(page(960, PACKET)),
            # Pages behind each other in another order.
            opus(page(9000, *[PACKET] * 12), page(1920, PACKET), last),
            page(0, OPUS_HEAD, flags=2) + b"Ogg?" + bytes(99),
            page(0, OPUS_HEAD, flags=2) + endless * 2050,
        ):
            self.assertIsNone(found(file), file[:80])
        self.assertIsNone(found(opus(whole, last), rate=44100))
        # Something else ahead of the last page.
        self.assertIsNone(found(opus(whole) + bytes(200_000) + last))
        for file in (
            *(vorbis(page(99_999, PACKET), last), opus(whole, last)),
            *(vorbis(whole, page(9000, PACKET)), vorbis(whole, page(900, PACKET, flags=4))),
        ):
            self.assertIsNone(found(file, "vorbis", 44100))
