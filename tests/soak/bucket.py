"""A third node, with its sources and variants in buckets, and outages of their S3 server."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from tests.soak.checks import Level, check_leaks
from tests.soak.good_clients import conditional_on, gather, random_variant, status_only, with_range
from tests.soak.lines import PATIENCE, pause, wait_for
from tests.soak.nodes import Node
from tests.soak.records import ExpectedRequest
from tests.soak.rig import LARGE, Rig
from tests.soak.sounds import LONG, SPEECH, TONE
from tests.support.juicefs import JuiceFS
from tests.support.remote import Relay
from tests.support.service import reactor

_CLIENTS = 2


class BucketNode:
    """Node C, its S3 server, its clients, and outages.

    A relay in this process is between the node and the server. During an outage, it refuses new
    connections, and it has reset the connections that were open.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._server = JuiceFS(rig.base / "s3", False)
        self._is_out = False

    async def start(self) -> None:
        """Start the server and the node, with the sources in a bucket."""
        rig, server = self._rig, self._server
        await server.start()
        self._relay = Relay(server.port)
        self._sources, self._variants = server.make_bucket(), server.make_bucket()
        for source in (TONE, SPEECH, LONG):
            server.put(self._sources, source, rig.sounds.path(source).read_bytes())
        variables = {
            "AP_VARIANT_STORE": f"s3://{self._variants}",
            "AP_SOURCE_ALLOWLIST": self._sources,
            "AP_S3_ENDPOINT": f"http://127.0.0.1:{self._relay.port}",
            "AWS_ACCESS_KEY_ID": server.owner.access_key,
            "AWS_SECRET_ACCESS_KEY": server.owner.secret_key,
            "AWS_REGION": server.region,
        }
        self.environment = {**rig.environment, **variables}
        self.node = Node("c", rig.base, self.environment)
        await self.node.start()
        # The first large response takes memory that stays allocated.
        await self._store(rig.variant(*LARGE, cold=False))
        self._before = await self._level_when_idle()

    async def stop(self) -> None:
        """Kill the node, and stop the server."""
        await self.node.kill()
        await self._relay.close()
        await self._server.stop()

    async def load(self, over: list[bool]) -> None:
        """Run the clients and the outages until the run is over."""
        clients = (self._client(over, self._rig.random(f"bucket {n}")) for n in range(_CLIENTS))
        await gather(*clients, self._disturb(over, self._rig.random("outage")))

    async def check(self) -> list[str]:
        """Check that the bucket has right variants only, and that the node holds nothing more."""
        wrong = [*check_leaks(self.node, self._before, await self._level_when_idle())]
        for key in self._server.keys(self._variants):
            body = self._server.get(self._variants, key).body
            if body != self._rig.journal.bodies.get(key.decode()):
                wrong.append(f"a wrong or unknown variant of {len(body)} bytes, {key!r}")
        return wrong

    async def _level_when_idle(self) -> Level:
        """Measure the node without its sockets: connections to the server stay open for reuse."""
        node = self.node
        temporary = str(node.temporary)

        def is_idle() -> bool:
            files = any(link.startswith(temporary) for link in node.descriptors())
            return not files and node.has_only_servers()

        await wait_for(is_idle, PATIENCE, step=0.1)
        level = Level.of(node)
        files = {k: n for k, n in level.descriptors.items() if not k.startswith("socket:")}
        return replace(level, descriptors=Counter(files))

    async def _client(self, over: list[bool], chance: Random) -> None:
        while not over:
            options, source = chance.choice([*self._rig.parameters.short, LARGE])
            place = f"s3://{self._sources}/{source}" if chance.random() < 0.7 else None
            request = self._rig.variant(options, source, cold=chance.random() < 0.3, place=place)
            change = chance.choice([None, None, with_range, conditional_on])
            if change is not None:
                request = change(request, chance)
            causes = {"bucket away"} if self._is_out else None
            await self._rig.request(self.node, request, "bucket", causes=causes)

    async def _disturb(self, over: list[bool], chance: Random) -> None:
        rig, node = self._rig, self.node
        while not over:
            await wait_for(lambda: over, chance.uniform(1.5, 3))
            for record in rig.in_flight(node):
                record.causes.add("bucket away")
            self._is_out = True
            await self._relay.close()
            # An outage says nothing about the existence of a variant.
            new = random_variant(rig, chance, cold=True)
            refused = status_only(new, 502, code="upstream_unavailable")
            await rig.request(node, refused, "bucket outage")
            await rig.request(node, conditional_on(new, chance), "bucket outage")
            await pause(chance.uniform(0, 1))
            self._relay.open()
            # A request may share a lookup or a probe that the outage makes fail a little later.
            affected = list(rig.in_flight(node))
            for record in affected:
                record.causes.add("bucket away")
            await wait_for(lambda ended=affected: rig.journal.running.isdisjoint(ended), PATIENCE)
            self._is_out = False
            if not await self._store(random_variant(rig, chance, cold=True)):
                rig.journal.errors.append("the bucket was back, but nothing was stored")

    async def _store(self, request: ExpectedRequest) -> bool:
        """Request a variant until it is stored; return False past the deadline."""
        deadline = reactor.seconds() + PATIENCE
        while (await self._rig.request(self.node, request, "bucket")).state != "HIT":
            if reactor.seconds() > deadline:
                return False
            await pause(0.1)
        return True
