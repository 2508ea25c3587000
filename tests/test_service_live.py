"""The whole service: streams, identical bytes, bounded memory, and shutdown."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from twisted.internet.error import ConnectError as Refused

from audioproxy.grammar.formats import FORMATS
from audioproxy.variants.stored_file import open_variant
from tests.support.children import fork_servers
from tests.support.http import MEDIA_CACHE_CONTROL
from tests.support.programs import FFMPEG, HELD_FFMPEG
from tests.support.service import (
    Client,
    Process,
    ServiceCase,
    all_children,
    children,
    encoders,
    fetch,
    is_running,
    is_stopped,
    long_flac,
    resident_bytes,
    scratch_files,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

SHORT = signed("/f:mp3/plain/local://short.flac")
MINUTE = signed("/f:mp3/t:0:60/plain/local://long.flac")
#: An ffmpeg that writes 100 kB of a render, and the rest once the last process gets SIGCONT.
PAUSING_FFMPEG = f"""\
#!/bin/sh
case "$*" in
*pipe:1*) {FFMPEG} "$@" | sh -c 'head -c 100000; kill -STOP $$; exec cat' ;;
*) exec {FFMPEG} "$@" ;;
esac
"""


class TwoNodeTests(ServiceCase):
    """Two nodes that get the same URLs but share neither sources nor stores."""

    async def test_identical_bytes(self) -> None:
        """Two nodes give the same bytes in every format, one of them without cells (D78).

        They have different roots and stores. One forks its children, and the other executes them.
        """
        self.add("deep/er/short.flac", short_flac())
        root, store = self.root.with_name("other root"), self.store.with_name("other-store")
        shutil.copytree(self.root, root)
        store.mkdir()
        # A different modification time, as the copy on another node has.
        os.utime(root / "deep/er/short.flac", (1, 1))
        # ffmpeg behind a script runs without a cell.
        scripted = self.shadow_ffmpeg(f'#!/bin/sh\nexec {FFMPEG} "$@"\n')
        other = {"AP_LOCAL_ROOT": str(root), "AP_VARIANT_STORE": f"file://{store}"}
        # Sets have another order there, which two forks of one process would share.
        other["PYTHONHASHSEED"] = "1"
        nodes = self.twistd(), self.twistd(PATH=scripted, **other)
        ports = [await node.port() for node in nodes]
        await until_linked(nodes[0])
        options = [*(f"f:{token}" for token in FORMATS), "f:opus/norm:ebu/enhance:voice/t:0.25:0.5"]
        for option in options:
            path = signed(f"/{option}/plain/local://deep/er/short.flac")
            clients = [await send(port, path) for port in ports]
            one, two = [await client.end() for client in clients]
            self.assertEqual((200, 200), (one.status, two.status), option)
            self.assertTrue(one.complete and two.complete)
            self.assertTrue(one.body == two.body, f"different bytes for {option}")
            self.assertEqual(one["etag"], two["etag"])
        info = signed("/info/plain/local://deep/er/short.flac")
        self.assertEqual(*[(await fetch(port, info)).body for port in ports])
        # No child process remains, not even a zombie.
        for node in nodes:
            await until(lambda node=node: not children(node.pid), "the children to be reaped")
            node.signal(signal.SIGTERM)
            self.assertEqual(0, await node.end())
        # The stored bytes and headers are identical too, and the files have the same names.
        self.assertEqual(variants(self.store), variants(store))
        self.assertEqual(len(options), len(variants(store)))


async def until_linked(node: Process) -> None:
    """Wait until a service has a fork server for each program, which has shown that it works."""
    await node.port()
    await until(lambda: node.stdout.count("is linked once, and forked") == 2, "both programs")
    await until(lambda: len(fork_servers(node.pid)) == 2, "children that are forked ahead")
    await until(lambda: len(all_children(node.pid)) == 4, "the end of the first children")


def variants(store: Path) -> dict[str, bytes]:
    """Return the bytes of each variant in a store by file name."""
    found = {}
    for path in store.rglob("*"):
        if path.is_file() and (stored := open_variant(str(path))) is not None:
            found[path.name] = stored.read(0, stored.size)
            stored.close()
    return found


class ForkedTests(ServiceCase):
    """Encoders that a fork server has started, as the system shows them."""

    async def find_encoder(self, node: Process) -> tuple[int, bool]:
        """Return an encoder, and whether a fork server has started it."""
        self.add("long.flac", long_flac())
        await send(await node.port(), signed("/f:mp3/plain/local://long.flac"))
        (pid,) = await until(lambda: encoders(node.pid), "the encoder")
        mapped = Path(f"/proc/{pid}/maps").read_text()
        return pid, "/audioproxy-cell.so" in mapped

    async def test_forked(self) -> None:
        """Encoders are forked by a server for each program, confined, and end with the service."""
        node = self.twistd()
        await until_linked(node)
        pid, is_forked = await self.find_encoder(node)
        status = Path(f"/proc/{pid}/status").read_text()
        self.assertIn("NoNewPrivs:\t1\nSeccomp:\t2\n", status)
        self.assertTrue(is_forked)
        # One with a request is the leader of its own group, as all children are.
        self.assertEqual(pid, os.getpgid(pid))
        await until(lambda: len(fork_servers(node.pid)) == 2, "the next children, forked ahead")
        started = all_children(node.pid)
        self.assertGreaterEqual(len(started), 5)
        node.signal(signal.SIGKILL)
        await until(lambda: not any(map(is_running, started)), "the end of all that it started")

    async def test_turned_off(self) -> None:
        """With AP_WARM_PROGRAMS=0, there is no server, and encoders are executed."""
        node = self.twistd(AP_WARM_PROGRAMS="0")
        _, is_forked = await self.find_encoder(node)
        self.assertEqual(([], False), (fork_servers(node.pid), is_forked))


class CountingClient(Client):
    """Client that counts and discards the bytes that it receives."""

    count = 0

    def dataReceived(self, data: bytes) -> None:
        """Count the bytes, and keep about the first 4 KB, which include the headers."""
        self.count += len(data)
        if len(self.received) < 4096:
            self.received += data


class MemoryTests(ServiceCase):
    """Memory of a render, which does not depend on the size of its output."""

    async def test_slow_reader(self) -> None:
        """A 200 MB variant for a slow client uses less than 20 MB of memory (D38)."""
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())
        node = self.twistd()
        port = await node.port()
        await fetch(port, signed("/f:wav/plain/local://short.flac"))
        before = resident_bytes(node.pid)
        path = signed("/f:wav/sr:96000/ch:2/bd:32f/t:0:265/plain/local://long.flac")
        client = await send(port, path, client=CountingClient())
        await until(lambda: client.count, "the first bytes")
        client.pause()
        # The encoder finishes far ahead of the only client.
        await until(lambda: not encoders(node.pid), "the encoder to end")
        self.assertLess(client.count, 50_000_000)
        self.assertLess(await self.read_slowly(client, node) - before, 20_000_000)
        # The limit also holds for a hit.
        await until(lambda: len(self.stored()) == 2, "the write-back")
        client = await send(port, path, client=CountingClient())
        await until(lambda: client.count, "the first bytes")
        self.assertIn(b"\r\nX-Audio-Proxy: HIT\r\n", client.received)
        self.assertLess(await self.read_slowly(client, node) - before, 20_000_000)

    async def read_slowly(self, client: CountingClient, node: Process) -> int:
        """Read 200 MB in steps of 20 MB; return the service's peak resident memory."""
        most = resident_bytes(node.pid)
        while client.closed is None:
            target = client.count + 20_000_000
            client.resume()
            await until(lambda target=target: client.closed or client.count > target, "20 MB more")
            client.pause()
            most = max(most, resident_bytes(node.pid))
        self.assertGreater(client.count, 200_000_000)
        return most


