"""Killed nodes and hanging disks: no truncated variant, and no leftover files or processes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import skipUnless

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import engine as engine_module
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.errors import OutputTooLarge
from audioproxy.process import child as child_module
from audioproxy.render.output import RenderOutput
from audioproxy.service import AudioProxy
from audioproxy.variants import files as files_module
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.scratch_folder import ScratchFolder
from tests.deploy.balancer import installed
from tests.render.test_failures_live import (
    QUEUE_DEPTH,
    SLOTS_HELD,
    ScriptedEncoderCase,
    mount,
    target,
    until_scraped,
    until_stopped,
)
from tests.support.http import Log
from tests.support.processes import open_descriptors
from tests.support.service import (
    PATIENCE,
    Client,
    Process,
    children,
    counter_increases,
    fetch,
    is_blocked,
    is_running,
    scrape,
    scratch_files,
    send,
    until,
    until_hit,
)

# Python runs this code when it starts. The code kills the process in the middle of its first
# write-back.
KILL_ON_FSYNC = "import os; os.fsync = lambda descriptor: os.kill(os.getpid(), 9)"

# Cache states that are permitted after a late write-back, which may or may not have succeeded.
HIT_OR_MISS = (b"HIT", b"MISS")

HEADERS = VariantHeaders("audio/mpeg", "no-store")

#: Blocking calls run at once in the same thread.
SYNCHRONOUS_CALLS = BlockingCalls(Clock(), execute)


@skipUnless(shutil.which("setpriv"), "Without setpriv, an encoder outlives its service.")
class KillTests(ScriptedEncoderCase):
    """Nodes on one store, some of which are killed with kill -9 (D40)"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "start": "stop_self; exec sleep 60",
        "middle": "write_64k; stop_self; exec sleep 60",
        "end": "write_64k; stop_self; exit 0",
    }

    def variants(self) -> dict[str, bytes]:
        """Return the contents of all variants in the store, by name."""
        return {path.name: path.read_bytes() for path in self.store.glob("??/*")}

    async def assert_killed(self, node: Process, clients: list[Client], encoders: list[int]) -> int:
        """Require that a node dies of SIGKILL with its encoders; return its scratch files."""
        self.assertEqual(-signal.SIGKILL, await node.end())
        await until(lambda: not any(map(is_running, encoders)), "the encoders to end")
        await until(lambda: all(client.closed for client in clients), "the connections to break")
        return len(scratch_files(self.store))

    async def test_at_any_moment(self) -> None:
        """A node killed at any stage of a render leaves no encoder and no truncated variant (D40).

        The next boot removes its scratch files.
        """
        node = self.twistd(AP_MAX_CONCURRENCY="2")
        port = await node.port()
        reference = await fetch(port, target("good", "mp3"))
        await until_hit(port, target("good", "mp3"))
        before = self.variants()
        clients, encoders = [], list[int]()
        for script in ("start", "middle"):
            clients.append(await send(port, target(script, "mp3")))
            encoders.append(await until_stopped(node.pid, but=encoders))
        clients.append(await send(port, target("good", "flac")))
        await until_scraped(
            await node.metrics_port(), lambda series: series[QUEUE_DEPTH] == 1, "a queued render"
        )
        node.signal(signal.SIGKILL)
        self.assertLessEqual(1, await self.assert_killed(node, clients, encoders))
        starting, middle, queued = (client.response for client in clients)
        self.assertEqual((None, None), (starting, queued))
        self.assertFalse(middle and middle.complete)
        for dies in (True, False):
            node = self.twistd(**({"PYTHONPATH": self.pythonpath_that_kills()} if dies else {}))
            port = await node.port()
            # The file of the writability check is removed a moment after the start.
            await until(lambda: not scratch_files(self.store), "the scratch files to go")
            self.assertEqual(before, self.variants())
            # The scratch folder and lock of the running node remain; those of killed nodes are
            # gone.
            self.assertEqual(2, len(list((self.store / ".scratch").iterdir())))
            hit = await fetch(port, target("good", "mp3"))
            self.assertEqual((b"HIT", reference.body), (hit["x-audio-proxy"], hit.body))
            for script in self.encoder_scripts:
                head = await fetch(port, target(script, "mp3"), b"HEAD")
                self.assertEqual(b"MISS", head["x-audio-proxy"])
            if dies:
                client = await send(port, target("end", "mp3"))
                encoder = await until_stopped(node.pid)
                # The write-back kills the node.
                os.kill(encoder, signal.SIGCONT)
                self.assertLessEqual(1, await self.assert_killed(node, [client], [encoder]))

    def pythonpath_that_kills(self) -> str:
        """Return a PYTHONPATH that makes Python run `KILL_ON_FSYNC`."""
        folder = self.root.with_name("folder")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(KILL_ON_FSYNC)
        return f"{folder}:{self.environment()['PYTHONPATH']}"

    async def test_same_keys(self) -> None:
        """Nodes that share a store send equal bytes for a URL, even after one of them is killed."""
        dying = self.twistd()
        nodes = [await dying.port(), self.start().port]
        targets = [target("good", form) for form in ("mp3", "opus", "flac", "wav", "peaks")]
        requests = [
            (path, await send(port, path)) for path in targets for _ in range(2) for port in nodes
        ]
        bodies: dict[bytes, set[bytes]] = {path: set() for path in targets}
        for path, client in requests:
            response = await client.end()
            self.assertEqual((200, True), (response.status, response.complete))
            bodies[path].add(response.body)
        self.assertEqual([1] * len(targets), [len(each) for each in bodies.values()])
        later = [target("good", form, "/gain:-3") for form in ("mp3", "flac")]
        torn = [await send(nodes[0], path) for path in later]
        suspended_client = await send(nodes[0], target("middle", "mp3"))
        await until(lambda: suspended_client.response, "the headers")
        survivor_clients = [await send(nodes[1], path) for path in later]
        dying.signal(signal.SIGKILL)
        await dying.end()
        for path, client, dead in zip(later, survivor_clients, torn, strict=True):
            response = await client.end()
            self.assertTrue(response.complete)
            bodies[path] = {response.body}
            await until(lambda dead=dead: dead.closed, "the connection to break")
            if dead.response is not None:
                self.assertTrue(response.body.startswith(dead.response.body), "different bytes")
        for path, expected in bodies.items():
            self.assertEqual(expected, {(await until_hit(nodes[1], path)).body})


