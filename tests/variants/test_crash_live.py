"""Killed nodes and hanging disks: no truncated variant, and no leftover files or processes."""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Callable
from typing import Any, ClassVar

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.engine import parts as engine_module
from audioproxy.service import AudioProxy
from tests.render.test_failures_live import (
    QUEUE_DEPTH,
    ScriptedEncoderCase,
    target,
    until_stopped,
)
from tests.support.http import Log
from tests.support.processes import open_descriptors
from tests.support.service import (
    Client,
    counter_increases,
    fetch,
    is_running,
    scrape,
    scratch_files,
    send,
    until,
    until_hit,
    until_scraped,
)


class KillTests(ScriptedEncoderCase):
    """Nodes on one store, some of which are killed with kill -9 (D40)"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "start": "stop_self; exec sleep 60",
        "middle": "write_64k; stop_self; exec sleep 60",
    }

    async def test_at_any_moment(self) -> None:
        """A node killed at any stage of a render leaves no encoder and no truncated variant (D40).

        The next boot removes its scratch files.
        """
        node = self.twistd(AP_MAX_CONCURRENCY="2")
        port = await node.port()
        reference = await fetch(port, target("good", "mp3"))
        await until_hit(port, target("good", "mp3"))
        clients, encoders = [], list[int]()
        for script in self.encoder_scripts:
            clients.append(await send(port, target(script, "mp3")))
            encoders.append(await until_stopped(node.pid, but=encoders))
        clients.append(await send(port, target("good", "flac")))
        await until_scraped(
            await node.metrics_port(), lambda series: series[QUEUE_DEPTH] == 1, "a queued render"
        )
        node.signal(signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, await node.end())
        await until(lambda: not any(map(is_running, encoders)), "the encoders to end")
        await until(lambda: all(client.closed for client in clients), "the connections to break")
        self.assertLessEqual(1, len(scratch_files(self.store)))
        starting, middle, queued = (client.response for client in clients)
        self.assertEqual((None, None), (starting, queued))
        self.assertFalse(middle and middle.complete)
        port = await self.twistd().port()
        # The file of the writability check is removed a moment after the start.
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        self.assertEqual(1, len(list(self.store.glob("??/*"))))
        # The scratch folder and lock of the running node remain; those of the killed one are gone.
        self.assertEqual(2, len(list((self.store / ".scratch").iterdir())))
        hit = await fetch(port, target("good", "mp3"))
        self.assertEqual((b"HIT", reference.body), (hit["x-audio-proxy"], hit.body))
        for script in self.encoder_scripts:
            head = await fetch(port, target(script, "mp3"), b"HEAD")
            self.assertEqual(b"MISS", head["x-audio-proxy"])


class HungDiskTests(ScriptedEncoderCase):
    """A disk that suddenly hangs on writes"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "steady": "write_64k; stop_self; exit 0",
    }

    def setUp(self) -> None:
        super().setUp()
        # The store's timeouts pass only when a test says so.
        self.disk_clock = Clock()
        self.disk_calls: list[Deferred[Any]] = []
        self.patch(engine_module, "BlockingCalls", self.make_blocking_calls)
        self.log = Log(self)

    def make_blocking_calls(self, _: object, in_thread: ThreadRunner, *most: int) -> BlockingCalls:
        """Return the runner of the store's calls, and record those that have not returned."""

        def run(work: Callable[[], Any]) -> Deferred[Any]:
            running = in_thread(work)
            self.disk_calls.append(running)

            def remove(outcome: Any) -> Any:
                self.disk_calls.remove(running)
                return outcome

            return running.addBoth(remove)

        return BlockingCalls(self.disk_clock, run, *most)

    async def until_returned(self) -> None:
        """Wait until all calls of the store have returned."""
        await until(lambda: not self.disk_calls, "the disk to respond to all calls")

    def start(self, **settings: Any) -> AudioProxy:
        """Start a service in this process; it stops even if the disk still hangs."""
        service = super().start(**settings)
        self.addCleanup(self.exceed_timeout)
        # The script in the place of ffmpeg runs without a cell, of which a line warns.
        self.log.events.clear()
        return service

    def exceed_timeout(self) -> None:
        """Advance the clock past the timeout of a running write-back."""
        self.disk_clock.advance(3600)

    def hang(self) -> Callable[[], None]:
        """Let each write-back wait for the lock of the ledger; return what ends that."""
        ledger = os.open(self.store / ".usage", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(ledger, fcntl.LOCK_EX)
        waiting = [ledger]

        def respond() -> None:
            while waiting:
                os.close(waiting.pop())

        self.addCleanup(respond)
        return respond

    def warnings(self) -> list[str]:
        """Return the logged warnings, with numbers and digests replaced by N."""
        events = [event for event in self.log.events if event["log_level"] is LogLevel.warn]
        return [re.sub(r"\b([0-9a-f]{64}|\d+)\b", "N", formatEvent(event)) for event in events]

    async def test_write_that_hangs(self) -> None:
        """While a write hangs, clients are served, and a shutdown does not wait for it (D39).

        Once the disk responds again, renders are stored again, and nothing is left.
        """
        service = self.start(max_concurrency=2)
        port, hit = service.port, target("good", "aac")
        await fetch(port, hit)
        await until_hit(port, hit)
        before = await scrape(service.metrics_port)
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        open_before = open_descriptors()
        client: Client = await send(port, target("steady", "aac"))
        await until(lambda: client.response, "the headers")
        encoder, respond = await until_stopped(), self.hang()
        os.kill(encoder, signal.SIGCONT)
        for state, each in (b"MISS", client), (b"COALESCED", None):
            response = await (each or await send(port, target("steady", "aac"))).end()
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertEqual((state, bytes(65536)), (response["x-audio-proxy"], response.body))
        for method in (b"GET", b"HEAD"):
            self.assertEqual(b"HIT", (await fetch(port, hit, method))["x-audio-proxy"])
        for path in (b"/health", b"/ready"):
            self.assertEqual(200, (await fetch(port, path)).status)
        self.exceed_timeout()
        other_response = await fetch(port, target("good", "flac"))
        self.assertEqual((200, True), (other_response.status, other_response.complete))
        counted = counter_increases(before, await scrape(service.metrics_port))
        self.assertEqual(2, counted["variant_store_write_failures_total"])
        timed_out = "write-back of N failed: no response for N seconds"
        refused = (
            "the store accepts no file, so a render is not stored: an earlier call has not returned"
        )
        self.assertEqual([timed_out, refused], self.warnings())

        respond()
        # As long as the last call of the late write-back has not returned, nothing is stored.
        await self.until_returned()
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        states = []
        for _ in range(2):
            response = await fetch(port, target("good", "wav"))
            states.append(response["x-audio-proxy"])
            await self.until_returned()
        self.assertEqual([b"MISS", b"HIT"], states)
        await until(lambda: open_descriptors() <= open_before, "descriptors to be closed")

        self.hang()
        await fetch(port, target("good", "mp3"))
        stopping = service.stopService()
        self.exceed_timeout()
        await stopping
        self.assertEqual([timed_out, refused, timed_out], self.warnings())
        self.assertEqual([], self.log.errors)
