"""An `audioproxy.engine.Engine` around fakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.task import Clock

from audioproxy.config import Config
from audioproxy.engine import Engine
from audioproxy.testing import FakeThreads, memory_parts
from tests.support.processes import FakeSpawner
from tests.support.stores import Calls, FakeSources, FakeStore


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
        sources, stored = FakeSources(sizes or {}, self.calls), store if has_store else None
        doubles = self.spawner, self.threads, sources, stored, self.fallback_scratch_space
        super().__init__(memory_parts(config, clock, *doubles))
        self.store: Any = store
