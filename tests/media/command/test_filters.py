"""The filter chain of a render."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.media.command.downmix import channel_mix
from audioproxy.media.command.exact_length import exact_length_filters
from audioproxy.media.command.filters import EVEN_FRAMES, filter_chain
from audioproxy.media.command.needs import FEW_SAMPLES, Needs
from audioproxy.media.command.presets import PRESETS
from audioproxy.media.command.stages import output_channels
from audioproxy.media.conversion import SOXR
from audioproxy.media.reading import SourceLength
from tests.support.audio import options_of
from tests.support.probes import Probe, replace

STEREO = Probe("wav", "pcm_s16le", Decimal(10), True, sample_rate=44100, channels=2)
RATE_FILTER = "aformat=sample_rates=44100"
# The layout is stated where it is that of the output.
UNMIXED = "aformat=sample_fmts=dblp:sample_rates=44100"
WORKING, MONO = (f"{UNMIXED}:channel_layouts={layout}" for layout in ("stereo", "mono"))
COUNTED = "asetpts=N"
TO_MONO = "pan=mono|c0=0.500000000*c0+0.500000000*c1"
TO_STEREO = "channelmap=map=0:channel_layout=mono,pan=stereo|c0=c0|c1=c0"
# Frames of one size precede dither, and the preset (D78).
DITHER = f"{EVEN_FRAMES},aresample=osf=s16:dither_method=triangular_hp"
LOUDNESS = "linear=false:dual_mono=false"
# What keeps ffmpeg 7.1.5 from an abort: loudnorm is never followed by a resampler directly.
FRAMES = "asetnsamples=n=19200:p=0"
# The frames in which a source of 44.1 kHz is resampled to more than twice its rate.
PIECES = "asetnsamples=n=4410:p=0"


def resampled(rate: int) -> str:
    """Return the filter that converts to a sample rate."""
    return f"aresample={rate}:{SOXR}"


def loudnorm(targets: str, rate: int = 44100) -> str:
    """Return the stages of ``norm`` for a sample rate of the source."""
    into, back = resampled(192_000), resampled(rate)
    return f"{into},loudnorm={targets}:{LOUDNESS},{FRAMES},{back}"


EBU = loudnorm("I=-16:TP=-1.5:LRA=11")
KEEP_SILENCE = "aeval=if(isnan(val(ch))\\,0\\,val(ch)):c=same"


def voice(layout: str = "stereo") -> str:
    """Return the stages of ``enhance`` for a channel layout."""
    return ",".join([EVEN_FRAMES, *PRESETS["voice"](44100, layout, SOXR)])


def volume(decibels: object) -> str:
    """Return the filter of ``gain``."""
    return f"volume=volume={decibels}dB:precision=double:eval=once"


def trim(bounds: str) -> str:
    """Return the stages of ``t``."""
    return f"{RATE_FILTER},atrim={bounds},asetpts=PTS-STARTPTS,{RATE_FILTER}"


def into(samples: str, rate: int = 44100, layout: str = "stereo") -> str:
    """Return the filter that fixes the sample format, rate and layout of the output."""
    return f"aformat=sample_fmts={samples}:sample_rates={rate}:channel_layouts={layout}"


def exactly(samples: int, rate: int = 44100) -> str:
    """Return the last stages of an output whose length is known."""
    changed = "" if rate == 44100 else f",{resampled(rate)}"
    return f"{changed},{into('fltp', rate)},{exact_length_filters(samples, rate)}"


EXACT = STEREO.with_length(SourceLength(441000))


def counted(samples: int, rate: int = 44100) -> Probe:
    """Return the probe of a source of which a decode pass has counted the samples."""
    return replace(STEREO, sample_rate=rate).with_decoded_samples(samples)


def chain(text: str, probe: Probe = STEREO, **fields: object) -> str:
    """Return the chain for options as in a URL, and for a probe result with these fields."""
    changed = replace(probe, **fields)
    options = options_of(text)
    return ",".join(filter_chain(options, changed))


class ChainTests(SynchronousTestCase):
    """`filter_chain`"""

    def test_nothing(self) -> None:
        """Options that need no filter give an empty chain, or a change of the rate alone."""
        for text in (
            *("f:mp3", "f:aac/sr:44100", "f:flac/bd:16", "f:wav/bd:24", "f:wav/bd:32f"),
            *("f:ogg/q:4/ch:2", "t:0", "gain:0", "fade:0", "fade:0:0", "f:wav/gain:0/fade:0"),
        ):
            self.assertEqual(chain(text), "", text)
        for text, rate in (
            ("f:aac/sr:8000", 8000),
            ("f:wav/bd:32f/sr:8000", 8000),
            ("f:opus", 48000),
        ):
            self.assertEqual(chain(text), resampled(rate), text)

    def test_order(self) -> None:
        """Stages have one order for any order of options; the output's rate comes last (D51)."""
        stages = (
            PIECES,
            f"{trim('start_sample=44100:end_sample=220500')},{UNMIXED},{voice('FL+FR')},{TO_MONO}",
            f"{MONO},{EBU},{MONO},atrim=end_sample=176400,{volume(-3)}",
            f"{COUNTED},afade=t=in:ss=0:ns=22050:curve=tri",
            f"afade=t=out:ss=132300:ns=44100:curve=tri,{MONO},{resampled(8000)}",
        )
        exact = exact_length_filters(32000, 8000)
        text = "ch:1/enhance:voice/fade:0.5:1/gain:-3/norm:ebu/sr:8000/t:1:4"
        backwards = "/".join(reversed(text.split("/")))
        for form, last in (
            ("f:aac", f"{into('fltp', 8000, 'mono')},{exact}"),
            ("f:wav", f"{into('dblp', 8000, 'mono')},{DITHER},{exact}"),
        ):
            expected = ",".join((*stages, last))
            self.assertEqual(chain(f"{form}/{text}", EXACT), expected)
            self.assertEqual(chain(f"{backwards}/{form}", EXACT), expected)

    def test_pieces(self) -> None:
        """What is resampled to over twice its rate comes in frames of at most 100 ms, first."""
        for text, rate, samples in (
            *(("f:wav/sr:44100", *row) for row in ((1, 1), (11, 2), (4000, 400), (7999, 800))),
            *(("f:wav/sr:44100/t:1:2/ch:1", 4000, 400), ("f:wav/norm:ebu", 44_100, 4410)),
            *(("f:wav/enhance:voice", 16_000, 1600), ("f:wav/sr:384000/ch:1", 48_000, 4800)),
            *(("f:wav/sr:16000/ch:1", 8000, None), ("f:opus/ch:1", 44100, None)),
            *(("f:wav/norm:ebu", 96_000, None), ("f:wav/enhance:voice", 44_100, None)),
            *(("f:wav/sr:4000/ch:1", 44100, None), ("f:flac/ch:1/t:1:2", 4000, None)),
        ):
            first, *_ = chain(text, sample_rate=rate).split(",")
            if samples is None:
                self.assertNotIn("asetnsamples", first, text)
            else:
                self.assertEqual(f"asetnsamples=n={samples}:p=0", first, text)

    def test_working_format(self) -> None:
        """Stages that compute samples, and no others, work in double precision (D60)."""
        slow = into("dblp", 22050)
        self.assertEqual(chain("gain:3", sample_rate=22050), f"{slow},{volume(3)},{slow}")
        self.assertEqual(chain("gain:3/ch:1"), f"{UNMIXED},{TO_MONO},{volume(3)},{MONO}")
        copied = chain("t:1/ch:2", channels=1)
        self.assertEqual(copied, f"{trim('start_sample=44100')},{TO_STEREO}")

    def test_dither(self) -> None:
        """Samples are dithered once, at the end, if the output cannot hold their bits (D60)."""
        dither_24 = DITHER.replace("osf=s16", "osf=s32:output_sample_bits=24")
        louder = f"{WORKING},{volume(3)},{WORKING}"
        for text, bits, stages in (
            ("f:wav", 16, ""),
            ("f:wav", 24, f"{WORKING},{DITHER}"),
            ("f:wav/sr:8000", 16, f"{resampled(8000)},{into('dblp', 8000)},{DITHER}"),
            ("f:flac/bd:24", 32, f"{WORKING},{dither_24}"),
            (
                "f:flac/bd:24/gain:3/sr:8000",
                16,
                f"{louder},{resampled(8000)},{into('dblp', 8000)},{dither_24}",
            ),
            ("f:wav/ch:1", 16, f"{UNMIXED},{TO_MONO},{MONO},{DITHER}"),
            ("f:wav/t:1", 24, f"{trim('start_sample=44100')},{WORKING},{DITHER}"),
            ("f:wav/bd:32f/gain:3/sr:8000", 64, f"{louder},{resampled(8000)}"),
            ("f:peaks/ch:2/gain:3", 64, louder),
        ):
            self.assertEqual(chain(text, decoded_bits=bits), stages, (text, bits))
        self.assertEqual(chain("f:wav", decoded_bits=16, channels=1), "")
        self.assertEqual(chain("f:wav/ch:2", decoded_bits=16, channels=1), TO_STEREO)

    def test_norm(self) -> None:
        """``norm`` has explicit values for all its targets, and runs in one pass."""
        for text, targets in (
            ("norm:ebu", "I=-16:TP=-1.5:LRA=11"),
            ("norm:ebu:-23", "I=-23:TP=-1.5:LRA=11"),
            ("norm:ebu:-70:-9:1", "I=-70:TP=-9:LRA=1"),
            ("norm:ebu:-5.5:0:50", "I=-5.5:TP=0:LRA=50"),
        ):
            stages = f"{PIECES},{WORKING},{loudnorm(targets)},{WORKING}"
            self.assertEqual(chain(text), stages)

    def test_few_samples(self) -> None:
        """Audio too short for a resampler is padded at the start, and cut at the end (D13)."""
        for text, rate, enough in (
            ("f:ogg/sr:8000", 44100, 6 * FEW_SAMPLES),
            ("f:opus", 44100, FEW_SAMPLES),
            ("f:opus", 96000, 2 * FEW_SAMPLES),
            ("f:aac/norm:ebu", 44100, FEW_SAMPLES),
            ("f:aac/enhance:voice", 44100, FEW_SAMPLES),
            # The larger number counts.
            ("f:ogg/sr:8000/enhance:voice/norm:ebu", 44100, 6 * FEW_SAMPLES),
            # 384 kHz is twice the rate of loudnorm, and 8 times that of a preset.
            ("f:wav/norm:ebu", 384_000, 2 * FEW_SAMPLES),
            ("f:wav/enhance:voice", 384_000, 8 * FEW_SAMPLES),
            *(("f:wav/norm:ebu", 192_000, 0), ("f:wav/enhance:voice", 48_000, 0)),
        ):
            for samples in {1, max(1, enough - 1), max(1, enough)}:
                probe, padding = counted(samples, rate), f",apad=whole_len={2 * enough},"
                padded = Needs.of(options_of(text), probe).padding > 0
                found = padded, padding in chain(text, probe)
                self.assertEqual(found, (samples < enough,) * 2, (text, rate, samples))
        padded = f"{RATE_FILTER},apad=whole_len=8192,{RATE_FILTER}"
        sound = f"atrim=end_sample=9,aloop=loop=1960:size=9,atrim=end_sample=17640,{WORKING},{EBU}"
        cut = f"{KEEP_SILENCE},atrim=end_sample=9,apad=whole_len=8192"
        normalized = f"{PIECES},{padded},{WORKING},{sound},{WORKING},{cut},{WORKING}"
        for text, samples, stages, ends, output in (
            ("f:opus", 1, padded, f"{resampled(48000)},{into('flt', 48000)}", 48000),
            ("f:aac/norm:ebu", 9, normalized, into("fltp"), 44100),
        ):
            last = f"atrim=end_sample={samples},{exact_length_filters(samples, output)}"
            self.assertEqual(chain(text, counted(samples)), f"{stages},{ends},{last}")

    def test_fades(self) -> None:
        """A fade-out ends where the region or the source ends (D12); one of 0 is omitted."""
        fade_in = "afade=t=in:ss=0:ns=44100:curve=tri"
        for text, fades in (
            ("fade:1", fade_in),
            ("fade:1:0", fade_in),
            ("fade:0:2", "afade=t=out:ss=352800:ns=88200:curve=tri"),
            ("fade:1:2", f"{fade_in},afade=t=out:ss=352800:ns=88200:curve=tri"),
            # A fade longer than the source extends over all of it.
            ("fade:0:99", "afade=t=out:ss=0:ns=441000:curve=tri"),
        ):
            stages = f"{WORKING},{COUNTED},{fades},{WORKING}{exactly(441000)}"
            self.assertEqual(chain(f"f:aac/{text}", EXACT), stages, text)
        for text, start in (("t:1:3", 2), ("t:8:2", 1), ("t:8:50", 1), ("t:8", 1)):
            faded = chain(f"fade:0:1/{text}", EXACT)
            self.assertIn(f"afade=t=out:ss={start * 44100}:ns=44100:", faded)
        self.assertEqual({chain("fade:0"), chain("fade:0:0")}, {""})

    def test_lowest_rate(self) -> None:
        """A stage is refused at sample rates that its filters do not support (D13)."""
        for text, name in (("enhance:voice", "afftdn"), ("norm:ebu:-16:-1.5:11", "loudnorm")):
            for rate in (1000, 384_001, 6_144_000):
                self.assertIn(name, chain(text, sample_rate=rate))
            error = self.assertRaises(InvalidOptions, chain, text, sample_rate=999)
            self.assertEqual(
                error.message,
                f'"{text}" is not accepted: it takes sources of at least 1000 Hz,'
                " and this one has 999.",
            )


