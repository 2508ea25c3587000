"""The samples of the source that an output covers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.media.command.trim import SampleRange, may_be_shorter, trim_filters, trim_range
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from tests.support.audio import options_of
from tests.support.probes import Probe, replace

SOURCE = Probe("wav", "pcm_s16le", Decimal(10), True, sample_rate=44100, seekable=True)


def source(seconds: str | None = "10", kind: str = "wav/pcm_s16le", **fields: Any) -> Probe:
    """Return a probe result."""
    container, codec = kind.split("/")
    duration = None if seconds is None else Decimal(seconds)
    return replace(SOURCE, container=container, codec=codec, duration=duration, **fields)


def exact(samples: int = 441000, rate: int = 44100, *, padded: bool = False) -> Probe:
    """Return the probe result of a source whose end confirms its length."""
    length = SourceLength(samples, ends_in_padding=padded)
    return source(None, sample_rate=rate).with_length(length)


class SampleRangeTests(SynchronousTestCase):
    """`trim_range`"""

    def test_samples(self) -> None:
        """``t`` is rounded to the nearest samples; without ``t``, the whole source is covered."""
        for text, probe, sample_range in (
            ("f:wav", exact(), SampleRange(0, 0, None, 441000)),
            ("f:wav", source(), SampleRange(0, 0, None, None)),
            ("f:wav", source(None), SampleRange(0, 0, None, None)),
            ("t:1:2", exact(), SampleRange(0, 44100, 132300, 88200)),
            ("t:1:2", source(), SampleRange(0, 44100, 132300, None)),
            # A region that extends past the end of the source is cut at the end (D11).
            ("t:9", exact(), SampleRange(352800, 44100, None, 44100)),
            *(
                (f"t:9:{more}", exact(), SampleRange(352800, 44100, 44100 + end, 44100))
                for more, end in (("1", 44100), ("1.001", 44144), ("5000", 220500000))
            ),
            ("t:0.001:0.001", exact(), SampleRange(0, 44, 88, 44)),
            ("t:0.5:0.003", exact(rate=48000), SampleRange(0, 24000, 24144, 144)),
            ("t:0.003", exact(80000, 8000), SampleRange(0, 24, None, 79976)),
            ("t:1.5", exact(220500, 22050), SampleRange(0, 33075, None, 187425)),
            # The encoder's padding, which the decoder outputs at the end, is cut.
            ("f:wav", exact(padded=True), SampleRange(0, 0, 441000, 441000)),
            ("t:9", exact(padded=True), SampleRange(352800, 44100, 88200, 44100)),
            ("t:9:9", exact(padded=True), SampleRange(352800, 44100, 88200, 44100)),
            ("t:1:1", exact(padded=True), SampleRange(0, 44100, 88200, 44100)),
        ):
            self.assertEqual(trim_range(options_of(text), probe), sample_range, text)

    def test_parts(self) -> None:
        """Samples of a part are counted by their time stamps, so lost ones leave it too short."""
        end = "asetpts=PTS-STARTPTS"
        probe = replace(exact(rate=8000), in_parts=True)
        self.assertTrue(trim_range(options_of("t:1:2"), probe).by_stamps)
        for sample_range, filters in (
            (
                SampleRange(8000, 90, 99, 9, is_known=True),
                ["asettb=1/8000", end, "atrim=start_pts=90:end_pts=99", end],
            ),
            (
                SampleRange(8000, 9000, None, 800),
                [
                    "asettb=1/8000",
                    "asetpts=if(eq(N\\,0)\\,st(0\\,if(gt(PTS\\,9000)\\,print(PTS\\,16)\\,PTS))\\,PTS)",
                    "atrim=start_pts=9000",
                    end,
                ],
            ),
        ):
            sample_range = replace(sample_range, by_stamps=True)
            self.assertEqual(trim_filters(sample_range, 8000), filters)

    def test_filters(self) -> None:
        """After a seek, the first time stamp tells the place, and a late start is reported."""
        end = "asetpts=PTS-STARTPTS"
        for sample_range, filters in (
            (SampleRange(0, 0, None, 9), []),
            (SampleRange(0, 0, 9, 9), ["atrim=start_sample=0:end_sample=9", end]),
            (SampleRange(0, 7, None, None), ["atrim=start_sample=7", end]),
            (
                SampleRange(8000, 9000, 9800, 800),
                [
                    "asettb=1/8000",
                    "asetpts=if(eq(N\\,0)\\,st(0\\,if(gt(PTS\\,9000)\\,print(PTS\\,16)\\,PTS))\\,ld(0)+N)",
                    "atrim=start_pts=9000:end_pts=9800",
                    end,
                ],
            ),
        ):
            self.assertEqual(trim_filters(sample_range, 8000), filters)

    def test_delay(self) -> None:
        """Samples that a decoder outputs ahead of the audio are cut, and count in no length."""
        length = SourceLength(441000, ends_in_padding=True, delay=481)
        probe = source(None).with_length(length)
        for text, start, end, count in (
            ("f:wav", 481, 441481, 441000),
            ("t:1", 44581, 441481, 396900),
            ("t:1:1", 44581, 88681, 44100),
        ):
            sample_range = trim_range(options_of(text), replace(probe, seekable=False, codec=""))
            self.assertEqual((sample_range.length, sample_range.seek), (count, 0))
            first = f"atrim=start_sample={start}:end_sample={end}"
            self.assertEqual(trim_filters(sample_range, 44100)[0], first, text)

    def test_lower_bound(self) -> None:
        """If only a least length is certain, the length of a region before it is certain (D57)."""
        at_least = source(length=SourceLength(88200, exact=False))
        for text, length in (
            ("t:1:1", 44100),
            ("t:0:2", 88200),
            ("t:1:1.001", None),
            ("t:1", None),
        ):
            found = trim_range(options_of(text), at_least)
            self.assertEqual(found.length, length, text)

    def test_no_sample(self) -> None:
        """A region without a sample is refused as an option, not as a broken source (D13).

        If it starts at or past the end, the message states the source's duration (D11).
        """
        past = "it starts at or past the end of the source, which is 10 seconds."
        less = "it leaves less than a sample of the source."
        shorter = "it is shorter than a sample of the source."
        slow = source("0.006", sample_rate=500)
        for text, probe, message in (
            *((text, source(), past) for text in ("t:10", "t:10.001:5", "t:999999999")),
            # The start is within the second half of the last sample.
            ("t:0.005", slow, less),
            ("t:1:0.001", source(sample_rate=100), shorter),
        ):
            options = options_of(f"{text}/fade:0:0.001")
            error = self.assertRaises(InvalidOptions, trim_range, options, probe)
            self.assertEqual(error.message, f'"{text}" is not accepted: {message}')
        for text, probe, length in (
            ("t:9.999", exact(), 44),
            ("t:0.004", slow.with_length(SourceLength(3)), 1),
            ("t:1:0.01", exact(1000, 100), 1),
            ("fade:0:1", source().with_decoded_samples(1), 1),
        ):
            self.assertEqual(trim_range(options_of(text), probe).length, length, text)

    def test_shorter(self) -> None:
        """A part may be shorter than 3 s if it is asked so, or by the duration or size of a source.

        A duration may be wrong by half a second, and a sample may have 8 bytes, after 64 KiB.
        """
        largest = 64 * 1024 + 3 * 44100 * 2 * 8
        for text, seconds, size, is_shorter in (
            ("t:1:2.999", "10", None, True),
            ("t:1:3", "10", None, False),
            ("t:1", "4.499", None, True),
            ("t:1", "4.5", None, False),
            ("f:wav", None, largest - 1, True),
            ("f:wav", None, largest, False),
            ("f:wav", None, None, False),
        ):
            probe = source(seconds)
            probe = replace(probe, description=replace(probe.description, size=size))
            found = may_be_shorter(options_of(text), probe, Decimal(3))
            self.assertIs(is_shorter, found, (text, seconds, size))

    def test_seek(self) -> None:
        """If seeks are exact, decoding starts at a whole second, 1 s or more before the region."""
        kinds = "wav/pcm_s24le w64/pcm_f64le flac/flac aiff/pcm_alaw caf/pcm_mulaw"
        kinds += " tta/tta mov/alac mov/aac"
        for kind, frame in (*((kind, 0) for kind in kinds.split()), ("flac/flac", 4608)):
            probe = source("100", kind, length=SourceLength(4410000), frame_samples=frame)
            for text, seek, first, end, length in (
                ("t:1.5:1", 0, 66150, 110250, 44100),
                ("t:2:1", 9 * 4608 if frame else 44100, 88200, 132300, 44100),
                ("t:41.25", 382 * 4608 if frame else 1764000, 1819125, None, 2590875),
            ):
                expected = SampleRange(seek, first - seek, end and end - seek, length)
                self.assertEqual(trim_range(options_of(text), probe), expected, (kind, text))

    def test_point(self) -> None:
        """Where the service has found the place, samples are counted from the known first one."""
        point = SeekPoint(1_700_000, 5, "mp3")
        probe = source("100", "mp3/mp3", length=SourceLength(4410000), seek_point=point)
        for text, start, end, length in (
            ("t:41.25:1", 119125, 163225, 44100),
            ("t:41.25", 119125, None, 2590875),
        ):
            expected = SampleRange(point.sample, start, end, length, is_known=True)
            self.assertEqual(trim_range(options_of(text), probe), expected, text)
            stop = "" if end is None else f":end_sample={end}"
            trim = f"atrim=start_sample={start}{stop}"
            self.assertEqual(trim_filters(expected, 44100)[0], trim)

    def test_no_seek(self) -> None:
        """A source is decoded from its start where a seek is not exact or not confirmed."""
        kinds = "ogg/vorbis ogg/flac ogg/opus mp3/mp3 aac/aac ac3/ac3 matroska/flac mov/pcm_s16le"
        kinds += " wv/wavpack mp3/mp2 /mp3 caf/alac"
        kinds += " wav/adpcm_ima_wav w64/adpcm_g722 aiff/adpcm_ima_qt wav/wmav2 caf/flac wav/mp3"
        unconfirmed = "flac/flac mov/alac mov/aac tta/tta"
        rates = {None: 40, 44100 * 32: 40, 44100 * 16: 0}
        for kind, fields, seconds in (
            *((kind, {}, 0) for kind in kinds.split()),
            *((kind, {"seekable": False}, 0) for kind in unconfirmed.split()),
            *(("wav/pcm_s16le", {"stream_bitrate": rate}, at) for rate, at in rates.items()),
        ):
            found = trim_range(options_of("t:41.25"), source("100", kind, **fields))
            seek = 44100 * seconds
            self.assertEqual((found.seek, found.start), (seek, 1819125 - seek), (kind, fields))
