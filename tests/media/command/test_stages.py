"""The form of outputs."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.command.stages import output_depth, output_sample_format
from tests.support.audio import options_of
from tests.support.probes import Probe, replace

CD = Probe("flac", "flac", Decimal(10), True, bit_depth=16)


class DepthTests(SynchronousTestCase):
    """`output_depth` and `output_sample_format`"""

    def test_depth(self) -> None:
        """``bd``, or the lowest depth that suffices (Format and encoding options)."""
        for text, depths in (
            ("f:flac", {8: "16", 16: "16", 20: "24", 24: "24", 32: "24"}),
            ("f:wav", {1: "16", 24: "24", 32: "32f", 64: "32f"}),
            ("f:wav/bd:16", {32: "16"}),
            ("f:flac/bd:24", {16: "24"}),
            ("f:mp3", {24: ""}),
        ):
            for source, depth in depths.items():
                found = output_depth(options_of(text), replace(CD, bit_depth=source))
                self.assertEqual(found, depth, (text, source))

    def test_each_format(self) -> None:
        """Every format has a sample format at each depth; lossy ones have floats (D60)."""
        found = {
            f"{token}{depth}": output_sample_format(
                options_of(f"f:{token}" + (f"/bd:{depth}" if depth else "")), CD
            )
            for token, row in FORMATS.items()
            for depth in row.depths or ("",)
        }
        expected = {"mp3": "fltp", "opus": "flt", "ogg": "fltp", "aac": "fltp", "m4a": "fltp"}
        expected |= {"flac16": "s16", "flac24": "s32"}
        expected |= {"wav16": "s16", "wav24": "s32", "wav32f": "flt", "peaks": "s16"}
        self.assertEqual(found, expected)
        # Without ``bd``, it is that of the default depth.
        probes = (replace(CD, bit_depth=depth) for depth in (8, 24, 32))
        names = [output_sample_format(options_of("f:wav"), probe) for probe in probes]
        self.assertEqual(names, ["s16", "s32", "flt"])