class ChannelTests(SynchronousTestCase):
    """The number of channels, and how they are mixed."""

    def test_count(self) -> None:
        """``ch`` sets the channels, which are at most 2 (Format and encoding options)."""
        for text, counts in (("f:wav", (1, 2, 2, 2)), ("ch:1", (1,) * 4), ("ch:2", (2,) * 4)):
            for channels, count in zip((1, 2, 3, 16), counts, strict=True):
                probe = replace(STEREO, channels=channels)
                self.assertEqual(output_channels(options_of(text), probe), count)

    def test_peaks(self) -> None:
        """ffmpeg mixes stereo down for peaks only if there is a stage other than trimming."""
        for text in (
            *("f:peaks", "f:peaks/ch:1/t:1:2", "f:peaks/ch:2"),
            *("f:peaks/gain:0", "f:peaks/fade:0:0"),
        ):
            self.assertEqual(output_channels(options_of(text), STEREO), 2, text)
            self.assertNotIn("mono", chain(text), text)
        for text in ("gain:1", "fade:0.1", "norm:ebu", "enhance:voice"):
            self.assertEqual(output_channels(options_of(f"f:peaks/{text}"), STEREO), 1, text)
            self.assertIn(f",{TO_MONO},", chain(f"f:peaks/{text}"), text)
        for channels, text, count in ((1, "ch:1", 1), (1, "ch:2", 2), (6, "ch:1", 1), (6, "", 1)):
            probe = replace(STEREO, channels=channels)
            self.assertEqual(
                output_channels(options_of(f"f:peaks/{text}".strip("/")), probe), count
            )

    def test_mix(self) -> None:
        """Channels are mixed by layout (D60), mono is copied (Format and encoding options)."""
        for text, channels, layout, outputs in (
            ("f:mp3", 6, "5.1", 2),
            ("ch:1", 6, "5.1(side)", 1),
            ("ch:2", 8, None, 2),
            ("ch:2", 9, None, 2),
            ("ch:2", 4, "ambisonic 1", 2),
        ):
            mix = channel_mix(channels, layout, outputs)
            assert mix is not None
            last = {1: MONO, 2: WORKING}[outputs]
            stages = f"{UNMIXED},{mix.filter},{last}"
            self.assertEqual(chain(text, channels=channels, layout=layout), stages)
        for layout in (None, "mono", "1 channels (BL)", "ambisonic 0"):
            relabeled = "" if layout in (None, "mono") else "channelmap=map=0:channel_layout=mono"
            self.assertEqual(chain("ch:1", channels=1, layout=layout), relabeled)
            self.assertEqual(chain("ch:2", channels=1, layout=layout), TO_STEREO)

    def test_enhance(self) -> None:
        """``enhance`` precedes the mixing of channels (Time-domain and preview options; D51).

        More than 8 channels, or those without a layout, are mixed before it.
        """
        for text, channels, layout, outputs, processed in (
            *(("ch:1", 1, None, 1, "mono"), ("ch:2", 1, None, 2, "FC")),
            *(("ch:1", 2, None, 1, "FL+FR"), ("ch:2", 6, "5.1", 2, "5.1")),
            ("ch:1", 8, "cube", 1, "cube"),
            ("f:peaks", 6, "5.1", 1, "5.1"),
            *(("ch:2", 2, f"2 channels ({pair})", 2, "stereo") for pair in ("FL+LFE", "FC+FC")),
            *(("ch:2", channels, None, 2, "stereo") for channels in (3, 9, 64)),
            *(("ch:2", 10, "5.1.4", 2, "stereo"), ("ch:2", 16, "hexadecagonal", 2, "stereo")),
        ):
            mix, last = channel_mix(channels, layout, outputs), {1: MONO, 2: WORKING}[outputs]
            enhance = voice(processed)
            stages = f"{last},{enhance}"
            if mix is not None:
                is_first = processed not in ("mono", "stereo")
                order = (enhance, mix.filter) if is_first else (mix.filter, enhance)
                stages = ",".join((UNMIXED, *order))
            found = chain(f"{text}/enhance:voice", channels=channels, layout=layout)
            self.assertEqual(found, f"{stages},{last}", (text, channels))
