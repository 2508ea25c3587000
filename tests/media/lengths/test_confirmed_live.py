"""Lengths that a header or a page states wrongly: nothing is stated, or what is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

from twisted.trial.unittest import SynchronousTestCase

from tests.support.audio import convert_all, measure, noise, probe_length, write_wav
from tests.support.ogg import ended, moved

RATE = 44100
CODECS = {
    "a.flac": "-c:a flac",
    "a.ogg": "-c:a libvorbis -f ogg",
    "a.opus": "-c:a libopus -ar 48000 -f ogg",
    "a.oga": "-c:a flac -f ogg",
    "a.mp3": "-c:a libmp3lame -q:a 5",
    "a.m4a": "-c:a aac",
}


@cache
def sources() -> dict[str, bytes]:
    """Return four seconds of noise in each of the formats."""
    return convert_all(write_wav(noise(RATE, 4 * RATE)), CODECS)


def replaced(file: bytes, at: int, data: bytes) -> bytes:
    return file[:at] + data + file[at + len(data) :]


class ConfirmedLengthTests(SynchronousTestCase):
    """`read_length`, against a decode of the whole (D57)"""

    def assert_right(self, files: Iterator[tuple[str, bytes]]) -> None:
        """Require that a length that is known exactly is the one that is decoded."""
        for name, file in files:
            length = probe_length(file).length
            if length is None:
                continue
            decoded = measure(file).length
            assert decoded is not None
            if length.exact:
                missed = abs(length.samples - decoded.samples)
                self.assertLessEqual(missed, max(64, length.block), name)
            else:
                self.assertLessEqual(length.samples, decoded.samples, name)

    def test_last_pages(self) -> None:
        """A last page of Ogg with a wrong position, far or near, states no wrong length."""

        def files() -> Iterator[tuple[str, bytes]]:
            for codec in ("a.ogg", "a.opus", "a.oga"):
                file = sources()[codec]
                for by in (-9000, 700, 44_100, 882_000):
                    yield f"{codec} {by}", ended(file, lambda last, _, by=by: max(0, last + by))
                    yield f"{codec} all {by}", moved(file, lambda *_, by=by: max(by, -900))
                    yield (
                        f"{codec} last two {by}",
                        moved(file, lambda at, count, by=by: by if at >= count - 2 else 0),
                    )

        self.assert_right(files())

    def test_headers(self) -> None:
        """Changed numbers in headers of flac, mp3 and m4a state no wrong length."""

        def files() -> Iterator[tuple[str, bytes]]:
            flac, mp3, m4a = (sources()[name] for name in ("a.flac", "a.mp3", "a.m4a"))
            total = int.from_bytes(flac[18:26], "big")
            for change in (-(total & 0xFFFF_FFFF), -5000, 4096, 99_999):
                yield f"flac {change}", replaced(flac, 18, (total + change).to_bytes(8, "big"))
            at = mp3.index(b"Xing") + 8
            count = int.from_bytes(mp3[at : at + 4], "big")
            for factor in (0.5, 0.9, 0.99, 1.01, 1.3, 2):
                changed = replaced(mp3, at, struct.pack(">I", round(factor * count)))
                yield f"mp3 {factor}", changed
            for table in (b"stts", b"stsz", b"stsc"):
                at = m4a.index(table) + (16 if table == b"stsc" else 12)
                number = int.from_bytes(m4a[at : at + 4], "big")
                yield f"m4a {table!r}", replaced(m4a, at, struct.pack(">I", 2 * number))

        self.assert_right(files())
