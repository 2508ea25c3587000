"""Effect of the options on the audio, measured on the decoded samples of real renders."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from tests.support.audio import (
    Samples,
    Sound,
    constant,
    convert,
    convert_all,
    decode,
    decode_all,
    measure,
    measure_loudness,
    noise,
    probe,
    render,
    render_all,
    render_and_decode,
    render_and_decode_all,
    tone,
    write_wav,
)
from tests.support.measures import correlation, level, peak, strength
from tests.support.riff import dsf

#: Arguments that convert a wav file to each kind of source.
KINDS = {
    "flac": "-c:a flac -f flac",
    "mp3": "-c:a libmp3lame -b:a 128k -f mp3",
    "ogg": "-c:a libvorbis -f ogg",
    # Without perceptual noise substitution, whose noise differs between decoder runs.
    "m4a": "-c:a aac -aac_pns 0 -f mp4",
    # These two do not state their length, as from an encoder that writes to a pipe.
    "streamed mp3": "-c:a libmp3lame -b:a 128k -write_xing 0 -f mp3",
    "streamed flac": "-c:a flac -f flac",
}

#: Options of a variant that has the samples of its source.
PLAIN = "f:wav/bd:32f"
#: Samples of a recording, of 2.4 seconds.
LENGTH = 105_840


@cache
def recordings() -> dict[str, bytes]:
    """Return noise, which never repeats, in each container."""
    wav = write_wav(noise(44100, LENGTH))
    found = {"wav": wav, **convert_all(wav, KINDS)}
    flac = found["streamed flac"]
    unstated = (int.from_bytes(flac[18:26], "big") >> 36 << 36).to_bytes(8, "big")
    return {**found, "streamed flac": flac[:18] + unstated + flac[26:]}


def faded(whole: Sound, fade_in: int, fade_out: int) -> Samples:
    """Return the samples with linear fades of these lengths at both ends."""
    at = np.arange(len(whole))
    rise, fall = at / max(fade_in, 1), (len(whole) - at) / max(fade_out, 1)
    return whole.channels * np.minimum(1, np.minimum(rise if fade_in else 1, fall))


class TrimTests(SynchronousTestCase):
    """Trims and fades: ``t`` and ``fade`` (Time-domain and preview options)."""

    def test_noise_of_the_codec(self) -> None:
        """A trim of AAC with noise substitution gives the same bytes on every run (D44)."""
        source = convert(recordings()["wav"], *"-c:a aac -f mp4".split())
        first, second = (render(source, "f:wav/t:2.2") for _ in range(2))
        self.assertEqual(first, second)

    def test_in_a_region(self) -> None:
        """Both fades are linear, in the region; a longer one covers the whole source (D12)."""
        source = write_wav(constant(8000, 16000, 0.5, -0.5))
        whole = decode(source)
        fades = {
            f"{PLAIN}/t:0.5:1/fade:0.25:0.125": faded(whole.part(4000, 12000), 2000, 1000),
            f"{PLAIN}/fade:0:60": faded(whole, 0, 16000),
        }
        for text, heard in render_and_decode_all(source, fades).items():
            # The filter scales 16-bit samples as integers.
            np.testing.assert_allclose(heard.channels, fades[text], atol=1e-4, err_msg=text)


class LevelTests(SynchronousTestCase):
    """Static gain and loudness normalization (Time-domain and preview options)."""

    def test_decibels(self) -> None:
        """``gain`` changes the level by exactly the given number of dB; 0 changes no sample."""
        source = write_wav(noise(44100, 22050, 1, 0.1), "24")
        whole = decode(source)
        gains = {f"{PLAIN}/gain:{gain}": gain for gain in (3.5, -0.125, -20.001, -60.0, 14.25, 0)}
        for text, heard in render_and_decode_all(source, gains).items():
            change = level(heard.channels) - level(whole.channels)
            self.assertApproximates(change, gains[text], 0.01)
        self.assertEqual(heard, whole)

    def test_loudness(self) -> None:
        """``norm`` reaches the requested loudness, and keeps rate, length and timing.

        ``gain`` applies on top; ``sr``, ``ch`` and ``t`` combine with ``norm``. A lossy encoder
        keeps loudness and rate (Format and encoding options, 3).
        """
        source = write_wav(noise(22050, 5 * 22050, 2, 0.01))
        self.assertLess(measure_loudness(source).loudness.integrated, -30)
        rows = {
            f"{PLAIN}/norm:ebu": (-16, 22050),
            f"{PLAIN}/norm:ebu:-23:-2:7": (-23, 22050),
            f"{PLAIN}/norm:ebu:-20/sr:48000/gain:-6": (-26, 48000),
            f"{PLAIN}/norm:ebu:-20/t:1.25:4/ch:1": (-20, 22050),
            "f:opus/norm:ebu:-18": (-18, 48000),
        }
        outputs = render_all(source, rows)
        sounds = decode_all(outputs)
        for text, (target, rate) in rows.items():
            self.assertEqual(sounds[text].rate, rate, text)
            found = measure_loudness(outputs[text]).loudness.integrated
            self.assertApproximates(found, target, 0.5, text)
        whole = decode(source)
        for text in list(rows)[:2]:
            self.assertEqual(len(sounds[text]), len(whole))
            # The audio is not shifted in time.
            for at in (100, 55_000, 105_000):
                stretch = (sound.channels[1][at : at + 4000] for sound in (sounds[text], whole))
                self.assertGreater(correlation(*stretch), 0.95)

    def test_after_a_seek(self) -> None:
        """``norm`` and other stages work where ffmpeg seeks to the start of ``t`` (D13)."""
        stages = ("norm:ebu", "norm:ebu/sr:48000/fade:0.1", "enhance:voice", "ch:1/gain:2")
        texts = [f"f:wav/{stage}/t:3:0.5" for stage in stages]
        stereo = write_wav(noise(44100, 4 * 44100, 2), "24")
        forms = {"mono.flac": "-ac 1", "stereo.flac": ""}
        for name, source in convert_all(stereo, forms).items():
            for text, heard in render_and_decode_all(source, texts).items():
                self.assertEqual(len(heard), heard.rate // 2, (name, text))

    def test_last_frame(self) -> None:
        """``norm`` keeps the length of sources that end with a frame of loudnorm, or close to it.

        At some lengths, ffmpeg 7.1.5 aborts by an assertion if a resampler follows loudnorm
        directly: `tests.media.command.test_filters` shows what is between them.
        """
        rows = (
            *((44100, 132_300), (44100, 180_000), (48000, 144_000), (8000, 30_001)),
            # At 88.2 kHz, loudnorm may add a sample (D57).
            (88200, 150_003),
        )
        for rate, length in rows:
            heard = render_and_decode(write_wav(noise(rate, length)), f"{PLAIN}/norm:ebu")
            self.assertEqual(len(heard), length, (rate, length))

    def test_short_sources(self) -> None:
        """``norm`` keeps the length of the shortest sources; a trim without samples is refused."""
        for length, name in ((1, "wav"), (4409, "wav"), (1, "au"), (40, "flac")):
            source = write_wav(noise(44100, length))
            source = source if name == "wav" else convert(source, name=f"a.{name}")
            heard = render_and_decode(source, f"{PLAIN}/norm:ebu")
            self.assertEqual(len(heard), length, name)
        cut, text = recordings()["flac"][: len(recordings()["flac"]) // 2], "t:1.5:0.001"
        error = self.assertRaises(InvalidOptions, render, cut, f"{PLAIN}/norm:ebu/{text}")
        self.assertIn(f'"{text}"', str(error))
        short = convert(write_wav(noise(44100, 50)), KINDS["ogg"])
        chained = recordings()["ogg"] + short
        lengths = {len(render_and_decode(chained, PLAIN + norm)) for norm in ("", "/norm:ebu")}
        self.assertEqual(len(lengths), 1, lengths)


class EnhanceTests(SynchronousTestCase):
    """Enhancement preset: ``enhance:voice`` (Time-domain and preview options)."""

    def test_any_channels(self) -> None:
        """Any number of channels is enhanced (D51) and measured (D12), labeled or not."""
        rows = ((1, None), (2, None), (3, None), (6, 0x3F), (9, None), (64, None))
        for channels, mask in rows:
            source = write_wav(noise(44100, 8820, channels, 0.3), "16", mask)
            length = measure(source).length
            self.assertEqual(length and length.samples, 8820, channels)
            outputs = 2 - channels % 2
            heard = render_and_decode(source, f"f:wav/ch:{outputs}/enhance:voice")
            self.assertEqual((8820, outputs), (len(heard), len(heard.channels)))
            self.assertGreater(peak(heard.channels[0]), -40, channels)

    def test_position(self) -> None:
        """``enhance``, alone or with ``t`` or ``norm``, keeps length and position in time."""
        voice = f"{PLAIN}/enhance:voice"
        texts = (voice, f"{voice}/t:0.25:1.5", f"{voice}/norm:ebu")
        for rate in (8000, 44100, 48000):
            source = write_wav(noise(rate, 2 * rate + 7, 1, 0.3))
            whole = decode(source)
            trimmed = whole.part(rate // 4, rate // 4 * 7)
            aligned = dict(zip(texts, (whole, trimmed, whole), strict=True))
            for text, heard in render_and_decode_all(source, texts).items():
                given, size = aligned[text], 3000
                self.assertEqual((heard.rate, len(heard)), (given.rate, len(given)), text)
                for at in (len(given) // 2, len(given) - size - 2000):
                    got = heard.channels[0][at : at + size]
                    lags = (-2 * rate // 80, -rate // 80, -2, -1, 0, 1, 2, 240, 1102)
                    found = {
                        lag: correlation(got, given.channels[0][at + lag : at + lag + size])
                        for lag in lags
                    }
                    self.assertEqual(max(lags, key=found.__getitem__), 0, (text, found))

    def test_rumble_and_hiss(self) -> None:
        """``enhance`` attenuates rumble below a voice and the noise behind it."""
        rate = 44100
        hiss = noise(rate, 2 * rate, 1, 0.004)
        rumble = tone(rate, 2 * rate, 40, amplitude=0.05)
        rumbling = Sound(rate, rumble.channels + hiss.channels)
        # Both levels after ``enhance`` include the compressor's make-up gain of 3 dB.
        for sound, find_level, least in (
            (rumbling, lambda samples: strength(samples, 40, rate), 8),
            (hiss, level, 5),
        ):
            source = write_wav(sound, "32f")
            heard = render_and_decode(source, f"{PLAIN}/enhance:voice")
            before, after = (find_level(each.part(rate).channels[0]) for each in (sound, heard))
            self.assertGreater(before - after, least)

    def test_ceiling(self) -> None:
        """``enhance`` limits peaks to 1 dB below full scale, however loud the source is."""
        voice = tone(44100, 44100, 300, amplitude=2.5)
        noisy = Sound(44100, voice.channels + noise(44100, 44100, 1, 0.5).channels)
        source = write_wav(noisy, "32f")
        highest = peak(render_and_decode(source, f"{PLAIN}/enhance:voice").channels)
        self.assertTrue(-3 < highest <= -1, highest)


class QualityTests(SynchronousTestCase):
    """Bit depth, bit rate and quality: ``bd``, ``br``, ``q`` (Format and encoding options)."""

    def test_depths(self) -> None:
        """A file has the bit depth of ``bd``.

        Without ``bd`` the depth is the source's or the nearest that the format supports. A source
        without a bit depth gives 16 bits (Format and encoding options, 1), and DSD 24 (D69).
        """
        short, bits = noise(8000, 400), random.Random(1).randbytes(4096 * 16)
        requested = {f"f:{form}/bd:{bits}": bits for form in ("wav", "flac") for bits in (16, 24)}
        rows = (
            ("8", write_wav(short, "8"), 8, 16, 16),
            ("32", write_wav(short, "32"), 32, 32, 24),
            ("32f", write_wav(short, "32f"), 32, 32, 24),
            ("24 in FLAC", convert(write_wav(short, "24"), KINDS["flac"]), 24, 24, 24),
            ("mp3", recordings()["mp3"], None, 16, 16),
            ("DSD", dsf(8 * len(bits), bits, channels=1), 8, 24, 24),
        )
        texts = ("f:wav", "f:flac", PLAIN, *requested)
        for what, source, stated, wav, flac in rows:
            self.assertEqual(probe(source).description.bit_depth, stated, what)
            depths = {"f:wav": wav, "f:flac": flac, PLAIN: 32, **requested}
            found = {}
            for text, file in render_all(source, texts).items():
                # The header of wav, or that of FLAC.
                depth = int.from_bytes(file[34:36], "little")
                is_wav = file[:4] == b"RIFF"
                found[text] = depth if is_wav else (file[20] << 8 | file[21]) // 16 % 32 + 1
            self.assertEqual(depths, found, what)

    def test_quality(self) -> None:
        """``q`` makes files larger or smaller, as each codec defines; Opus has other bytes."""
        rising = {
            "mp3": ("9", "0"),
            "ogg": ("-1", "-0.5", "0", "1", "5", "10"),
            "aac": ("0.1", "2"),
            "m4a": ("0.1", "2"),
        }
        texts = [f"f:{form}/q:{q}" for form, qualities in rising.items() for q in qualities]
        outputs = render_all(recordings()["wav"], texts)
        for form, qualities in rising.items():
            sizes = [len(outputs[f"f:{form}/q:{q}"]) for q in qualities]
            self.assertEqual(sorted(set(sizes)), sizes, form)
            self.assertLess(2 * sizes[0], sizes[-1], form)
        music = write_wav(tone(44100, 22050, 300, 500))
        texts = ["f:flac/q:12", "f:flac/q:0", "f:opus/q:0", "f:opus/q:10"]
        small, large, fast, slow = render_all(music, texts).values()
        self.assertLess(len(small), len(large))
        self.assertNotEqual(fast, slow)
