"""Effect of the options on the audio, measured on the decoded samples of real renders."""

from __future__ import annotations

from functools import cache

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from tests.support.audio import (
    Sound,
    constant,
    convert,
    convert_all,
    decode,
    loudness,
    mix,
    noise,
    render,
    render_all,
    render_and_decode,
    render_and_decode_all,
    synthesize,
    tone,
    write_wav,
)
from tests.support.measures import correlation, level, peak, strength

#: Arguments that convert a wav file to each kind of source.
KINDS = {
    "flac": "-c:a flac -f flac",
    "mp3": "-c:a libmp3lame -b:a 128k -f mp3",
    "ogg": "-c:a libvorbis -f ogg",
    "opus": "-c:a libopus -f ogg",
    # Without perceptual noise substitution, whose noise differs between decoder runs.
    "m4a": "-c:a aac -aac_pns 0 -f mp4",
}

#: Options of a variant that has the samples of its source.
PLAIN = "f:wav/bd:32f"


@cache
def recordings(rate: int) -> dict[str, bytes]:
    """Return 2.4 seconds of noise, which never repeats, in each container."""
    wav = write_wav(noise(rate, round(2.4 * rate)))
    return {"wav": wav, **convert_all(wav, KINDS)}


def recording(kind: str) -> bytes:
    """Return 2.4 seconds of noise in a container, at a rate that its codec supports."""
    return recordings(48000 if kind == "opus" else 44100)[kind]


@cache
def reference(kind: str) -> Sound:
    """Return the decoded samples of the recording."""
    return decode(recording(kind))


@cache
def programme(rate: int = 44100) -> bytes:
    """Return five seconds of stereo pink noise below 4 kHz, for measurements of loudness."""
    pink = f"anoisesrc=color=pink:seed=1:duration=5:sample_rate={rate}:amplitude=0.1"
    return synthesize(f"{pink},lowpass=f=4000,aformat=channel_layouts=stereo:sample_fmts=s16")


class TrimTests(SynchronousTestCase):
    """Trims: ``t`` (Time-domain and preview options)."""

    def test_exact(self) -> None:
        """A trim returns exactly the samples of that part of the source, from every container."""
        for kind in ("wav", *KINDS):
            whole = reference(kind)
            first = round(1.237 * whole.rate)
            heard = render_and_decode(recording(kind), f"{PLAIN}/t:1.237:0.501")
            self.assertEqual(len(heard), round(1.738 * whole.rate) - first)
            self.assertEqual(heard, whole.part(first, first + len(heard)), kind)

    def test_to_the_end(self) -> None:
        """A trim without a duration, or with one past the end, ends with the source (D11)."""
        for kind in ("wav", *KINDS):
            whole = reference(kind)
            rest = whole.part(round(2.287 * whole.rate))
            self.assertEqual(render_and_decode(recording(kind), f"{PLAIN}/t:2.287"), rest, kind)
            # `FadeTests.test_cut_region` covers trims of FLAC and MP3 past the end.
            if kind in ("wav", "ogg", "m4a"):
                self.assertEqual(
                    render_and_decode(recording(kind), f"{PLAIN}/t:2.287:60"), rest, kind
                )

    def test_noise_of_the_codec(self) -> None:
        """A trim of AAC with noise substitution gives the same bytes on every run (D44)."""
        source = convert(recordings(44100)["wav"], *"-c:a aac -f mp4".split())
        first, second = (render(source, "f:wav/t:2.2") for _ in range(2))
        self.assertEqual(first, second)

    def test_then_resampled(self) -> None:
        """A trim cuts the source before ``sr`` resamples it."""
        source = write_wav(tone(44100, 88200, 441, 441))
        heard = render_and_decode(source, f"{PLAIN}/t:0.5:0.25/sr:22050/ch:1")
        self.assertEqual((heard.rate, len(heard.channels)), (22050, 1))
        self.assertLessEqual(abs(len(heard) - round(0.25 * 22050)), 1)
        wanted = tone(22050, 33075, 441).channels[0][11025 : 11025 + 5000]
        self.assertGreater(correlation(heard.channels[0][:5000], wanted), 0.9999)


