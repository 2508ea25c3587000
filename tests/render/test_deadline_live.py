"""Long renders that end by AP_RENDER_TIMEOUT, with a real ffmpeg."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

from audioproxy.media.command.progress import round_up
from tests.render.test_failures_live import RENDER_TIMEOUT, JumpingReactor
from tests.support.audio import riff
from tests.support.http import Log
from tests.support.service import ServiceCase, children, encoders, send, signed, until

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
        self.reactor = JumpingReactor()
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

    async def until_encoding(self, processes: int) -> None:
        """Wait until each process of a render has used some CPU time.

        The first attempt of an irregular source has one process, and the second one has two.
        """

        # A coroutine is polled less often, and each look at all processes takes time.
        async def busy() -> bool:
            found = encoders()
            used = [cpu_ticks(child) / os.sysconf("SC_CLK_TCK") for child in found]
            return len(found) == processes and min(used) > 0.3

        await until(busy, "the encoder to work")

    async def advice(self) -> tuple[float, int]:
        """Wait for such a log line, return its percentage and its deadline, and forget the log."""

        def find() -> re.Match[str] | None:
            return STOPPED.search("\n".join(self.log.texts))

        found = await until(find, "the log line")
        assert found is not None
        self.log.events.clear()
        return float(found[1]), int(found[2])

    async def test_advice(self) -> None:
        """The log line of a time-out names the deadline that would have done."""
        service = self.start(render_timeout=RENDER_TIMEOUT, max_src_bytes=4_000_000_000)
        for options, book in (
            ("f:mp3/t:3600:72000", "book"),
            ("f:peaks/norm:ebu", "book"),
            ("f:flac", "odd"),
        ):
            since = self.reactor.seconds()
            client = await send(service.port, signed(f"/{options}/plain/local://{book}.wav"))
            await self.until_encoding(2 if book == "odd" else 1)
            began_within = self.reactor.seconds() - since
            self.reactor.jump(RENDER_TIMEOUT)
            response = await client.end()
            self.assertIn((response.status, response.complete), ((504, True), (200, False)))
            percent, seconds = await self.advice()
            # The percentage is rounded.
            least = (RENDER_TIMEOUT - began_within) / (percent * 1.01) * 100
            most = round_up(RENDER_TIMEOUT / (percent * 0.99) * 100)
            self.assertTrue(least <= seconds <= most, (options, percent, seconds, began_within))
            await until(lambda: not children(), "the children to be reaped")