class ShutdownTests(ServiceCase):
    """Signals and shutdown (D39); `tests.handover` has requests that wait for a slot."""

    async def start_and_hold(self) -> tuple[Process, int, Client, int]:
        """Start a service and a render whose encoder is stopped."""
        self.add("short.flac", short_flac())
        node = self.twistd(PATH=self.shadow_ffmpeg(HELD_FFMPEG))
        port = await node.port()
        client = await send(port, SHORT)
        (encoder,) = await until(
            lambda: [child for child in children(node.pid) if is_stopped(child)],
            "the encoder to stop",
        )
        self.addCleanup(lambda: is_running(encoder) and os.kill(encoder, signal.SIGKILL))
        return node, port, client, encoder

    async def test_term_drains(self) -> None:
        """SIGTERM closes the port, lets renders finish and be stored, and exits with 0.

        Requests that end just before or during the shutdown are in the access log.
        """
        node, port, client, encoder = await self.start_and_hold()
        self.assertEqual(404, (await fetch(port, b"/no-route")).status)
        node.signal(signal.SIGTERM)
        await node.printed(rf"Port {port} Closed", "the port to close")
        with self.assertRaises(Refused):
            await fetch(port, b"/health")
        self.assertIsNone(node.code)
        os.kill(encoder, signal.SIGCONT)
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertEqual(0, await node.end())
        self.assertEqual("", node.stderr)
        lines = [line for line in node.stdout.splitlines() if "request_id=" in line]
        self.assertEqual([" 404 " in lines[0], "cache=MISS" in lines[-1]], [True, True], lines)
        self.assertEqual([], scratch_files(self.store))
        hit = await fetch(self.start().port, SHORT)
        self.assertEqual((b"HIT", response.body), (hit["x-audio-proxy"], hit.body))

    async def test_second_signal(self) -> None:
        """A second SIGTERM during the shutdown ends the process at once."""
        node, _, _, encoder = await self.start_and_hold()
        node.signal(signal.SIGTERM)
        await node.printed("Received SIGTERM", "the first SIGTERM to be logged")
        await node.printed(r"Port \d+ Closed", "the port to close")
        node.signal(signal.SIGTERM)
        self.assertEqual(-signal.SIGTERM, await node.end())
        # After a drain, the request would be in the access log.
        self.assertNotIn("request_id=", node.stdout)
        await until(lambda: not is_running(encoder), "the encoder to end")


