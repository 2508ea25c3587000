"""The filter chain of a render."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.media.exact_length import exact_length_filters
from audioproxy.media.filters import filter_chain, may_need_length, output_channels
from audioproxy.media.presets import PRESETS
from audioproxy.media.probe import Probe
from audioproxy.media.source_length.reading import SourceLength
from audioproxy.media.trim import find_sample_range
from tests.support.audio import parse_options

STEREO = Probe("wav", "pcm_s16le", Decimal(10), True, sample_rate=44100, channels=2)
RATE_FILTER = "aformat=sample_rates=44100"
COUNTED = "asetpts=N"
MIX = "aresample=rematrix_maxval=1"
LOUDNESS = "linear=false:dual_mono=false"


EXACT = STEREO.with_length(SourceLength(441000))


def counted(duration: str) -> Probe:
    """Return the probe of a source that was measured."""
    return STEREO.with_decoded_duration(Decimal(duration))


def chain(text: str, probe: Probe = STEREO, **fields: object) -> str:
    """Return the chain for options as in a URL, and for a probe result with these fields."""
    changed = replace(probe, **fields)
    options = parse_options(text)
    return filter_chain(options, changed, find_sample_range(options, changed))


class ChainTests(SynchronousTestCase):
    """`filter_chain`"""

    def test_nothing(self) -> None:
        """Options that ffmpeg applies without a filter give an empty chain."""
        for text in ("f:mp3", "f:wav/sr:8000", "f:flac/bd:16", "f:opus/br:64/ch:2", "t:0"):
            self.assertEqual(chain(text), "", text)

    def test_order(self) -> None:
        """Stages have one order for any order of options, and the sample rate is kept (D51)."""
        voice = ",".join(PRESETS["voice"](44100))
        stages = (
            f"{RATE_FILTER},atrim=start_sample=44100:end_sample=220500,asetpts=PTS-STARTPTS",
            f"{RATE_FILTER},{voice},{MIX},aformat=channel_layouts=mono",
            f"{RATE_FILTER},loudnorm=I=-16:TP=-1.5:LRA=11:{LOUDNESS}",
            f"{RATE_FILTER},atrim=end_sample=176400,volume=volume=-3dB:precision=double:eval=once",
            f"{COUNTED},afade=t=in:ss=0:ns=22050:curve=tri",
            f"afade=t=out:ss=132300:ns=44100:curve=tri,{RATE_FILTER}",
        )
        text = "ch:1/enhance:voice/fade:0.5:1/gain:-3/norm:ebu/t:1:4"
        backwards = "/".join(reversed(text.split("/")))
        self.assertEqual(chain(f"f:aac/{text}", EXACT), ",".join(stages))
        self.assertEqual(chain(f"{backwards}/f:aac", EXACT), ",".join(stages))

    def test_rate(self) -> None:
        """Without padding, a chain ends at the source's rate; no two adjacent stages are equal."""
        for text in "gain:3 fade:1 norm:ebu enhance:voice t:1 ch:1 norm:ebu/t:1".split():
            stages = chain(text, sample_rate=22050).split(",")
            self.assertEqual(stages[-1], "aformat=sample_rates=22050", text)
            self.assertFalse(any(a == b for a, b in pairwise(stages)), text)

    def test_trim(self) -> None:
        """``t`` cuts at exact samples, and the output's timestamps start at 0."""
        for text, trim in (
            ("t:0.5:1", "start_sample=22050:end_sample=66150"),
            ("t:1", "start_sample=44100"),
            ("t:0:0.001", "start_sample=0:end_sample=44"),
            # Decoding starts at 3 seconds.
            ("t:4", "start_sample=44100"),
        ):
            stages = f"{RATE_FILTER},atrim={trim},asetpts=PTS-STARTPTS,{RATE_FILTER}"
            self.assertEqual(chain(text), stages)

    def test_gain(self) -> None:
        """``gain`` is static, in double precision."""
        for text in ("3.5", "-60", "0", "-0.001"):
            stage = f"volume=volume={text}dB:precision=double:eval=once"
            self.assertEqual(chain(f"gain:{text}"), f"{stage},{RATE_FILTER}")

    def test_norm(self) -> None:
        """``norm`` has explicit values for all its targets, and runs in one pass."""
        for text, targets in (
            ("norm:ebu", "I=-16:TP=-1.5:LRA=11"),
            ("norm:ebu:-23", "I=-23:TP=-1.5:LRA=11"),
            ("norm:ebu:-70:-9:1", "I=-70:TP=-9:LRA=1"),
            ("norm:ebu:-5.5:0:50", "I=-5.5:TP=0:LRA=50"),
        ):
            stages = f"{RATE_FILTER},loudnorm={targets}:{LOUDNESS},{RATE_FILTER}"
            self.assertEqual(chain(text), stages)

    def test_norm_of_a_few_samples(self) -> None:
        """Audio too short for loudnorm is padded before it, and cut afterwards (D13)."""
        after = f"loudnorm=I=-16:TP=-1.5:LRA=11:{LOUDNESS},{RATE_FILTER}"
        for duration, length in (("0.000023", 1), ("0.002245", 99)):
            self.assertEqual(
                chain("f:aac/norm:ebu", counted(duration)),
                f"{RATE_FILTER},apad=whole_len=100,{after},atrim=end_sample={length},{RATE_FILTER}",
            )
        enough = chain("f:aac/norm:ebu", counted("0.002268"))
        self.assertEqual(enough, f"{RATE_FILTER},{after}")
        self.assertIn(
            f"apad=whole_len=100,{after},atrim=end_sample=44,",
            chain("t:1:0.001/norm:ebu", counted("10")),
        )
        # The length that a header states may be wrong, so it is not used to pad or cut audio.
        for probe in (STEREO, EXACT, STEREO.with_length(SourceLength(44))):
            self.assertIn(f"{RATE_FILTER},{after}", chain("norm:ebu", probe))
        fast = replace(STEREO, sample_rate=384_000).with_decoded_duration(Decimal("0.0005"))
        self.assertIn("apad=whole_len=200,", chain("norm:ebu", fast))

    def test_resampling_of_a_few_samples(self) -> None:
        """Audio too short for a resampler is padded, and cut to its length afterwards (D13)."""
        for text, duration, stages in (
            # 64 samples are enough, counted at the lower of the source's and the output's rate.
            ("f:ogg/sr:8000", "0.000023", "apad=whole_len=768,aformat=sample_rates=8000,{}=1"),
            ("f:ogg/sr:8000", "0.008684", "apad=whole_len=768,aformat=sample_rates=8000,{}=69"),
            ("f:opus", "0.001428", "apad=whole_len=128,aformat=sample_rates=48000,{}=69"),
            ("f:ogg/sr:8000", "0.008708", ""),
            ("f:ogg", "0.000023", ""),
        ):
            self.assertEqual(
                chain(text, counted(duration)),
                stages.format("atrim=end_sample"),
                (text, duration),
            )
        # Padding follows every other stage, also for a trimmed source.
        found = chain("f:ogg/sr:8000/t:1:0.002/gain:3", counted("10"))
        padded = "apad=whole_len=768,aformat=sample_rates=8000,atrim=end_sample=16"
        self.assertTrue(found.endswith(f"{RATE_FILTER},{padded}"))
        # The length that a header states may be wrong, so it is not used to pad audio.
        short = STEREO.with_length(SourceLength(44))
        for probe in (replace(STEREO, duration=Decimal("0.001")), short):
            self.assertEqual(chain("f:ogg/sr:8000", probe), "")

    def test_exact_length(self) -> None:
        """Formats that state their length end with filters that give it, at the output's rate.

        There are none where nothing confirms the length of the source (D57).
        """
        ends = exact_length_filters(441000, 44100)
        for text in ("f:wav", "f:flac", "f:mp3", "f:m4a"):
            self.assertEqual(chain(text, EXACT), ends, text)
            self.assertEqual(chain(text), "", text)
        for text in ("f:opus", "f:ogg", "f:aac", "f:peaks"):
            self.assertNotIn("concat", chain(text, EXACT), text)
        # No header can state an absurd length.
        absurd = STEREO.with_length(SourceLength(1 << 36))
        self.assertEqual(chain("f:mp3", absurd), "")
        at_8000 = exact_length_filters(8000, 8000)
        self.assertTrue(
            chain("f:wav/sr:8000/t:1:1", EXACT).endswith(f",aformat=sample_rates=8000,{at_8000}")
        )

    def test_fades(self) -> None:
        """A fade-out ends where the region or the source ends (D12).

        Fades of length 0 are omitted.
        """
        fade_in = "afade=t=in:ss=0:ns=44100:curve=tri"
        for text, fades in (
            ("fade:1", fade_in),
            ("fade:1:0", fade_in),
            ("fade:0:2", "afade=t=out:ss=352800:ns=88200:curve=tri"),
            ("fade:1:2", f"{fade_in},afade=t=out:ss=352800:ns=88200:curve=tri"),
            # A fade longer than the source extends over all of it.
            ("fade:0:99", "afade=t=out:ss=0:ns=441000:curve=tri"),
        ):
            self.assertEqual(
                chain(f"f:aac/{text}", EXACT), f"{COUNTED},{fades},{RATE_FILTER}", text
            )
        for text, start in (("t:1:3", 2), ("t:8:2", 1), ("t:8:50", 1), ("t:8", 1)):
            faded = chain(f"fade:0:1/{text}", EXACT)
            self.assertIn(f"afade=t=out:ss={start * 44100}:ns=44100:", faded)
        self.assertEqual({chain("fade:0"), chain("fade:0:0")}, {""})

    def test_rate_bounds(self) -> None:
        """A stage is refused at sample rates that its filters do not support (D13).

        Below 1000 Hz, the resampling of ``norm`` takes very long.
        """
        voice, norm = "enhance:voice", "norm:ebu:-16:-1.5:11"
        for text, name, accepted, refused, bounds in (
            (voice, "afftdn", (1000, 384_000), (999, 384_001), "1000 to 384000"),
            (norm, "loudnorm", (1000, 6_144_000), (999,), "at least 1000"),
        ):
            for rate in accepted:
                self.assertIn(name, chain(text, sample_rate=rate))
            for rate in refused:
                error = self.assertRaises(InvalidOptions, chain, text, sample_rate=rate)
                self.assertEqual(
                    error.message,
                    f'"{text}" is not accepted: it takes sources of {bounds} Hz,'
                    f" and this one has {rate}.",
                )


