"""Files whose headers or pages state no length, or a wrong one: what is rendered, and described."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import InvalidOptions
from audioproxy.media.described import describe, is_doubtful
from audioproxy.media.info_document import SourceInfo
from tests.matrix.regions import WHOLE, Region, find_differences
from tests.support.audio import (
    convert_all,
    noise,
    probe,
    render_all,
    render_and_decode_all,
    run_in_memory,
    write_wav,
)
from tests.support.ogg import edit, ended, granule, moved
from tests.support.riff import chunk

SECONDS = 4
CODECS = {
    "opus": "-c:a libopus -f ogg",
    "flac": "-c:a flac -f ogg",
    "vorbis": "-c:a libvorbis -f ogg",
    "speex": "-c:a libspeex -ar 16000 -ac 1 -f ogg",
}


@cache
def streams() -> dict[str, bytes]:
    """Return noise in Ogg."""
    return convert_all(write_wav(noise(48000, SECONDS * 48000)), CODECS)


def cut(file: bytes, before: int) -> bytes:
    """Return a file without the pages of audio that end before a position."""
    return edit(file, lambda pages: [p for p in pages if not 0 < granule(p) <= before])


def describe_source(source: bytes) -> SourceInfo:
    """Return the info document of a source."""
    found = probe(source)
    if is_doubtful(found):
        found = run_in_memory(lambda read: describe(read, len(source), found), source)
    return found.description


class PositionTests(SynchronousTestCase):
    """Ogg files, and others"""

    def assert_consistent(self, sources: Mapping[str, bytes]) -> None:
        """Require that trims, fades and the info document fit the whole, and the whole its header.

        The bit rate in the info document is that of the duration.
        """
        regions = [Region(1200, None), Region(1100, 300)]
        for name, source in sources.items():
            texts = [WHOLE, f"{WHOLE}/fade:0:0.5"]
            whole, faded = render_and_decode_all(source, texts).values()
            self.assertEqual([*find_differences(source, regions, whole)], [], name)
            self.assertEqual(len(faded), len(whole), name)
            self.assertLess(abs(faded.channels[:, -8:]).max(), 0.01, name)
            found = describe_source(source)
            seconds = len(whole) / whole.rate
            self.assertApproximates(float(found.duration or 0), seconds, 0.1, name)
            stated = 8 * len(source) / float(found.duration or 1)
            self.assertApproximates(found.bitrate or 0, stated, 0.01 * stated, name)
            self.assertRaises(InvalidOptions, render_all, source, [f"f:opus/t:{seconds + 9}"])

    def test_cut(self) -> None:
        """A file that was cut out of a long stream has the length of its own audio (D71)."""
        sources = {}
        for codec, file in streams().items():
            rate = 16000 if codec == "speex" else 48000
            sources[f"shifted {codec}"] = moved(file, lambda *_, rate=rate: 562_500 * rate)
            if codec != "vorbis":
                # ffmpeg decodes some of the first page of Vorbis without what precedes it.
                sources[f"cut {codec}"] = cut(file, 2 * rate)
        self.assert_consistent(sources)

    def test_end(self) -> None:
        """A last page of Opus with a wrong position, or without a mark, states no wrong length."""
        positions: dict[str, Callable[[int, int], int]] = {
            "as it is": lambda last, before: last,
            "low": lambda last, before: before - 3000,
            "first": lambda last, before: 1000,
            "none": lambda last, before: 0,
            "equal": lambda last, before: before,
            "high": lambda last, before: last + 5000,
        }
        sources = {}
        for name, position in positions.items():
            sources[name] = ended(streams()["opus"], position)
            if name != "high":
                sources[f"{name}, no mark"] = ended(streams()["opus"], position, mark=False)
        self.assert_consistent(sources)

    def test_constant_rate(self) -> None:
        """DSDIFF and 8SVX, of which ffprobe knows no duration, and AIFF from a pipe are exact."""
        data = noise(48000, 96_000).channels.astype("<f4").tobytes()
        kinds = (b"FS  ", struct.pack(">I", 2_822_400)), (b"CHNL", b"\0\1C000")
        kinds = *kinds, (b"CMPR", b"DSD \x0enot compressed\0")
        parts = b"".join(chunk(name, body, order=">Q") for name, body in kinds)
        form = b"DSD " + chunk(b"FVER", b"\1\5\0\0", order=">Q")
        form += chunk(b"PROP", b"SND " + parts, order=">Q")
        voice = struct.pack(">IIIHBBI", len(data), 0, 0, 48000, 1, 0, 1 << 16)
        voice = b"8SVX" + chunk(b"VHDR", voice, order=">I")
        aiff = bytearray(convert_all(write_wav(noise(48000, 96_000)), {"a": "-f aiff"})["a"])
        for name, at in ((b"COMM", 10), (b"SSND", 4)):
            struct.pack_into(">I", aiff, aiff.index(name) + at, 0x7FFF_FFF0)
        self.assert_consistent(
            {
                "dff": chunk(b"FRM8", form + chunk(b"DSD ", 2 * data, order=">Q"), order=">Q"),
                "8svx": chunk(b"FORM", voice + chunk(b"BODY", data, order=">I"), order=">I"),
                "aiff": bytes(aiff),
            }
        )