class ForkTests(SynchronousTestCase):
    """Other processes, which are killed (D40)"""

    DATA = b"x" * 100_000

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.mkdir()

    def fork(self, work: Callable[[], object]) -> int:
        """Run a function in a process of its own, and return its id."""
        process = os.fork()
        if not process:
            try:
                work()
            finally:
                os._exit(1)
        return process

    def assert_killed(self, process: int) -> None:
        """Wait for a process, and require that SIGKILL has ended it."""
        _, status = os.waitpid(process, 0)
        self.assertEqual(signal.SIGKILL, os.waitstatus_to_exitcode(status) * -1)

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
                self.assert_killed(self.fork(partial(self.store_until_killed, call, after)))
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
        Deferred.fromCoroutine(store.commit("ab" * 32, scratch, len(self.DATA), HEADERS))

    def test_boot(self) -> None:
        """Boot removes the files of a process that was killed, and not those of a live one."""
        opened, written = os.pipe()

        def create() -> None:
            other = ScratchFolder(str(self.root))
            other.open()
            file = other.create()
            os.write(written, os.fsencode(str(file.path)))
            signal.alarm(int(PATIENCE))
            signal.pause()

        process = self.fork(create)
        os.close(written)
        path = Path(os.fsdecode(os.read(opened, 4096)))
        folder = ScratchFolder(str(self.root))
        self.addCleanup(folder.close)
        for _ in range(2):
            folder.open()
            folder.close()
        self.assertTrue(path.exists())
        os.kill(process, signal.SIGKILL)
        self.assert_killed(process)
        os.close(opened)
        self.assertTrue(path.exists())
        folder.open()
        self.assertFalse(path.parent.exists())
        self.assertEqual(2, len(os.listdir(self.root)))


