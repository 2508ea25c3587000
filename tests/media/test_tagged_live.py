"""Sources behind ID3v2 tags: those that ffmpeg finds by itself, and those that it does not."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import Refusal
from tests.support.audio import (
    Sound,
    convert_all,
    noise,
    probe,
    render,
    render_all,
    render_and_decode_all,
    write_wav,
)

#: ffmpeg's arguments for sources without tags, by the container that ffprobe names.
KINDS = {
    "flac": "-c:a flac -f flac",
    "tta": "-f tta",
    "wv": "-f wv",
    "wav": "-f wav",
    "aiff": "-f aiff",
    "matroska": "-c:a flac -f matroska",
    "ogg": "-c:a libopus -f ogg",
    "mp3": "-c:a libmp3lame -f mp3",
    "aac": "-c:a aac -f adts",
    "loas": "-c:a aac -f latm",
    "ac3": "-f ac3",
    "dts": "-c:a dca -strict -2 -f dts",
}
TEXTS = [f"f:wav/bd:32f{part}" for part in ("", "/t:1.7", "/fade:0.1:0.1/t:1.1:0.2")]


def tag(size: int) -> bytes:
    """Return an ID3v2.4 tag with a title and a picture of some bytes."""
    picture = b"\0image/jpeg\0\x03\0\xff\xd8\xff\xe0" + random.Random(1).randbytes(size)
    frames = b"".join(
        name + synchsafe(len(body)) + b"\0\0" + body
        for name, body in ((b"TIT2", b"\x03A title"), (b"APIC", picture))
    )
    return b"ID3\4\0\0" + synchsafe(len(frames)) + frames


def synchsafe(size: int) -> bytes:
    return bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))


@cache
def bare() -> dict[str, bytes]:
    """Return a file of two seconds in each container."""
    return convert_all(write_wav(noise(44100, 88_200, 2)), KINDS)


@cache
def expected() -> dict[str, dict[str, Sound]]:
    """Return what is rendered of each file."""
    return {kind: render_and_decode_all(file, TEXTS) for kind, file in bare().items()}


class TaggedTests(SynchronousTestCase):
    """Files behind tags"""

    def assert_same(self, sources: Iterable[tuple[str, bytes]]) -> None:
        """Require that each file behind tags has the audio of the bare file, from any position.

        :param sources: kinds, and files of them behind tags.
        """
        for kind, source in sources:
            self.assertEqual(probe(source).container, kind)
            for text, sound in render_and_decode_all(source, TEXTS).items():
                self.assertTrue(sound == expected()[kind][text], (kind, text, len(sound)))

    def test_large(self) -> None:
        """A file behind a cover of print size is rendered whole (D13)."""
        large = tag(1_200_000)
        self.assert_same((kind, large + file) for kind, file in bare().items())
        for kind, file in bare().items():
            if kind not in ("aac", "loas"):
                stated = probe(large + file).description.duration
                self.assertEqual(stated, probe(file).description.duration, kind)

    def test_several(self) -> None:
        """A file behind two tags, or behind a tag and zeros, is rendered whole (D13)."""
        two, zeros = tag(1000) + tag(2000), tag(5000) + bytes(3000)
        self.assert_same((kind, two + file) for kind, file in bare().items())
        self.assert_same((kind, zeros + file) for kind, file in bare().items())

    def test_one(self) -> None:
        """A file behind a tag of usual size is rendered whole on each version of ffmpeg (D13)."""
        self.assert_same((kind, tag(60_000) + file) for kind, file in bare().items())

    def test_tags(self) -> None:
        """The info document has the title of the ID3v2 tag, whatever ffprobe makes of the file."""
        kinds = ("wav", "wv", "ac3", "aac", "matroska")
        layouts = (tag(1_200_000), tag(1000) + tag(2000), tag(5000) + bytes(3000))
        for kind, tags in product(kinds, layouts):
            found = probe(tags + bare()[kind]).description
            self.assertEqual(found.tags.get("title"), "A title", kind)

    def test_peaks(self) -> None:
        """A waveform whose samples are read without ffmpeg is that of the samples, too."""
        for kind in ("wav", "aiff", "wv"):
            file = bare()[kind]
            sources = file, tag(1000) + tag(2000) + file, tag(1_200_000) + file
            self.assertEqual(1, len({render(source, "f:peaks/pts:20") for source in sources}), kind)

    def test_mp4(self) -> None:
        """MP4 behind a tag is refused: ffmpeg would read other bytes of it as samples."""
        words = {"pcm": "-c:a pcm_s16le -f mov", "aac": "-c:a aac -f mp4"}
        for file in convert_all(write_wav(noise(44100, 44100)), words).values():
            for tags in (tag(1000), tag(1000) + tag(1000), tag(1_200_000)):
                self.assertRaises(Refusal, render_all, tags + file, ["f:wav"])
