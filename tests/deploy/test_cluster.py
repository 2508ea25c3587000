"""Several nodes on one bucket, behind a real HAProxy or nginx that hashes URL paths."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass
from itertools import chain, count, cycle
from pathlib import Path

from twisted.internet.defer import Deferred, gatherResults

from tests.deploy.balancer import NODE, Balancer, HAProxy, Nginx, balance
from tests.render.test_failures_live import (
    until_stopped,
)
from tests.support.http import Response
from tests.support.programs import FFMPEG
from tests.support.remote import RemoteCase
from tests.support.service import (
    Client,
    Process,
    children,
    fetch,
    is_stopped,
    scrape,
    send,
    short_flac,
    signed,
    until,
    until_hit,
)

#: Options of one variant for each node. Balancers treat all formats alike.
VARIANT_OPTIONS = ("/f:mp3/br:64", "/f:wav/t:0.2:0.5", "/f:peaks/pts:100")

#: Options of variants that `ECHO` renders.
SMALL_VARIANT_OPTIONS = ("/f:aac/t:0:0.3", "/f:aac/t:0:0.4", "/f:aac/t:0:0.5")

#: Shell command of an encoder whose output is its own arguments. It takes less time than ffmpeg.
ECHO = 'echo "$*"; exit'

#: Encoder that suspends itself before its first byte while the gate file of its node exists.
ENCODER = """#!/bin/sh
case "$*" in *" pipe:1") [ ! -e "{gate}" ] || kill -STOP $$; {encode} ;; esac
exec "{ffmpeg}" "$@"
"""


@dataclass(frozen=True, eq=False)
class Node:
    """Service process with one render slot.

    :ivar gate: while this file exists, the next encoder suspends itself before its first byte.
    """

    process: Process
    port: int
    metrics_port: int
    gate: Path

    async def open_gate(self) -> None:
        """Continue the stopped encoder, and let later ones run."""
        encoder = await until_stopped(self.process.pid)
        self.gate.unlink()
        os.kill(encoder, signal.SIGCONT)


@dataclass(frozen=True)
class Address:
    """Signed path of a variant, and where it is requested.

    :ivar options: the options that determine its bytes.
    :ivar port: port of the balancer.
    :ivar node_name: the node that the balancer chooses while all nodes are up.
    """

    path: bytes
    options: str
    port: int
    node_name: str


async def sum_series(metric: str, *ports: int) -> Counter[str]:
    """Return the non-zero series of a counter or a gauge, summed over some nodes.

    :param ports: metrics ports of the nodes.
    """
    total: Counter[str] = Counter()
    for port in ports:
        for series, value in (await scrape(port)).items():
            name = series.removeprefix("audio_proxy_")
            if name.startswith(metric) and value:
                total[name] += int(value)
    return total


def path_of(options: str) -> bytes:
    """Return the signed path of a variant of the only source."""
    return signed(f"{options}/plain/local://short.flac")


class ClusterCase(RemoteCase):
    """Nodes with one bucket, behind HAProxy on one port and nginx on another.

    There is one render slot, so a stopped encoder holds up all renders of a node.

    :ivar expected: for each options string, the body that a separate node without a store sends.
    :ivar tags: the ETag of each path.
    """

    async def setUp(self) -> None:
        await super().setUp()
        self.add("short.flac", short_flac())
        self.expected: dict[str, bytes] = {}
        self.tags: dict[bytes, bytes | None] = {}
        self.numbers = count()

    def write_encoder(self, name: str, encode: str = ":") -> tuple[Path, str]:
        """Write an encoder with a gate; return the gate, and the PATH that has this encoder.

        :param encode: shell command of an encoder; by default, ffmpeg encodes.
        """
        programs = self.root.with_name(name)
        programs.mkdir()
        gate, encoder = programs / "closed", programs / "ffmpeg"
        encoder.write_text(ENCODER.format(gate=gate, encode=encode, ffmpeg=FFMPEG))
        encoder.chmod(0o755)
        return gate, f"{programs}:{os.environ['PATH']}"

    async def balance(self, ports: dict[str, int]) -> None:
        """Start the balancers in front of nodes."""
        self.balancer = await balance(self, HAProxy, self.root.parent, ports)
        self.nginx = await balance(self, Nginx, self.root.parent, ports)

    async def fetch_expected(self, all_options: Collection[str]) -> None:
        """Fetch the expected body for each of the options from a separate node."""
        separate_service = await self.boot(local_root=str(self.root), variant_store=None)
        for options in all_options:
            response = await fetch(separate_service.port, path_of(options))
            self.assertEqual((200, True), (response.status, response.complete))
            self.expected[options] = response.body

    async def make_address(self, name: str, options: str, balancer: Balancer) -> Address:
        """Return a new URL that the balancer sends to the node with this name."""
        for number in self.numbers:
            path = path_of(f"{options}/cb:{balancer.program}-{number}")
            # A HEAD request does not render.
            response = await fetch(balancer.port, path, b"HEAD")
            self.assertEqual(b"MISS", response["x-audio-proxy"])
            if response[NODE] == name.encode():
                return Address(path, options, balancer.port, name)
        raise AssertionError("count() never ends")

    async def fetch_checked(self, address: Address, port: int = 0) -> Response:
        """Request a URL, and require the expected body and the same ETag as before.

        :param port: port of a node; by default the balancer's.
        """
        response = await fetch(port or address.port, address.path)
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertTrue(response.body == self.expected[address.options], f"wrong bytes: {address}")
        self.assertEqual(self.tags.setdefault(address.path, response["etag"]), response["etag"])
        return response

    async def assert_nodes(self, addresses: Iterable[Address], *names: str) -> None:
        """Require that one of these nodes serves each URL, as requested through the balancer.

        :param names: by default, the node to which a URL belongs.
        """
        for address in addresses:
            response = await self.fetch_checked(address)
            self.assertIn((response[NODE] or b"").decode(), names or (address.node_name,))


def gather(coroutines: Iterable[Awaitable[object]]) -> Deferred[list]:
    """Run coroutines concurrently."""
    return gatherResults([Deferred.fromCoroutine(each) for each in coroutines], consumeErrors=True)


class ClusterTests(ClusterCase):
    """Three nodes behind HAProxy and nginx"""

    async def test_one_render(self) -> None:
        """A cold URL is rendered once for any number of clients, and is then a HIT on every node.

        The logs of both balancers omit signatures, so they contain no usable URL.
        """
        self.gate, path = self.write_encoder("programs")
        self.patch(os, "environ", {**os.environ, "PATH": path})
        settings = {"local_root": str(self.root), "queue_size": 32}
        self.nodes = {
            name: await self.boot(max_concurrency=1, **settings) for name in ("one", "two", "three")
        }
        self.metrics = [node.metrics_port for node in self.nodes.values()]
        await self.balance({name: node.port for name, node in self.nodes.items()})
        await self.fetch_expected(VARIANT_OPTIONS)
        for balancer in (self.balancer, self.nginx):
            await self.check_cache_states(balancer)
        self.assertEqual(2 * len(VARIANT_OPTIONS), len(set(self.tags.values())))
        formats = [options.split("/")[1].removeprefix("f:") for options in VARIANT_OPTIONS]
        self.assertEqual(
            {f'renders_total{{format="{each}",outcome="success"}}': 2 for each in formats},
            await sum_series("renders_total", *self.metrics),
        )
        for balancer in (self.balancer, self.nginx):
            log = balancer.log.read_bytes()
            for path in self.tags:
                signature, _, rest = path[1:].partition(b"/")
                is_logged = balancer.program.encode() in rest
                self.assertEqual(is_logged, b" /" + rest + b"\n" in log)
                self.assertFalse(signature in log, "a log contains a signature")

    async def check_cache_states(self, balancer: Balancer) -> None:
        """Request a new URL of each node from twelve clients; check the cache states.

        Six of the clients send their requests before the render runs.
        """
        before = await sum_series("cache_lookups_total", *self.metrics)
        addresses = [
            await self.make_address(name, options, balancer)
            for name, options in zip(self.nodes, VARIANT_OPTIONS, strict=True)
        ]
        self.gate.touch()
        early = {address: self.six_clients(address) for address in addresses}

        async def all_looked_up() -> bool:
            lookups = await sum_series("cache_lookups_total", *self.metrics)
            return lookups.total() - before.total() == 6 * len(addresses)

        await until(all_looked_up, "all lookups")

        def all_stopped() -> list[int]:
            stopped = [child for child in children() if is_stopped(child)]
            return stopped if len(stopped) == len(addresses) else []

        encoders = await until(all_stopped, "an encoder of each node to stop")
        self.gate.unlink()
        for encoder in encoders:
            os.kill(encoder, signal.SIGCONT)
        # The other six clients send their requests while the renders run, end or are stored.
        late = {address: self.six_clients(address) for address in addresses}
        for address in addresses:
            first, later = await early[address], await late[address]
            states = Counter(response["x-audio-proxy"] for response in first)
            self.assertEqual({b"MISS": 1, b"COALESCED": 5}, states)
            self.assertLessEqual({each["x-audio-proxy"] for each in later}, {b"COALESCED", b"HIT"})
            self.assertEqual(
                {address.node_name.encode()}, {each[NODE] for each in [*first, *later]}
            )
        for address in addresses:
            await until_hit(address.port, address.path)
        for node in self.nodes.values():
            for address in addresses:
                response = await self.fetch_checked(address, node.port)
                self.assertEqual(b"HIT", response["x-audio-proxy"])

    def six_clients(self, address: Address) -> Deferred[list[Response]]:
        """Let six clients request one URL."""
        return gather(self.fetch_checked(address) for _ in range(6))


class NodeLossTests(ClusterCase):
    """Loss of two of three nodes

    :ivar stored: for each node, URLs of variants that are in the store.
    :ivar fresh: for each node, URLs that were never requested; each is used once.
    """

    async def test_complete_responses(self) -> None:
        """Clients lose no response, except those that a node is sending when it is killed.

        A node that is not ready completes its requests and gets no new ones. A node that is
        stopping completes those with a slot, and others are repeated. Of a killed node, these
        clients still get complete responses: those that had not connected yet, and those whose
        request was not read yet, waited in the queue, or was being rendered without output. This
        holds behind nginx too.
        """
        await self.start_nodes("steady", "drained", "killed")
        self.patch(os, "environ", {**os.environ, "PATH": self.write_encoder("other", ECHO)[1]})
        await self.fetch_expected(SMALL_VARIANT_OPTIONS)
        self.assertEqual(len(SMALL_VARIANT_OPTIONS), len(set(self.expected.values())))
        await self.prepare()
        held = await self.drain(self.nodes["drained"])
        nginx_clients = await self.kill(self.nodes["killed"])
        await self.resume(self.nodes["drained"], held)
        for client in nginx_clients:
            await self.assert_served(client, b"steady", b"drained")
        await self.stop(self.nodes["steady"])
        # The variants of all paths are different, so no variant was served for another path.
        self.assertEqual(len(self.tags), len(set(self.tags.values())))

    async def start_nodes(self, *names: str) -> None:
        """Start nodes with these names, and the balancers in front of them."""
        settings = {"AP_LOCAL_ROOT": str(self.root)}
        settings |= {"AP_MAX_CONCURRENCY": "1", "AP_QUEUE_SIZE": "32"}
        settings |= {"AP_READY_QUEUE_THRESHOLD": "6"}
        gates = [self.write_encoder(name, ECHO) for name in names]
        started = [self.twistd(PATH=path, **settings) for _, path in gates]
        self.nodes = {
            name: Node(process, await process.port(), await process.metrics_port(), gate)
            for name, process, (gate, _) in zip(names, started, gates, strict=True)
        }
        await self.balance({name: node.port for name, node in self.nodes.items()})

    async def prepare(self) -> None:
        """Make URLs for each node, and store variants of some of them."""
        options = cycle(SMALL_VARIANT_OPTIONS)
        made = {
            name: [await self.make_address(name, next(options), self.balancer) for _ in range(11)]
            for name in self.nodes
        }
        self.stored = {name: addresses[:2] for name, addresses in made.items()}
        self.fresh = {name: iter(addresses[2:]) for name, addresses in made.items()}
        stored = list(chain(*self.stored.values()))
        await self.assert_nodes(stored)
        for address in stored:
            await until_hit(address.port, address.path)

    async def drain(self, node: Node) -> list[Client]:
        """Fill the queue of a node beyond its readiness threshold; return the waiting clients."""
        node.gate.touch()
        fresh = self.fresh["drained"]
        # The first two clients come through the balancer, while the node is still ready.
        held = [await send(self.balancer.port, next(fresh).path) for _ in range(2)]
        held += [await send(node.port, next(fresh).path) for _ in range(5)]
        await self.assert_nodes(self.stored["drained"], *self.nodes)
        await self.balancer.until_state(drained="DOWN")
        self.assertEqual(503, (await fetch(node.port, b"/ready")).status)
        await self.assert_nodes([*self.stored["drained"], next(fresh)], "steady", "killed")
        for name in ("steady", "killed"):
            await self.assert_nodes([*self.stored[name], next(self.fresh[name])])
        # The node still serves stored variants, which need no render slot.
        for address in chain(*self.stored.values()):
            response = await self.fetch_checked(address, node.port)
            self.assertEqual(b"HIT", response["x-audio-proxy"])
        return held

    async def until_queued(self, node: Node, waiting: int) -> None:
        """Wait until a number of requests wait for the only slot of a node."""

        async def queued() -> bool:
            depth = await sum_series("render_queue_depth", node.metrics_port)
            return depth.total() == waiting

        await until(queued, "the queue")

    async def block_renders(self, name: str) -> list[Client]:
        """Suspend the render of one client in a node, and queue another client behind it."""
        node = self.nodes[name]
        node.gate.touch()
        held = [await send(self.balancer.port, next(self.fresh[name]).path) for _ in range(2)]
        await until_stopped(node.process.pid)
        await self.until_queued(node, 1)
        return held

    async def kill(self, node: Node) -> list[Client]:
        """Kill a node that has clients at every stage before the first byte.

        :returns: the clients that came through nginx. nginx does not check readiness, so these
            clients may now wait at the drained node.
        """
        early, late = [
            await self.make_address("killed", options, self.nginx)
            for options in SMALL_VARIANT_OPTIONS[:2]
        ]
        held = await self.block_renders("killed")
        nginx_clients = [await send(self.nginx.port, early.path)]
        await self.until_queued(node, 2)
        # From here on the node reads nothing, and its clients accumulate.
        node.process.signal(signal.SIGSTOP)
        unread = [*self.stored["killed"], next(self.fresh["killed"])]
        held += [await send(self.balancer.port, address.path) for address in unread]
        nginx_clients.append(await send(self.nginx.port, late.path))

        async def all_caught() -> int:
            caught = await self.balancer.sessions("killed")
            # On a busy machine, HAProxy may detect the stop before it gets the last requests.
            elsewhere = sum(client.closed is not None for client in held)
            return caught if caught + elsewhere == len(held) else 0

        caught = await until(all_caught, "all requests")
        node.process.signal(signal.SIGKILL)
        for client in held:
            await self.assert_served(client, b"steady")
        await self.balancer.until_state(steady="UP", drained="DOWN", killed="DOWN")
        self.assertEqual(caught, await self.balancer.retried("killed"))
        await self.assert_nodes([*self.stored["killed"], next(self.fresh["killed"])], "steady")
        return nginx_clients

    async def resume(self, node: Node, held: list[Client]) -> None:
        """Open the gate of a drained node, and require that its queued requests complete.

        Require also that the balancer then sends requests for the node's URLs to the node again.
        """
        await node.open_gate()
        for client, node_name in zip(held, [b"drained"] * 2 + [None] * 5, strict=True):
            await self.assert_served(client, node_name)
        await self.balancer.until_state(drained="UP")
        self.assertEqual(200, (await fetch(node.port, b"/ready")).status)
        for name in ("steady", "drained"):
            await self.assert_nodes([*self.stored[name], next(self.fresh[name])])

    async def stop(self, node: Node) -> None:
        """Stop a node with SIGTERM during a render, while another one is queued, until its exit.

        The node closes the client of the queued one, which HAProxy sends to another node (D39).
        """
        held = await self.block_renders("steady")
        node.process.signal(signal.SIGTERM)
        await self.assert_nodes(self.stored["steady"], "steady", "drained")
        await self.balancer.until_state(steady="DOWN")
        await self.assert_nodes([*self.stored["steady"], next(self.fresh["steady"])], "drained")
        await node.open_gate()
        for client in held:
            await self.assert_served(client, b"steady", b"drained")
        served = [(await client.end())[NODE] for client in held]
        self.assertEqual([b"drained", b"steady"], sorted(served))
        self.assertEqual(0, await node.process.end())

    async def assert_served(self, client: Client, *nodes: bytes | None) -> None:
        """Require a complete response from one of some nodes.

        :param nodes: names in the balancer's header; None if no balancer forwarded the request.
        """
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertIn(response[NODE], nodes)
        self.assertIn(response.body, self.expected.values())
