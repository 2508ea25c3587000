"""Sources that change inside, or hold samples that are no audio, through real ffmpeg."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import IrregularSource
from audioproxy.media.command.decoding import decoder_arguments, single_process
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import encoder_arguments
from audioproxy.media.inputs import local_input
from tests.support.audio import (
    Sound,
    convert,
    convert_all,
    decode,
    decode_all,
    measure,
    noise,
    options_of,
    probe,
    read_wav,
    render_all,
    render_and_decode,
    render_and_decode_all,
    render_once,
    riff,
    run,
    tone,
    write_wav,
)
from tests.support.measures import level, peak, strength

RATE = 44100
# Samples of sources with samples that are no audio.
LENGTH = 2 * RATE
# The value of a sample that is no audio.
HUGE = 1e30
BARE = "-b:a 128k -write_xing 0 -id3v2_version 0 -f mp3"
SURROUND = "-af pan=5.1|FL=c0|FR=c0|FC=c0|LFE=0*c0|BL=c0|BR=c0 -c:a ac3 -b:a 384k -f ac3"

#: The files of which each source consists: of a tone of 440 Hz, then of one of 1000 Hz.
JOINED = {
    "mono, stereo": ("mono", "stereo 2"),
    "stereo, mono": ("stereo", "mono 2"),
    "44, 48": ("stereo", "48"),
    "stereo, 5.1": ("ac3", "5.1"),
    "adts": ("adts", "adts 2"),
    "flac": ("flac", "flac 48"),
    # One damaged frame header that claims other channels.
    "one frame": ("stereo", "frame", "stereo 2"),
    # An advertisement.
    "between": ("mono", "48", "mono 2"),
}

#: Seconds that the resampler loses at most at a change of the sample rate.
LOSS = 0.005


@cache
def parts() -> dict[str, bytes]:
    """Return two seconds of each tone, in files that can be joined."""
    low, high = (write_wav(tone(RATE, 2 * RATE, hertz, hertz)) for hertz in (440, 1000))
    first = {
        "mono": f"-ac 1 -c:a libmp3lame {BARE}",
        "stereo": f"-ac 2 -c:a libmp3lame {BARE}",
        "ac3": "-ac 2 -c:a ac3 -f ac3",
        "adts": "-ac 1 -c:a aac -f adts",
        "flac": "-c:a flac -frame_size 4608 -serial_offset 1 -f ogg",
    }
    second = {
        "mono 2": f"-ac 1 -c:a libmp3lame {BARE}",
        "stereo 2": f"-ac 2 -c:a libmp3lame {BARE}",
        "48": f"-ac 2 -ar 48000 -c:a libmp3lame {BARE}",
        "5.1": SURROUND,
        "adts 2": "-ac 2 -c:a aac -f adts",
        "flac 48": "-ac 1 -ar 48000 -c:a flac -frame_size 4608 -serial_offset 9 -f ogg",
    }
    made = convert_all(low, first) | convert_all(high, second)
    return {**made, "frame": made["mono 2"][:417]}


@cache
def joined() -> dict[str, bytes]:
    """Return the sources that change inside."""
    return {name: b"".join(parts()[part] for part in names) for name, names in JOINED.items()}


@cache
def seconds() -> dict[str, float]:
    """Return the sum of the durations of the parts of each source."""
    sounds = decode_all({name: part for name, part in parts().items() if name != "frame"})
    lengths = {name: len(sound) / sound.rate for name, sound in sounds.items()} | {"frame": 0}
    return {name: sum(lengths[part] for part in names) for name, names in JOINED.items()}


class IrregularCase(SynchronousTestCase):
    """Base class of tests of irregular sources"""

    def render_irregular(self, source: bytes, texts: Iterable[str]) -> dict[str, bytes]:
        """Render an irregular source as the service does, and return the outputs."""
        texts = list(texts)
        for text in texts:
            self.assertRaises(IrregularSource, render_once, source, [text], irregular=False)
        return render_once(source, texts, irregular=True)


class ChangeTests(IrregularCase):
    """Sources whose rate, channels or sample format change inside (D63)."""

    def test_length(self) -> None:
        """Whole, faded, normalized or measured (D12), such a source has all of its audio."""
        for name, source in joined().items():
            texts = ["f:wav"]
            if name in ("mono, stereo", "44, 48"):
                texts += ["f:opus/enhance:voice/fade:1:1", "f:wav/norm:ebu"]
            sounds = decode_all(self.render_irregular(source, texts))
            for heard in sounds.values():
                missing = seconds()[name] - len(heard) / heard.rate
                self.assertLess(abs(missing), LOSS + 1152 / RATE * (name == "one frame"), name)
            length = measure(source).length
            self.assertEqual(length and length.samples, len(sounds["f:wav"]), name)

    def test_trim(self) -> None:
        """``t`` counts through a change, also if it starts after one (D63)."""
        for name in ("mono, stereo", "44, 48", "stereo, 5.1", "flac", "one frame"):
            source = joined()[name]
            regions = {"f:wav/bd:32f/t:1:2": 1, "f:wav/bd:32f/t:3:0.5": 3}
            sounds = render_and_decode_all(source, ["f:wav/bd:32f", *regions])
            whole = sounds.pop("f:wav/bd:32f")
            for text, heard in sounds.items():
                at = regions[text] * heard.rate
                self.assertEqual(len(heard) / heard.rate, float(text.split(":")[-1]), (name, text))
                difference = heard.channels - whole.part(at, at + len(heard)).channels
                self.assertLess(peak(difference), -60, (name, text))

    def test_fades(self) -> None:
        """Fades are at both ends of the whole source, and nowhere else (D12)."""
        texts = ("f:wav/bd:32f", "f:wav/bd:32f/fade:1:1")
        for name in ("mono, stereo", "between"):
            outputs = self.render_irregular(joined()[name], texts)
            plain, faded = (read_wav(outputs[text]) for text in texts)
            same = slice(plain.rate + 10, len(plain) - plain.rate - 10)
            self.assertTrue(np.array_equal(plain.channels[:, same], faded.channels[:, same]), name)
            self.assertLess(level(faded.channels[0][-plain.rate // 10 :]), -20, name)

    def test_level(self) -> None:
        """A part with other channels keeps its level, and no sum exceeds full scale (D60)."""
        for name, lowest in (("mono, stereo", -0.5), ("stereo, mono", -0.5), ("stereo, 5.1", -9)):
            heard = render_and_decode(joined()[name], "f:wav/bd:32f")
            rate = heard.rate
            for channel in heard.channels:
                first = strength(channel[rate // 2 : 3 * rate // 2], 440, rate)
                second = strength(channel[5 * rate // 2 : 7 * rate // 2], 1000, rate)
                self.assertTrue(lowest < second - first < 0.5, (name, second - first))


def with_samples(*values: float, at: int, kind: str = "f") -> bytes:
    """Return two seconds of a tone as floats, in which a few samples have other values."""
    samples = tone(RATE, LENGTH, 440, amplitude=0.1).channels[0].astype(f"<{kind}")
    samples[at : at + len(values)] = values
    width = struct.calcsize(kind)
    head = struct.pack("<HHIIHH", 3, 1, RATE, RATE * width, width, 8 * width)
    return riff(head, samples.tobytes())


def before_filters(words: list[str], first: str) -> list[str]:
    """Return a command line with another filter ahead of its filters."""
    at = words.index("-af") + 1
    return [*words[:at], f"{first},{words[at]}", *words[at + 1 :]]


class SampleTests(IrregularCase):
    """Floating-point sources with samples that are no audio (D13).

    LAME 3.100 aborts at some of these samples, by an assertion, in every version of ffmpeg. The
    files here have others, of which it encodes noise.
    """

    def test_one_sample(self) -> None:
        """Huge samples become silence, anywhere and in every format."""
        clean, end = with_samples(0, at=50_000), LENGTH - 2
        texts = ["f:mp3", "f:peaks/pts:20", "f:flac/norm:ebu", "f:wav/bd:16"]
        texts += ["f:m4a/enhance:voice/gain:3", "f:opus/t:1:1", "f:ogg/fade:1:1"]
        for source, expected, tried in (
            (with_samples(HUGE, at=50_000), clean, texts),
            (with_samples(-HUGE, at=50_000, kind="d"), clean, texts[::4]),
            (with_samples(HUGE, at=0), with_samples(0, at=0), texts[2::4]),
            (with_samples(HUGE, -HUGE, at=end), with_samples(0, 0, at=end), texts[3::4]),
            # It begins with them, or has nothing else.
            *(
                (*(with_samples(*[each] * count, at=0) for each in (HUGE, 0)), tried)
                for count, tried in ((RATE, texts[::4]), (LENGTH, texts[3::4]))
            ),
        ):
            wanted, found = render_all(expected, tried), self.render_irregular(source, tried)
            self.assertEqual([text for text in tried if found[text] != wanted[text]], [])

    def test_no_number(self) -> None:
        """Samples that are no numbers are found, and become silence; here a filter makes them."""
        source = with_samples(0, at=50_000)
        found, options = probe(source), options_of("f:wav/bd:24")
        encoder = encoder_arguments("ffmpeg", local_input(), options, found)
        decoder = decoder_arguments("ffmpeg", local_input(), found)
        for value in ("nan", "inf", "-inf"):
            made = f"aeval=if(eq(n\\,50000)\\,{value}\\,val(ch)):c=same"
            stderr = run(before_filters(encoder, made), source).stderr
            self.assertRaises(IrregularSource, single_process(encoder, found).check, stderr)
            decoded = run(before_filters(decoder, made), source).stdout
            self.assertEqual(run(decoder, source).stdout, decoded, value)

    def test_containers(self) -> None:
        """In all containers of floating-point samples, a sample that is no audio is found."""
        forms = {"a.aiff": "-c:a pcm_f32be", "a.caf": "-c:a pcm_f64le", "a.mka": "-c:a copy"}
        forms |= {"a.wv": "-c:a wavpack", "a.w64": "-c:a copy"}
        for source in convert_all(with_samples(HUGE, at=50_000), forms).values():
            self.assertRaises(IrregularSource, render_once, source, ["f:mp3"], irregular=False)

    def test_headroom(self) -> None:
        """Samples over full scale are audio: they keep their values until the gain (D60)."""
        loud = write_wav(Sound(RATE, 4 * noise(RATE, RATE, 2).channels), "32f")
        heard, copied = render_and_decode_all(loud, ("f:wav/gain:-20", "f:wav")).values()
        self.assertLess(np.abs(heard.channels - copied.channels / 10).max(), 1e-6)

    def test_copies(self) -> None:
        """A copy of floating-point samples is exact, whatever they are."""
        source = with_samples(HUGE, -HUGE, at=50_000)
        heard = render_and_decode(source, "f:wav/t:1:1")
        expected = decode(source).part(RATE, 2 * RATE)
        self.assertEqual(heard, expected)
        # So it is for a node that knows the source as irregular.
        texts = ("f:wav", "f:wav/t:1:1")
        alone, behind = (render_once(source, texts, irregular=each) for each in (False, True))
        self.assertTrue(alone == behind)


class DamageTests(SynchronousTestCase):
    """Sources that lack packets, or most of whose frames cannot be decoded."""

    def test_one_length(self) -> None:
        """All formats of a source have all of its audio, its gaps, and no more (D57, D70)."""
        wav = write_wav(noise(48000, 3 * 48000, 2))
        stream = convert(wav, "-c:a mp2 -f mpegts")
        packets = len(stream) // 188
        lost = stream[: packets * 2 // 5 * 188] + stream[packets * 3 // 5 * 188 :]
        # Matroska, with a step of two seconds in its time stamps.
        stepped = convert(wav, "-af asetpts=N+gte(N\\,48000)*96000 -c:a libvorbis -f matroska")
        files = {"lost packets": (lost, 3), "a step": (stepped, 5)}
        texts = [f"f:{form}" for form in ENCODERS if form != "peaks"]
        for name, (source, seconds) in files.items():
            lengths = [len(heard) for heard in render_and_decode_all(source, texts).values()]
            self.assertLess(abs(min(lengths) - seconds * 48000), 3 * 1152, name)
            self.assertLessEqual(max(lengths) - min(lengths), 3 * 1024, (name, lengths))

    def test_most_frames(self) -> None:
        """All audio is rendered, however many frames after it are damaged (D13)."""
        audio = convert(write_wav(tone(RATE, RATE // 2, 440)), f"-c:a libmp3lame {BARE}")
        source = audio + (b"\xff\xfb\x90\xc4" + b"\xff" * 413) * 100
        for heard in render_and_decode_all(source, ("f:wav", "f:mp3", "f:opus")).values():
            first = heard.channels[0][: heard.rate // 2]
            self.assertGreater(strength(first, 440, heard.rate), -10)
