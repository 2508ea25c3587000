"""One run, from the start of its nodes to the checks at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from tests.soak import bad_clients, checks, good_clients
from tests.soak.attacks import Attacks
from tests.soak.bad_clients import LastingClients
from tests.soak.bucket import BucketNode
from tests.soak.checks import Level
from tests.soak.faults import Faults
from tests.soak.lines import PATIENCE, pause, wait_for
from tests.soak.operator import Operator
from tests.soak.rig import CAPACITY, LARGE, Rig, stored_path

_SAMPLE_EVERY = 0.2
Action = Callable[[Rig, Random], Awaitable[object]]


class Run:
    """A run in progress."""

    def __init__(self, rig: Rig) -> None:
        self._problems: list[str] = []
        self._rig = rig
        self._bucket: BucketNode | None = None
        if rig.parameters.extras:
            self._bucket = BucketNode(rig)
            self._operator = Operator(rig, self._bucket)
        self._over: list[bool] = []
        self._most_encoders = 0

    async def run(self) -> list[str]:
        """Run the load and the checks, and return the problems; at the end all nodes are killed."""
        rig = self._rig
        try:
            starting = [rig.a.start(), rig.b.start()]
            if self._bucket is not None:
                starting.append(self._bucket.start())
            await good_clients.gather(*starting)
            await self._warm_up()
            await self._quiet(None)
            before = Level.of(rig.a)
            await self._load()
            quiet = await self._quiet(before)
            await self._check_end(before, quiet)
        finally:
            await rig.a.kill()
            await rig.b.kill()
            if self._bucket is not None:
                await self._bucket.stop()
        return self._problems

    async def _warm_up(self) -> None:
        """Store a variant of each kind, and read it; a large response takes memory that stays."""
        rig, node = self._rig, self._rig.a
        for options, source in (*rig.parameters.short, LARGE):
            request = rig.variant(options, source, cold=False)
            await rig.request(node, request, "warm-up")
            # The variant is stored after the response has ended.
            await wait_for(stored_path(rig.store, request).exists, PATIENCE)
            await rig.request(node, request, "warm-up")

    async def _load(self) -> None:
        rig = self._rig
        attacks, faults, lasting_clients = Attacks(rig), Faults(rig), LastingClients(rig)
        actions: list[tuple[Action, float]] = [
            *good_clients.WEIGHTED_ACTIONS,
            *bad_clients.WEIGHTED_ACTIONS,
            (attacks.attack, 3),
        ]
        await lasting_clients.open()
        seconds = rig.parameters.seconds
        tasks = [self._client(actions, number) for number in range(rig.parameters.clients)]
        tasks += [
            lasting_clients.stall(seconds),
            self._sample(lasting_clients),
            faults.disturb_store(self._over, rig.random("store")),
            faults.restart_node(self._over, rig.random("node")),
            faults.disturb_servers(self._over, rig.random("servers")),
            attacks.kill_encoder(rig.random("attack")),
            self._end_after(seconds),
        ]
        if self._bucket is not None:
            tasks.append(self._bucket.load(self._over))
            tasks.append(self._operator.work(self._over, rig.random("operator")))
        await good_clients.gather(*tasks)
        await lasting_clients.leave()

    async def _end_after(self, seconds: float) -> None:
        await pause(seconds)
        self._over.append(True)

    async def _client(self, actions: list[tuple[Action, float]], number: int) -> None:
        chance = self._rig.random(number)
        kinds, weights = zip(*actions, strict=True)
        while not self._over:
            action = chance.choices(kinds, weights)[0]
            await action(self._rig, chance)

    async def _sample(self, lasting_clients: LastingClients) -> None:
        """Repeatedly count the encoders of node A, and request its ``/health``."""
        rig = self._rig
        while not self._over:
            self._most_encoders = max(self._most_encoders, len(rig.a.encoders()))
            await rig.request(rig.a, good_clients.HEALTH, "health under load")
            await lasting_clients.open()
            await pause(_SAMPLE_EVERY)

    async def _quiet(self, level: Level | None) -> bool:
        """Wait until node A is idle; return False past the deadline."""
        node = self._rig.a

        def quiet() -> bool:
            found = node.descriptors()
            # Open files of the store: variants being read, and output that is not stored yet.
            busy = any(link.startswith(store) and not link.endswith(".lock") for link in found)
            same = level is None or found == level.descriptors
            return same and not busy and node.has_only_servers()

        store = str(self._rig.store)

        return await wait_for(quiet, PATIENCE, step=0.1)

    async def _check_end(self, before: Level, quiet: bool) -> None:
        rig, journal, problems = self._rig, self._rig.journal, self._problems
        # Measure before the metrics are read, because reading them opens a connection.
        problems += checks.check_leaks(rig.a, before, Level.of(rig.a))
        if not quiet:
            problems.append("node A did not become idle within the deadline")
        if self._most_encoders > CAPACITY:
            problems.append(f"{self._most_encoders} encoders ran on {CAPACITY} slots")
        metrics = await rig.a.metrics()
        problems += checks.check_scratch(rig.store)
        nodes = [rig.a, rig.b]
        if self._bucket is not None:
            problems += [*await self._bucket.check(), *await self._operator.check()]
            nodes.append(self._bucket.node)
        # The last log lines have arrived when a node has ended.
        codes = {node.name: await node.stop() for node in nodes}
        problems += checks.check_answers(journal)
        problems += checks.check_logs(journal, nodes)
        problems += checks.check_metrics(journal, rig.a, metrics)
        problems += await checks.check_store(journal, rig.store)
        problems += checks.check_end(rig.store, codes)
