"""Faults of the store, of node B, and of the fork servers of node A."""

from __future__ import annotations

import os
import shutil
import signal
from itertools import count
from random import Random

from twisted.internet.defer import Deferred

from tests.soak.good_clients import random_variant
from tests.soak.lines import PATIENCE, pause, wait_for
from tests.soak.nodes import send_signal
from tests.soak.records import RequestRecord
from tests.soak.rig import LONG_RENDER, Rig, stored_path
from tests.support.children import fork_servers
from tests.support.service import is_running

# Attempts to store a variant after the store is back; an attempt may fail on a busy node.
_TRIES = 20
# Seconds after which a new fork server has proven itself, so that it is replaced at once.
_PROVEN = 70


class Faults:
    """Faults of the store, of node B and of fork servers."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._away = rig.base / "store-away"

    async def disturb_store(self, over: list[bool], chance: Random) -> None:
        """Take the store away and clear it, alternately, until the run is over."""
        for number in count():
            seconds = chance.uniform(1, 3) if number < 2 else chance.uniform(4, 9)
            await wait_for(lambda: over, seconds)
            if over and number >= self._rig.parameters.faults:
                return
            if number % 2 == 0:
                await self._take_away(chance.uniform(0.5, 2))
            else:
                self._clear()
            self._rig.journal.disturbed += 1
            await self._see_recovery(chance)

    async def restart_node(self, over: list[bool], chance: Random) -> None:
        """Kill node B and drain it, alternately, until the run is over."""
        for number in count():
            seconds = chance.uniform(1, 2.5) if number < 2 else chance.uniform(3, 9)
            await wait_for(lambda: over, seconds)
            if over and number >= self._rig.parameters.faults:
                break
            if number % 2 == 0:
                await self.kill()
            else:
                await self.drain()
        # Restart the node once more: its new process has to remove the scratch files that earlier
        # processes left behind.
        await self.kill()

    async def kill(self) -> None:
        """Kill node B, check that its children die with it, and start it again."""
        rig, node = self._rig, self._rig.b
        # Start a long render, so that at least one encoder runs for a while.
        (arriving,) = await self._have_arriving("before SIGKILL")
        for record in rig.in_flight(node):
            record.causes.add("node killed")
        # Stop the encoders, so that only the parent-death signal ends them. It is set before
        # ``exec``.
        for pid in node.encoders():
            send_signal(pid, signal.SIGSTOP)
        orphans = await node.kill()
        if not await wait_for(lambda: not any(is_running(pid) for pid in orphans), PATIENCE):
            rig.journal.errors.append("children outlived a killed node")
            for pid in orphans:
                send_signal(pid, signal.SIGKILL)
        await arriving
        await self._start()

    async def drain(self) -> None:
        """Stop node B with SIGTERM, and start it again.

        Responses that have begun have to arrive complete.
        """
        rig, node = self._rig, self._rig.b
        # Start a long render, so that at least one response is being sent.
        (arriving,) = await self._have_arriving("before SIGTERM")
        for record in rig.in_flight(node):
            if not record.begun:
                record.causes.add("node drained")
        orphans = node.all_children()
        code = await node.stop()
        if code != 0:
            rig.journal.errors.append(f"node B had the exit status {code} after SIGTERM")
            await node.kill()
        if any(is_running(pid) for pid in orphans):
            rig.journal.errors.append("children outlived a node that was stopped with SIGTERM")
        await arriving
        await self._start()

    async def disturb_servers(self, over: list[bool], chance: Random) -> None:
        """Kill or stop one fork server of node A after another. No request may fail because of it.

        At least one server is disturbed.
        """
        rig = self._rig
        while not over:
            if not await wait_for(lambda: len(fork_servers(rig.a.pid)) == 2, PATIENCE):
                rig.journal.errors.append("node A had no fork server for each program")
                return
            number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
            send_signal(chance.choice(fork_servers(rig.a.pid)), number)
            await wait_for(lambda: over, _PROVEN)

    async def _have_arriving(self, kind: str) -> list[Deferred[RequestRecord]]:
        rig = self._rig
        coming = rig.request(rig.b, rig.variant(*LONG_RENDER), kind)
        arriving = Deferred.fromCoroutine(coming)

        def has_begun() -> bool:
            records = [record for record in rig.journal.running if record.kind == kind]
            return not records or any(record.begun for record in records)

        await wait_for(has_begun, PATIENCE, 0.01)
        return [arriving]

    async def _start(self) -> None:
        async with self._rig.restarts:
            await self._rig.b.start()

    async def _take_away(self, seconds: float) -> None:
        rig = self._rig
        async with rig.restarts:
            rig.journal.disturbed += 1
            os.rename(rig.store, self._away)
            await pause(seconds)
            if rig.store.exists():
                rig.journal.errors.append("the service created a store while the real one was away")
                shutil.rmtree(rig.store)
            os.rename(self._away, rig.store)

    def _clear(self) -> None:
        self._rig.journal.disturbed += 1
        for path in self._rig.store.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    async def _see_recovery(self, chance: Random) -> None:
        """Check that node A stores new variants again after the store was disturbed."""
        for _ in range(_TRIES):
            request = random_variant(self._rig, chance, cold=True)
            record = await self._rig.request(self._rig.a, request, "after a store fault")
            # A request that got no render slot proves nothing.
            if record.status == 200:
                path = stored_path(self._rig.store, request)
                if not await wait_for(path.exists, PATIENCE):
                    self._rig.journal.errors.append("the store was back, but nothing was stored")
                return
            await pause(0.3)
