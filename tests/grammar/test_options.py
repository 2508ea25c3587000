"""The options as one value, the canonical options string, and conflicts between options."""

from __future__ import annotations

import re
from dataclasses import fields
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import (
    VariantOptions,
    describe_defaults,
    describe_options,
    refusals,
)
from audioproxy.grammar.values import Fade, LoudnessTargets, Trim
from tests.support.strategies import DETERMINISTIC, option_segments


class CanonicalTests(SynchronousTestCase):
    """`VariantOptions.canonical`"""

    def test_order(self) -> None:
        """Keys are in ascending order; the format is present, but no omitted option (D4)."""
        self.assertEqual(VariantOptions().canonical(), "f:mp3")
        options = VariantOptions(
            f="wav", t=Trim(Decimal(1), Decimal(9)), norm=LoudnessTargets(), cb=b"1"
        )
        self.assertEqual(options.canonical(), "cb:1/f:wav/norm:ebu:-16:-1.5:11/t:1:9")
        peaks = VariantOptions(f="peaks", pts=1, pk_fmt="dat", pk_bits=8, ch=2)
        self.assertEqual(peaks.canonical(), "ch:2/f:peaks/pk_bits:8/pk_fmt:dat/pts:1")

    @DETERMINISTIC
    @given(segments=option_segments(), data=st.data())
    def test_inverse(self, segments: list[bytes], data: st.DataObject) -> None:
        """Parsing a canonical string gives the same options (Signed URL grammar; D4, D13)."""
        options, exp = parse_options(segments)
        canonical = options.canonical()
        written = canonical.encode("ascii").split(b"/")
        self.assertEqual(written, sorted(written, key=lambda segment: segment.partition(b":")[0]))
        for tried in (written, *(data.draw(st.permutations(each)) for each in (written, segments))):
            again, exp_again = parse_options(tried)
            self.assertEqual((again, exp_again), (options, exp))
            self.assertEqual(again.canonical(), canonical)
        self.assertEqual(list(refusals(options)), [])


class FormatTests(SynchronousTestCase):
    """`VariantOptions.content_type` and `VariantOptions.format`"""

    def test_content_type(self) -> None:
        """Audio has the type of its format, peaks that of ``pk_fmt`` (Peaks options, 4; D22)."""
        for token, row in FORMATS.items():
            self.assertIs(VariantOptions(f=token).format, row)
            if token != "peaks":
                self.assertEqual(VariantOptions(f=token).content_type, row.content_type, token)
        for pk_fmt, kind in ((None, "json"), ("json", "json"), ("dat", "octet-stream")):
            found = VariantOptions(f="peaks", pk_fmt=pk_fmt).content_type
            self.assertEqual(f"application/{kind}", found)


class RefusalsTests(SynchronousTestCase):
    """`refusals`"""

    def test_all(self) -> None:
        """`refusals` returns every conflict, not only the first (D7, D20)."""
        lossy = "mp3, opus, ogg, aac"
        options = VariantOptions(
            f="peaks",
            br=96,
            q=Decimal(1),
            sr=8000,
            bd="16",
            t=Trim(Decimal(0), Decimal(1)),
            fade=Fade(Decimal(2)),
        )
        self.assertEqual(
            list(refusals(options)),
            [
                ("br", f"f:peaks has no bitrate to set; br goes with {lossy} and m4a"),
                ("q", f"f:peaks has no quality to set; q goes with {lossy}, m4a and flac"),
                ("sr", "f:peaks has no sample rate to set; sr goes with every other format"),
                ("bd", "f:peaks has no bit depth to set; bd goes with flac and wav"),
                ("fade", "t limits the output to 1 s, and a fade cannot be longer"),
            ],
        )
        why = "it goes with f:peaks only"
        self.assertEqual(
            list(refusals(VariantOptions(pts=800, pk_fmt="json", pk_bits=16))),
            [(key, why) for key in ("pts", "pk_fmt", "pk_bits")],
        )


class DescriptionTests(SynchronousTestCase):
    """`describe_options` and `describe_defaults`"""

    def test_every_option(self) -> None:
        """Every option has a description, without unfilled placeholders."""
        segments = (
            "f:mp3/br:96/sr:44100/ch:2/t:3/fade:1:2/gain:-3/norm:ebu:-14/enhance:voice/dl:a/cb:b",
            "f:flac/q:3/bd:24/t:0:9",
            "f:peaks/pts:9/pk_fmt:dat/pk_bits:8",
            "f:ogg/q:-1",
        )
        described_options = set()
        for text in segments:
            for segment, words in describe_options(parse_options(text.encode().split(b"/"))[0]):
                self.assertGreater(len(words), 8, segment)
                self.assertNotIn("{", words)
                described_options.add(segment.partition(":")[0])
        self.assertEqual({field.name for field in fields(VariantOptions)}, described_options)

    def test_every_format(self) -> None:
        """Every output format has a description, and one of its default quality."""
        for token, form in FORMATS.items():
            options = VariantOptions(f=token)
            described = dict(describe_options(options))
            self.assertIn(f"({options.content_type})", described[f"f:{token}"])
            defaults = list(describe_defaults(options))
            quality = [text for text in defaults if re.search(r"kbps|quality|level", text)]
            self.assertEqual(bool(form.br or form.q), bool(quality), token)

    def test_no_defaults(self) -> None:
        """Only options that are omitted have defaults."""
        options, _ = parse_options([b"f:flac", b"q:1", b"sr:8000", b"ch:1", b"bd:16", b"t:1"])
        self.assertEqual([], list(describe_defaults(options)))
