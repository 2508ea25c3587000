"""The https origin of a run: its process, its clients, and how it fails for long."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, cycle
from random import Random
from typing import Any

from tests.soak.checks import Check
from tests.soak.failing_origin import AWAY, FAILING, WHOLE
from tests.soak.good_clients import conditional_on, gather, status_only, with_range
from tests.soak.lines import PATIENCE, leaving, pause, read_to_end, stalling, wait_for
from tests.soak.records import ExpectedRequest, RequestRecord
from tests.soak.rig import LARGE, LONG_RENDER, Rig
from tests.soak.sounds import CHANGING, LONG, SPEECH, TONE
from tests.support.service import PROJECT, Process, reactor

# Requests for a source that answers again, each of which may find the node busy.
_TRIES = 20


class RunOrigin:
    """A process with an https origin, whose sources clients of nodes A and B request.

    It fails in turns, which no client notices. Now and then it is away for a while, serves no
    ranges, or has another version of a source.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._folder = rig.base / "origin"
        self._process = Process()
        self._port = 0
        self._modes = 0
        # Each has URLs of its own: nodes remember for an hour that an origin contradicts itself.
        self._generation = 1
        self._version = 0
        self._cause: str | None = None
        self._scratch = 0

    async def start(self) -> None:
        """Start the process, with copies of the sources."""
        rig = self._rig
        self._folder.mkdir()
        for source in (TONE, SPEECH, LONG, CHANGING):
            shutil.copyfile(rig.sounds.path(source), self._folder / source)
        module = "tests.soak.failing_origin"
        certificate = rig.certificate
        files = (self._folder, certificate.chain, certificate.key)
        command = (sys.executable, "-m", module, *map(str, files))
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT)}
        reactor.spawnProcess(self._process, command[0], command, environ)
        self._port = int((await self._process.printed(r"port (\d+)\n", "the origin to listen"))[1])

    async def stop(self) -> None:
        """End the process, and all connections with it."""
        await self._process.kill()

    async def load(self, over: list[bool]) -> None:
        """Run the clients and the disturbances until the run is over."""
        clients = range(min(2, self._rig.parameters.clients // 4))
        tasks = [self._client(over, self._rig.random(f"origin {n}")) for n in clients]
        await gather(*tasks, self._disturb(over, self._rig.random("away")), self._sample(over))
        self._rig.journal.faults.update(
            f"origin: {name}" for name in re.findall(r"^fault: (.+)$", self._process.stdout, re.M)
        )

    def check(self) -> Check:
        """Check that the origin was used, and that it worked to the end."""
        rig = self._rig
        records = [record for record in rig.journal.records if self._is_ours(record)]
        whole = sum(record.status == 200 and record.complete for record in records)
        faults = sum(n for name, n in rig.journal.faults.items() if name.startswith("origin: "))
        figures = f"{len(records)} requests, {whole} whole variants, {faults} faults,"
        figures += f" at most {self._scratch / 1e6:.1f} MB of scratch files"
        check = Check("origin", figures)
        if not whole:
            check.problems.append("no request for a source at the origin succeeded")
        if "Traceback" in self._process.stderr:
            check.problems.append(f"the origin wrote {self._process.stderr[-500:]}")
        return check

    async def _client(self, over: list[bool], chance: Random) -> None:
        while not over:
            await self._request(self._random(chance), chance)

    def _place(self, source: str) -> str:
        return f"https://localhost:{self._port}/{self._generation}/{source}"

    def _variant(self, options: str, source: str, cold: bool = True) -> ExpectedRequest:
        return self._rig.variant(options, source, cold, self._place(source))

    def _random(self, chance: Random) -> ExpectedRequest:
        if chance.random() < 0.1:
            source = chance.choice([TONE, SPEECH])
            return self._rig.info(source, self._place(source))
        parameters = self._rig.parameters
        renders = [*parameters.short, *parameters.changing, LONG_RENDER, LARGE]
        request = self._variant(*chance.choice(renders), cold=chance.random() < 0.7)
        change = chance.choice([None, None, None, with_range, conditional_on])
        return request if change is None else change(request, chance)

    async def _request(self, request: ExpectedRequest, chance: Random) -> RequestRecord:
        """Make a request; some clients leave, and some do not read for a while."""
        size = chance.randrange(100_000)
        behaviors = [
            (read_to_end, 6),
            (leaving(20, size, gently=chance.random() < 0.5), 1),
            (stalling(size, chance.uniform(0.5, 2)), 1),
        ]
        behavior = chance.choices(*zip(*behaviors, strict=True))[0]
        return await self._send(request, chance, behavior)

    async def _send(
        self, request: ExpectedRequest, chance: Random, behavior: Any = read_to_end
    ) -> RequestRecord:
        causes = {self._cause} if self._cause else None
        return await self._rig.request(self._rig.node(chance), request, "origin", behavior, causes)

    async def _disturb(self, over: list[bool], chance: Random) -> None:
        away = cycle(AWAY)
        for number in count():
            await wait_for(lambda: over, chance.uniform(0.5, 2))
            if over and number >= 3:
                return
            if number % 3 == 0:
                await self._go_away(next(away), chance)
            elif number % 3 == 1:
                await self._replace(chance)
            else:
                await self._refuse_ranges(chance)
            if not await self._serves(chance):
                self._rig.journal.errors.append("the origin was back, but nothing was rendered")

    async def _go_away(self, mode: str, chance: Random) -> None:
        """Let every request fail for a while; a new variant is then a 502."""
        self._rig.journal.faults[f"origin: {mode}"] += 1
        async with self._excused("origin away"):
            await self._change(mode)
            new = self._variant(*chance.choice(self._rig.parameters.short))
            refused = status_only(new, 502, code="upstream_unavailable")
            await self._send(refused, chance)
            await pause(chance.uniform(0, 1))
            await self._change(FAILING)

    async def _replace(self, chance: Random) -> None:
        """Replace a source while it is rendered; each version has a validator of its own."""
        rig = self._rig
        request = self._variant(*chance.choice(rig.parameters.changing))
        rig.journal.faults["origin: source replaced"] += 1
        async with self._excused("source replaced"):

            async def replace() -> None:
                await wait_for(
                    lambda: any(each.begun for each in self._in_flight()), chance.uniform(0, 2)
                )
                self._version = 1 - self._version
                new = self._folder / "new"
                new.write_bytes(rig.sounds.versions[self._version])
                os.replace(new, self._folder / CHANGING)

            await gather(self._send(request, chance), replace())
        self._generation += 1

    async def _refuse_ranges(self, chance: Random) -> None:
        self._rig.journal.faults["origin: ranges refused"] += 1
        async with self._excused("ranges refused"):
            await self._change(WHOLE)
            await self._send(self._variant(*LARGE), chance)
            await pause(chance.uniform(0, 2))
        await self._change(FAILING)
        self._generation += 1

    async def _serves(self, chance: Random) -> bool:
        for _ in range(_TRIES):
            record = await self._send(self._variant(*self._rig.parameters.short[0]), chance)
            if record.status == 200 and record.complete:
                return True
            await pause(0.3)
        return False

    @asynccontextmanager
    async def _excused(self, cause: str) -> AsyncIterator[None]:
        """Excuse the requests that are in flight at the start or at the end, or begin between."""
        self._excuse(cause)
        self._cause = cause
        yield
        # They may share a look-up, a probe or a render that fails a little later.
        affected = self._excuse(cause)
        running = self._rig.journal.running
        await wait_for(lambda: running.isdisjoint(affected), PATIENCE)
        self._cause = None

    def _excuse(self, cause: str) -> list[RequestRecord]:
        found = self._in_flight()
        for record in found:
            record.causes.add(cause)
        return found

    def _in_flight(self) -> list[RequestRecord]:
        return [record for record in self._rig.journal.running if self._is_ours(record)]

    def _is_ours(self, record: RequestRecord) -> bool:
        return f"https://localhost:{self._port}/".encode() in record.request.target

    async def _change(self, mode: str) -> None:
        """Change the mode, and wait until it is in force."""
        self._modes += 1
        self._process.transport.write(f"{mode}\n".encode())
        await wait_for(lambda: self._process.stdout.count("mode: ") == self._modes, PATIENCE)

    async def _sample(self, over: list[bool]) -> None:
        while not over:
            self._scratch = max(self._scratch, self._rig.a.scratch_bytes())
            await pause(0.2)
