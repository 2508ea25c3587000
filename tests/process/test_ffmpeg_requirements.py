"""The encoders and filters that ffmpeg must have."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.encoding import ENCODERS, encoder_arguments
from audioproxy.media.inputs import local_input
from audioproxy.media.presets import PRESETS
from audioproxy.media.probe import Probe
from audioproxy.process.ffmpeg_capabilities import LISTS, list_arguments, missing_from
from tests.support.audio import parse_options, run

ENCODER_LIST = b"""Encoders:
 V..... = Video
 A..... = Audio
 ------
 V....D a64multi             Multicolor charset for Commodore 64
 A....D aac                  AAC (Advanced Audio Coding)
 A....D flac                 FLAC (Free Lossless Audio Codec)
"""
FILTER_LIST = b"""Filters:
  T.. = Timeline support
  | = Source or sink filter
 TSC afade             A->A       Fade in/out input audio.
 ... aformat           A->A       Convert the input audio to one of the specified formats.
 ..C volume            A->A       Change input volume.
"""


class RequirementsTests(SynchronousTestCase):
    """`LISTS` and the functions that use them"""

    def test_arguments(self) -> None:
        """Each list is requested without a banner."""
        self.assertEqual(
            list_arguments("/usr/bin/ffmpeg", "-filters"),
            ["/usr/bin/ffmpeg", "-hide_banner", "-v", "error", "-filters"],
        )

    def test_missing(self) -> None:
        """The names that a list lacks are returned in the order of the requirements (D34)."""
        for listing, needed, missing in (
            (ENCODER_LIST, ["aac", "flac"], []),
            (ENCODER_LIST, ["libopus", "aac", "libvorbis"], ["libopus", "libvorbis"]),
            (ENCODER_LIST, ["a64multi", "Audio", "AAC", "aa"], ["Audio", "AAC", "aa"]),
            (FILTER_LIST, ["afade", "aformat", "volume"], []),
            (FILTER_LIST, ["loudnorm", "afade"], ["loudnorm"]),
            (b"", ["aac"], ["aac"]),
            (b"\xff\xfe\n A....D \xff x\n", ["aac"], ["aac"]),
        ):
            self.assertEqual(missing_from(listing, needed), missing)

    def test_this_ffmpeg(self) -> None:
        """The ffmpeg of the tests is complete (D34)."""
        for flag, kind, needed in LISTS:
            listing = run(list_arguments("ffmpeg", flag)).stdout
            self.assertEqual(missing_from(listing, needed), [], kind)
            self.assertEqual(missing_from(listing, ["no_such_thing"]), ["no_such_thing"])

    def test_encoders(self) -> None:
        """Boot checks every encoder that a render can use (D34)."""
        used = {
            ENCODERS[token].codec(depth)[1]
            for token, form in FORMATS.items()
            if token in ENCODERS
            for depth in form.depths or ("",)
        }
        self.assertEqual(used, set(LISTS[0][2]))

    def test_filters(self) -> None:
        """Boot checks every filter that a render can use (D34)."""
        chains = [",".join(chain(48000)) for chain in PRESETS.values()]
        stages = "t:1:5/fade:1:1/gain:3/norm:ebu/enhance:voice"
        for ch, channels, layout in ((1, 2, None), (1, 9, None), (2, 2, "2 channels (BL+BR)")):
            options = parse_options(f"f:wav/ch:{ch}/{stages}")
            probe = Probe("wav", "pcm_s16le", None, False, channels=channels, layout=layout)
            words = encoder_arguments("ffmpeg", local_input(), options, probe)
            chains.append(words[words.index("-af") + 1])
        used = {stage.partition("=")[0] for chain in chains for stage in chain.split(",")}
        self.assertEqual(used, set(LISTS[1][2]))
