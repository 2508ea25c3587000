"""Several nodes on one bucket, behind a real HAProxy or nginx that hashes URL paths."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass
from itertools import count

from twisted.internet.defer import Deferred, gatherResults

from tests.deploy.balancer import NODE, Balancer, HAProxy, Nginx, balance
from tests.support.http import Response
from tests.support.programs import FFMPEG
from tests.support.remote import RemoteCase
from tests.support.service import (
    children,
    fetch,
    is_stopped,
    scrape,
    short_flac,
    signed,
    until,
    until_hit,
)

#: Options of one variant for each node. Balancers treat all formats alike.
VARIANT_OPTIONS = ("/f:mp3/br:64", "/f:wav/t:0.2:0.5", "/f:peaks/pts:100")

NAMES = ("one", "two", "three")

#: Encoder that suspends itself before its first byte while the gate file exists.
ENCODER = """#!/bin/sh
case "$*" in *" pipe:1") [ ! -e "{gate}" ] || kill -STOP $$ ;; esac
exec "{ffmpeg}" "$@"
"""


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


def gather(coroutines: Iterable[Awaitable[object]]) -> Deferred[list]:
    """Run coroutines concurrently."""
    return gatherResults([Deferred.fromCoroutine(each) for each in coroutines], consumeErrors=True)


class ClusterTests(RemoteCase):
    """Nodes with one bucket, behind HAProxy on one port and nginx on another

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

    async def test_one_render(self) -> None:
        """A cold URL is rendered once for any number of clients, and is then a HIT on every node.

        The logs of both balancers omit signatures, so they contain no usable URL.
        """
        self.gate = self.root.with_name("closed")
        path = self.shadow_ffmpeg(ENCODER.format(gate=self.gate, ffmpeg=FFMPEG))
        settings = {"AP_LOCAL_ROOT": str(self.root), "AP_QUEUE_SIZE": "32"}
        nodes = [self.twistd(PATH=path, AP_MAX_CONCURRENCY="1", **settings) for _ in NAMES]
        self.pids = [node.pid for node in nodes]
        self.ports = {name: await node.port() for name, node in zip(NAMES, nodes, strict=True)}
        self.metrics = [await node.metrics_port() for node in nodes]
        await self.balance(self.ports)
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
            for name, options in zip(NAMES, VARIANT_OPTIONS, strict=True)
        ]
        self.gate.touch()
        early = {address: self.six_clients(address) for address in addresses}

        async def all_looked_up() -> bool:
            lookups = await sum_series("cache_lookups_total", *self.metrics)
            return lookups.total() - before.total() == 6 * len(addresses)

        await until(all_looked_up, "all lookups")

        def all_stopped() -> list[int]:
            stopped = [each for pid in self.pids for each in children(pid) if is_stopped(each)]
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
        for port in self.ports.values():
            for address in addresses:
                response = await self.fetch_checked(address, port)
                self.assertEqual(b"HIT", response["x-audio-proxy"])

    def six_clients(self, address: Address) -> Deferred[list[Response]]:
        """Let six clients request one URL."""
        return gather(self.fetch_checked(address) for _ in range(6))
