"""WarmUp: requests without other load, whose effects on the metrics are checked exactly."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tests.soak.good_clients import READY, gather, mistakes
from tests.soak.lines import PATIENCE, ClientConnection, pause, wait_for
from tests.soak.nodes import Metrics, send_signal
from tests.soak.records import RequestRecord
from tests.soak.rig import CAPACITY, LARGE, LONG_RENDER, Rig, stored_path
from tests.support.service import is_stopped, reactor

_DISCONNECTS = 5


class WarmUp:
    """A few requests whose effects are known exactly."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.problems: list[str] = []

    async def run(self) -> None:
        """Make the requests; ``problems`` then lists the errors found."""
        await self._count()
        await self._leave_queue()
        # The first large response takes memory that stays allocated. This request is therefore a
        # part of the warm-up.
        await self._rig.request(self._rig.a, self._rig.variant(*LARGE, cold=False), "warm-up")

    async def _count(self) -> None:
        rig, node = self._rig, self._rig.a
        before = await node.metrics()
        for options, source in rig.parameters.short:
            request = rig.variant(options, source, cold=False)
            await rig.request(node, request, "warm-up")
            # The variant is stored after the response has ended.
            await wait_for(stored_path(rig.store, request).exists, PATIENCE)
            await rig.request(node, request, "warm-up")
            await rig.request(node, replace(request, method=b"HEAD"), "warm-up")
        refused = dict(mistakes(rig))
        for name in ("no audio at all", "bad option", "t past the end"):
            await rig.request(node, refused[name], "warm-up")
        joined = rig.variant(*LONG_RENDER)
        await gather(*(rig.request(node, joined, "warm-up") for _ in range(3)))
        if any(record.limited for record in rig.journal.at(node.name)):
            # The machine is too busy. A request that reached a time limit has other effects.
            return
        states = Counter(v.state for v in rig.journal.at(node.name) if v.request.method == b"GET")
        count = len(rig.parameters.short)
        expected = Counter({"MISS": count + 1, "HIT": count, "COALESCED": 2, None: 3})
        if states != expected:
            self.problems.append(f"the responses have the states {dict(states)}")
        self.problems += _differences(before, await node.metrics(), count)

    async def _leave_queue(self) -> None:
        """Check that clients that leave while they wait for a slot also leave the queue."""
        rig, node = self._rig, self._rig.a
        full: list[bool] = []
        over: list[bool] = []

        async def occupy_slot() -> None:
            # An encoder may end before it is stopped.
            while not over:
                await rig.request(node, rig.variant(*LONG_RENDER), "warm-up")

        def all_stopped() -> bool:
            for pid in node.encoders():
                send_signal(pid, signal.SIGSTOP)
            return sum(map(is_stopped, node.encoders())) == CAPACITY

        async def wait_in_queue(connection: ClientConnection, record: RequestRecord) -> None:
            await wait_for(lambda: full, PATIENCE)
            record.causes.add("client left")
            connection.close()
            await connection.read()

        async def until_queued(count: int, held: list[int]) -> None:
            deadline = reactor.seconds() + PATIENCE
            queued = -1
            while queued != count:
                queued = await self._queued()
                # Slots that become free would empty the queue, too.
                if not all(map(is_stopped, held)) or reactor.seconds() > deadline:
                    self.problems.append(f"{queued} requests wait for a slot, not {count}")
                    break
                await pause(0.02)

        async def come_and_go() -> None:
            if not await wait_for(all_stopped, PATIENCE):
                self.problems.append("the slots are not held")
                return
            # No slot becomes free before the check is over, or the time limit ends the encoders.
            held = node.encoders()
            short = rig.parameters.short[0]
            waiting = [
                rig.request(node, rig.variant(*short), "queue", wait_in_queue)
                for _ in range(_DISCONNECTS)
            ]

            async def leave() -> None:
                await until_queued(_DISCONNECTS, held)
                full.append(True)

            await gather(*waiting, leave())
            # A client that closes in order is given up when its response has not begun in time.
            await until_queued(0, held)

        async def release_slots() -> None:
            try:
                await come_and_go()
            finally:
                over.append(True)
                for pid in node.encoders():
                    send_signal(pid, signal.SIGCONT)

        await gather(*(occupy_slot() for _ in range(CAPACITY)), release_slots())

    async def _queued(self) -> int:
        connection = await self._rig.connect(self._rig.a)
        if connection is None:
            return -1
        record = self._rig.journal.begin("a", READY, "warm-up")
        connection.write(READY.head(record.request_id))
        await connection.read()
        response = self._rig.journal.end(record, connection)
        return int(response.document["queued"]) if response is not None else -1


def _differences(before: Metrics, after: Metrics, count: int) -> Iterator[str]:
    expected = [
        ("cache_lookups_total", {"outcome": "miss"}, count + 3),
        ("cache_lookups_total", {"outcome": "hit"}, count),
        ("cache_lookups_total", {"outcome": "coalesced"}, 2),
        ("renders_total", {"outcome": "success"}, count + 1),
        ("renders_total", {}, count + 1),
        ("render_duration_seconds_count", {}, count + 1),
        ("http_requests_total", {"endpoint": "render", "status": "2xx"}, 3 * count + 3),
        ("http_requests_total", {"endpoint": "render", "status": "4xx"}, 3),
        ("render_queue_rejections_total", {}, 0),
        ("variant_store_write_failures_total", {}, 0),
        ("connection_evictions_total", {}, 0),
    ]
    for name, labels, right in expected:
        found = after.sum(name, **labels) - before.sum(name, **labels)
        if found != right:
            yield f"{name} {labels or ''} rose by {found:g}, not by {right}"
