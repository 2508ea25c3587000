"""The scenarios, each of which runs once for each fault of each of its calls."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from twisted.internet.defer import Deferred, gatherResults

from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.variants.stored_file import make_trailer
from audioproxy.variants.usage import StoreUsage
from tests.faults.calls import Page
from tests.faults.fitting import Fault, faults_of
from tests.faults.rig import (
    LIMIT,
    Findings,
    Forks,
    Node,
    Report,
    Subject,
    check_log,
    check_store,
    get,
    is_behind_client,
    judge,
)
from tests.support.http import key_of
from tests.support.preloaded import VARIABLES
from tests.support.programs import FFMPEG
from tests.support.remote import RemoteCase
from tests.support.service import (
    TWISTD,
    WITHOUT_FFMPEG_CHECK,
    ServiceCase,
    short_flac,
    signed,
    until,
)
from tests.support.stores import RECORD

S = TypeVar("S", bound=Subject)

#: Chooses the faults of a run.
Choice = Callable[[Iterable[Fault]], Sequence[Fault]]

# What is kept for a while, and for which each run would wait: finished renders, and remote sources.
_NODE = f"""\
import audioproxy.render.registry as registry
import audioproxy.sources.far_files as far_files
registry._LINGER = far_files.KEPT_SECONDS = 0.01
{WITHOUT_FFMPEG_CHECK}
{TWISTD}
"""
_TWISTD_WORDS = ("--nodaemon", "--pidfile=", "audioproxy")

_HEADERS = VariantHeaders("audio/mpeg", "no-store")

#: What the names of the faults of a run have, such as "EIO at fsync": a variable of `make faults`.
WANTED = os.environ.get("FAULT", "")

# Runs without a fault: the first ones fill caches, and the others show all calls.
_WARM_UP, _SEEN = 3, 3


class FaultCase(ServiceCase):
    """Base class of tests that fail the calls of nodes with local folders.

    :cvar at_a_time: how many runs there are at a time.
    :cvar format: the options of the variants.
    :cvar variables: more variables of nodes.
    """

    variables: ClassVar[dict[str, str]] = {}
    at_a_time = 3
    place = "folder"
    format = "f:mp3"

    _numbers = count(1)
    #: The reports of all classes.
    reports: ClassVar[list[Report]] = []

    def new_page(self) -> Page:
        page = Page(self.store / f"page-{next(self._numbers)}")
        self.addCleanup(page.close)
        return page

    def new_store(self) -> Path:
        store = self.store / f"store-{next(self._numbers)}"
        store.mkdir()
        return store

    async def new_node(self) -> Node:
        page, store = self.new_page(), self.new_store()
        variables = {
            **page.variables,
            "AP_MAX_CONCURRENCY": "1",
            "TMPDIR": str(self.store),
            **self.variables,
            **self.store_variables(store),
        }
        environ: Any = self.environment(**variables)
        command = (sys.executable, "-c", _NODE, *_TWISTD_WORDS)
        process = self.spawn(*command, path=str(self.root), **environ)
        return Node(process, page, await process.port(), store)

    async def new_forks(self) -> Forks:
        page = self.new_page()
        preload = {"LD_PRELOAD": page.variables["LD_PRELOAD"]}
        environ: Any = {**self.environment(), **VARIABLES, **preload}
        command = (sys.executable, "-m", "tests.faults.forks")
        process = self.spawn(*command, path=str(self.root), **environ)
        return Forks(process, page, self.new_store())

    async def each_fault(
        self,
        name: str,
        run: Callable[[S, Fault | None, Findings], Awaitable[None]],
        make: Callable[[], Awaitable[S]],
        choose: Choice = list,
    ) -> Report:
        """Run a scenario without a fault, and then with each fault that is chosen."""

        async def prepared() -> S:
            subject = await make()
            for _ in range(_WARM_UP):
                await run_well(subject)
            return subject

        async def run_well(subject: S) -> None:
            found = Findings()
            await run(subject, None, found)
            self.assertEqual([], found.texts)

        report = Report(name)
        self.reports.append(report)
        subjects = [await prepared() for _ in range(self.at_a_time)]
        steps = set()
        for _ in range(_SEEN):
            await run_well(subjects[0])
            steps |= {call.step for call in subjects[0].page.calls}
            report.calls = len(subjects[0].page.calls)
        left = (fault for fault in choose(faults_of(sorted(steps))) if WANTED in str(fault))

        async def work(subject: S) -> None:
            for fault in left:
                found = Findings()
                subject.begin()
                is_broken = False
                try:
                    await run(subject, fault, found)
                except Exception as error:
                    is_broken = True
                    found.check(False, f"the run has failed: {error!r}")
                check_log(subject.lines, found)
                report.add(fault, subject.page.calls, found, subject.lines)
                if is_broken or not subject.is_usable:
                    await subject.process.kill()
                    subject = await prepared()

        await gatherResults([Deferred.fromCoroutine(work(each)) for each in subjects])
        if not (report.runs or WANTED):
            self.fail(f"no fault of {name} could be injected")
        if report.findings:
            self.fail(f"{report.findings[0]}\nThese are {len(report.findings)} findings.")
        return report

    async def fail_miss(self, choose: Choice = list, more: str = "") -> Report:
        return await self.each_fault(
            f"MISS, {self.place}, {self.format}{more}", self.miss, self.new_node, choose
        )

    async def fail_hit(self, choose: Choice = list) -> Report:
        return await self.each_fault(f"HIT, {self.place}", self.hit, self.new_node, choose)

    async def fail_second_hit(self) -> Report:
        return await self.each_fault(f"second HIT, {self.place}", self.second_hit, self.new_node)

    async def fail_prune(self, choose: Choice = list) -> Report:
        return await self.each_fault("prune", self.prune, self.new_forks, choose)

    async def fail_start(self, choose: Choice = list) -> Report:
        return await self.each_fault("start", self.start_node, self.new_forks, choose)

    # Requests

    async def miss(self, node: Node, fault: Fault | None, found: Findings) -> None:
        """Request a variant of a source that the node has not seen, until it is stored."""
        name = f"{next(self._numbers)}.flac"
        self.add_source(name)
        await self.request(node, name, fault, found)
        self.remove_source(name)

    async def hit(
        self, node: Node, fault: Fault | None, found: Findings, is_known: bool = False
    ) -> None:
        """Request a stored variant, which the node has not read before unless it is known."""
        name = f"{next(self._numbers)}.flac"
        self.add_source(name)
        if self.stored_file is None:
            await self.request(node, name, None, found)
        assert self.stored_file is not None
        self.add_variant(node.store, self.key(name), self.stored_file)
        if is_known:
            await get(node.port, signed(self.rest(name)))
        await self.request(node, name, fault, found)
        self.remove_source(name)

    async def second_hit(self, node: Node, fault: Fault | None, found: Findings) -> None:
        """Request a stored variant that the node has just read."""
        await self.hit(node, fault, found, is_known=True)

    #: A variant as it is stored, and its bytes.
    stored_file: bytes | None = None
    right: bytes | None = None

    async def request(self, node: Node, name: str, fault: Fault | None, found: Findings) -> None:
        path = signed(self.rest(name))
        node.page.arm(*(() if fault is None else (fault.step, fault.number, fault.times)))
        response = await get(node.port, path)
        if self.right is None:
            assert response is not None and response.complete, response
            self.right = response.body
        await node.until_at_rest(found)
        node.page.disarm()
        failed = [call for call in node.page.calls if call.failed]
        is_behind = len(failed) == 1 and is_behind_client(failed[0], node.store)
        judge(response, self.right, None if is_behind else fault, found, node.lines)
        is_full = any(call.error == errno.ENOSPC for call in failed)
        # A variant that fills the disk of the store is kept out of it for a while.
        await self.check_next(
            node.port,
            path,
            found,
            lambda: is_full and "it filled the disk of the store" in node.lines,
        )
        await node.until_at_rest(found)
        self.check_variants(node, name, found)

    async def check_next(
        self,
        port: int,
        path: bytes,
        found: Findings,
        is_kept_out: Callable[[], bool] = lambda: False,
    ) -> None:
        """Check that the next response is right, and soon a HIT, unless it cannot be stored."""
        states = []

        async def is_over() -> Any:
            response = await get(port, path)
            here = Findings()
            judge(response, self.right or b"", None, here, "")
            found.texts += [f"a request later: {text}" for text in here.texts]
            states.append(response and response["x-audio-proxy"])
            return states[-1] == b"HIT" or here.texts or is_kept_out()

        with suppress(AssertionError):
            await until(is_over, seconds=LIMIT)
        is_right = states[-1] == b"HIT" or is_kept_out()
        found.check(is_right, f"no HIT follows: {states[:3]}")

    # What is in a folder here, and in a bucket in another class.

    def store_variables(self, store: Path) -> dict[str, str]:
        bound = str(1 << 30)
        return {"AP_VARIANT_STORE": f"file://{store}", "AP_VARIANT_STORE_MAX_BYTES": bound}

    def rest(self, name: str) -> str:
        return f"/{self.format}/plain/local://{name}"

    def key(self, name: str) -> str:
        return key_of(self.rest(name).encode())

    def add_source(self, name: str) -> None:
        self.add(name, short_flac().read_bytes())

    def remove_source(self, name: str) -> None:
        (self.root / name).unlink()

    def add_variant(self, store: Path, key: str, data: bytes) -> None:
        scratch = store / "scratch"
        scratch.write_bytes(data)
        (store / key[:2]).mkdir(exist_ok=True)
        StoreUsage(str(store)).add(str(scratch), str(store / key[:2] / key))

    def check_variants(self, node: Node, name: str, found: Findings) -> None:
        right = self.right
        check_store(node.store, lambda data: data == right, found)
        for path in node.store.glob("??/*"):
            self.stored_file = path.read_bytes()
            path.unlink()

    # Other programs

    async def prune(self, forks: Forks, fault: Fault | None, found: Findings) -> None:
        """Prune a folder of four variants down to two."""
        store, body = self.new_store(), b"variant" * 1000
        data = body + make_trailer(len(body), _HEADERS, RECORD)
        StoreUsage(str(store)).ensure()
        for number in range(4):
            self.add_variant(store, f"{number:x}" * 64, data)
        bound = len(data) * 2
        await forks.start("prune", (str(store), str(bound)), {}, fault)
        status = await forks.ended()

        def check() -> None:
            check_store(store, body.__eq__, found)
            left = sum(path.stat().st_size for path in store.glob("??/*"))
            found.check(left <= bound, f"{left} bytes remain of {bound}")

        remaining = len(list(store.glob("??/*")))
        if status == 0:
            check()
            summary = json.loads(forks.lines.splitlines()[-1])
            found.check(summary["removed"]["variants"] == 4 - remaining, f"wrong: {summary}")
        found.check(status == 0 or status == 1, f"status {status}")
        if fault is None or fault.is_harmless:
            found.check((status, remaining) == (0, 2), f"status {status}, {remaining} remain")
        check_log(forks.lines, found)
        await forks.start("prune", (str(store), str(bound)), {}, None, counted=False)
        status = await forks.ended()
        found.check(status == 0, f"the next prune has status {status}")
        check()

    async def start_node(self, forks: Forks, fault: Fault | None, found: Findings) -> None:
        """Start a node on a folder with a variant."""
        # A search along a long PATH would be most of the calls.
        path = f"{Path(FFMPEG).parent}:/usr/bin:/bin"
        variables = {"PATH": path, "TMPDIR": str(self.store), **self.store_variables(forks.store)}
        environ = self.environment(**variables)
        pid = await forks.start("start", _TWISTD_WORDS, environ, fault)
        port = await forks.port()
        forks.page.disarm()
        if port is None:
            status = await forks.ended()
            refused = "audioproxy: " in forks.lines and status != 0
            found.check(refused, f"no refusal to start, but status {status}")
            found.check(fault is not None and not fault.is_harmless, "it has not started")
            return
        name = "always.flac"
        if not (self.root / name).exists():
            self.add_source(name)
        for each in (name, f"{next(self._numbers)}.flac"):
            if each != name:
                self.add_source(each)
            path = signed(self.rest(each))
            if self.right is None:
                response = await get(port, path)
                assert response is not None
                self.right = response.body
            await self.check_next(port, path, found)
        os.kill(pid, signal.SIGTERM)
        status = await forks.ended()
        found.check(status == 0, f"it has stopped with status {status}")
        right = self.right
        check_store(forks.store, lambda data: data == right, found)


class BucketFaultCase(FaultCase, RemoteCase):
    """Base class of tests that fail the calls of nodes with buckets."""

    place = "bucket"

    async def new_node(self) -> Node:
        node = await super().new_node()
        # Connections that are kept.
        node.spare = 8
        return node

    def store_variables(self, store: Path) -> dict[str, str]:
        return {}

    def rest(self, name: str) -> str:
        return f"/{self.format}/plain/s3://{self.sources}/{name}"

    def add_source(self, name: str) -> None:
        self.put(name, short_flac())

    def remove_source(self, name: str) -> None:
        self.server.remove(self.sources, name)
        self.server.remove(self.variants, self.key(name))

    async def hit(self, node: Node, fault: Fault | None, found: Findings) -> None:
        """Request a stored variant."""
        name = "always.flac"
        if self.right is None:
            self.add_source(name)
        await self.request(node, name, fault, found)

    def check_variants(self, node: Node, name: str, found: Findings) -> None:
        stored = self.server.request("GET", self.variants, self.key(name))
        is_right = stored.status == 404 or stored.body == self.right
        found.check(is_right, "the variant has wrong bytes")
        uploads = self.server.uploads(self.variants)
        found.check(not uploads, f"uploads are left: {uploads}")