class FadeTests(SynchronousTestCase):
    """Fades: ``fade`` (Time-domain and preview options)."""

    def assert_fades(self, heard: Sound, whole: Sound, fade_in: int, fade_out: int) -> None:
        """Require the samples of ``whole`` with linear fades at both ends."""
        self.assertEqual(len(heard), len(whole))
        end = len(whole)
        for got, given in zip(heard.channels, whole.channels, strict=True):
            slope = (
                min(n / fade_in if fade_in else 1, (end - n) / fade_out if fade_out else 1, 1)
                for n in range(end)
            )
            worst = max(abs(a - b * gain) for a, b, gain in zip(got, given, slope, strict=True))
            # The filter scales 16-bit samples as integers.
            self.assertLess(worst, 1e-4)

    def test_in_a_region(self) -> None:
        """Both fades are linear and lie inside the trimmed region (D12)."""
        source = write_wav(constant(8000, 16000, 0.5, -0.5))
        whole = decode(source)
        heard = render_and_decode(source, f"{PLAIN}/t:0.5:1/fade:0.25:0.125")
        self.assert_fades(heard, whole.part(4000, 12000), 2000, 1000)
        self.assertEqual(heard.channels[0][0], 0)
        self.assertLess(abs(heard.channels[0][-1]), 0.001)
        self.assertApproximates(heard.channels[0][1000], 0.25, 0.001)

    def test_to_the_end(self) -> None:
        """Without ``t`` the fade-out ends with the source, in silence (D12).

        The header of some containers has no length, or a length that includes padding. Such sources
        are measured first.
        """
        for kind in ("wav", *KINDS):
            heard = render_and_decode(recording(kind), f"{PLAIN}/fade:0.1:0.5")
            rate = heard.rate
            self.assert_fades(heard, reference(kind), round(0.1 * rate), round(0.5 * rate))
            self.assertLess(peak(heard.channels[0][-20:]), -60, kind)
            self.assertGreater(peak(heard.channels[0][-rate // 4 :][:100]), -30, kind)

    def test_cut_region(self) -> None:
        """If a trim reaches past the source's end, its fade-out ends with the source (D12)."""
        for kind in ("flac", "mp3"):
            whole = reference(kind)
            heard = render_and_decode(recording(kind), f"{PLAIN}/t:2:30/fade:0:0.25")
            self.assert_fades(heard, whole.part(2 * whole.rate), 0, whole.rate // 4)

    def test_longer_than_the_source(self) -> None:
        """A fade-out that is longer than the source covers the whole source (D12)."""
        source = write_wav(constant(8000, 4000, 0.5))
        self.assert_fades(render_and_decode(source, f"{PLAIN}/fade:0:60"), decode(source), 0, 4000)

    def test_streamed_sources(self) -> None:
        """Fade-outs work for sources without a length in the header, as from a piped encoder."""
        for form in ("f:flac", "f:mp3"):
            source = render(recording("wav"), form)
            whole = decode(source)
            heard = render_and_decode(source, f"{PLAIN}/fade:0:0.3")
            self.assert_fades(heard, whole, 0, round(0.3 * whole.rate))


class GainTests(SynchronousTestCase):
    """Static gain: ``gain`` (Time-domain and preview options)."""

    def test_decibels(self) -> None:
        """``gain`` changes the level by exactly the given number of dB."""
        source = write_wav(noise(44100, 22050, 1, 0.1), "24")
        before = level(decode(source).channels[0])
        gains = {f"{PLAIN}/gain:{gain}": gain for gain in (3.5, -0.125, -20.001, -60.0, 14.25)}
        for text, heard in render_and_decode_all(source, gains).items():
            self.assertApproximates(level(heard.channels[0]) - before, gains[text], 0.01)

    def test_zero(self) -> None:
        """``gain:0`` changes no sample."""
        source = recording("wav")
        self.assertEqual(render_and_decode(source, "f:wav/gain:0"), decode(source))


class LoudnessTests(SynchronousTestCase):
    """Loudness normalization: ``norm`` (Time-domain and preview options)."""

    def test_target(self) -> None:
        """``norm`` reaches the requested loudness and keeps rate, length and timing.

        (Format and encoding options, 3)
        """
        self.assertLess(loudness(programme()), -30)
        whole = decode(programme())
        for text, target in (("norm:ebu", -16), ("norm:ebu:-23:-2:7", -23)):
            output = render(programme(), f"{PLAIN}/{text}")
            self.assertApproximates(loudness(output), target, 0.5)
            heard = decode(output)
            self.assertEqual((heard.rate, len(heard)), (whole.rate, len(whole)))
            # The audio is not shifted in time.
            for at in (100, 110_000, 210_000):
                stretch = (heard.channels[1][at : at + 4000], whole.channels[1][at : at + 4000])
                self.assertGreater(correlation(*stretch), 0.95)

    def test_rates(self) -> None:
        """``norm`` keeps the source's rate if the format supports it.

        (Format and encoding options, 3)
        """
        source = write_wav(noise(22050, 11025, 1))
        rates = {f"f:{form}/norm:ebu": 22050 for form in ("mp3", "ogg", "m4a", "flac")}
        rates["f:opus/norm:ebu"] = 48000
        for text, heard in render_and_decode_all(source, rates).items():
            self.assertEqual(heard.rate, rates[text], text)

    def test_lossy(self) -> None:
        """A lossy encoder keeps the loudness that ``norm`` sets."""
        output = render(programme(48000), "f:opus/norm:ebu:-18")
        self.assertApproximates(loudness(output), -18, 0.5)

    def test_with_others(self) -> None:
        """``gain`` applies on top of ``norm``; ``sr``, ``ch`` and ``t`` combine with ``norm``."""
        for text, target, rate in (
            ("norm:ebu/gain:-6", -22, 44100),
            ("norm:ebu:-20/sr:16000", -20, 16000),
            ("norm:ebu:-20/t:1.25:4/ch:1", -20, 44100),
        ):
            output = render(programme(), f"{PLAIN}/{text}")
            self.assertApproximates(loudness(output), target, 0.5, text)
            self.assertEqual(decode(output).rate, rate)
        self.assertEqual(len(render_and_decode(programme(), f"{PLAIN}/norm:ebu/t:1.25:0.5")), 22050)

    def test_short_sources(self) -> None:
        """``norm`` keeps the length of the shortest sources; a trim without samples is refused."""
        for length, name in (
            *((1, "a.wav"), (40, "a.wav"), (99, "a.wav"), (4409, "a.wav")),
            *((1, "a.au"), (4409, "a.au"), (40, "a.flac"), (99, "a.flac")),
        ):
            source = write_wav(noise(44100, length))
            if name != "a.wav":
                source = convert(source, name=name)
            self.assertEqual(len(render_and_decode(source, f"{PLAIN}/norm:ebu")), length, name)
        flac = recording("flac")
        error = self.assertRaises(
            InvalidOptions,
            render_and_decode,
            flac[: len(flac) // 2],
            f"{PLAIN}/norm:ebu/t:1.5:0.001",
        )
        self.assertIn('"t:1.5:0.001"', str(error))
        short = convert(write_wav(noise(44100, 50)), *KINDS["ogg"].split())
        chained = recording("ogg") + short
        self.assertEqual(
            len(render_and_decode(chained, f"{PLAIN}/norm:ebu")),
            len(render_and_decode(chained, PLAIN)),
        )


class EnhanceTests(SynchronousTestCase):
    """Enhancement preset: ``enhance:voice`` (Time-domain and preview options)."""

    def assert_aligned(self, heard: Sound, whole: Sound) -> None:
        """Require that two sounds have the same length and no shift in time."""
        self.assertEqual((heard.rate, len(heard)), (whole.rate, len(whole)))
        size, middle = 6000, len(whole) // 2
        got = heard.channels[0][middle : middle + size]
        for at in (middle, len(whole) - size - 2000):
            got = heard.channels[0][at : at + size]
            correlations = {
                lag: correlation(got, whole.channels[0][at + lag : at + lag + size])
                for lag in (-2 * whole.rate // 80, -whole.rate // 80, -2, -1, 0, 1, 2, 240, 1102)
            }
            self.assertEqual(max(correlations, key=lambda lag: correlations[lag]), 0, correlations)

    def test_ahead_of_the_downmix(self) -> None:
        """``enhance`` processes each channel of the source, before the downmix (D51)."""
        loud, low = noise(44100, 44100, 1, 0.5), tone(44100, 44100, 300, amplitude=0.05)
        source = write_wav(Sound(44100, (*loud.channels, *low.channels)))
        left, right = render_and_decode(source, "f:wav/bd:32f/enhance:voice").channels
        (mixed,) = render_and_decode(source, "f:wav/bd:32f/enhance:voice/ch:1").channels
        means = [(one + other) / 2 for one, other in zip(left, right, strict=True)]
        self.assertLess(peak([0.0, *(a - b for a, b in zip(mixed, means, strict=True))]), -90)

    def test_any_channels(self) -> None:
        """``enhance`` works for any number of channels, with or without a channel layout (D51)."""
        for channels, mask in ((1, None), (2, None), (3, None), (6, 0x3F), (9, None), (64, None)):
            source = write_wav(noise(44100, 8820, channels, 0.3), "16", mask)
            for text in ("ch:1", "ch:2"):
                heard = render_and_decode(source, f"f:wav/{text}/enhance:voice")
                self.assertEqual((8820, int(text[-1])), (len(heard), len(heard.channels)))
                self.assertGreater(peak(heard.channels[0]), -40, (channels, text))

    def test_layouts_that_ffmpeg_does_not_mix(self) -> None:
        """Layouts that ffmpeg does not downmix, such as rear channels only, are audible (D13)."""
        for channels, mask in ((2, 0x30), (2, 0x9), (3, 0x13), (6, 0x617)):
            source = write_wav(noise(44100, 4410, channels, 0.3), "16", mask)
            for text in ("f:wav", "f:wav/ch:1", "f:wav/ch:2/enhance:voice"):
                heard = render_and_decode(source, text)
                self.assertGreater(peak(heard.channels[0]), -40, (mask, text))
        stereo = noise(44100, 4410, 2, 0.3)
        rear = render_and_decode(write_wav(stereo, "16", 0x30), "f:wav")
        self.assertEqual(render_and_decode(write_wav(stereo), "f:wav"), rear)

    def test_position(self) -> None:
        """``enhance`` keeps the length and does not shift the audio in time."""
        for rate in (8000, 44100, 48000):
            source = write_wav(noise(rate, 2 * rate + 7, 1, 0.3))
            self.assert_aligned(render_and_decode(source, f"{PLAIN}/enhance:voice"), decode(source))

    def test_with_others(self) -> None:
        """``enhance`` combined with ``t`` or ``norm`` stays aligned with the source."""
        source = write_wav(noise(44100, 88207, 1, 0.3))
        whole = decode(source)
        heard = render_and_decode(source, f"{PLAIN}/enhance:voice/t:0.25:1.5")
        self.assert_aligned(heard, whole.part(11025, 77175))
        self.assert_aligned(render_and_decode(source, f"{PLAIN}/enhance:voice/norm:ebu"), whole)

    def test_rumble_and_hiss(self) -> None:
        """``enhance`` attenuates rumble below a voice and the noise behind it."""
        rate = 44100
        rumble = tone(rate, 2 * rate, 40, amplitude=0.05)
        hiss = noise(rate, 2 * rate, 1, 0.004)
        source = write_wav(mix(rumble, hiss), "32f")
        before = decode(source).channels[0]
        after = render_and_decode(source, f"{PLAIN}/enhance:voice").channels[0]
        # Both levels after ``enhance`` include the compressor's make-up gain of 3 dB.
        last = slice(rate, 2 * rate)
        fall = strength(before[last], 40, rate) - strength(after[last], 40, rate)
        self.assertGreater(fall, 8)
        quiet = write_wav(hiss, "32f")
        after = render_and_decode(quiet, f"{PLAIN}/enhance:voice").channels[0]
        self.assertLess(level(after[last]), level(hiss.channels[0][last]) - 5)

    def test_ceiling(self) -> None:
        """``enhance`` limits peaks to 1 dB below full scale, however loud the source is."""
        voice = tone(44100, 44100, 300, amplitude=2.5)
        heard = render_and_decode(
            write_wav(mix(voice, noise(44100, 44100, 1, 0.5)), "32f"), f"{PLAIN}/enhance:voice"
        )
        self.assertLessEqual(peak(heard.channels[0]), -1.0)
        self.assertGreater(peak(heard.channels[0]), -3)


class ChannelTests(SynchronousTestCase):
    """Channel count: ``ch`` (Format and encoding options)."""

    def test_mono(self) -> None:
        """``ch:2`` of mono has the source's level on both channels, in FLAC, M4A and MP3."""
        source = write_wav(tone(44100, 22050, 440))
        (one,) = decode(source).channels
        texts = [f"f:{form}/ch:2" for form in ("flac", "m4a", "mp3")]
        for text, heard in render_and_decode_all(source, texts).items():
            self.assertEqual(len(heard.channels), 2, text)
            for side in heard.channels:
                # LAME lowers the level slightly.
                fall = level(one[9000:13410]) - level(side[9000:13410])
                self.assertApproximates(fall, 0, 0.3, text)

    def test_stereo(self) -> None:
        """``ch:1`` of stereo is the mean of both channels, for several depths and formats."""
        for depth in ("16", "24", "32f"):
            stereo = write_wav(tone(44100, 4410, 440, 1000), depth)
            both, (mono,) = decode(stereo), render_and_decode(stereo, f"{PLAIN}/ch:1").channels
            for got, left, right in zip(mono, *both.channels, strict=True):
                self.assertApproximates(got, (left + right) / 2, 1e-4)
        loud = write_wav(tone(44100, 22050, 440, 440, amplitude=0.9))
        texts = [f"f:{form}/ch:1" for form in ("flac", "m4a", "opus", "mp3")]
        for text, heard in render_and_decode_all(loud, texts).items():
            (mono,) = heard.channels
            self.assertApproximates(peak(mono[9000:13000]), -0.92, 0.3, text)

    def test_full_scale(self) -> None:
        """Downmixes never exceed full scale, even in float formats."""
        loud = write_wav(constant(48000, 4800, *[0.9] * 6), mask=0x3F)
        for text, heard in render_and_decode_all(loud, (PLAIN, f"{PLAIN}/ch:1", "f:flac")).items():
            for channel in heard.channels:
                self.assertApproximates(max(channel), 0.9, 0.001, text)

    def test_default(self) -> None:
        """Without ``ch`` the variant has the source's channels, but 2 at most."""
        for channels, count in ((1, 1), (2, 2), (6, 2)):
            source = write_wav(noise(8000, 800, channels))
            self.assertEqual(len(render_and_decode(source, "f:wav").channels), count)

    def test_surround(self) -> None:
        """A 5.1 downmix keeps left and right apart, and adds the center equally to both."""
        rate, hertz = 48000, (300, 500, 700, 50, 1100, 1300)
        source = write_wav(tone(rate, rate // 2, *hertz, amplitude=0.15), mask=0x3F)
        left, right = render_and_decode(source, PLAIN).channels
        for side, expected, unexpected in (
            (left, (300, 1100), (500, 1300)),
            (right, (500, 1300), (300, 1100)),
        ):
            for frequency in expected:
                self.assertGreater(strength(side, frequency, rate), -35, frequency)
            for frequency in unexpected:
                self.assertLess(strength(side, frequency, rate), -80, frequency)
            self.assertGreater(strength(side, 700, rate), -35)
        self.assertApproximates(strength(left, 700, rate), strength(right, 700, rate), 0.01)
        (mono,) = render_and_decode(source, f"{PLAIN}/ch:1").channels
        for frequency in (300, 500, 700, 1100, 1300):
            self.assertGreater(strength(mono, frequency, rate), -40)

    def test_any_count(self) -> None:
        """All channels of a source without a layout are in the downmix, except an assumed LFE.

        (D13)
        """
        for channels in (3, 7, 9, 16):
            hertz = [400 + 100 * channel for channel in range(channels)]
            source = write_wav(tone(8000, 1600, *hertz, amplitude=0.05))
            counts = {f"{PLAIN}/ch:{count}": count for count in (1, 2)}
            for text, heard in render_and_decode_all(source, counts).items():
                self.assertEqual(len(heard.channels), counts[text])
                for frequency in hertz:
                    best = max(strength(side, frequency, 8000) for side in heard.channels)
                    # ffmpeg treats the fourth of seven channels as the low-frequency channel of
                    # 6.1.
                    if (channels, frequency) == (7, 700):
                        continue
                    self.assertGreater(best, -60, (channels, frequency))


class RateTests(SynchronousTestCase):
    """Sample rate: ``sr`` (Format and encoding options)."""

    def test_requested(self) -> None:
        """Every format has the rate of ``sr``, at an unchanged pitch."""
        source = write_wav(tone(44100, 22050, 1000))
        forms = ("mp3", "opus", "ogg", "aac", "m4a", "flac", "wav")
        for text, heard in render_and_decode_all(
            source, [f"f:{form}/sr:16000" for form in forms]
        ).items():
            # An Opus decoder always puts out 48 kHz.
            self.assertEqual(heard.rate, 48000 if "opus" in text else 16000, text)
            samples = heard.channels[0][heard.rate // 8 : heard.rate * 3 // 8]
            self.assertApproximates(strength(samples, 1000, heard.rate), -6, 0.5, text)

    def test_default(self) -> None:
        """Without ``sr`` the rate is the source's, or the nearest that the codec supports (D8)."""
        for source, form, rate in (
            (96000, "mp3", 48000),
            (96000, "aac", 96000),
            (192000, "wav", 192000),
            (192000, "aac", 96000),
            (11111, "mp3", 12000),
            (22050, "opus", 48000),
        ):
            heard = render_and_decode(write_wav(noise(source, source // 4)), f"f:{form}")
            self.assertEqual(heard.rate, rate, (source, form))

    def test_length(self) -> None:
        """``sr`` keeps the duration."""
        source = write_wav(noise(44100, 44100))
        rates = {f"{PLAIN}/sr:{rate}": rate for rate in (8000, 22050, 48000, 96000)}
        for text, heard in render_and_decode_all(source, rates).items():
            self.assertLessEqual(abs(len(heard) - rates[text]), 1, text)


class DepthTests(SynchronousTestCase):
    """Bit depth: ``bd`` (Format and encoding options)."""

    def depth(self, file: bytes) -> str:
        """Return the bits per sample in the header of a wav or FLAC file."""
        if file[:4] == b"RIFF":
            return str(int.from_bytes(file[34:36], "little"))
        return str((int.from_bytes(file[20:22], "big") >> 4 & 31) + 1)

    def test_requested(self) -> None:
        """A file has the bit depth of ``bd``."""
        source = recording("mp3")
        depths = {
            "f:wav/bd:16": "16",
            "f:wav/bd:24": "24",
            "f:wav/bd:32f": "32",
            "f:flac/bd:16": "16",
            "f:flac/bd:24": "24",
        }
        for text, output in render_all(source, depths).items():
            self.assertEqual(self.depth(output), depths[text], text)

    def test_default(self) -> None:
        """Without ``bd`` the depth is the source's or the nearest that the format supports.

        A source without a bit depth gives 16 bits (Format and encoding options, 1).
        """
        short = noise(8000, 400)
        for source, wav, flac in (
            (write_wav(short, "8"), "16", "16"),
            (write_wav(short, "16"), "16", "16"),
            (write_wav(short, "24"), "24", "24"),
            (write_wav(short, "32"), "32", "24"),
            (write_wav(short, "32f"), "32", "24"),
            (convert(write_wav(short, "24"), *KINDS["flac"].split()), "24", "24"),
            (recording("ogg"), "16", "16"),
        ):
            outputs = render_all(source, ("f:wav", "f:flac"))
            self.assertEqual([self.depth(output) for output in outputs.values()], [wav, flac])

    def test_lossless(self) -> None:
        """Lossless formats keep every bit of the source if the depth suffices."""
        for depth in ("16", "24"):
            source = write_wav(noise(48000, 4800, 2, 0.99), depth)
            flac, whole = render(source, "f:flac"), decode(source)
            for file in (source, flac):
                for text, heard in render_and_decode_all(file, ("f:wav", "f:flac/q:12")).items():
                    self.assertEqual(heard, whole, (depth, text))
        source = write_wav(noise(48000, 4800, 2, 0.99), "32f")
        self.assertEqual(render_and_decode(source, "f:wav"), decode(source))


class QualityTests(SynchronousTestCase):
    """Bit rate and quality: ``br`` and ``q`` (Format and encoding options)."""

    def test_bitrate(self) -> None:
        """The file's bit rate is within 35 % of ``br``."""
        source = recording("wav")
        for form, low, high in (
            ("mp3", 64, 256),
            ("opus", 64, 256),
            ("ogg", 64, 192),
            ("aac", 64, 192),
            ("m4a", 64, 192),
        ):
            rates = {f"f:{form}/br:{kbps}": kbps for kbps in (low, high)}
            for text, output in render_all(source, rates).items():
                kbps = len(output) * 8 / 2400
                self.assertTrue(0.65 < kbps / rates[text] < 1.35, (text, kbps))

    def test_quality(self) -> None:
        """``q`` makes files larger or smaller, in the direction that each codec defines.

        For Opus it only gives different bytes.
        """
        source = recording("wav")
        for form, qualities in (
            ("mp3", ("9", "0")),
            ("ogg", ("-1", "-0.5", "0", "1", "5", "10")),
            ("aac", ("0.1", "2")),
            ("m4a", ("0.1", "2")),
        ):
            outputs = render_all(source, [f"f:{form}/q:{q}" for q in qualities])
            sizes = [len(output) for output in outputs.values()]
            self.assertEqual(sorted(set(sizes)), sizes, form)
            self.assertLess(2 * sizes[0], sizes[-1], form)
        music = write_wav(tone(44100, 22050, 300, 500))
        texts = ("f:flac/q:12", "f:flac/q:0", "f:opus/q:0", "f:opus/q:10")
        small, large, fast, slow = render_all(music, texts).values()
        self.assertLess(len(small), len(large))
        self.assertNotEqual(fast, slow)
