"""Waveforms through the whole service: exact pixels of real files, and memory."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread

from audioproxy.observe.metrics import Metrics
from tests.support.audio import (
    Sound,
    constant,
    convert,
    convert_all,
    noise,
    probe,
    render_all,
    write_wav,
)
from tests.support.http import MEDIA_CACHE_CONTROL, Response
from tests.support.programs import FFMPEG
from tests.support.service import (
    PATIENCE,
    ServiceCase,
    children,
    encoders,
    fetch,
    is_stopped,
    reactor,
    resident_bytes,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)
from tests.support.waveforms import (
    Frames,
    WaveformDocument,
    bounds,
    decode_frames,
    parse_waveform,
    render_waveform,
    round_frames,
)


class DeliveryTests(ServiceCase):
    """Waveforms are delivered like audio variants (Peaks options, 6)."""

    def setUp(self) -> None:
        super().setUp()
        self.add("short.flac", short_flac())

    async def test_miss_and_hit(self) -> None:
        """A hit has the bytes and headers of the miss, and ranges; HEAD and 304 do not render."""
        port = self.start().port
        for text, kind in (
            ("f:peaks", b"application/json"),
            ("f:peaks/pk_fmt:dat", b"application/octet-stream"),
        ):
            path = signed(f"/{text}/plain/local://short.flac")
            stored = os.listdir(self.store)
            responses = {}
            for state in (b"MISS", b"HIT"):
                head = await fetch(port, path, b"HEAD")
                self.assertEqual((200, state, True), summary(head), text)
                self.assertEqual((b"", kind), (head.body, head["content-type"]))
                self.assertEqual(state == b"HIT", head["content-length"] is not None)
                same = await fetch(port, path, if_none_match=head["etag"] or b"")
                self.assertEqual((304, b"", head["etag"]), (same.status, same.body, same["etag"]))
                self.assertEqual([], encoders())
                if state == b"MISS":
                    self.assertEqual(stored or [".scratch"], os.listdir(self.store))
                    responses[state] = await fetch(port, path)
                    self.assertEqual((200, state, True), summary(responses[state]), text)
                    responses[b"HIT"] = await until_hit(port, path)
            miss, hit = responses.values()
            self.assertEqual((kind, b"chunked"), (miss["content-type"], miss["transfer-encoding"]))
            self.assertEqual(MEDIA_CACHE_CONTROL.encode(), miss["cache-control"])
            self.assertEqual(miss.body, hit.body)
            for name in ("content-type", "cache-control", "etag"):
                self.assertEqual(miss[name], hit[name], name)
            size = len(miss.body)
            self.assertEqual(b"%d" % size, hit["content-length"])
            part = await fetch(port, path, range=b"bytes=24-99")
            self.assertEqual((206, miss.body[24:100]), (part.status, part.body))
            self.assertEqual(b"bytes 24-99/%d" % size, part["content-range"])
            beyond = await fetch(port, path, range=b"bytes=%d-" % size)
            self.assertEqual((416, "range_not_satisfiable"), (beyond.status, beyond.error))

    async def test_shared_render(self) -> None:
        """Clients share one waveform render; meanwhile the service responds to other requests."""
        # An encoder that waits for the test.
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        (folder / "ffmpeg").write_text(
            f'#!/bin/sh\ncase "$*" in *pipe:1) kill -STOP $$ ;; esac\nexec {FFMPEG} "$@"\n'
        )
        (folder / "ffmpeg").chmod(0o755)
        self.patch(os, "environ", {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        joined: Deferred[str] = Deferred()
        self.patch(Metrics, "coalesced", lambda metrics, form: joined.callback(form))
        port = self.start().port
        path = signed("/f:peaks/pts:65536/ch:2/plain/local://short.flac")
        first = await send(port, path)
        (encoder,) = await until(lambda: list(filter(is_stopped, children())), "a held encoder")
        second = await send(port, path)
        self.assertEqual("peaks", await joined.addTimeout(PATIENCE, reactor))
        self.assertEqual(200, (await fetch(port, b"/health")).status)
        os.kill(encoder, signal.SIGCONT)
        one, two = await first.end(), await second.end()
        self.assertEqual((200, b"MISS", True), summary(one))
        self.assertEqual((200, b"COALESCED", True), summary(two))
        self.assertEqual(one.body, two.body)
        self.assertEqual(2 * 2 * 65536, len(parse_waveform(one.body).values))


def summary(response: Response) -> tuple[int, bytes | None, bool]:
    """Return status, cache state, and whether the response is complete."""
    return response.status, response["x-audio-proxy"], response.complete


class SourceCase(ServiceCase):
    """Waveforms of sources that a test makes."""

    def setUp(self) -> None:
        super().setUp()
        self.port = self.start(max_probe_concurrency=32).port

    async def request_waveform(self, name: str, text: str = "") -> WaveformDocument:
        """Request a waveform and parse it."""
        response = await fetch(self.port, signed(f"/f:peaks{text}/plain/local://{name}"))
        self.assertEqual((200, b"MISS", True), summary(response), (name, response))
        waveform = parse_waveform(response.body)
        self.assertEqual(2, waveform.version)
        return waveform

    def assert_exact(
        self, waveform: WaveformDocument, frames: Frames, pixels: int, what: object
    ) -> None:
        """Require that a waveform matches the frames exactly (D26)."""
        self.assertEqual(pixels, waveform.length, what)
        least, most = bounds(len(frames), pixels)
        self.assertTrue(least <= waveform.pixel <= most, (what, waveform.pixel, least))
        self.assertEqual(waveform.channels, frames.shape[1], what)
        self.assertTrue(waveform.values == render_waveform(frames, waveform.pixel, pixels), what)


#: Sources whose probed length is wrong. WAV files are not in this set, because the file size
#: corrects their probed length.
WRONG_LENGTH = {"vbr.mp3", "cut.mp3", "cut.flac", "a.aac"}


def sources_with_wrong_length() -> Iterator[tuple[str, int, bytes]]:
    """Yield name, channels and bytes of sources, most of which misstate their length."""
    # Silence first, so that the bit rate at the start does not predict the length.
    samples = np.pad(noise(44100, 30_000, 2).channels, ((0, 0), (30_000, 0)))
    wav = write_wav(Sound(44100, samples))
    mp3 = "-c:a libmp3lame -q:a 4"
    forms = {"vbr.mp3": f"{mp3} -write_xing 0", "a.mp3": mp3, "a.flac": "", "a.aac": ""}
    made = convert_all(wav, forms)
    yield "vbr.mp3", 2, made["vbr.mp3"]
    yield "cut.mp3", 2, made["a.mp3"][:-4321]
    yield "cut.flac", 2, made["a.flac"][: len(made["a.flac"]) * 2 // 3]
    yield "a.aac", 2, made["a.aac"]
    yield "cut.wav", 2, wav[: len(wav) * 2 // 3 + 1]
    size = len(wav) - 44
    for name, claimed in (("more", 3 * size), ("less", size // 2), ("open", 2**32 - 1), ("0", 0)):
        yield f"{name}.wav", 2, wav[:40] + struct.pack("<I", claimed) + wav[44:]
    yield "one.wav", 1, write_wav(constant(8000, 1, -0.5))
    yield "float.wav", 1, write_wav(noise(96000, 5000), "32f")
    forms = {"a.ogg": "-c:a libvorbis", "a.opus": "", "a.m4a": ""}
    for name, source in convert_all(write_wav(noise(48000, 40_000)), forms).items():
        yield name, 1, source


class ExactnessTests(SourceCase):
    """Waveforms match the decoded frames, whatever length the probe found (D26)."""

    async def test_sources(self) -> None:
        """Waveforms of sources that misstate their length, or are cut, cover every frame.

        They are exact for any number of pixels, in 8 or 16 bits, in mono and stereo.
        """
        sources = list(sources_with_wrong_length())
        for name, _, source in sources:
            self.add(name, source)
        counts = {name: channels for name, channels, _ in sources}
        decoded = await deferToThread(decode_frames, self.root, counts)

        async def check(number: int, name: str, channels: int, source: bytes) -> None:
            frames = decoded[name]
            if name in ("a.m4a", "a.ogg"):
                # The encoder's padding, and the end of the last block.
                frames = frames[:40_000]
            count = len(frames)
            form, pixels = ("pk_fmt:dat", "pk_bits:8")[number % 2], (300, 1, 65536)[number % 3]
            text = f"/pts:{pixels}/ch:{channels}/{form}"
            waveform = await self.request_waveform(name, text)
            if waveform.bits == 8:
                # Truncation preserves order, so minimum and maximum may be taken after it.
                frames = np.trunc(frames / 256).astype(np.int16)
            self.assert_exact(waveform, frames, pixels, (name, text))
            if name in WRONG_LENGTH:
                probed = await deferToThread(probe, source)
                probed_length = (probed.duration or 0) * probed.sample_rate
                self.assertGreater(abs(probed_length - count), 1000, name)

        checks = [check(number, *source) for number, source in enumerate(sources)]
        await gatherResults(map(Deferred.fromCoroutine, checks))


class OptionTests(SourceCase):
    """Waveforms show the audio after all options are applied (Peaks options, 1)."""

    async def test_as_heard(self) -> None:
        """Each waveform matches the wav variant with the same options, without dither (D60).

        It shows the effect of t, fade, gain, norm and enhance, also for an MP3. With ``ch:2`` it
        shows mono on both channels; downmixes of 5.1 are those of audio variants. Floats of the
        variant are rounded twice, so a value may differ by one step.
        """
        mp3 = convert(write_wav(noise(44100, 110_250)), "-c:a libmp3lame -f mp3")
        checks = []
        for name, source, *texts in (
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
        ):
            self.add(name, source)
            outputs = render_all(source, [f"f:wav/bd:32f/{text}" for text in texts])
            checks += [
                (name, text, round_frames(output))
                for text, output in zip(texts, outputs.values(), strict=True)
            ]

        async def check(name: str, text: str, frames: Frames) -> None:
            waveform = await self.request_waveform(name, f"/{text}/pts:200")
            expected = render_waveform(frames, waveform.pixel, 200)
            differences = np.abs(np.subtract(waveform.values, expected))
            self.assertLessEqual(differences.max(), 1, (name, text))
            self.assertLess(np.count_nonzero(differences), 10, (name, text))

        await gatherResults([Deferred.fromCoroutine(check(*each)) for each in checks])


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


class MemoryTests(ServiceCase):
    """Memory of a waveform, which does not depend on the length of its source (D26)."""

    async def test_an_hour(self) -> None:
        """A waveform of an hour uses less than 32 MiB and shows every non-zero frame."""
        last = SECONDS * RATE - 1
        values = {0: 1, 12_345_679: -2, last // 2: 32767, last - 3_000_000: -32768, last: 7}
        write_sparse_wav(self.root / "long.wav", values)
        self.add("short.flac", short_flac())
        node = self.twistd()
        port = await node.port()
        before = resident_bytes(node.pid)
        response = await fetch(port, signed("/f:peaks/plain/local://long.wav"))
        self.assertEqual((200, b"MISS", True), summary(response))
        waveform = parse_waveform(response.body)
        least, most = bounds(last + 1, 800)
        self.assertTrue(least <= waveform.pixel <= most, waveform.pixel)
        expected = [0] * 1600
        for frame, value in values.items():
            expected[2 * (frame // waveform.pixel) + (value > 0)] = value
        self.assertEqual(expected, waveform.values)
        self.assertLess(peak_resident_bytes(node.pid) - before, 32 * 1024 * 1024)


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
