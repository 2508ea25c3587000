"""Waveforms by several decoders are those of one pass, value for value, whatever the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import cycle

from twisted.logger import formatEvent

from audioproxy.concurrency.slots import Claim
from audioproxy.engine import parts as engine
from audioproxy.media import waveform_parts
from audioproxy.media.command import needs
from audioproxy.media.lengths.flac import FRAME_HEADER, parse_frame_header
from audioproxy.render import job
from tests.support.audio import convert_all, noise, write_wav
from tests.support.http import Log
from tests.support.service import ServiceCase, fetch, signed

CPUS = 3


def sound_sources() -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of sources of 7 seconds that can be split."""
    for rate, channels, forms in (
        (44100, 2, {"a.flac": "", "24.flac": "-sample_fmt s32", "a.wv": "", "a.tta": ""}),
        (44100, 2, {"a.aiff": "", "24.wav": "-c:a pcm_s24le", "32f.wav": "-c:a pcm_f32le"}),
        (8000, 1, {"small.flac": "-frame_size 333", "small.caf": "", "u8.wav": "-c:a pcm_u8"}),
        (16000, 6, {"six.flac": "", "six.wav": ""}),
        (44100, 2, {"constant.mp3": "-b:a 96k", "variable.mp3": "-q:a 4"}),
    ):
        yield from convert_all(write_wav(noise(rate, 7 * rate + 123, channels)), forms).items()


def damaged_sources() -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of files whose ends are sound, and whose middles are not."""
    made = convert_all(write_wav(noise(44100, 7 * 44100, 2)), {"a.flac": ""})["a.flac"]
    frames = [
        found.start()
        for found in re.finditer(rb"\xff[\xf8\xf9]", made)
        if parse_frame_header(made[found.start() :][:FRAME_HEADER], made[8:42])
    ]
    for place in (1, 3, 5):
        at = frames[len(frames) * place // 6]
        after = frames[len(frames) * place // 6 + 2]
        for count in (1, 16, 20_000):
            noisy = noise(8000, count).channels.tobytes()[:count]
            yield f"noise-{place}-{count}.flac", made[: at + 99] + noisy + made[at + 99 + count :]
        yield f"lost-{place}.flac", made[:at] + made[after:]
        yield f"doubled-{place}.flac", made[:after] + made[at:]
    sound = write_wav(noise(44100, 7 * 44100, 2))
    for name, words in (("constant.mp3", "-b:a 128k"), ("variable.mp3", "-q:a 2")):
        made = convert_all(sound, {name: words})[name]
        for place in (1, 3, 5):
            at = len(made) * place // 6
            for count in (400, 4000):
                # The parser skips zeros, and time stamps have no gap there.
                yield f"zeros-{place}-{count}-{name}", made[:at] + bytes(count) + made[at + count :]


class WaveformPartTests(ServiceCase):
    """Waveforms of sources on a node with several CPUs, and on one with one slot"""

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self)
        self.counts: list[int] = []
        split = waveform_parts.split_waveform

        def split_and_count(*arguments: object) -> list[waveform_parts.Part]:
            parts = split(*arguments)  # type: ignore[arg-type]
            self.counts.append(len(parts))
            return parts

        for module, name, value in (
            (needs, "SHORTEST_PART", 1),
            (waveform_parts, "SHORTEST_PART", 1),
            (engine, "cpu_count", lambda: CPUS),
            (job, "split_waveform", split_and_count),
        ):
            self.patch(module, name, value)

    def discarded(self) -> list[str]:
        """Return the log lines of waveforms whose parts were discarded."""
        texts = [formatEvent(event) for event in self.log.events]
        return [text for text in texts if "the parts of a waveform" in text]

    async def same_waveforms(self, paths: list[tuple[str, str]]) -> None:
        """Assert that waveforms have the same bytes with one decoder and with several."""
        several, one = self.start(max_concurrency=CPUS), self.start(max_concurrency=1)

        async def check(options: str, name: str) -> None:
            bodies = []
            for number, node in enumerate((several, one)):
                path = signed(f"/f:peaks/pts:97/cb:{number}{options}/plain/local://{name}")
                response = await fetch(node.port, path)
                self.assertEqual((200, True), (response.status, response.complete), path)
                bodies.append(response.body)
            self.assertEqual(*bodies, (options, name))
            self.assertEqual((0, 0), (several.engine.slots.held, one.engine.slots.held))

        for options, name in paths:
            # One after the other: decoders take idle slots alone.
            await check(options, name)

    async def test_sound_sources(self) -> None:
        """Parts of lossless and uncompressed sources have the pixels of the whole."""
        rows = "/ch:2", "/t:0.7", "/t:1.23:5.432", "/gain:-3/ch:1", "/t:0:7/gain:3", "/t:2:99"
        more, paths = cycle(rows), []
        for name, source in sound_sources():
            self.add(name, source)
            paths += [("", name), (next(more), name), (next(more), name)]
        await self.same_waveforms(paths)
        # Every second one is that of the node with one slot.
        self.assertEqual({CPUS}, set(self.counts[::2]))
        self.assertEqual({0}, set(self.counts[1::2]))
        self.assertEqual([], self.discarded())

    async def test_damaged_sources(self) -> None:
        """Where a part has other samples than it should have, one pass replaces all parts."""
        paths = []
        for options, (name, source) in zip(
            cycle(("", "/t:1:5", "")), damaged_sources(), strict=False
        ):
            self.add(name, source)
            paths.append((options, name))
        await self.same_waveforms(paths)
        split = self.counts.count(CPUS)
        self.assertTrue(0 < len(self.discarded()) < split, (len(self.discarded()), split))

    async def test_busy_node(self) -> None:
        """A waveform leaves a CPU to each other render, and gives its slots back."""
        self.add("a.flac", convert_all(write_wav(noise(8000, 56_000)), {"a.flac": ""})["a.flac"])
        node = self.start(max_concurrency=CPUS + 2)
        slots = node.engine.slots
        for number, (held, parts) in enumerate(((0, CPUS), (1, 2), (2, 0), (4, 0))):
            self.counts.clear()
            with slots.hold_spare(Claim(), held):
                path = signed(f"/f:peaks/cb:{number}/plain/local://a.flac")
                response = await fetch(node.port, path)
                self.assertEqual((200, True), (response.status, response.complete))
                self.assertEqual(([parts], held), (self.counts, slots.held))
