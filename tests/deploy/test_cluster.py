"""Several nodes on one bucket, behind a real HAProxy or nginx that hashes URL paths."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Iterable
from itertools import product

from twisted.internet.defer import Deferred, gatherResults

from tests.deploy.balancer import NODE, HAProxy, Nginx, balance
from tests.support.programs import HELD_FFMPEG
from tests.support.remote import RemoteCase
from tests.support.service import (
    ServiceCase,
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

#: Options of one variant of each kind. Balancers treat all formats alike.
VARIANT_OPTIONS = ("f:mp3/br:64", "f:wav/t:0.2:0.5", "f:peaks/pts:100")


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


def gather(coroutines: Iterable[Awaitable[object]]) -> Deferred[list]:
    """Run coroutines concurrently."""
    return gatherResults([Deferred.fromCoroutine(each) for each in coroutines], consumeErrors=True)


class ClusterTests(RemoteCase):
    """Nodes with one bucket, behind HAProxy on one port and nginx on another"""

    async def test_one_render(self) -> None:
        """A cold URL is rendered once for any number of clients, and is then a HIT on every node.

        The logs of both balancers have the rest of the path.
        """
        self.add("short.flac", short_flac())
        settings = {"AP_LOCAL_ROOT": str(self.root), "AP_QUEUE_SIZE": "32"}
        nodes = {name: self.twistd(**settings) for name in ("one", "two", "three")}
        ports = {name: await node.port() for name, node in nodes.items()}
        used = set()
        for kind in (HAProxy, Nginx):
            balancer = await balance(self, kind, self.root.parent, ports)
            for options in VARIANT_OPTIONS:
                rest = f"/{options}/cb:{balancer.program}/plain/local://short.flac"
                path = signed(rest)
                responses = await gather(fetch(balancer.port, path) for _ in range(12))
                self.assertEqual(
                    {(200, True)}, {(each.status, each.complete) for each in responses}
                )
                states = Counter(each["x-audio-proxy"] for each in responses)
                self.assertEqual(1, states[b"MISS"], states)
                # All of them are of one node.
                ((name, body, tag),) = {(each[NODE], each.body, each["etag"]) for each in responses}
                used.add(name)
                await until_hit(balancer.port, path)
                for port in ports.values():
                    hit = await fetch(port, path)
                    self.assertEqual((b"HIT", tag), (hit["x-audio-proxy"], hit["etag"]))
                    self.assertTrue(hit.body == body, "other bytes")
                self.assertIn(f" {rest}\n".encode(), balancer.log.read_bytes())
        self.assertGreater(len(used), 1, used)
        formats = [options.split("/")[0].removeprefix("f:") for options in VARIANT_OPTIONS]
        self.assertEqual(
            {f'renders_total{{format="{each}",outcome="success"}}': 2 for each in formats},
            await sum_series(
                "renders_total", *[await each.metrics_port() for each in nodes.values()]
            ),
        )


class NodeLossTests(ServiceCase):
    """Nodes with one folder, behind HAProxy on one port and nginx on another"""

    async def test_killed(self) -> None:
        """If a node is killed, the others serve its URLs, and what it had not answered.

        Its encoders have written nothing yet.
        """
        self.add("short.flac", short_flac())
        killed = self.twistd(PATH=self.shadow_ffmpeg(HELD_FFMPEG), AP_MAX_CONCURRENCY="2")
        nodes = {"killed": killed, "one": self.twistd(), "two": self.twistd()}
        ports = {name: await node.port() for name, node in nodes.items()}
        balancers = [
            await balance(self, kind, self.root.parent, ports) for kind in (HAProxy, Nginx)
        ]
        addresses = []
        for port, number in product([each.port for each in balancers], range(20)):
            path = signed(f"/f:aac/cb:{port}-{number}/plain/local://short.flac")
            if (await fetch(port, path, b"HEAD"))[NODE] == b"killed":
                addresses.append((port, path))
        clients = [await send(*addresses[0]), await send(*addresses[-1])]
        self.assertNotEqual(addresses[0][0], addresses[-1][0])
        await until(lambda: sum(map(is_stopped, children(killed.pid))) == 2, "both encoders")
        killed.signal(signal.SIGKILL)
        responses = [await client.end() for client in clients]
        responses += [await fetch(*address) for address in addresses[1:-1]]
        for response in responses:
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertIn(response[NODE], (b"one", b"two"))
            self.assertEqual(responses[0].body, response.body)
