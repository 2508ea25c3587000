"""The scenarios: one request with each fault in turn."""

from __future__ import annotations

import sys
from contextlib import suppress
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

from twisted.internet.defer import Deferred, gatherResults

from audioproxy.variants.usage import StoreUsage
from tests.faults.calls import Call, Page
from tests.faults.fitting import Fault, faults_of
from tests.faults.rig import LIMIT, Findings, Node, Report, check_store, judge
from tests.support.http import key_of
from tests.support.service import TWISTD, WITHOUT_FFMPEG_CHECK, ServiceCase, short_flac, signed, until

T = TypeVar("T")

#: One run of a scenario on a node, with or without a fault: returns the calls.
Scenario = Callable[[Node, Fault | None, Findings], Awaitable[Sequence[Call]]]

# Finished renders are kept for a second, for which each run would wait.
_PROGRAM = f"""\
import audioproxy.render.registry as registry
registry._LINGER = 0.01
{WITHOUT_FFMPEG_CHECK}
{TWISTD}
"""


class FaultCase(ServiceCase):
    """Base class of tests that fail the calls of nodes, each with a store of its own.

    :cvar nodes: how many nodes run at a time.
    """

    nodes = 2

    def setUp(self) -> None:
        super().setUp()
        self._numbers = count(1)
        self.right: dict[str, bytes] = {}

    async def start_node(self, **variables: str) -> Node:
        number = next(self._numbers)
        page = Page(self.store / f"page-{number}")
        self.addCleanup(page.close)
        store = self.store / f"store-{number}"
        store.mkdir()
        given = {
            **page.variables,
            "AP_MAX_CONCURRENCY": "1",
            "AP_VARIANT_STORE": f"file://{store}",
            "AP_VARIANT_STORE_MAX_BYTES": str(1 << 30),
            "TMPDIR": str(self.store),
            **variables,
        }
        process = self.spawn(
            *(sys.executable, "-c", _PROGRAM, "--nodaemon", "--pidfile=", "audioproxy"),
            path=str(self.root),
            **self.environment(**given),
        )
        return Node(process, page, await process.port(), store)

    async def each_fault(
        self, name: str, scenario: Scenario, take: Callable[[Iterator[Fault]], list[Fault]] = list,
        **variables: str,
    ) -> Report:
        """Run a scenario without a fault, and then with each fault that is taken."""
        report = Report(name)
        nodes = [await self.start_node(**variables) for _ in range(self.nodes)]
        steps = set()
        # The first runs fill caches.
        for node in nodes:
            for _ in range(3):
                found = Findings()
                calls = await scenario(node, None, found)
                self.assertEqual([], found.texts)
                await node.rest()
        for _ in range(3):
            calls = await scenario(nodes[0], None, found)
            self.assertEqual([], found.texts)
            steps |= {call.step for call in calls}
        report.calls = len(calls)
        left = iter(take(faults_of(sorted(steps))))

        async def work(node: Node) -> None:
            for fault in left:
                found = Findings()
                node.begin()
                try:
                    await scenario(node, fault, found)
                except Exception as error:
                    found.check(False, f"the run has failed: {error!r}")
                calls = node.page.calls
                node.check_log(found)
                print(fault, found.texts, flush=True)
                report.add(fault, list(calls), found, node.lines)
                if found.texts:
                    await node.process.kill()
                    node = await self.start_node(**variables)
                    for _ in range(3):
                        await scenario(node, None, Findings())
                    await node.rest()

        await gatherResults([Deferred.fromCoroutine(work(node)) for node in nodes])
        return report

    async def miss(
        self, node: Node, fault: Fault | None, found: Findings, options: str = "f:mp3"
    ) -> Sequence[Call]:
        """Request a variant of a source that the node has not seen, until it is stored."""
        name = f"{next(self._numbers)}.flac"
        source = self.add(name, short_flac().read_bytes())
        path = signed(f"/{options}/plain/local://{name}")
        calls = await self.request(node, path, options, fault, found)
        await self.check_next(node, path, options, found)
        source.unlink()
        return calls

    async def hit(
        self, node: Node, fault: Fault | None, found: Findings, options: str = "f:mp3"
    ) -> Sequence[Call]:
        """Request a stored variant that the node has not read before."""
        name = f"{next(self._numbers)}.flac"
        source = self.add(name, short_flac().read_bytes())
        rest = f"/{options}/plain/local://{name}"
        if options not in self.right:
            await self.miss(node, None, found, options)
        assert node.store is not None
        key = key_of(rest.encode())
        scratch = node.store / "scratch"
        scratch.write_bytes(self.stored_file[options])
        (node.store / key[:2]).mkdir(exist_ok=True)
        StoreUsage(str(node.store)).add(str(scratch), str(node.store / key[:2] / key))
        calls = await self.request(node, signed(rest), options, fault, found)
        await self.check_next(node, signed(rest), options, found)
        source.unlink()
        return calls

    async def request(
        self, node: Node, path: bytes, options: str, fault: Fault | None, found: Findings
    ) -> Sequence[Call]:
        if fault is None:
            node.page.arm()
        else:
            node.page.arm(fault.step, fault.number)
        response = await node.get(path)
        if options not in self.right:
            assert response is not None and response.complete, response
            self.right[options] = response.body
            await node.rest()
        await node.until_at_rest(found)
        node.page.disarm()
        judge(response, self.right[options], fault, found)
        return node.page.calls

    async def check_next(self, node: Node, path: bytes, options: str, found: Findings) -> None:
        """Check that the next request is right, and becomes a HIT; and check the store."""
        states = []

        async def is_hit() -> bool:
            response = await node.get(path)
            judge(response, self.right[options], None, found)
            states.append(response and response["x-audio-proxy"])
            return states[-1] == b"HIT" or bool(found.texts) or len(states) > 200

        with suppress(AssertionError):
            await until(is_hit, seconds=LIMIT / 3)
        found.check(states[-1] == b"HIT", f"no HIT follows: {states[:3]}")
        await node.until_at_rest(found)
        if node.store is not None:
            check_store(node.store, lambda key: self.right[options], found)
            self.clear(node.store, options)

    stored_file: dict[str, bytes] = {}

    def clear(self, store: Path, options: str) -> None:
        for path in store.glob("??/*"):
            self.stored_file[options] = path.read_bytes()
            path.unlink()
