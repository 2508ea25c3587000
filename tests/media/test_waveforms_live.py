"""Waveforms through the whole service: exact pixels of real files, and memory."""

from __future__ import annotations

import struct
from itertools import repeat
from pathlib import Path

import numpy as np
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import formatEvent

from tests.support.audio import convert, noise, render_all, write_wav
from tests.support.http import Log, Response
from tests.support.service import ServiceCase, fetch, resident_bytes, signed
from tests.support.waveforms import (
    Frames,
    WaveformDocument,
    bounds,
    parse_waveform,
    render_waveform,
    round_frames,
)

#: Seconds and sample rate of a source of 58 MB. ffmpeg 7 takes 10 µs for each packet of a wav file,
#: and packets of lower rates hold fewer samples.
SECONDS, RATE = 3600, 8000


def write_sparse_wav(path: Path, values: dict[int, int]) -> None:
    """Write a sparse wav file of an hour that is silent except for a few frames."""
    size = SECONDS * RATE * 2
    form = struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    head = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + form
    head += b"data" + struct.pack("<I", size)
    with path.open("wb") as file:
        file.write(head)
        for frame, value in values.items():
            file.seek(len(head) + 2 * frame)
            file.write(struct.pack("<h", value))
        file.truncate(len(head) + size)


def summary(response: Response) -> tuple[int, bytes | None, bool]:
    """Return status, cache state, and whether the response is complete."""
    return response.status, response["x-audio-proxy"], response.complete


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


class WaveformTests(ServiceCase):
    """Waveforms of sources that a test makes"""

    def port(self) -> int:
        """Start a service that probes all sources at once, and return its port."""
        return self.start(max_probe_concurrency=32).port

    async def request_waveform(self, port: int, name: str, text: str = "") -> WaveformDocument:
        """Request a waveform and parse it."""
        response = await fetch(port, signed(f"/f:peaks{text}/plain/local://{name}"))
        self.assertEqual((200, b"MISS", True), summary(response), (name, response))
        return parse_waveform(response.body)

    async def test_no_warning(self) -> None:
        """A waveform is not compared with the length that audio would have."""
        port, log = self.port(), Log(self)
        self.add("a.wav", write_wav(noise(8000, 5000)))
        await self.request_waveform(port, "a.wav")
        texts = [formatEvent(event) for event in log.events]
        self.assertEqual([], [text for text in texts if "the length of" in text])

    async def test_as_heard(self) -> None:
        """Each waveform matches the wav variant with the same options (Peaks options, 1; D60).

        With ``ch:2`` it shows mono on both channels. Floats of the
        variant are rounded twice, so a value may differ by one step.
        """
        mp3 = convert(write_wav(noise(44100, 110_250)), "-c:a libmp3lame -f mp3")
        wav = write_wav(noise(44100, 60_000, 2))
        port, checks = self.port(), []
        rows = (
            (
                "stereo.wav",
                write_wav(noise(22050, 22050, 2, 0.1)),
                "fade:0.2:0.4/ch:1",
                "gain:60/ch:2",
                "gain:-6/ch:1/t:0.3:0.5",
                "norm:ebu/ch:1",
                "enhance:voice/ch:2/fade:0.2/t:0.5/norm:ebu:-20",
            ),
            ("mono.wav", write_wav(noise(8000, 9000)), "ch:2", "ch:1/gain:3"),
            ("5.1.wav", write_wav(noise(48000, 4800, 6, 0.5), mask=0x3F), "ch:2", "ch:1"),
            ("trimmed.mp3", mp3, "t:2.1:0.2/ch:2"),
            ("faded.mp3", mp3, "fade:0.5:0.5/ch:1"),
            # Headers that misstate the length (D26).
            ("cut.mp3", mp3[:-4321], "ch:1"),
            ("cut.wav", wav[: len(wav) * 2 // 3 + 1], "ch:2"),
            ("open.wav", wav[:40] + b"\xff" * 4 + wav[44:], "ch:2"),
        )
        for name, source, *texts in rows:
            self.add(name, source)
            outputs = render_all(source, [f"f:wav/bd:32f/{text}" for text in texts]).values()
            checks += zip(repeat(name), texts, map(round_frames, outputs), strict=False)

        async def check(name: str, text: str, frames: Frames) -> None:
            waveform = await self.request_waveform(port, name, f"/{text}/pts:200")
            expected = render_waveform(frames, waveform.pixel, 200)
            differences = np.abs(np.subtract(waveform.values, expected))
            self.assertLessEqual(differences.max(), 1, (name, text))
            self.assertLess(np.count_nonzero(differences), 10, (name, text))

        await gatherResults([Deferred.fromCoroutine(check(*each)) for each in checks])

    async def test_an_hour(self) -> None:
        """A waveform of an hour uses less than 32 MiB and shows every frame (D26)."""
        last = SECONDS * RATE - 1
        values = {0: 1, 12_345_679: -2, last // 2: 32767, last - 3_000_000: -32768, last: 7}
        write_sparse_wav(self.root / "long.wav", values)
        node = self.twistd()
        port = await node.port()
        before = resident_bytes(node.pid)
        waveform = await self.request_waveform(port, "long.wav")
        least, most = bounds(last + 1, 800)
        self.assertTrue(least <= waveform.pixel <= most, waveform.pixel)
        expected = [0] * 1600
        for frame, value in values.items():
            expected[2 * (frame // waveform.pixel) + (value > 0)] = value
        self.assertEqual(expected, waveform.values)
        self.assertLess(peak_resident_bytes(node.pid) - before, 32 * 1024 * 1024)
