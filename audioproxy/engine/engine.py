"""The engine: its wiring from parts, and its common start and end."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.slots import Slots
from audioproxy.config import BootError, Problem
from audioproxy.engine.parts import Parts
from audioproxy.errors import RenderTimeout
from audioproxy.files.scratch_files import check_folder
from audioproxy.grammar.request import VariantRequest
from audioproxy.grammar.sources import Source
from audioproxy.media.inputs import Input, local_input
from audioproxy.media.probe import Probe
from audioproxy.observe.collectors import Durations
from audioproxy.process.decoder import Decoder
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.prober import Prober
from audioproxy.process.programs import ProgramsMonitor
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.failures import RecentFailures
from audioproxy.render.job import Job, Preparer
from audioproxy.render.readiness import Readiness
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.render import RenderContext
from audioproxy.render.seek_points import SeekPoints
from audioproxy.render.write_back import RenderStorage
from audioproxy.sources.anew import use_source
from audioproxy.sources.interfaces import OpenSource
from audioproxy.variants.interfaces import Unwritable

# Minimum number of seconds that a stop waits for the store's disk.
_MIN_CLOSE_TIMEOUT = 1.0
# The longest wait for a probe slot, in seconds. The probe pool has no queue, so this only
# determines Retry-After: a probe is short (D21).
_PROBE_LONGEST_WAIT = 1.0


class Engine:
    """The objects that read sources, render and store, and their common start and end.

    Nothing is opened by the constructor. Jobs can be made, and loudness measured, before `open`.

    :ivar file_store: the store, if it is a folder.
    :ivar readiness: whether the node should receive new work.
    :ivar drain_timeout: seconds that a stop waits for renders and responses.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.clock = clock = parts.clock
        self.metrics = metrics = parts.metrics
        self.programs, self.starter = parts.programs, parts.starter
        self.sources, self.store = parts.sources, parts.store
        self.bucket_sources, self.warnings = parts.bucket_sources, parts.warnings
        self.cell_shortcomings, self.disks = parts.cell_shortcomings, parts.disks
        self.capabilities, self.file_store = parts.capabilities, parts.capabilities.folder
        limits, threads = parts.limits, parts.threads
        self.drain_timeout = limits.drain_timeout
        self._is_open = False

        self.readiness = Readiness(limits.ready_queue_threshold)
        self._monitor = ProgramsMonitor(
            self.programs, self.readiness.programs_checked, self.starter.settle
        )
        # A check of the programs must not trigger another check when it finds them missing.
        launcher = replace(self.programs.launcher, on_spawn_failure=self._monitor.check)
        self.slots = Slots(
            clock,
            limits.max_concurrency,
            limits.queue_size,
            limits.render_timeout,
            self.readiness.depth_changed,
            metrics.render_rejected,
            lambda is_low: self._measure(metrics.queue_waits["low" if is_low else "normal"]),
            low_capacity=max(1, limits.max_concurrency - 1),
            low_queue_size=max(1, limits.queue_size // 2),
        )
        metrics.watch(self.slots)
        probes = limits.max_probe_concurrency
        self.probe_slots = Slots(
            clock, probes, 0, _PROBE_LONGEST_WAIT, low_capacity=max(1, probes // 2)
        )
        self.prober = Prober(
            launcher,
            self.programs.ffprobe,
            self.probe_slots,
            limits.probe_timeout,
            lambda: self._measure(metrics.probes),
            self.programs.ffmpeg,
        )
        ffmpeg = Ffmpeg(launcher)
        self.decoder = Decoder(ffmpeg, threads)
        self.preparer = Preparer(
            self.sources,
            self.prober,
            ffmpeg,
            self.programs.ffmpeg,
            self.programs.probe_resampler,
            limits.max_src_bytes,
            parts.space,
            threads,
            SeekPoints(threads),
        )
        self.context = RenderContext(
            clock,
            self.preparer,
            self.slots,
            ffmpeg,
            Waveforms(self.decoder, threads, parts.space.folder),
            RenderStorage(
                self.store,
                parts.space,
                clock,
                cache_tag=parts.cache_tag,
                timed=lambda: self._measure(metrics.write_backs),
                build=lambda: self.programs.build_name,
            ),
            metrics,
            limits.render_timeout,
            limits.max_variant_bytes,
            RecentFailures(clock.seconds),
            parts.cpus,
        )
        self.renders = RenderRegistry(self.context)

    async def open(self) -> None:
        """Prove that the store and TMPDIR are writable, allow renders, and start checking ffmpeg.

        With a file store, this does not wait.

        :raises BootError: where one of them is not writable.
        """
        self._is_open = True
        if self.parts.remote is not None:
            self.parts.remote.open()
        folder = self.parts.space.folder
        try:
            check_folder(folder)
        except OSError as error:
            fault = f"no file can be created in {folder} ({error.strerror})"
            wanted = "set TMPDIR to a writable directory"
            raise BootError(Problem("TMPDIR", fault, wanted)) from error
        if self.store is not None:
            try:
                await self.store.open()
            except Unwritable as error:
                raise BootError(Problem.of("AP_VARIANT_STORE", error)) from error
        # It may have been closed meanwhile.
        if self._is_open:
            self.renders.open()
            self.starter.open()
            self._monitor.start()
            if self.parts.upkeep is not None:
                self.parts.upkeep.start()

    def deadline(self) -> Deadline:
        """Return the deadline of a render that gets its slot now."""
        return Deadline(self.clock, self.parts.limits.render_timeout, RenderTimeout)

    async def prepare_job(self, request: VariantRequest) -> Job:
        """Return the job that a render would run; its source is closed.

        :raises Refusal: where the render would be refused before its encoder starts.
        """
        source = await self.preparer.prepare(request)
        try:
            return await self.preparer.resolve(source, self.deadline())
        finally:
            source.close()

    async def probe(self, source: Source) -> tuple[Probe, Input]:
        """Return the probe of a source, and how ffprobe opens it; the source is closed."""

        async def describe(opened: OpenSource, _: bool) -> Probe:
            try:
                return await self.prober.describe(opened)
            finally:
                opened.close()

        probe = await use_source(partial(self.sources.open, source), describe)
        return probe, probe.open_with(local_input(seekable=probe.file.saw_end))

    async def drain(self, deadline: Deadline) -> None:
        """Wait until the renders with a slot are stored, until a deadline; start no others."""
        self._is_open = False
        draining = Deferred.fromCoroutine(self.renders.drain(deadline))
        await self._monitor.stop()
        if self.parts.upkeep is not None:
            await self.parts.upkeep.stop()
        await draining

    async def close(self, deadline: Deadline | None = None) -> None:
        """Remove temporary files, and close all outbound connections.

        :param deadline: by default, the longest time that a stop may take.
        """
        deadline = deadline or Deadline(self.clock, self.drain_timeout)
        self.starter.close_now()
        least = max(_MIN_CLOSE_TIMEOUT, deadline.remaining)
        if self.file_store is not None:
            await self.file_store.close(least)
        if self.parts.remote is not None:
            await self.parts.remote.close()
        # What a library has started may hold the pipes of a server open for ever.
        with suppress(TimeoutError):
            await Deadline(self.clock, least).limit(self.starter.close())

    def close_now(self) -> None:
        """Remove everything from the store that a failed start left there."""
        self.starter.close_now()
        if self.file_store is not None:
            self.file_store.close_now()

    def _measure(self, durations: Durations) -> AbstractContextManager[None]:
        return durations.measure(self.clock.seconds)
