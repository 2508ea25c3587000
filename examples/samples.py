"""Folder with sample audio and a generated key, shared by the examples.

Missing files are created, and kept for the next run.
"""

from __future__ import annotations

import secrets
import subprocess
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 44100

#: Samples from -1 to 1, with one column for each channel.
Sound = NDArray[np.float64]

# A minor pentatonic tune: semitones above A3 and beats, at 200 beats a minute.
TUNE = [(0, 2), (3, 1), (5, 1), (7, 2), (10, 1), (7, 1), (5, 2), (3, 1), (0, 1), (-2, 2), (0, 4)]
BEAT = 0.3
ROUNDS = 2

# Four chords, again in semitones above A3: A minor, F, C, G.
CHORDS = [(0, 3, 7, 12), (-4, 0, 3, 8), (3, 7, 10, 15), (-2, 2, 5, 10)]
QUAVER = 0.25
BARS = 12


@dataclass(frozen=True)
class Home:
    """The working folder of an example."""

    path: Path

    @property
    def samples(self) -> Path:
        """Folder of the sources."""
        return self.path / "samples"

    @property
    def variants(self) -> Path:
        """Folder of the variant store."""
        return self.path / "variants"

    def settings(self) -> dict[str, str]:
        """Return the settings of a service that uses this folder; create missing files."""
        self.variants.mkdir(parents=True, exist_ok=True)
        return {
            "AP_KEY": self._secret("key", 32),
            "AP_SALT": self._secret("salt", 16),
            "AP_LOCAL_ROOT": str(self.samples),
            "AP_VARIANT_STORE": f"file://{self.variants}",
            "AP_SERVE_MODE": "proxy",
        }

    def write_settings(self, settings: dict[str, str]) -> Path:
        """Write settings to an environment file for the commands, and return its path."""
        file = self.path / "audioproxy.env"
        # The file contains the key.
        file.touch(mode=0o600)
        # A value in double quotes may contain an apostrophe.
        quoted = {k: f'"{v}"' if "'" in v else f"'{v}'" for k, v in settings.items()}
        file.write_text("".join(f"{name}={text}\n" for name, text in quoted.items()))
        return file

    def make_samples(self) -> None:
        """Synthesize a tune, a drone and a small piece, each in one or two formats."""
        self.samples.mkdir(parents=True, exist_ok=True)
        self._make("melody.flac", melody)
        self._make("melody.wav", melody)
        self._make("drone.mp3", drone)
        self._make("drone.ogg", drone)
        self._make("nocturne.flac", nocturne, title="Nocturne", artist="The sample synthesiser")

    def _secret(self, name: str, size: int) -> str:
        path = self.path / name
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(size))
        return path.read_text()

    def _make(self, name: str, sound: Callable[[], Sound], **tags: str) -> None:
        target = self.samples / name
        if target.exists():
            return
        # The final name appears only when the file is complete.
        raw, made = target.with_name(".raw.wav"), target.with_name(f".made{target.suffix}")
        write_wav(raw, sound())
        command: list[str | Path] = ["ffmpeg", "-v", "error", "-nostdin", "-y", "-i", raw]
        for key, text in tags.items():
            command += ["-metadata", f"{key}={text}"]
        subprocess.run([*command, made], check=True)
        raw.unlink()
        made.rename(target)


def melody() -> Sound:
    """Return the tune, as plucked notes that decay."""
    notes = [pluck(pitch(semitones), beats * BEAT, 3) for semitones, beats in TUNE * ROUNDS]
    return 0.5 * np.concatenate(notes)[:, None]


def drone() -> Sound:
    """Return a fifth whose level rises and falls."""
    seconds = 8.0
    t = times(seconds)
    swell = 0.5 - 0.5 * np.cos(np.pi * 2 * t / seconds)
    return (0.2 * swell * (tone(110, t) + tone(165, t)))[:, None]


def nocturne() -> Sound:
    """Return broken chords that move between left and right, above a bass, and a distant bell."""
    bar = 8 * QUAVER
    sound = np.zeros((round((BARS * bar + 2) * RATE), 2))
    for number in range(BARS):
        chord = CHORDS[number % len(CHORDS)]
        # The level rises until the middle and falls again.
        weight = 0.35 + 0.65 * np.sin(np.pi * (number + 0.5) / BARS)
        add(sound, number * bar, 0.30 * weight, 0.5, pluck(pitch(chord[0] - 12), bar + 1, 1.2))
        for quaver, step in enumerate((0, 1, 2, 3, 2, 1, 2, 1)):
            side = 0.5 + 0.35 * np.sin(np.pi * 2 * (number * 8 + quaver) / 24)
            note = pluck(pitch(chord[step] + 12), 1.5, 4)
            accent = 0.22 if quaver % 4 == 0 else 0.14
            add(sound, number * bar + quaver * QUAVER, accent * weight, side, note)
        if number % 4 == 3:
            add(sound, number * bar + 6 * QUAVER, 0.1, 0.8, pluck(pitch(36), 2.0, 2))
    return 0.8 * sound / np.abs(sound).max()


def add(sound: Sound, start: float, volume: float, side: float, note: NDArray[np.float64]) -> None:
    """Mix a note into a sound.

    :param side: position from 0 (left) to 1 (right).
    """
    first = round(start * RATE)
    room = sound[first : first + len(note)]
    room += volume * note[: len(room), None] * (1 - side, side)


def pitch(semitones: int) -> float:
    """Return the frequency of a note in semitones above A3."""
    return 220 * 2 ** (semitones / 12)


def pluck(frequency: float, seconds: float, decay: float) -> NDArray[np.float64]:
    """Return a plucked note."""
    t = times(seconds)
    partials = sum(tone(frequency * k, t) / k**2 for k in (1, 2, 3))
    return partials * np.exp(-decay * t) * np.minimum(1, t * RATE / 200)


def tone(frequency: float, t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a sine tone."""
    return np.sin(np.pi * 2 * frequency * t)


def times(seconds: float) -> NDArray[np.float64]:
    """Return the time of each sample."""
    return np.arange(round(seconds * RATE)) / RATE


def write_wav(path: Path, sound: Sound) -> None:
    """Write a sound as 16-bit WAV."""
    with wave.open(str(path), "wb") as file:
        file.setparams((sound.shape[1], 2, RATE, 0, "NONE", ""))
        file.writeframes((sound.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