class HungDiskTests(ScriptedEncoderCase):
    """A disk that suddenly hangs on writes"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "steady": "write_64k; stop_self; exit 0",
        "writer": "write_64k; stop_self; exec cat /dev/zero",
    }

    def setUp(self) -> None:
        super().setUp()
        # The store's timeouts pass only when a test says so.
        self.disk_clock = Clock()
        self.disk_calls: list[Deferred[Any]] = []
        self.patch(engine_module, "BlockingCalls", self.make_blocking_calls)
        self.guards: list[int] = []
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
        return service

    def exceed_commit_timeout(self) -> None:
        """Advance the clock past the timeout of a running write-back."""
        self.disk_clock.advance(files_module._COMMIT_TIMEOUT)

    def children(self) -> list[int]:
        """Return the children of the service, which runs in this process; omit the guards."""
        return [child for child in children() if child not in self.guards]

    def messages(self, level: LogLevel) -> list[str]:
        """Return the messages logged at a level, with numbers and digests replaced by N."""
        events = [event for event in self.log.events if event["log_level"] is level]
        return [re.sub(r"\b([0-9a-f]{64}|\d+)\b", "N", formatEvent(event)) for event in events]

    async def start_half_rendered(self, port: int, script: str = "steady") -> tuple[Client, int]:
        """Request a render that stops halfway; return its client and encoder."""
        client: Client = await send(port, target(script, "aac"))
        await until(lambda: client.response, "the headers")
        encoder = await until_stopped(but=self.guards)
        return client, encoder

    async def start_hanging(self, hang: Callable[[], object]) -> tuple[AudioProxy, set[str]]:
        """Hang the disk during a render; require that clients are served, stored or not.

        :returns: the service and the descriptors that were open before.
        """
        service = self.start(max_concurrency=2, max_variant_bytes=5_000_000)
        port, hit = service.port, target("good", "aac")
        await fetch(port, hit)
        await until_hit(port, hit)
        before = await scrape(service.metrics_port)
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        open_before = open_descriptors()
        client, encoder = await self.start_half_rendered(port)
        hang()
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
        return service, open_before

    async def test_sync_that_hangs(self) -> None:
        """While an fsync hangs, clients are served, and a shutdown does not wait for it (D39)."""
        gate, real = threading.Event(), os.fsync
        self.addCleanup(gate.set)

        def hang(descriptor: int) -> None:
            gate.wait(PATIENCE)
            real(descriptor)

        service, _ = await self.start_hanging(lambda: self.patch(os, "fsync", hang))
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

    async def test_frozen(self) -> None:
        """While the disk is frozen, clients are served; afterwards renders are stored again."""
        freeze = self.mount_freezable_store()
        service, open_before = await self.start_hanging(lambda: freeze("--freeze"))
        port = service.port
        freeze("--unfreeze")
        # As long as the last call of the late write-back has not returned, nothing is stored.
        await self.until_returned()
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        # The late write-back succeeded or failed completely, and new renders are stored again.
        self.assertIn(
            (await fetch(port, target("steady", "aac"), b"HEAD"))["x-audio-proxy"], HIT_OR_MISS
        )
        states = []
        for _ in range(2):
            states.append((await fetch(port, target("good", "wav")))["x-audio-proxy"])
            await self.until_returned()
        self.assertEqual([b"MISS", b"HIT"], states)
        await until(lambda: open_descriptors() <= open_before, "descriptors to be closed")
        await service.stopService()
        self.assertEqual([], self.log.errors)

    async def test_unkillable_encoder(self) -> None:
        """An encoder that cannot be killed is logged, and holds its slot until it is dead."""
        freeze = self.mount_freezable_store()
        service = self.start(max_concurrency=1, queue_size=0)
        # Only the encoder that cannot be killed is stopped.
        self.patch(child_module, "_TERM_GRACE", 0.1)
        self.patch(child_module, "_KILL_GRACE", 0.1)
        client, encoder = await self.start_half_rendered(service.port, "writer")
        freeze("--freeze")
        os.kill(encoder, signal.SIGCONT)
        await until(lambda: is_blocked(encoder), "the encoder to hang")
        # From now on the output is above its size limit, so the encoder is stopped.

        def refuse(output: RenderOutput) -> None:
            refusal = OutputTooLarge()
            output.end(refusal)
            raise refusal

        above_limit = self.patch(RenderOutput, "update_size", refuse)
        await until(lambda: self.log.errors, "the error line")
        line = "child N survived SIGKILL; waiting for its end"
        self.assertEqual([line], self.messages(LogLevel.error))
        self.assertEqual([encoder], self.children())
        held = await scrape(service.metrics_port)
        self.assertEqual(1, held[SLOTS_HELD])
        self.assertEqual(429, (await fetch(service.port, target("good", "aac"))).status)
        # The client did not have to wait for the end of the encoder.
        self.assertFalse((await client.end()).complete)
        freeze("--unfreeze")
        await until(lambda: not self.children(), "the encoder to be reaped")
        await until_scraped(
            service.metrics_port, lambda series: not series[SLOTS_HELD], "the slot to be free"
        )
        above_limit.restore()
        self.assertEqual(200, (await fetch(service.port, target("good", "aac"))).status)
        self.assertEqual([line], self.messages(LogLevel.error))

    def mount_freezable_store(self) -> Callable[[str], None]:
        """Put the store on its own ext4 file system; return a function that freezes and thaws it.

        :raises SkipTest: if mkfs.ext4 is missing, or file systems cannot be mounted here.
        """
        image = self.root.with_name("image")
        with open(image, "wb") as file:
            file.truncate(16_000_000)
        run(installed("mkfs.ext4", "AUDIOPROXY_UTILITIES"), "-q", "-F", str(image))
        mount(self, "-o", "loop", str(image), str(self.store))
        # This shell thaws the disk if the test process dies.
        thaw = f"read line; fsfreeze --unfreeze {shlex.quote(str(self.store))} 2>&1"
        guard = subprocess.Popen(["/bin/sh", "-c", thaw], stdin=-1, stdout=-1)
        self.guards.append(guard.pid)

        def end() -> None:
            guard.communicate(timeout=PATIENCE)

        self.addCleanup(end)
        return lambda what: run("fsfreeze", what, str(self.store))


def run(*words: str) -> None:
    """Run a program, which must succeed."""
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
