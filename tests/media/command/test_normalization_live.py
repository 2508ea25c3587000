"""``norm`` of brief sounds, as ffmpeg renders them."""

from __future__ import annotations

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from tests.support.audio import (
    Sound,
    convert,
    noise,
    render_and_decode,
    render_and_decode_all,
    silence,
    tone,
    write_wav,
)
from tests.support.measures import correlation, level, peak

PLAIN, NORM = "f:wav/bd:32f", "f:wav/bd:32f/norm:ebu"


def repeated(sound: Sound) -> Sound:
    """Return a sound repeated to the length of a block of the measurement."""
    length = sound.rate * 2 // 5
    copies = np.tile(sound.channels, -(-length // len(sound)))
    return Sound(sound.rate, copies[:, :length])


class BriefSoundTests(SynchronousTestCase):
    """A sound that is shorter than EBU R 128 can measure."""

    def assert_normalized(self, source: bytes, trim: str = "") -> None:
        """Compare ``norm`` of a sound with ``norm`` of the sound repeated to 0.4 seconds."""
        sounds = render_and_decode_all(source, [PLAIN + trim, NORM + trim])
        plain, found = sounds[PLAIN + trim], sounds[NORM + trim]
        self.assertEqual(len(found), len(plain), trim)
        expected = render_and_decode(write_wav(repeated(plain), "32f"), NORM).part(0, len(plain))
        about = (plain.rate, len(plain), trim)
        self.assertLess(abs(level(found.channels) - level(expected.channels)), 0.1, about)
        for one, other in zip(found.channels, expected.channels, strict=True):
            self.assertGreater(correlation(one, other), 0.999, about)

    def test_gain(self) -> None:
        """Its gain is that of the sound repeated to 0.4 seconds, at each rate and level."""
        for rate, length in ((48000, 14400), (44100, 5000), (44100, 17639), (8000, 900)):
            for loudness in (0.005, 0.9):
                sound = noise(rate, length, channels=2, amplitude=loudness)
                self.assert_normalized(write_wav(sound, "32f"))
        self.assert_normalized(write_wav(tone(1000, 150, 90), "32f"))

    def test_brief_after_another_stage(self) -> None:
        """Silence that a stage needs after a sound of few samples does not lower its loudness."""
        wav = write_wav(noise(44100, 19845, amplitude=0.01))
        texts = [NORM, f"{NORM}/sr:8000"]
        whole, slow = render_and_decode_all(wav, texts).values()
        reference = render_and_decode(write_wav(whole, "32f"), f"{PLAIN}/sr:8000")
        self.assertLess(abs(level(slow.channels) - level(reference.channels)), 0.1)

    def test_trim(self) -> None:
        """A brief trim has the gain of what it leaves, also at the end of a source."""
        sound = noise(48000, 96000)
        sound = Sound(48000, sound.channels * np.linspace(0.01, 1, 96000, dtype=np.float32))
        wav = write_wav(sound, "32f")
        for source in (wav, convert(wav, "-c:a libopus -f webm"), convert(wav, "-f adts")):
            for trim in ("/t:0.5:0.3", "/t:1.8", "/t:1.9:5"):
                self.assert_normalized(source, trim)

    def test_other_stages(self) -> None:
        """It is faded, enhanced and resampled like any other."""
        source = write_wav(noise(44100, 6000, channels=2))
        texts = [f"{NORM}{more}" for more in ("", "/fade:0:0.1", "/sr:8000", "/enhance:voice/ch:1")]
        sounds = render_and_decode_all(source, texts)
        whole, faded, slow, enhanced = (sounds[text] for text in texts)
        self.assertEqual([len(sound) for sound in (whole, faded, enhanced)], [6000] * 3)
        self.assertEqual(len(slow), 1088)
        self.assertEqual(whole.part(0, 1590), faded.part(0, 1590))
        self.assertLess(peak(faded.channels[:, -20:]), -40)
        self.assertGreater(level(enhanced.channels), -40)


class SilenceTests(SynchronousTestCase):
    """Digital silence has no loudness."""

    def test_silence(self) -> None:
        """It stays silence, however brief it is."""
        for seconds in (0.1, 0.5, 2.5, 4):
            source = write_wav(silence(48000, int(seconds * 48000), 2))
            found = render_and_decode(source, NORM)
            self.assertEqual(len(found), seconds * 48000)
            self.assertEqual(np.abs(found.channels).max(), 0, seconds)
