"""Killed nodes and hanging disks: no truncated variant, and no leftover files or processes."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.engine import parts as engine_module
from audioproxy.service import AudioProxy
from audioproxy.variants import files as files_module
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.response_headers import VariantHeaders
from tests.render.test_failures_live import (
    QUEUE_DEPTH,
    ScriptedEncoderCase,
    target,
    until_stopped,
)
from tests.support.http import Log
from tests.support.processes import open_descriptors
from tests.support.service import (
    PATIENCE,
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
from tests.support.stores import RECORD

HEADERS = VariantHeaders("audio/mpeg", "no-store")

#: Blocking calls run at once in the same thread.
SYNCHRONOUS_CALLS = BlockingCalls(Clock(), execute)


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


class ForkTests(SynchronousTestCase):
    """Other processes, which are killed (D40)"""

    DATA = b"x" * 100_000

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.mkdir()

    def open(self) -> FileVariantStore:
        """Open a store."""
        store = FileVariantStore(str(self.root), SYNCHRONOUS_CALLS, SYNCHRONOUS_CALLS)
        self.successResultOf(Deferred.fromCoroutine(store.open()))
        return store

    def test_every_step(self) -> None:
        """After a crash at any step, the store has the whole variant or none; boot cleans up."""
        for call in ("open", "pwrite", "fsync", "close", "mkdir", "rename"):
            for after in (False, True):
                self.setUp()
                process = os.fork()
                if not process:
                    try:
                        self.store_until_killed(call, after)
                    finally:
                        os._exit(1)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                self.assertEqual(-signal.SIGKILL, status)
                store = self.open()
                found = self.successResultOf(Deferred.fromCoroutine(store.lookup("ab" * 32)))
                step = call, after
                self.assertEqual(step == ("rename", True), found is not None, step)
                if found is not None:
                    self.assertEqual(self.DATA, found.read(0, found.size))
                    found.close()
                self.assertEqual([], scratch_files(self.root))
                self.assertEqual(2, len(list((self.root / ".scratch").iterdir())))
                store.close_now()

    def store_until_killed(self, call: str, after: bool) -> None:
        """Store a variant, and kill this process just before or after a system call."""
        store = self.open()
        scratch = self.successResultOf(Deferred.fromCoroutine(store.create()))
        os.write(scratch.descriptor, self.DATA)
        real = getattr(os, call)

        def kill_self(*arguments: Any) -> None:
            if after:
                real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, call, kill_self)
        storing = store.commit("ab" * 32, scratch, len(self.DATA), HEADERS, RECORD)
        Deferred.fromCoroutine(storing)


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
        self.log = Log()
        self.addCleanup(self.log.start())

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
        self.addCleanup(self.exceed_commit_timeout)
        # The script in the place of ffmpeg runs without a cell, of which a line warns.
        self.log.events.clear()
        return service

    def exceed_commit_timeout(self) -> None:
        """Advance the clock past the timeout of a running write-back."""
        self.disk_clock.advance(files_module._COMMIT_TIMEOUT)

    def messages(self, level: LogLevel) -> list[str]:
        """Return the messages logged at a level, with numbers and digests replaced by N."""
        events = [event for event in self.log.events if event["log_level"] is level]
        return [re.sub(r"\b([0-9a-f]{64}|\d+)\b", "N", formatEvent(event)) for event in events]

    async def start_hanging(self) -> tuple[threading.Event, AudioProxy, set[str]]:
        """Hang each fsync during a render; require that clients are served, stored or not.

        :returns: the event that ends the hang, the service, and the descriptors that were open
            before.
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
        encoder = await until_stopped()
        gate, real = threading.Event(), os.fsync
        self.addCleanup(gate.set)

        def hang(descriptor: int) -> None:
            gate.wait(PATIENCE)
            real(descriptor)

        self.patch(os, "fsync", hang)
        os.kill(encoder, signal.SIGCONT)
        for state, each in (b"MISS", client), (b"COALESCED", None):
            response = await (each or await send(port, target("steady", "aac"))).end()
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertEqual((state, bytes(65536)), (response["x-audio-proxy"], response.body))
        for method in (b"GET", b"HEAD"):
            self.assertEqual(b"HIT", (await fetch(port, hit, method))["x-audio-proxy"])
        for path in (b"/health", b"/ready"):
            self.assertEqual(200, (await fetch(port, path)).status)
        self.exceed_commit_timeout()
        self.assertEqual(1, len(self.messages(LogLevel.warn)))
        other_response = await fetch(port, target("good", "flac"))
        self.assertEqual((200, True), (other_response.status, other_response.complete))
        counted = counter_increases(before, await scrape(service.metrics_port))
        self.assertEqual(2, counted["variant_store_write_failures_total"])
        return gate, service, open_before

    async def test_sync_that_hangs(self) -> None:
        """While an fsync hangs, clients are served, and a shutdown does not wait for it (D39)."""
        gate, service, _ = await self.start_hanging()
        await service.stopService()
        self.assertFalse(gate.is_set())
        self.assertEqual(
            [
                "write-back of N failed: no response for N seconds",
                "the store accepts no file, so a render is not stored: an earlier call has not"
                " returned",
            ],
            self.messages(LogLevel.warn),
        )
        self.assertEqual([], self.log.errors)

    async def test_sync_that_hung(self) -> None:
        """Once a disk that hung responds again, renders are stored again, and nothing is left."""
        gate, service, open_before = await self.start_hanging()
        gate.set()
        # As long as the last call of the late write-back has not returned, nothing is stored.
        await self.until_returned()
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        states = []
        for _ in range(2):
            response = await fetch(service.port, target("good", "wav"))
            states.append(response["x-audio-proxy"])
            await self.until_returned()
        self.assertEqual([b"MISS", b"HIT"], states)
        await until(lambda: open_descriptors() <= open_before, "descriptors to be closed")
        await service.stopService()
        self.assertEqual([], self.log.errors)

    async def test_open_that_hangs(self) -> None:
        """While the opening of a stored variant hangs, everything else is served.

        No file of a variant is opened on the reactor thread before a thread has read it.
        """
        path = target("good", "aac")
        first = self.start()
        await fetch(first.port, path)
        expected = await until_hit(first.port, path)
        await first.stopService()
        gate, hanging, real = threading.Event(), threading.Event(), os.open
        self.addCleanup(gate.set)

        def hang(name: Any, *words: Any, **options: Any) -> int:
            if re.search(r"/[0-9a-f]{64}$", str(name)):
                self.assertIsNot(threading.current_thread(), threading.main_thread())
                hanging.set()
                gate.wait(PATIENCE)
            return real(name, *words, **options)

        patched = self.patch(os, "open", hang)
        port = self.start().port
        clients = [await send(port, path) for _ in range(3)]
        await until(hanging.is_set, "the lookup to hang")
        for other in (b"/health", b"/ready"):
            self.assertEqual(200, (await fetch(port, other)).status)
        self.assertEqual([None] * 3, [client.response for client in clients])
        gate.set()
        for client in clients:
            response = await client.end()
            self.assertEqual((b"HIT", expected.body), (response["x-audio-proxy"], response.body))
        patched.restore()
        self.assertEqual(b"HIT", (await fetch(port, path))["x-audio-proxy"])
        self.assertEqual([], self.log.errors)
