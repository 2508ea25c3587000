"""Long renders that end by AP_RENDER_TIMEOUT or AP_MAX_VARIANT_BYTES, with a real ffmpeg."""

from __future__ import annotations

import os
import re
import signal
import struct
from pathlib import Path

from twisted.logger import formatEvent

from audioproxy.engine import parts as engine_module
from audioproxy.media.command.progress import round_up
from audioproxy.process import child as child_module
from audioproxy.service import AudioProxy
from tests.render.test_failures_live import JumpingClock
from tests.support.audio import riff
from tests.support.http import Log
from tests.support.service import (
    Client,
    ServiceCase,
    children,
    counter_increases,
    encoders,
    fetch,
    scrape,
    send,
    signed,
    until,
)

RENDER_TIMEOUT = 100
RATE = 8000
HOURS = 30
STOPPED = re.compile(
    r"the encoder was stopped: The render took longer than AP_RENDER_TIMEOUT\. By then, ([\d.]+) %"
    r" of the output was encoded: about (\d+) s would have sufficed\."
)


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process, from proc_pid_stat(5); 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


class DeadlineTests(ServiceCase):
    """A service with a book of many hours, which no encoder ends before the test goes on."""

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self)
        self.clock = JumpingClock()
        self.patch(engine_module, "monotonic_clock", lambda _: self.clock)
        # Silence, in files without blocks. The infinite sample makes its source irregular.
        self.add_book("book.wav", 1, b"")
        self.add_book("odd.wav", 3, struct.pack("<f", float("inf")))

    def add_book(self, name: str, tag: int, start: bytes) -> None:
        """Add a wav file of integers (tag 1) or floating-point numbers (tag 3)."""
        width = 2 if tag == 1 else 4
        size = HOURS * 3600 * RATE * width
        form = struct.pack("<HHIIHH", tag, 1, RATE, RATE * width, width, 8 * width)
        header = riff(form, b"")[:-4] + struct.pack("<I", size)
        path = self.add(name, header + start)
        os.truncate(path, len(header) + size)

    async def until_encoding(self, processes: int, cpu_seconds: float) -> int:
        """Wait until each process of a render has used so much CPU time; return the encoder's id.

        The first attempt of an irregular source has one process, and the second one has two.
        """

        def busy() -> list[int]:
            found = encoders()
            used = [cpu_ticks(child) / os.sysconf("SC_CLK_TCK") for child in found]
            return found if len(found) == processes and min(used) > cpu_seconds else []

        return max(await until(busy, "the encoder to work"))

    async def advice(self) -> tuple[float, int]:
        """Wait for such a log line, return its percentage and its deadline, and forget the log."""

        def find() -> re.Match[str] | None:
            lines = "\n".join(formatEvent(event) for event in self.log.events)
            return STOPPED.search(lines)

        found = await until(find, "the log line")
        assert found is not None
        self.log.events.clear()
        return float(found[1]), int(found[2])

    async def start_render(self, service: AudioProxy, path: bytes) -> Client:
        """Request a variant, and return the client when it has the headers of its response."""
        client: Client = await send(service.port, path)
        await until(lambda: client.response, "the headers")
        return client

    async def test_advice(self) -> None:
        """The log line of a time-out names the deadline that would have done.

        That is so in streams, for a part, for waveforms that ffmpeg decodes, in two processes,
        and where the encoder does not end by itself.
        """
        self.patch(engine_module, "monotonic_clock", lambda _: self.clock)
        service = self.start(render_timeout=RENDER_TIMEOUT, max_src_bytes=4_000_000_000)
        for options, book in (
            *((f"f:{form}", "book") for form in ("aac", "m4a", "ogg")),
            *((f"f:{form}/enhance:voice", "book") for form in ("wav", "flac")),
            ("f:mp3/t:3600:72000", "book"),
            ("f:peaks/norm:ebu", "book"),
            ("f:opus", "odd"),
            ("f:mp3/cb:killed", "book"),
        ):
            since = self.clock.seconds()
            client = await send(service.port, signed(f"/{options}/plain/local://{book}.wav"))
            killed = "killed" in options
            # It reports twice a second, and at its end.
            processes = 2 if book == "odd" else 1
            encoder = await self.until_encoding(processes, 1 if killed else 0.3)
            began_within = self.clock.seconds() - since
            if killed:
                os.kill(encoder, signal.SIGSTOP)
            self.clock.jump(RENDER_TIMEOUT)
            response = await client.end()
            self.assertIn((response.status, response.complete), ((504, True), (200, False)))
            if killed:
                self.clock.jump(child_module._TERM_GRACE)
            percent, seconds = await self.advice()
            # The percentage is rounded.
            least = (RENDER_TIMEOUT - began_within) / (percent * 1.01) * 100
            most = round_up(RENDER_TIMEOUT / (percent * 0.99) * 100)
            self.assertTrue(least <= seconds <= most, (options, percent, seconds, began_within))
            await until(lambda: not children(), "the children to be reaped")

    async def test_one_render(self) -> None:
        """A browser that requests a failing variant ten times in a row causes one render.

        Its later requests get the error itself, which a player can show. `HEAD` is still a 200.
        """
        self.patch(engine_module, "monotonic_clock", lambda _: self.clock)
        for status, code, settings in (
            (504, "render_timeout", {"render_timeout": RENDER_TIMEOUT}),
            (500, "render_failed", {"max_variant_bytes": 1_000_000}),
        ):
            # Without a store, a render ends when its client has left.
            service = self.start(variant_store=None, max_src_bytes=4_000_000_000, **settings)
            path = signed("/f:mp3/plain/local://book.wav")
            before = await scrape(service.metrics_port)
            client = await self.start_render(service, path)
            if status == 504:
                self.clock.jump(RENDER_TIMEOUT)
            first = await client.end()
            self.assertEqual((200, False), (first.status, first.complete))
            for more in ({}, {"range": b"bytes=0-"}, {"x-audio-proxy-lane": b"low"}) * 3:
                response = await fetch(service.port, path, **more)
                self.assertEqual((status, code), (response.status, response.error))
                self.assertEqual(b"no-store", response["cache-control"])
            head = await fetch(service.port, path, b"HEAD")
            self.assertEqual(200, head.status)
            await until(lambda: not children(), "the children to be reaped")
            counted = counter_increases(before, await scrape(service.metrics_port))
            renders = {name: n for name, n in counted.items() if name.startswith("renders_total")}
            self.assertEqual({f'renders_total{{format="mp3",outcome="{code}"}}': 1}, renders)
            # A new version of the source is another one.
            os.utime(self.root / "book.wav", ns=(1, 1))
            client = await self.start_render(service, path)
            self.assertEqual(200, client.response and client.response.status)
            await client.leave()
