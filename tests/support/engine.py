"""What `audioproxy.engine.Engine` makes, around fakes."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.task import Clock

from audioproxy.concurrency.slots import Slots
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.observe.metrics import Metrics
from audioproxy.process.decoder import Decoder
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.prober import Prober
from audioproxy.process.spawn import Launcher
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.failures import RecentFailures
from audioproxy.render.job import Preparer
from audioproxy.render.readiness import Readiness
from audioproxy.render.render import RenderContext
from audioproxy.render.seek_points import SeekPoints
from audioproxy.render.write_back import RenderStorage
from tests.support.processes import FakeSpawner, find_soxr
from tests.support.stores import Calls, FakeSources, FakeStore
from tests.support.threads import FakeThreads


class FakeEngine:
    """The parts of a node around a fake clock, children, threads, sources and store.

    :ivar calls: the calls of the sources and the store, in order.
    :ivar fallback_scratch_space: where renders write if the store does not take them.
    :ivar context: what renders need.
    """

    def __init__(
        self,
        *,
        sizes: Mapping[bytes, int | None] | None = None,
        has_store: bool = True,
        capacity: int = 1,
        queue: int = 4,
        probes: int = 4,
        timeout: float = 100,
        max_source: int = 100_000,
        max_variant: int = 10_000,
    ) -> None:
        self.calls: Calls = []
        self.clock = Clock()
        self.metrics = Metrics()
        self.spawner = FakeSpawner()
        self.threads = FakeThreads()
        self.sources = FakeSources(sizes or {}, self.calls)
        self.store = FakeStore(self.calls)
        self.fallback_scratch_space = FakeStore()
        self.readiness = Readiness(2)
        self.slots = Slots(
            self.clock,
            capacity,
            queue,
            timeout,
            self.readiness.depth_changed,
            low_capacity=max(1, capacity - 1),
            low_queue_size=max(1, queue // 2),
        )
        self.probe_slots = Slots(self.clock, probes, 0, 1, low_capacity=max(1, probes // 2))
        launcher = Launcher(self.spawner, self.clock, {})
        self.prober = Prober(launcher, "ffprobe", self.probe_slots, 10)
        ffmpeg, in_thread = Ffmpeg(launcher), self.threads.in_thread
        self.preparer = Preparer(
            self.sources,
            self.prober,
            ffmpeg,
            "ffmpeg",
            find_soxr,
            max_source,
            AnonymousSpace(),
            in_thread,
            SeekPoints(in_thread),
        )
        self.context = RenderContext(
            self.clock,
            self.preparer,
            self.slots,
            ffmpeg,
            Waveforms(Decoder(ffmpeg, in_thread), in_thread),
            RenderStorage(
                self.store if has_store else None, self.fallback_scratch_space, self.clock
            ),
            self.metrics,
            timeout,
            max_variant,
            RecentFailures(self.clock.seconds),
        )
