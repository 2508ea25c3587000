"""Sources behind ID3v2 tags: those that ffmpeg finds by itself, and those that it does not."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from tests.support.audio import (
    Sound,
    convert_all,
    noise,
    probe,
    render,
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
#: Kinds whose title is compared.
TITLED = ("wav", "wv", "ac3", "aac", "matroska")
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


#: What precedes a file.
LAYOUTS = {
    "usual": tag(60_000),
    "print size": tag(1_200_000),
    "two": tag(1000) + tag(2000),
    "zeros": tag(5000) + bytes(3000),
}


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

    def test_same_audio(self) -> None:
        """A file behind tags has the audio of the bare file, from any position (D13).

        The info document has its duration, and the title that the service reads from the tag.
        """
        for (layout, tags), (kind, file) in product(LAYOUTS.items(), bare().items()):
            found, what = probe(tags + file), (layout, kind)
            self.assertEqual(found.container, kind, what)
            if kind in TITLED and layout != "usual":
                self.assertEqual(found.description.tags.get("title"), "A title", what)
            if kind not in ("aac", "loas"):
                self.assertEqual(found.description.duration, probe(file).description.duration, what)
            for text, sound in render_and_decode_all(tags + file, TEXTS).items():
                self.assertTrue(sound == expected()[kind][text], (*what, text, len(sound)))

    def test_peaks(self) -> None:
        """A waveform whose samples are read without ffmpeg is that of the samples, too."""
        for kind in ("wav", "aiff", "wv"):
            file = bare()[kind]
            sources = file, LAYOUTS["two"] + file, LAYOUTS["print size"] + file
            self.assertEqual(1, len({render(source, "f:peaks/pts:20") for source in sources}), kind)
