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
from audioproxy.grammar.options import VariantOptions, describe_defaults, describe_options, refusals
from audioproxy.grammar.values import Fade, Trim
from tests.support.strategies import DETERMINISTIC, option_segments


class CanonicalTests(SynchronousTestCase):
    """`VariantOptions.canonical`"""

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


#: Options, and the descriptions of all of them.
DESCRIBED = (
    b"f:mp3/br:96/sr:44100/ch:2/t:3/fade:1:2/gain:-3.50/norm:ebu:-14/enhance:voice/dl:a/cb:b",
    b"f:flac/q:3/bd:24/t:1.5:9",
    b"f:peaks/pts:9/pk_bits:8",
    b"f:ogg/q:-1/t:0:9",
)
DESCRIPTIONS = {
    "f:mp3: MPEG audio, layer III (audio/mpeg)",
    "br:96: bit rate of 96 kbps",
    "sr:44100: sample rate of 44100 Hz",
    "ch:2: channels: 2",
    "t:3: from second 3 to the end",
    "fade:1:2: fade-in of 1 s and fade-out of 2 s",
    "gain:-3.5: gain of -3.5 dB",
    "norm:ebu:-14:-1.5:11: loudness normalized to -14 LUFS, at most -1.5 dBTP, range 11 LU",
    "enhance:voice: the preset voice: high-pass, denoise, de-ess, compress, limit",
    "dl:a: browsers save it as a",
    "cb:b: no effect except another cache key",
    "f:flac: FLAC, lossless (audio/flac)",
    "q:3: compression level 3",
    "bd:24: bit depth of 24",
    "t:1.5:9: 9 s, from second 1.5 on",
    "f:peaks: a waveform (application/json)",
    "ch:1: channels: 1 (the default)",
    "pts:9: 9 pixels, each a minimum and a maximum",
    "pk_fmt:json: serialized as json (the default)",
    "pk_bits:8: values of 8 bits",
    "f:ogg: Vorbis in Ogg (audio/ogg)",
    "q:-1: quality (variable bit rate) -1",
    "t:0:9: 9 s, from second 0 on",
}


class DescriptionTests(SynchronousTestCase):
    """`describe_options` and `describe_defaults`"""

    def test_every_option(self) -> None:
        """Every option has a description, with its value."""
        described = {
            f"{segment}: {words}"
            for text in DESCRIBED
            for segment, words in describe_options(parse_options(text.split(b"/"))[0])
        }
        self.assertEqual(DESCRIPTIONS, described)
        keys = {description.partition(":")[0] for description in described}
        self.assertEqual({field.name for field in fields(VariantOptions)}, keys)

    def test_every_format(self) -> None:
        """Every output format has a description, and one of its default quality."""
        for token, form in FORMATS.items():
            options = VariantOptions(f=token)
            described = dict(describe_options(options))
            self.assertIn(f"({options.content_type})", described[f"f:{token}"])
            defaults = list(describe_defaults(options))
            quality = [text for text in defaults if re.search(r"kbps|quality|level", text)]
            self.assertEqual(bool(form.br or form.q), bool(quality), token)

    def test_defaults(self) -> None:
        """Options that are omitted have defaults, as the format has them."""
        whole = {"the source's channels, at most 2", "the whole length"}
        exact = {"the source's sample rate", "the source's bit depth"}
        nearest = "the source's sample rate, or the nearest supported one"
        for text, defaults in (
            (b"f:mp3", {"192 kbps", nearest, *whole}),
            (b"f:ogg", {"quality 5", nearest, *whole}),
            (b"f:flac", {"compression level 5", *exact, *whole}),
            (b"f:flac/q:1/sr:8000/ch:1/bd:16/t:1", set()),
        ):
            options, _ = parse_options(text.split(b"/"))
            self.assertEqual(defaults, set(describe_defaults(options)))
