"""The samples of the source that an output covers."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.media.command.trim import (
    SampleRange,
    may_seek,
    needs_measuring,
    starts_past_end,
    trim_range,
)
from audioproxy.media.lengths.reading import SourceLength
from audioproxy.media.probe import Probe
from tests.support.audio import options_of
from tests.support.strategies import DETERMINISTIC

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

    def test_seek(self) -> None:
        """If seeks are exact, decoding starts at a whole second, 1 s or more before the region."""
        seekable = (
            "wav/pcm_s24le w64/pcm_f64le flac/flac aiff/pcm_alaw caf/pcm_mulaw wv/wavpack tta/tta"
        )
        for kind in f"{seekable} mov/alac mov/aac ogg/opus mp3/mp3".split():
            probe = source("100", kind, length=SourceLength(4410000))
            for text, sample_range in (
                ("t:1.5:1", SampleRange(0, 66150, 110250, 44100)),
                ("t:2:1", SampleRange(44100, 44100, 88200, 44100)),
                ("t:41.25", SampleRange(1764000, 55125, None, 2590875)),
            ):
                self.assertEqual(trim_range(options_of(text), probe), sample_range, (kind, text))

    def test_seek_to_frame(self) -> None:
        """In flac, decoding starts at the frame in which that second begins.

        ffmpeg's search for the position ends early at the start of a frame.
        """
        probe = source("100", "flac/flac", length=SourceLength(4410000), frame_samples=4608)
        for text, sample_range in (
            ("t:1.5:1", SampleRange(0, 66150, 110250, 44100)),
            ("t:2:1", SampleRange(9 * 4608, 46728, 90828, 44100)),
            ("t:41.25", SampleRange(382 * 4608, 58869, None, 2590875)),
        ):
            options = options_of(text)
            self.assertEqual(trim_range(options, probe), sample_range, text)

    def test_may_seek(self) -> None:
        """The end of a source is read if a seek depends on it: only where joined files differ."""
        for text, kind, needed in (
            ("t:41.25", "flac/flac", True),
            ("t:2", "flac/flac", True),
            ("t:1.999", "flac/flac", False),
            ("f:mp3", "flac/flac", False),
            ("t:41.25", "ogg/flac", False),
            ("t:41.25", "wav/pcm_s16le", False),
            *(("t:2", kind, True) for kind in ("mov/aac", "mov/alac", "ogg/opus", "mp3/mp3")),
        ):
            found = may_seek(options_of(text), source("100", kind))
            self.assertEqual(found, needed, (text, kind))

    def test_no_seek(self) -> None:
        """A source is decoded from its start where a seek is not exact or not confirmed.

        So it is if the header of uncompressed audio states a false rate of bytes.
        """
        kinds = "ogg/vorbis ogg/flac matroska/flac mov/pcm_s16le aac/aac mp3/mp2 /mp3 caf/alac"
        kinds += " wav/adpcm_ima_wav w64/adpcm_g722 aiff/adpcm_ima_qt wav/wmav2 caf/flac wav/mp3"
        unconfirmed = "flac/flac mov/alac mov/aac ogg/opus mp3/mp3"
        rates = {None: 40, 44100 * 32: 40, 44100 * 16: 0}
        for kind, fields, seconds in (
            *((kind, {}, 0) for kind in kinds.split()),
            *((kind, {"seekable": False}, 0) for kind in unconfirmed.split()),
            *(("wav/pcm_s16le", {"stream_bitrate": rate}, at) for rate, at in rates.items()),
        ):
            found = trim_range(options_of("t:41.25"), source("100", kind, **fields))
            seek = 44100 * seconds
            self.assertEqual((found.seek, found.start), (seek, 1819125 - seek), (kind, fields))

    @DETERMINISTIC
    @given(
        start=st.integers(0, 20_000),
        duration=st.none() | st.integers(1, 20_000),
        length=st.none() | st.integers(1, 20_000),
        rate=st.integers(1000, 384_000),
        container=st.sampled_from(("wav", "matroska", "mp3")),
    )
    def test_consistent(
        self, start: int, duration: int | None, length: int | None, rate: int, container: str
    ) -> None:
        """A region is within the source, has a sample or more, and has the requested length."""
        text = f"t:{start / 1000}" + ("" if duration is None else f":{duration / 1000}")
        probe = source(None, f"{container}/mp3", sample_rate=rate)
        if length is not None:
            probe = probe.with_decoded_samples(length * rate // 1000)
        try:
            sample_range = trim_range(options_of(text), probe)
        except InvalidOptions:
            assert length is not None
            self.assertGreaterEqual(start, length)
            return
        first = sample_range.seek + sample_range.start
        self.assertLessEqual(abs(first - start * rate / 1000), 0.5)
        self.assertTrue(sample_range.start >= rate or not sample_range.seek)
        if duration is not None:
            assert sample_range.end is not None
            samples = sample_range.end - sample_range.start
            self.assertLessEqual(abs(samples - duration * rate / 1000), 1)
        if sample_range.length is not None:
            self.assertGreaterEqual(sample_range.length, 1)
            if length is not None:
                self.assertLessEqual(first + sample_range.length, length * rate / 1000 + 0.5)
        self.assertIs(sample_range.length is None, length is None)


class PastEndTests(SynchronousTestCase):
    """`starts_past_end`"""

    def test_less_than_a_sample(self) -> None:
        """At the end, less than a sample is left."""
        for text, probe, past in (
            *((text, source(), True) for text in ("t:10", "t:11:1", "t:999999999")),
            *(("t:9.999", source(), False), ("t:99", source(None), False)),
            *(("f:wav", source(), False), ("t:0.005", source("0.006", sample_rate=500), True)),
        ):
            self.assertIs(starts_past_end(options_of(text), probe), past, text)


class MeasuringTests(SynchronousTestCase):
    """`needs_measuring`"""

    def test_sources_and_options(self) -> None:
        """A source is measured only if its exact end matters and is unknown (D12)."""
        confirmed = source("10", length=SourceLength(441000))
        bounded = source("10", "matroska/flac", length=SourceLength(396900, exact=False))
        stated = source("10", "mov/aac")
        estimated = source("10", "aac/aac", exact=False)
        unknown = source(None, "flac/flac", exact=False)
        measured = stated.with_decoded_samples(441000)
        claimed = source("10", length=SourceLength(441000, is_stated_only=True))
        unconfirmed = [stated, estimated, unknown]
        for text, needs in (
            ("f:wav", []),
            ("f:wav/norm:ebu", []),
            ("fade:1", []),
            *(
                (text, [bounded, claimed, *unconfirmed])
                for text in ("fade:0:1", "fade:1:1/t:5", "fade:1:1/t:5:5", "fade:1:1/t:5:4.001")
            ),
            ("fade:1:1/t:5:4", unconfirmed),
            ("t:5:50", []),
            ("t:9.999", []),
            # A refusal must not rest on a length that nothing confirms.
            ("t:10", [bounded, claimed, stated, estimated]),
            ("t:50:1", [bounded, claimed, stated, estimated]),
            # norm and enhance need the number of samples if there are few.
            ("norm:ebu/t:9.9", []),
            ("norm:ebu/t:9.908", [confirmed, bounded, claimed, stated, estimated]),
            ("norm:ebu/t:5:0.092", [confirmed, bounded, claimed, *unconfirmed]),
            ("enhance:voice/t:5:0.092", [confirmed, bounded, claimed, *unconfirmed]),
            ("norm:ebu/t:5:0.093", []),
        ):
            for probe in (confirmed, bounded, claimed, *unconfirmed, measured):
                self.assertIs(
                    needs_measuring(options_of(text), probe), probe in needs, (text, probe)
                )
        for probe in (confirmed, bounded, claimed, *unconfirmed, measured):
            found = needs_measuring(options_of("f:wav"), probe, irregular=True)
            self.assertIs(found, probe in (confirmed, claimed), probe)