class ChannelTests(SynchronousTestCase):
    """The number of channels, and how they are mixed."""

    def test_count(self) -> None:
        """``ch`` sets the number of channels (Format and encoding options).

        Without ``ch``, the output has as many channels as the source, but at most 2.
        """
        for text, counts in (("f:wav", (1, 2, 2, 2)), ("ch:1", (1,) * 4), ("ch:2", (2,) * 4)):
            for channels, count in zip((1, 2, 3, 16), counts, strict=True):
                probe = replace(STEREO, channels=channels)
                self.assertEqual(output_channels(parse_options(text), probe), count)

    def test_peaks(self) -> None:
        """ffmpeg mixes stereo down for peaks only if there is a stage other than trimming."""
        for text in ("f:peaks", "f:peaks/ch:1/t:1:2", "f:peaks/ch:2"):
            self.assertEqual(output_channels(parse_options(text), STEREO), 2, text)
            self.assertNotIn("mono", chain(text), text)
        for text in ("gain:0", "fade:0.1", "norm:ebu", "enhance:voice"):
            self.assertEqual(output_channels(parse_options(f"f:peaks/{text}"), STEREO), 1, text)
            self.assertIn("aformat=channel_layouts=mono", chain(f"f:peaks/{text}"), text)
        for channels, text, count in ((1, "ch:1", 1), (1, "ch:2", 2), (6, "ch:1", 1), (6, "", 1)):
            probe = replace(STEREO, channels=channels)
            self.assertEqual(
                output_channels(parse_options(f"f:peaks/{text}".strip("/")), probe), count
            )

    def test_known_layouts(self) -> None:
        """Channels with a known or guessable layout are mixed by that layout.

        Mono is copied unchanged to both channels (Format and encoding options).
        """
        for text, channels, layout, mix in (
            *(("ch:2", *layout, "stereo") for layout in ((3, "2.1"), (4, None), (6, "5.1"))),
            ("ch:2", 8, None, "stereo"),
            ("ch:1", 6, "5.1", "mono"),
        ):
            stages = f"{MIX},aformat=channel_layouts={mix},{RATE_FILTER}"
            self.assertEqual(chain(text, channels=channels, layout=layout), stages)
        self.assertEqual(chain("ch:2", channels=1), f"pan=stereo|c0=c0|c1=c0,{RATE_FILTER}")

    def test_may_need_length(self) -> None:
        """`may_need_length` is true if an unmeasured source is trimmed or resampled (D12, D13)."""
        needed = ("f:wav/sr:8000", "f:opus", "f:wav/t:1")
        for text in ("f:wav", "f:wav/sr:44100", *needed):
            options = parse_options(text)
            self.assertIs(may_need_length(options, STEREO), text in needed, text)
            self.assertFalse(may_need_length(options, replace(STEREO, measured=True)), text)

    def test_layouts_that_cannot_be_mixed(self) -> None:
        """Layouts that ffmpeg cannot mix are treated as unknown (D13)."""
        for channels, layout in (
            (2, "2 channels (BL+BR)"),
            (2, "2 channels (FL+LFE)"),
            (3, "3 channels (FL+FR+BL)"),
            (4, "4 channels (FL+FC+SL+SR)"),
            (6, "6 channels (FL+FR+FC+BL+SL+SR)"),
            (4, "ambisonic 1"),
            (2, "2 channels (FL@a+FR)"),
        ):
            relabeled = f"channelmap=map=0|1:channel_layout=stereo,{RATE_FILTER}"
            found = chain("ch:2", channels=channels, layout=layout)
            self.assertTrue(found.startswith("pan=stereo|") or found == relabeled, layout)
            found = chain("ch:1", channels=channels, layout=layout)
            self.assertTrue(found.startswith("pan=mono|"), layout)
        for channels, layout in (
            (2, "downmix"),
            (6, "5.1(side)"),
            (8, "7.1(wide-side)"),
            (2, "2 channels (FC+LFE)"),
            (4, "4 channels (FL+FR+SL+SR)"),
        ):
            self.assertNotIn("pan=", chain("ch:2", channels=channels, layout=layout))
        for layout in ("1 channels (BL)", "ambisonic 0"):
            self.assertEqual(chain("ch:1", channels=1, layout=layout), "")
            copied = chain("ch:2", channels=1, layout=layout)
            self.assertEqual(copied, f"pan=stereo|c0=c0|c1=c0,{RATE_FILTER}")

    def test_enhance_comes_first(self) -> None:
        """``enhance`` precedes the mixing of channels (Time-domain and preview options; D51)."""
        voice = ",".join(PRESETS["voice"](44100))
        for text, channels, layout, mix in (
            ("ch:1", 1, None, ""),
            ("ch:2", 1, None, ",pan=stereo|c0=c0|c1=c0"),
            ("ch:1", 2, None, f",{MIX},aformat=channel_layouts=mono"),
            ("ch:2", 6, "5.1", f",{MIX},aformat=channel_layouts=stereo"),
            ("f:peaks", 6, "5.1", f",{MIX},aformat=channel_layouts=mono"),
        ):
            found = chain(f"{text}/enhance:voice", channels=channels, layout=layout)
            self.assertEqual(found, f"{RATE_FILTER},{voice}{mix},{RATE_FILTER}", (text, channels))

    def test_enhance_without_a_layout(self) -> None:
        """Channels without a layout are mixed before ``enhance``, whose filters need one (D51)."""
        voice = ",".join(PRESETS["voice"](44100))
        for channels in (3, 9, 64):
            found = chain("ch:2/enhance:voice", channels=channels)
            mix = chain("ch:2", channels=channels).removesuffix(f",{RATE_FILTER}")
            self.assertTrue(mix.startswith("pan=stereo|"))
            self.assertEqual(found, f"{mix},{RATE_FILTER},{voice},{RATE_FILTER}")

    def test_unlabeled(self) -> None:
        """Channels without labels alternate between left and right, and none is lost (D13)."""
        third = "0.333333*"
        for text, mix in (
            ("f:wav", "stereo|c0=0.500000*c0+0.500000*c2|c1=1.000000*c1"),
            ("ch:1", f"mono|c0={third}c0+{third}c1+{third}c2"),
        ):
            self.assertEqual(chain(text, channels=3), f"pan={mix},{RATE_FILTER}")
        for channels in (9, 10, 16, 64):
            stage = chain("f:wav", channels=channels).split(",")[0]
            mixed = re.findall(r"\*c(\d+)(?=[+|]|$)", stage)
            self.assertEqual(sorted(map(int, mixed)), list(range(channels)), stage)
        # ffmpeg cannot guess a layout for this many channels, so even a stated layout is ignored.
        self.assertTrue(chain("ch:1", channels=16, layout="hexadecagonal").startswith("pan=mono|"))