class StreamTests(ServiceCase):
    """Renders that are streamed, shared, stored and served again."""

    def setUp(self) -> None:
        super().setUp()
        self.add("long.flac", long_flac())
        self.add("short.flac", short_flac())

    async def test_shared_stream(self) -> None:
        """A render streams, and a client that joins half way gets every byte, from one encoder.

        The encoder runs at nice +10, so that requests get the CPU first.
        """
        node = self.twistd(PATH=self.shadow_ffmpeg(PAUSING_FFMPEG))
        port = await node.port()
        first = await send(port, MINUTE)
        await until(lambda: len(first.received) > 100_000, "a part of the stream")
        (encoder,) = children(node.pid)
        (held,) = await until(
            lambda: [child for child in children(encoder) if is_stopped(child)],
            "the encoder to stop",
        )
        self.addCleanup(lambda: is_running(held) and os.kill(held, signal.SIGKILL))
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        self.assertEqual(os.getpriority(os.PRIO_PROCESS, encoder), min(19, niceness + 10))
        second = await send(port, MINUTE)
        await until(lambda: len(second.received) > 100_000, "the other client to catch up")
        self.assertEqual([encoder], children(node.pid))
        os.kill(held, signal.SIGCONT)
        one, two = await first.end(), await second.end()
        for cache, response in ((b"MISS", one), (b"COALESCED", two)):
            self.assertEqual((200, True), (response.status, response.complete), cache)
            self.assertEqual(cache, response["x-audio-proxy"])
            self.assertEqual(b"chunked", response["transfer-encoding"])
        self.assertTrue(one.body == two.body, "the clients got different bytes")
        # One minute at 160 kbps, the maximum for 22.05 kHz.
        self.assertApproximates(60 * 20_000, len(one.body), 20_000)

    async def test_miss_and_hit(self) -> None:
        """After a render, requests are hits with the same bytes and headers.

        The file name of ``dl`` is in every response (D10). A stored variant survives its source, a
        restart and a change of AP_LOCAL_ROOT. A matching If-None-Match gets 304 even if the store
        is gone too.
        """
        service = self.start()
        port = service.port
        path = signed("/f:mp3/dl:M%C3%BCll.mp3/plain/local://short.flac")
        miss = await fetch(port, path)
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        disposition = b"attachment; filename=\"M_ll.mp3\"; filename*=UTF-8''M%C3%BCll.mp3"
        self.assertEqual(disposition, miss["content-disposition"])
        hits = [await until_hit(port, path), await fetch(port, path, b"HEAD")]
        self.assertEqual([miss.body, b""], [hit.body for hit in hits])
        for hit in hits:
            self.assertEqual((200, b"HIT"), (hit.status, hit["x-audio-proxy"]))
            self.assertEqual(b"%d" % len(miss.body), hit["content-length"])
            for name in ("content-type", "cache-control", "etag", "content-disposition"):
                self.assertEqual(miss[name], hit[name], name)
        await service.stopService()
        shutil.rmtree(self.root)
        self.root.with_name("elsewhere").mkdir()
        port = self.start(local_root=str(self.root.with_name("elsewhere"))).port
        hit = await fetch(port, path)
        self.assertEqual((b"HIT", miss.body), (hit["x-audio-proxy"], hit.body))
        other = await fetch(port, signed("/f:wav/plain/local://short.flac"))
        self.assertEqual(404, other.status)
        shutil.rmtree(self.store)
        tag = miss["etag"] or b""
        response = await fetch(port, path, if_none_match=tag)
        self.assertEqual((304, tag), (response.status, response["etag"]))
        self.assertEqual(MEDIA_CACHE_CONTROL.encode(), response["cache-control"])
