"""What must be known of a source before a command is built."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.needs import Needs
from audioproxy.media.info_document import SourceInfo
from audioproxy.media.reading import SourceLength
from tests.support.audio import options_of
from tests.support.probes import Probe, replace


def source(seconds: str | None = "10", kind: str = "wav/pcm_s16le", **changes: Any) -> Probe:
    """Return a probe result."""
    container, codec = kind.split("/")
    duration = None if seconds is None else Decimal(seconds)
    return replace(
        Probe(container, codec, duration, True, sample_rate=44100, seekable=True), **changes
    )


def needs(text: str, probe: Probe) -> Needs:
    """Return what options need of a source."""
    return Needs.of(options_of(text), probe)


class NeedsTests(SynchronousTestCase):
    """`Needs`"""

    def test_table(self) -> None:
        """The options and the kind of source tell what is needed."""
        rows = (
            # A format whose header states no length needs nothing of a whole source.
            ("f:aac", "10 mp3/mp3", ""),
            ("f:opus/br:64", "10 mp3/mp3", "recount"),
            # Headers state the length: that of wav, flac and mp3, and of m4a.
            *((f"f:{token}", "10 mp3/mp3", "length") for token in ("wav", "flac", "mp3", "m4a")),
            # Decoders output more or less than the source has.
            *(("f:aac", f"10 {kind}", "length") for kind in ("mov/aac", "mov/alac", "mov/mp3")),
            *(("f:aac", f"10 {kind}", "length") for kind in ("ogg/flac", "mpc8/musepack8")),
            *(("f:aac", f"10 {kind}", "length") for kind in ("amr/amr_nb", "matroska/amr_wb")),
            # A stage counts from the end (D12).
            ("f:aac/fade:0:1", "10 mp3/mp3", "length end measure"),
            ("f:aac/fade:1", "10 mp3/mp3", ""),
            ("f:aac/norm:ebu", "10 mp3/mp3", "recount"),
            ("f:aac/norm:ebu", "0.8 mp3/mp3", "length end measure recount"),
            ("f:aac/norm:ebu", "0.01 mp3/mp3", "length end measure recount"),
            ("f:aac/enhance:voice", "0.01 mp3/mp3", "end measure recount"),
            # A refusal must not rest on a length that nothing confirms (D11).
            ("f:aac/t:10", "10 mp3/mp3", "past_end length point end measure least recount"),
            ("f:aac/t:1", "10 mp3/mp3", "recount"),
            # Decoding starts at a place from two seconds on.
            ("f:aac/t:2", "10 mp3/mp3", "point recount"),
            ("f:aac/t:2", "10 flac/flac", "seek recount"),
            ("f:aac/t:2", "10 mov/aac", "length seek recount"),
            ("f:aac/t:2", "10 wav/pcm_s16le", "recount"),
            # A waveform reads samples itself, or is decoded in parts.
            ("f:peaks", "10 wav/pcm_s16le", "samples frames"),
            ("f:peaks", "180 wav/pcm_s16le", "samples frames parts"),
            ("f:peaks/t:1:5", "10 wav/pcm_s16le", "samples recount"),
            ("f:peaks/t:1:150", "180 flac/flac", "parts recount"),
            ("f:peaks/t:1:150", "180 ogg/opus", "recount"),
        )
        for text, described, expected in rows:
            found = needs(text, source(*described.split()))
            named = {field.name for field in fields(Needs) if getattr(found, field.name)}
            self.assertEqual(named, set(expected.split()), (text, described))

    def test_past_end(self) -> None:
        """At the end, less than a sample is left."""
        for text, probe, past in (
            *((text, source(), True) for text in ("t:10", "t:11:1", "t:999999999")),
            *(("t:9.999", source(), False), ("t:99", source(None), False)),
            *(("f:wav", source(), False), ("t:0.005", source("0.006", sample_rate=500), True)),
        ):
            self.assertIs(needs(text, probe).past_end, past, text)

    def test_place(self) -> None:
        """From two seconds on, decoding starts at a place: by ffmpeg's seek, or a search.

        The end of a source is read for a seek only where joined files differ.
        """
        found = "ogg/vorbis ogg/opus ogg/flac mp3/mp3 aac/aac ac3/ac3 eac3/eac3 wv/wavpack".split()
        for text, kind, needed in (
            *(("t:2", kind, "seek") for kind in ("flac/flac", "mov/aac", "mov/alac", "tta/tta")),
            *(("t:2", kind, "point") for kind in found),
            *(("t:1.999", kind, "") for kind in ("flac/flac", "ogg/vorbis")),
            *(("f:mp3", kind, "") for kind in ("flac/flac", "mp3/mp3")),
            *(("t:41.25", kind, "") for kind in ("wav/pcm_s16le", "mp3/mp2")),
        ):
            need = needs(text, source("100", kind))
            flags = need.seek, need.point
            self.assertEqual(flags, (needed == "seek", needed == "point"), (text, kind))

    def test_small_sources(self) -> None:
        """A small source without a duration is measured for ``norm``, since it may be brief."""
        unknown = source(None, "matroska/opus")
        for size, needed in ((None, False), (50_000, True), (5_000_000, False)):
            probe = replace(unknown, description=SourceInfo(size=size))
            self.assertIs(needs("norm:ebu", probe).measure, needed, size)

    def test_misread_outputs(self) -> None:
        """Sources of few bytes are measured for flac, wav and mp3 of a varying bit rate (D57)."""
        for size, text, needed in (
            *((2**23, text, True) for text in ("f:flac", "f:wav/t:5:7", "f:mp3/q:4")),
            *((2**23, text, False) for text in ("f:mp3", "f:opus/q:4", "f:aac", "f:m4a")),
            *((size, "f:flac", False) for size in (None, 2**23 + 1)),
        ):
            info = SourceInfo(size=size)
            for probe in (source(None, "matroska/opus"), source("10", "mpegts/aac")):
                probe = replace(probe, description=info)
                self.assertIs(needs(text, probe).measure, needed, (size, text))
            for probe in (
                source("10", length=SourceLength(441000), description=info),
                replace(source("10", "aac/aac"), description=info).with_decoded_samples(441000),
            ):
                self.assertIs(needs(text, probe).measure, False, (size, text))
            for seconds in ("3600", "3601"):
                long = replace(source(seconds, "mpegts/aac"), description=info)
                is_measured = needed and seconds == "3600"
                self.assertIs(needs(text, long).measure, is_measured, text)
            self.assertIs(needs(text, long).end, False, text)
        least = source("10", length=SourceLength(221000, exact=False), description=info)
        self.assertIs(needs("f:flac/t:0:5", least).measure, False)

    def test_end(self) -> None:
        """A source is measured only if its exact end matters and is unknown (D12)."""
        confirmed = source("10", length=SourceLength(441000))
        bounded = source("10", "matroska/flac", length=SourceLength(396900, exact=False))
        stated = source("10", "mov/aac")
        estimated = source("10", "aac/aac", exact=False)
        unknown = source(None, "flac/flac", exact=False)
        measured = stated.with_decoded_samples(441000)
        claimed = source("10", length=SourceLength(441000, is_stated_only=True))
        unconfirmed = [stated, estimated, unknown]
        for text, needed in (
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
            ("norm:ebu/t:9", []),
            ("norm:ebu/t:9.2", [bounded, claimed, stated, estimated]),
            ("norm:ebu/t:5:0.4", []),
            ("norm:ebu/t:5:0.399", unconfirmed),
            ("norm:ebu/t:9.7:0.3", [bounded, claimed, *unconfirmed]),
            ("enhance:voice/t:9.9", []),
            ("norm:ebu/t:9.908", [confirmed, bounded, claimed, stated, estimated]),
            ("norm:ebu/t:5:0.092", [confirmed, bounded, claimed, *unconfirmed]),
            ("enhance:voice/t:5:0.092", [confirmed, bounded, claimed, *unconfirmed]),
            ("norm:ebu/t:5:0.093", unconfirmed),
            ("enhance:voice/t:5:0.093", []),
        ):
            for probe in (confirmed, bounded, claimed, *unconfirmed, measured):
                found = needs(text, probe)
                self.assertEqual((found.end, found.measure), (probe in needed,) * 2, (text, probe))

    def test_least(self) -> None:
        """Frames up to the end of ``t`` spare the decoding; without an end, those at its start."""
        for text, samples in (("t:5:2", 308700), ("t:12:1", 573300), ("t:12", 529201), ("", None)):
            found = needs(f"f:aac/fade:0:1/{text}".rstrip("/"), source("10", "aac/aac"))
            self.assertEqual(found.least, samples, text)
        exact = source("10", "aac/aac", length=SourceLength(441000))
        self.assertIsNone(needs("f:aac/enhance:voice/t:5:0.092", exact).least)

    def test_recount(self) -> None:
        """An unmeasured source without audio is measured if it is trimmed or resampled (D13)."""
        needed = ("f:wav/sr:8000", "f:opus", "f:wav/t:1", "f:wav/norm:ebu", "f:wav/enhance:voice")
        for text in ("f:wav", "f:wav/sr:44100", "f:wav/gain:3/fade:1/ch:1", *needed):
            self.assertIs(needs(text, source()).recount, text in needed, text)
            self.assertFalse(needs(text, source(measured=True)).recount, text)
        for text, rate in (("f:wav/norm:ebu", 192_000), ("f:opus/enhance:voice", 48_000)):
            self.assertFalse(needs(text, source(sample_rate=rate)).recount, text)

    def test_samples(self) -> None:
        """Only uncompressed, unchanged samples need no decoder; ``t`` selects some of them."""
        for text, codec, channels, expected in (
            *(("f:peaks", "pcm_s24le", 2, True), ("f:wav", "pcm_s24le", 2, False)),
            ("f:peaks/ch:2/pts:9/pk_bits:8/pk_fmt:dat", "pcm_s24le", 2, True),
            *(("f:peaks/t:0:1", "pcm_s24le", 2, True), ("f:peaks/gain:1", "pcm_s24le", 2, False)),
            *(("f:peaks/fade:1", "pcm_s24le", 2, False), ("f:peaks", "pcm_mulaw", 2, False)),
            *(("f:peaks/norm:ebu", "pcm_s24le", 2, False), ("f:peaks", "flac", 2, False)),
            *(("f:peaks/ch:1", "pcm_f32be", 2, True), ("f:peaks/ch:1", "pcm_s24le", 1, True)),
            *((f"f:peaks/ch:{count}", "pcm_s24le", 6, False) for count in (1, 2)),
            ("f:peaks/ch:2", "pcm_s24le", 1, False),
        ):
            probe = source("2", f"wav/{codec}", sample_rate=8000, channels=channels)
            self.assertEqual(needs(text, probe).samples, expected, (text, codec, channels))

    def test_parts_of_options(self) -> None:
        """Only options that compute each frame from one frame of the source allow parts."""
        for text, expected in (
            *(("f:peaks", True), ("f:peaks/ch:2/gain:-3", True), ("f:peaks/t:1:600", True)),
            *(("f:peaks/fade:0:0", True), ("f:peaks/t:3000", True), ("f:flac", False)),
            *(("f:peaks/fade:1", False), ("f:peaks/norm:ebu", False), ("f:peaks/t:9:119", False)),
            *(("f:peaks/enhance:voice", False), ("f:peaks/t:3500", False)),
        ):
            self.assertEqual(needs(text, source("3600", "flac/flac")).parts, expected, text)

    def test_parts_of_sources(self) -> None:
        """Only decoders that output the same samples wherever they start decode parts."""
        for kind, changes, expected in (
            *(("flac/flac", {}, True), ("wv/wavpack", {}, True), ("tta/tta", {}, True)),
            *(("wav/pcm_f32le", {}, True), ("mp3/mp3", {}, True), ("ogg/opus", {}, False)),
            *(("mov/aac", {}, False), ("aac/aac", {}, False)),
            *(("wv/wavpack", {"decoded_bits": 64}, False), ("flac/flac", {"duration": None}, True)),
        ):
            self.assertEqual(needs("f:peaks", source("3600", kind, **changes)).parts, expected)
