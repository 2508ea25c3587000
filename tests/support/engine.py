"""An `audioproxy.engine.Engine` around fakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.task import Clock

from audioproxy.config import Config
from audioproxy.engine import Engine, Parts
from audioproxy.files.disk_space import DiskMonitor
from audioproxy.observe.metrics import Metrics
from audioproxy.process.programs import Programs
from audioproxy.process.spawn import Launcher
from audioproxy.process.warm_starter import WarmStarter
from tests.support.processes import FakeSpawner, find_soxr
from tests.support.stores import Calls, FakeSources, FakeStore
from tests.support.threads import FakeThreads


class FakePrograms(Programs):
    """ffmpeg with soxr, which nothing has to find out."""

    async def probe_resampler(self) -> str:
        return await find_soxr()


class FakeEngine(Engine):
    """An engine around a fake clock, children, threads, sources and store.

    :ivar calls: the calls of the sources and the store, in order.
    :ivar fallback_scratch_space: where renders write if the store does not take them.
    """

    def __init__(
        self,
        *,
        sizes: Mapping[bytes, int | None] | None = None,
        has_store: bool = True,
        capacity: int = 1,
        queue: int = 4,
        probes: int = 4,
        timeout: int = 100,
        max_source: int = 100_000,
        max_variant: int = 10_000,
    ) -> None:
        self.calls: Calls = []
        self.spawner = FakeSpawner()
        self.threads = FakeThreads()
        self.fallback_scratch_space: Any = FakeStore()
        store, clock = FakeStore(self.calls), Clock()
        launcher = Launcher(self.spawner, clock, {})
        config = Config(
            allow_insecure=True,
            max_src_bytes=max_source,
            max_variant_bytes=max_variant,
            max_concurrency=capacity,
            max_probe_concurrency=probes,
            queue_size=queue,
            ready_queue_threshold=2,
            render_timeout=timeout,
            probe_timeout=10,
        )
        super().__init__(
            Parts(
                limits=config.limits,
                clock=clock,
                threads=self.threads.in_thread,
                space=self.fallback_scratch_space,
                disks=DiskMonitor({}, clock, self.threads.in_thread),
                metrics=Metrics(),
                starter=WarmStarter(launcher.starter, {}, is_wanted=False),
                programs=FakePrograms(launcher, "ffmpeg", "ffprobe"),
                store=store if has_store else None,
                sources=FakeSources(sizes or {}, self.calls),
            )
        )
        self.store: Any = store
