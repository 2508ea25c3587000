"""The wall clock moves while the service runs: no timer, deadline or duration depends on it."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import datetime
from pathlib import Path

from audioproxy._twisted import monotonic_clock, seconds_since_1970, use_monotonic_clock
from tests.support.service import (
    PROJECT,
    ServiceCase,
    encoders,
    fetch,
    long_flac,
    send,
    short_flac,
    signed,
    until,
    until_hit,
    until_scraped,
)

# The module that Python imports at its start. It moves each clock by the seconds in a file.
SHIM = """
import time

def moved(name):
    clock = getattr(time, name)

    def read():
        try:
            with open(f"{folder}/{{name}}") as file:
                return clock() + float(file.read())
        except FileNotFoundError:
            return clock()

    setattr(time, name, read)

moved("time")
moved("monotonic")
"""
HOUR = 3600
# AP_RENDER_TIMEOUT in seconds.
LIMIT = 600
# The log line of a hit, with its time.
HIT = re.compile(r"(\S+Z) .* src=local://short\.flac cache=HIT")


class WallClockTests(ServiceCase):
    """A service whose wall clock is moved while it runs"""

    def setUp(self) -> None:
        super().setUp()
        self.add("short.flac", short_flac())
        self.add("long.flac", long_flac())
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(SHIM.format(folder=self.folder))

    def move(self, clock: str, seconds: int) -> None:
        """Move ``time`` or ``monotonic`` from where it is without moves."""
        new = self.folder / "new"
        new.write_text(str(seconds))
        new.replace(self.folder / clock)

    async def assert_same_after(self, seconds: int) -> None:
        """Assert that a move of the wall clock changes nothing but the time in log lines."""
        process = self.twistd(
            PYTHONPATH=f"{self.folder}:{PROJECT}",
            AP_RENDER_TIMEOUT=f"{LIMIT}",
            AP_MAX_CONCURRENCY="2",
        )
        port = await process.port()
        # Neither response can end before the move: the encoder of one is stopped, and the client of
        # the other does not read.
        late = await send(port, signed("/f:flac/sr:384000/plain/local://long.flac"))
        await until(lambda: late.received, "the first bytes of the late render")
        (late_encoder,) = encoders(process.pid)
        os.kill(late_encoder, signal.SIGSTOP)
        stream = await send(port, signed("/f:wav/t:0:200/plain/local://long.flac"))
        await until(lambda: stream.received, "the first bytes of the stream")
        stream.pause()
        self.move("time", seconds)
        stream.resume()
        response = await stream.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual(200, (await fetch(port, b"/health")).status)
        self.assertIsNone(late.closed)
        # The time limit of the write-back must not pass: the store would accept no other file.
        await until_scraped(
            await process.metrics_port(),
            lambda series: series["audio_proxy_write_back_duration_seconds_count"],
            "the write-back of the stream",
        )
        # The deadline of the render passes, and then the time in which its encoder may exit. A
        # request makes the reactor look at its clock.
        for passed in (LIMIT, 2 * LIMIT):
            self.move("monotonic", passed)
            await fetch(port, b"/health")
            await process.printed("render_timeout", "the deadline of the late render")
        stopped = await late.end()
        self.assertEqual((200, False), (stopped.status, stopped.complete))
        await until(lambda: not encoders(process.pid), "the encoder to end")
        short = signed("/f:mp3/plain/local://short.flac")
        self.assertEqual(200, (await fetch(port, short)).status)
        await until_hit(port, short)
        hit = await process.printed(HIT, "a log line")
        stamp = datetime.fromisoformat(hit[1])
        self.assertApproximates(seconds, stamp.timestamp() - time.time(), 600)
        durations = [int(each) for each in re.findall(r"in (-?\d+)ms", process.stdout)]
        self.assertTrue(all(0 <= each < HOUR * 1000 for each in durations), durations)
        process.signal(15)
        self.assertEqual(0, await process.end())

    async def test_an_hour_back(self) -> None:
        """After a move by an hour into the past, everything happens as before.

        A stream that is under way continues, a render ends at its deadline, log lines appear with
        the time of the wall clock, and durations are right.
        """
        await self.assert_same_after(-HOUR)

    async def test_an_hour_forth(self) -> None:
        """After a move by an hour into the future, too, everything happens as before."""
        await self.assert_same_after(HOUR)

    def test_clock_of_an_application(self) -> None:
        """In another application's reactor, durations do not depend on the wall clock either."""

        class Reactor:
            seconds = staticmethod(seconds_since_1970)
            callLater = None

        self.assertIs(time.monotonic, monotonic_clock(Reactor()).seconds)
        mine = Reactor()
        use_monotonic_clock(mine)
        self.assertIs(mine, monotonic_clock(mine))
