"""Killed nodes and hanging disks: no truncated variant, and no leftover files or processes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import skipUnless

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from audioproxy import engine as engine_module
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.errors import OutputTooLarge
from audioproxy.process import child as child_module
from audioproxy.render import registry as registry_module
from audioproxy.render.output import RenderOutput
from audioproxy.service import AudioProxy
from audioproxy.variants import files as files_module
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.scratch_folder import ScratchFolder
from tests.render.test_failures_live import ScriptedEncoderCase, mount, target, until_stopped
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


class KillCase(ScriptedEncoderCase):
    """Nodes on one store, some of which are killed."""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "start": "stop_self; exec sleep 60",
        "middle": "write_64k; stop_self; exec sleep 60",
        "end": "write_64k; stop_self; exit 0",
    }

    async def boot(self, **variables: str) -> tuple[Process, int]:
        """Start a node."""
        path = f"{self.programs}:{os.environ['PATH']}"
        node = self.twistd(**{"PATH": path, **variables})
        return node, await node.port()

    def variants(self) -> dict[str, bytes]:
        """Return the contents of all variants in the store, by name."""
        return {path.name: path.read_bytes() for path in self.store.glob("??/*")}


@skipUnless(shutil.which("setpriv"), "Without setpriv, an encoder outlives its service.")
class KillTests(KillCase):
    """Nodes that are killed with kill -9 (D40)"""

    async def test_at_any_moment(self) -> None:
        """A node killed at any stage of a render leaves no encoder and no truncated variant (D40).

        The next boot removes its scratch files.
        """
        node, port = await self.boot(AP_MAX_CONCURRENCY="1")
        reference = await fetch(port, target("good", "mp3"))
        await until_hit(port, target("good", "mp3"))
        before = self.variants()
        for script in ("start", "middle", "end"):
            client = await send(port, target(script, "mp3"))
            encoder = await until_stopped(node.pid)
            waiting = await send(port, target("good", "flac"))
            await self.until_queued(node)
            if script == "end":
                # Continue the encoder: the write-back then kills the node.
                os.kill(encoder, signal.SIGCONT)
            else:
                node.signal(signal.SIGKILL)
            self.assertEqual(-signal.SIGKILL, await node.end())
            await until(lambda encoder=encoder: not is_running(encoder), "the encoder to end")
            for each in (client, waiting):
                await until(lambda each=each: each.closed, "the connection to break")
            self.assertFalse(script != "end" and client.response and client.response.complete)
            self.assertFalse(script != "end" and waiting.response)
            self.assertLessEqual(1, len(scratch_files(self.store)))
            killing_variables = (
                {"PYTHONPATH": self.pythonpath_that_kills()} if script == "middle" else {}
            )
            node, port = await self.boot(AP_MAX_CONCURRENCY="1", **killing_variables)
            # The file of the writability check is removed a moment after the start.
            await until(lambda: not scratch_files(self.store), "the scratch files to go")
            self.assertEqual(before, self.variants())
            # The scratch folder and lock of the running node remain; those of killed nodes are
            # gone.
            self.assertEqual(2, len(list((self.store / ".scratch").iterdir())))
            hit = await fetch(port, target("good", "mp3"))
            self.assertEqual((b"HIT", reference.body), (hit["x-audio-proxy"], hit.body))
            head = await fetch(port, target(script, "mp3"), b"HEAD")
            self.assertEqual(b"MISS", head["x-audio-proxy"])

    async def until_queued(self, node: Process) -> None:
        """Wait until one render waits for a slot."""
        port = await node.metrics_port()
        while (await scrape(port))["audio_proxy_render_queue_depth"] != 1:
            self.assertIsNone(node.code)

    def pythonpath_that_kills(self) -> str:
        """Return a PYTHONPATH that makes Python run `KILL_ON_FSYNC`."""
        folder = self.root.with_name("folder")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(KILL_ON_FSYNC)
        return f"{folder}:{self.environment()['PYTHONPATH']}"


class WriteBackTests(SynchronousTestCase):
    """A process that is killed just before or after a system call of a write-back (D40)"""

    DATA = b"x" * 100_000

    def test_every_step(self) -> None:
        """After a crash at any step, the store has the whole variant or none; boot cleans up."""
        for call in ("open", "pwrite", "fsync", "close", "mkdir", "rename"):
            for after in (False, True):
                root = Path(self.mktemp()).absolute()
                root.mkdir()
                self.crash(root, call, after)
                store = FileVariantStore(str(root), SYNCHRONOUS_CALLS, SYNCHRONOUS_CALLS)
                self.open(store)
                found = self.successResultOf(Deferred.fromCoroutine(store.lookup("ab" * 32)))
                self.assertEqual((call, after) == ("rename", True), found is not None)
                if found is not None:
                    self.assertEqual(self.DATA, found.read(0, found.size))
                    found.close()
                self.assertEqual([], scratch_files(root))
                self.assertEqual(2, len(list((root / ".scratch").iterdir())))
                store.close_now()

    def open(self, store: FileVariantStore) -> None:
        """Open a store."""
        self.successResultOf(Deferred.fromCoroutine(store.open()))

    def crash(self, root: Path, call: str, after: bool) -> None:
        """Fork a process that stores a variant and is killed just before or after a system call."""
        process = os.fork()
        if not process:
            try:
                self.store_until_killed(root, call, after)
            finally:
                os._exit(1)
        _, status = os.waitpid(process, 0)
        self.assertEqual(signal.SIGKILL, os.waitstatus_to_exitcode(status) * -1, call)

    def store_until_killed(self, root: Path, call: str, after: bool) -> None:
        """Store a variant, and kill this process just before or after a system call."""
        store = FileVariantStore(str(root), SYNCHRONOUS_CALLS, SYNCHRONOUS_CALLS)
        self.open(store)
        scratch = self.successResultOf(Deferred.fromCoroutine(store.create()))
        os.write(scratch.descriptor, self.DATA)
        real = getattr(os, call)

        def kill_self(*arguments: Any) -> None:
            if after:
                real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, call, kill_self)
        Deferred.fromCoroutine(store.commit("ab" * 32, scratch, len(self.DATA), HEADERS))


class ScratchFolderTests(SynchronousTestCase):
    """Scratch folders of other processes (D40)"""

    #: Program of another process, which keeps a folder with one file open until its stdin ends.
    OTHER = (
        "import sys\n"
        "from audioproxy.variants.scratch_folder import ScratchFolder\n"
        "folder = ScratchFolder(sys.argv[1])\n"
        "folder.open()\n"
        "file = folder.create()\n"
        "print(file.path, flush=True)\n"
        "sys.stdin.read()\n"
    )

    def test_boot(self) -> None:
        """Boot removes the files of a process that was killed, and not those of a live one."""
        parent = Path(self.mktemp()).absolute()
        other = subprocess.Popen(
            [sys.executable, "-c", self.OTHER, str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        assert other.stdout is not None
        path = Path(os.fsdecode(other.stdout.readline().strip()))
        folder = ScratchFolder(str(parent))
        self.addCleanup(folder.close)
        for _ in range(2):
            folder.open()
            folder.close()
        self.assertTrue(path.exists())
        other.kill()
        other.wait()
        self.assertTrue(path.exists())
        folder.open()
        self.assertFalse(path.parent.exists())
        self.assertEqual(2, len(os.listdir(parent)))


class SharedStoreTests(KillCase):
    """Several nodes that write one store at the same time"""

    async def test_same_keys(self) -> None:
        """Nodes that share a store send equal bytes for a URL, even after one of them is killed."""
        nodes = [await self.boot(), await self.boot()]
        targets = [target("good", form) for form in ("mp3", "opus", "flac", "wav", "peaks")]
        requests = [
            (path, await send(port, path))
            for path in targets
            for _ in range(2)
            for _, port in nodes
        ]
        bodies: dict[bytes, set[bytes]] = {path: set() for path in targets}
        for path, client in requests:
            response = await client.end()
            self.assertEqual((200, True), (response.status, response.complete))
            bodies[path].add(response.body)
        self.assertEqual([1] * len(targets), [len(each) for each in bodies.values()])
        (survivor, port), (dying, other) = nodes
        clients = [await send(other, target("good", form, "/gain:-3")) for form in ("mp3", "flac")]
        suspended_client = await send(other, target("middle", "mp3"))
        await until(lambda: suspended_client.response, "the headers")
        survivor_clients = [
            await send(port, target("good", form, "/gain:-3")) for form in ("mp3", "flac")
        ]
        dying.signal(signal.SIGKILL)
        await dying.end()
        whole = [await client.end() for client in survivor_clients]
        self.assertEqual([True, True], [response.complete for response in whole])
        for client, response in zip(clients, whole, strict=True):
            await until(lambda client=client: client.closed, "the connection to break")
            torn = client.response
            if torn is not None:
                self.assertTrue(response.body.startswith(torn.body), "different bytes")
        for path in targets:
            hit = await until_hit(port, path)
            self.assertEqual(bodies[path], {hit.body})
        for form, response in zip(("mp3", "flac"), whole, strict=True):
            hit = await until_hit(port, target("good", form, "/gain:-3"))
            self.assertEqual(response.body, hit.body)
        survivor.signal(signal.SIGTERM)
        self.assertEqual(0, await survivor.end())
        # The next boot removes the scratch files of the killed node, and all variants are complete.
        _, port = await self.boot()
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        for path in targets:
            self.assertEqual(bodies[path], {(await fetch(port, path)).body})


class HungDiskTests(ScriptedEncoderCase):
    """A disk that suddenly hangs on writes"""

    encoder_scripts: ClassVar[dict[str, str]] = {
        "steady": "write_64k; stop_self; exit 0",
        "writer": "write_64k; stop_self; exec cat /dev/zero",
    }

    def setUp(self) -> None:
        super().setUp()
        path = f"{self.programs}:{os.environ['PATH']}"
        self.patch(os, "environ", {**os.environ, "PATH": path})
        # The store's timeouts pass only when a test says so.
        self.disk_clock = Clock()
        self.patch(
            engine_module,
            "BlockingCalls",
            lambda clock, in_thread, *most: BlockingCalls(
                # Lookups alone have a limit of their own, and the time of the service.
                clock if most else self.disk_clock,
                in_thread,
                *most,
            ),
        )
        # Shorten timeouts that are seconds long.
        self.patch(child_module, "_TERM_GRACE", 0.1)
        self.patch(child_module, "_KILL_GRACE", 0.1)
        self.patch(registry_module, "_CANCEL_TIMEOUT", 0.2)
        self.guards: list[int] = []
        self.log = Log()
        self.addCleanup(self.log.start())

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

    async def assert_whole(self, client: Client, cache: bytes) -> None:
        """Require that a client gets the complete body although the disk hangs."""
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual((cache, bytes(65536)), (response["x-audio-proxy"], response.body))

    async def assert_serves(self, port: int, hit: bytes) -> None:
        """Require that the service still serves requests that need no write."""
        self.assertEqual(b"HIT", (await fetch(port, hit))["x-audio-proxy"])
        self.assertEqual(b"HIT", (await fetch(port, hit, b"HEAD"))["x-audio-proxy"])
        for path in (b"/health", b"/ready"):
            self.assertEqual(200, (await fetch(port, path)).status)

    async def test_sync_that_hangs(self) -> None:
        """While an fsync hangs, clients are served, and a shutdown does not wait for it (D39)."""
        gate, hanging, real = threading.Event(), threading.Event(), os.fsync
        self.addCleanup(gate.set)

        def hang(descriptor: int) -> None:
            hanging.set()
            gate.wait(PATIENCE)
            real(descriptor)

        service = self.start()
        await fetch(service.port, target("good", "aac"))
        await until_hit(service.port, target("good", "aac"))
        before = await scrape(service.metrics_port)
        self.patch(os, "fsync", hang)
        client, encoder = await self.start_half_rendered(service.port)
        os.kill(encoder, signal.SIGCONT)
        await until(hanging.is_set, "the write-back to hang")
        await self.assert_whole(client, b"MISS")
        joined = await send(service.port, target("steady", "aac"))
        await self.assert_whole(joined, b"COALESCED")
        await self.assert_serves(service.port, target("good", "aac"))
        self.exceed_commit_timeout()
        self.assertEqual(1, len(self.messages(LogLevel.warn)))
        other_response = await fetch(service.port, target("good", "flac"))
        self.assertEqual((200, True), (other_response.status, other_response.complete))
        counted = counter_increases(before, await scrape(service.metrics_port))
        self.assertEqual(2, counted["variant_store_write_failures_total"])
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
        service = self.start(max_concurrency=2, max_variant_bytes=5_000_000)
        port = service.port
        await fetch(port, target("good", "aac"))
        await until_hit(port, target("good", "aac"))
        before = await scrape(service.metrics_port)
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        open_before = open_descriptors()
        client, encoder = await self.start_half_rendered(port)
        freeze("--freeze")
        os.kill(encoder, signal.SIGCONT)
        await self.assert_whole(client, b"MISS")
        await self.assert_whole(await send(port, target("steady", "aac")), b"COALESCED")
        await self.assert_serves(port, target("good", "aac"))
        self.exceed_commit_timeout()
        self.assertEqual(1, len(self.messages(LogLevel.warn)))
        other_response = await fetch(port, target("good", "flac"))
        self.assertEqual((200, True), (other_response.status, other_response.complete))
        freeze("--unfreeze")
        await until(lambda: not scratch_files(self.store), "the scratch files to go")
        counted = counter_increases(before, await scrape(service.metrics_port))
        self.assertEqual(2, counted["variant_store_write_failures_total"])
        # The late write-back succeeded or failed completely, and new renders are stored again.
        self.assertIn(
            (await fetch(port, target("steady", "aac"), b"HEAD"))["x-audio-proxy"], HIT_OR_MISS
        )
        # As long as the last call of the late write-back has not returned, nothing is stored.
        while (await fetch(port, target("good", "wav")))["x-audio-proxy"] != b"HIT":
            pass
        await until(lambda: open_descriptors() <= open_before, "descriptors to be closed")
        await service.stopService()
        self.assertEqual([], self.log.errors)

    async def test_unkillable_encoder(self) -> None:
        """An encoder that cannot be killed is logged, and holds its slot until it is dead."""
        freeze = self.mount_freezable_store()
        service = self.start(max_concurrency=1, queue_size=0)
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
        self.assertEqual(1, held["audio_proxy_render_slots_held"])
        self.assertEqual(429, (await fetch(service.port, target("good", "aac"))).status)
        # The client did not have to wait for the end of the encoder.
        self.assertFalse((await client.end()).complete)
        freeze("--unfreeze")
        await until(lambda: not self.children(), "the encoder to be reaped")
        while (await scrape(service.metrics_port))["audio_proxy_render_slots_held"]:
            pass
        above_limit.restore()
        self.assertEqual(200, (await fetch(service.port, target("good", "aac"))).status)
        self.assertEqual([line], self.messages(LogLevel.error))

    def mount_freezable_store(self) -> Callable[[str], None]:
        """Put the store on its own ext4 file system; return a function that freezes and thaws it.

        :raises SkipTest: if the file system cannot be created or mounted.
        """
        image = self.root.with_name("image")
        with open(image, "wb") as file:
            file.truncate(16_000_000)
        try:
            run("mkfs.ext4", "-q", "-F", str(image))
        except (OSError, subprocess.SubprocessError) as error:
            raise SkipTest(f"An ext4 file system cannot be created here: {error}") from error
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
