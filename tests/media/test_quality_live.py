"""Quality of conversions, measured on real renders: sample rates, bit depths, channels (D60)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.conversion import SOXR, SWRESAMPLE
from tests.support.audio import (
    Sound,
    chord,
    constant,
    convert,
    convert_all,
    decode,
    decode_all,
    decode_irregular,
    join,
    noise,
    render_all,
    render_and_decode,
    render_and_decode_all,
    silence,
    tone,
    write_wav,
)
from tests.support.measures import level, middle, peak, residual, spectrum, strength, worst_spur

#: What resampling promises: the level of aliases and images in dB of full scale, the loss in dB up
#: to a share of the lower Nyquist frequency, and the residual of a tone in dB.
SPURS, LOSS, PASSED, RESIDUAL = -120, 0.1, 0.9, -130
#: Aliases and images of libsoxr at precision 28, which are lower than promised.
SOXR_SPURS = -140

#: Levels of a step of 16 bits, and of the rounding and dither of 16 bits, in dB of full scale.
STEP, DITHERED = 20 * np.log10(1 / 32768), 10 * np.log10(0.25) + 20 * np.log10(1 / 32768)


class RateTests(SynchronousTestCase):
    """Conversions of sample rates (D60)."""

    def test_purity(self) -> None:
        """Tones have no aliases, no images and no loss, at any pair of rates."""
        pairs = (
            (96000, 44100),
            (96000, 48000),
            (48000, 44100),
            (44100, 48000),
            (44100, 96000),
            (192000, 48000),
            (48000, 16000),
            (8000, 48000),
        )
        rows = []
        for source, output in pairs:
            nyquist = min(source, output) / 2
            tones = [997.0, PASSED * nyquist, 1.05 * nyquist, 1.4 * nyquist]
            tones += [20000.0] * (nyquist == 22050)
            rows.append((source, output, [hertz for hertz in tones if 2 * hertz < source]))
        self.assert_pure(rows)

    def test_without_libsoxr(self) -> None:
        """The resampler that replaces libsoxr is as pure, and takes the shortest sources (D13)."""
        rows = [(96000, 44100, [997, 19845, 23200, 40000]), (44100, 48000, [997, 19845])]
        self.assert_pure(rows, SWRESAMPLE)
        outputs = {}
        for length, text in ((1, "f:wav/sr:8000"), (2, "f:opus"), (3, "f:wav/norm:ebu/sr:48000")):
            short = write_wav(noise(44100, length))
            outputs |= render_all(short, [f"{text}/enhance:voice", text], resampler=SWRESAMPLE)
        for text, heard in decode_all(outputs).items():
            self.assertGreaterEqual(len(heard), 1, text)

    def assert_pure(
        self, rows: Sequence[tuple[int, int, Sequence[float]]], resampler: str = SOXR
    ) -> None:
        """Require that conversions keep each tone alone, or nothing if they have no room for it.

        The tones follow one another, half a second each.

        :param rows: rates of the source and of the output, and tones.
        """
        amplitude, spurs = 0.999, SOXR_SPURS if resampler is SOXR else SPURS
        for source, output, tones in rows:
            parts = tone(source, source // 2, *tones, amplitude=amplitude).channels
            wav = write_wav(Sound(source, parts.reshape(1, -1)), "24")
            text = f"f:wav/bd:24/sr:{output}"
            whole = render_and_decode_all(wav, [text], resampler)[text]
            for number, hertz in enumerate(tones):
                start = number * output // 2
                heard, what = (
                    middle(whole.part(start, start + output // 2)),
                    (source, output, hertz),
                )
                kept = [hertz] if 2 * hertz < output else []
                self.assertLess(worst_spur(heard, output, *kept), spurs, what)
                if kept:
                    change = strength(heard, hertz, output) - 20 * np.log10(amplitude)
                    self.assertApproximates(change, 0, LOSS, what)
                if hertz == 997:
                    self.assertLess(residual(heard, hertz, output), RESIDUAL, what)

    def test_rate_that_changes(self) -> None:
        """Joined files of different sample rates give the same bytes on every run (D44).

        libsoxr would add random dither if it converted 16 bits to 16 bits.
        """
        wav = write_wav(noise(48000, 24000, 2))
        files = convert_all(wav, {"a.oga": "-ar 44100 -c:a flac", "b.oga": "-c:a flac"})
        joined = files["a.oga"] + files["b.oga"]
        texts = ("f:wav", "f:flac", "f:mp3", "f:opus")
        first = render_all(joined, texts)
        decode_irregular.cache_clear()
        self.assertTrue(first == render_all(joined, texts))

    def test_of_norm(self) -> None:
        """The resampling of ``norm`` loses nothing up to 20 kHz at 44.1 kHz."""
        wav = write_wav(tone(44100, 4 * 44100, 997, 20000, amplitude=0.2), "24")
        heard = render_and_decode(wav, "f:wav/bd:32f/norm:ebu")
        low, high = (middle(heard, channel)[20000:60000] for channel in (0, 1))
        change = strength(high, 20000, 44100) - strength(low, 997, 44100)
        self.assertApproximates(change, 0, LOSS)


class DepthTests(SynchronousTestCase):
    """Reductions of the bit depth (D60)."""

    def test_dither(self) -> None:
        """Every reduction to 16 bits is dithered: a tone of half a step has no harmonics."""
        rate = 44100
        quiet = tone(rate, 4 * rate, 997, amplitude=10 ** (-90 / 20))
        louder = tone(rate, 4 * rate, 997, amplitude=10 ** (-84 / 20))
        stereo = join(quiet, quiet)
        high = tone(2 * rate, 8 * rate, 997, amplitude=10 ** (-90 / 20))
        rows = (
            (quiet, "24", ("f:wav/bd:16", "f:flac/bd:16", "f:wav/bd:16/fade:0.1:0.1")),
            (quiet, "32", ("f:flac/bd:16",)),
            (quiet, "32f", ("f:wav/bd:16",)),
            (louder, "24", ("f:wav/bd:16/gain:-6",)),
            (stereo, "24", ("f:wav/bd:16/ch:1",)),
            (high, "24", (f"f:wav/bd:16/sr:{rate}",)),
        )
        for sound, depth, texts in rows:
            for text, output in render_and_decode_all(write_wav(sound, depth), texts).items():
                heard = middle(output)
                self.assertApproximates(strength(heard, 997, rate), -90, 0.1, text)
                frequencies, levels = spectrum(heard, rate)
                for harmonic in range(2, 12):
                    near = np.abs(frequencies - harmonic * 997) < 3
                    self.assertLess(levels[near].max(), -122, (text, harmonic))

    def test_once(self) -> None:
        """Any number of stages, of any source, is dithered once, with the noise of one dither."""
        rate, steps = 48000, Sound(48000, np.full((1, 48000), 0.3 / 32768, np.float32))
        lossy = convert(write_wav(silence(rate, rate)), *"-c:a libmp3lame -f mp3".split())
        jobs = (
            (write_wav(steps, "24"), ("f:wav/bd:16", "f:wav/bd:16/gain:-1/fade:0.1/sr:44100")),
            (write_wav(steps, "32f"), ("f:flac/bd:16",)),
            (write_wav(silence(rate, rate)), ("f:wav/gain:-1/fade:0.1", "f:wav/sr:44100")),
            (lossy, ("f:wav", "f:flac")),
        )
        for source, texts in jobs:
            outputs = render_all(source, texts)
            for text, heard in decode_all(outputs).items():
                samples = middle(heard)
                self.assertApproximates(level(samples - samples.mean()), DITHERED, 0.6, text)
            self.assertTrue(render_all(source, texts) == outputs, "renders are repeatable")

    def test_noise(self) -> None:
        """The noise of dither is high-passed, unlike flat noise, and has no mean at 16 bits."""
        source = write_wav(silence(44100, 2 * 44100), "24")
        heard = middle(render_and_decode(source, "f:wav/bd:16"))
        self.assertLess(abs(heard.mean()) * 32768, 0.01)
        power = np.abs(np.fft.rfft(heard)) ** 2
        low = np.fft.rfftfreq(len(heard), 1 / 44100) < 4000
        self.assertLess(power[low].sum() / power.sum(), 0.1)

    def test_not_needed(self) -> None:
        """What loses no bits is lossless: samples are unchanged, and silence stays silence."""
        sound = join(noise(44100, 22050, 1, 0.99), silence(44100, 22050))
        rows = {
            "8": ("f:wav", "f:flac"),
            "16": ("f:wav", "f:flac/q:12", "f:wav/t:0.1:0.2", "f:wav/gain:0", "f:wav/bd:24"),
            "24": ("f:wav", "f:flac", "f:wav/bd:32f", "f:flac/t:0.1"),
            "32f": ("f:wav",),
        }
        sources = {depth: write_wav(sound, depth) for depth in rows}
        flac = convert_all(sources["24"], {"24 in flac": "-f flac"})
        sources |= flac
        for depth, source in sources.items():
            original = decode(sources[depth[:2] if depth in flac else depth])
            texts = rows.get(depth, ("f:wav", "f:flac"))
            for text, heard in render_and_decode_all(source, texts).items():
                start = 4410 if "t:0.1" in text else 0
                part = original.part(start, start + len(heard))
                self.assertEqual(heard, part, (depth, text))
                self.assertEqual(len(heard), 8820 if ":0.2" in text else 22050 - start)

    def test_full_scale(self) -> None:
        """Dither never makes full scale overflow."""
        source = write_wav(constant(44100, 44100, 1.0, -1.0), "24")
        high, low = render_and_decode(source, "f:wav/bd:16").channels
        self.assertGreater(high.min(), 0.9999)
        self.assertLess(low.max(), -0.9999)

    def test_24_bits(self) -> None:
        """Reductions to 24 bits are dithered too: a tone below a step has no harmonics."""
        rate = 48000
        source = write_wav(tone(rate, 4 * rate, 997, amplitude=10 ** (-138 / 20)), "32f")
        heard = middle(render_and_decode(source, "f:wav/bd:24"))
        self.assertLess(worst_spur(heard, rate, 997), -165)


class ChannelTests(SynchronousTestCase):
    """Downmixes by ITU-R BS.775, and ``enhance:voice`` (D60)."""

    def test_coefficients(self) -> None:
        """Each channel has the gain of BS.775, LFE has none, and full scale does not clip.

        Mono is copied to both sides, and mono of stereo is the mean.
        """
        half, lower = 0.5, np.sqrt(0.5)
        layouts = (
            (None, [1], [1]),
            (None, [1, 0], [0, 1]),
            # FL FR FC LFE BL BR, and with SL SR.
            (0x3F, [1, 0, lower, 0, lower, 0], [0, 1, lower, 0, 0, lower]),
            (0x60F, [1, 0, lower, 0, lower, 0], [0, 1, lower, 0, 0, lower]),
            (0x63F, [1, 0, lower, 0, *[lower, 0] * 2], [0, 1, lower, 0, *[0, lower] * 2]),
            (0x33, [1, 0, lower, 0], [0, 1, 0, lower]),
            (0x107, [1, 0, lower, half], [0, 1, lower, half]),
        )
        rate = 8000
        for mask, left, right in layouts:
            hertz = [500 + 250 * number for number in range(len(left))]
            tones = tone(rate, rate, *hertz, amplitude=0.9).channels
            loud = constant(rate, rate, *[1.0] * len(left)).channels
            source = write_wav(Sound(rate, np.concatenate((tones, loud), axis=1)), "24", mask)
            rows = np.array([left, right])
            mono = [np.sqrt(0.5) * rows.sum(axis=0)]
            texts = {"f:wav/bd:32f/ch:2": rows, "f:wav/bd:32f/ch:1": np.array(mono)}
            for text, heard in render_and_decode_all(source, texts).items():
                self.assertLessEqual(peak(heard.channels), 0.0001)
                expected = texts[text] / texts[text].sum(axis=1).max()
                for channel, gains in zip(heard.part(0, rate).channels, expected, strict=True):
                    levels = np.array([strength(channel, each, rate) for each in hertz])
                    found = 10 ** (levels / 20) / 0.9
                    np.testing.assert_allclose(found, gains, atol=1e-5, err_msg=f"{mask} {text}")

    def test_alike_at_every_rate(self) -> None:
        """``enhance:voice`` changes a voice alike at every sample rate of the source.

        Sibilants gain at least 2.5 dB less than vowels, although the compressor lowers vowels.
        """
        changes = []
        for rate in (22050, 32000, 44100, 48000, 88200, 96000, 192000):
            length = 3 * rate // 2
            sounds = [
                chord(rate, length, hertz, 0.015)
                for hertz in (range(150, 3600, 173), range(5000, 9500, 231))
            ]
            both = np.concatenate([sound.channels for sound in sounds], axis=1)
            source = write_wav(Sound(rate, both), "32f")
            heard = render_and_decode(source, "f:wav/bd:32f/enhance:voice")
            for start, sound in zip((0, length), sounds, strict=True):
                part = heard.part(start, start + length)
                changes.append(level(middle(part)) - level(middle(sound)))
        vowels, sibilants = changes[::2], changes[1::2]
        for found in (vowels, sibilants):
            self.assertLess(max(found) - min(found), 0.1, found)
        self.assertGreater(min(vowels) - max(sibilants), 2.5)
