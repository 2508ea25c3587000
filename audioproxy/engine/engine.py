"""Everything below HTTP: sources, the variant store, ffmpeg, slots and renders."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

import audioproxy
from audioproxy import __version__
from audioproxy._twisted import monotonic_clock
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.slots import Slots
from audioproxy.concurrency.threads import bounded, thread_per_call
from audioproxy.config import BootError, BucketStore, Config, Problem, S3Config, cpu_count
from audioproxy.errors import NotConfigured, NotFound, RenderTimeout
from audioproxy.files.disk_space import DiskMonitor
from audioproxy.files.scratch_files import AnonymousSpace, check_folder, temporary_folder
from audioproxy.grammar.request import VariantRequest
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source, Source
from audioproxy.media.inputs import Input, local_input
from audioproxy.media.probe import Probe
from audioproxy.observe.collectors import Durations
from audioproxy.observe.log_context import Logger
from audioproxy.observe.metrics import Metrics
from audioproxy.process.decoder import Decoder
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.find_starter import find_starter
from audioproxy.process.prober import Prober
from audioproxy.process.programs import Programs, ProgramsMonitor
from audioproxy.process.spawn import ChildLimits, Launcher
from audioproxy.process.store_upkeep import StoreUpkeep
from audioproxy.process.warm import warm_starter
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.failures import RecentFailures
from audioproxy.render.job import Job, Preparer
from audioproxy.render.readiness import Readiness
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.render import RenderContext
from audioproxy.render.seek_points import SeekPoints
from audioproxy.render.write_back import RenderStorage
from audioproxy.sources.anew import use_source
from audioproxy.sources.dispatcher import Opener, SourceDispatcher, unset
from audioproxy.sources.interfaces import OpenSource
from audioproxy.sources.local import LocalSources
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import Unwritable, VariantStore

if TYPE_CHECKING:
    from audioproxy.http_client.client import ClientsByBundle, HttpClient
    from audioproxy.s3.objects import ObjectStore
    from audioproxy.sources.far_files import FarFiles
    from audioproxy.sources.far_source import FarReading
    from audioproxy.sources.s3 import S3Sources

# Minimum number of seconds that a stop waits for the store's disk.
_MIN_CLOSE_TIMEOUT = 1.0
# The longest wait for a probe slot, in seconds. The probe pool has no queue, so this only
# determines Retry-After: a probe is short (D21).
_PROBE_LONGEST_WAIT = 1.0
# Lookups in a file store that run at a time, and lookups that run or wait for a thread.
_MOST_READ_THREADS = 32
_MOST_READS = 512

_log = Logger()


class Engine:
    """The objects that read sources, render and store, and their common start and end.

    Nothing is opened by the constructor. Jobs can be made, and loudness measured, before `open`.

    :ivar clock: monotonic.
    :ivar sources: opens a source of any kind.
    :ivar bucket_sources: the sources in an object store, or None.
    :ivar store: the variant store, or None.
    :ivar file_store: the same store, if it is a folder: it alone has scratch files of its own, and
        reads small variants at once.
    :ivar presign: returns the presigned URL of a variant from its cache key, a number of seconds
        and the headers that its response should have; None where the store is no bucket.
    :ivar disks: the disks of TMPDIR and of a store in a folder.
    :ivar warnings: what may be wrong with the settings. Each is logged too.
    :ivar programs: ffmpeg and ffprobe.
    :ivar starter: starts ffmpeg and ffprobe.
    :ivar cell_shortcomings: why ffmpeg and ffprobe are not fully confined here, with remedies.
    :ivar readiness: whether the node should receive new work.
    :ivar drain_timeout: seconds that a stop waits for renders and responses.
    """

    def __init__(self, config: Config, reactor: Any) -> None:
        """Construct everything.

        :param reactor: provides processes, time and threads.
        :raises BootError: for settings that contradict each other, or a CA bundle that cannot be
            read.
        """
        self.clock = clock = monotonic_clock(reactor)
        self.drain_timeout = config.drain_timeout
        self._is_open = False
        self.warnings: list[Problem] = []
        self.metrics = metrics = Metrics()
        self.readiness = Readiness(config.ready_queue_threshold)
        self._render_timeout = config.render_timeout
        self._folder = temporary_folder(os.environ)
        self._threads = threads = thread_per_call(reactor)
        self._blocking_calls = BlockingCalls(clock, threads)
        self._space = AnonymousSpace(self._blocking_calls.run_detached, self._folder)
        self._clients: ClientsByBundle | None = None
        if config.has_outbound_requests:
            # The client imports OpenSSL. S3 also imports botocore, which takes a tenth of a second.
            from audioproxy.http_client.client import ClientsByBundle

            self._clients = ClientsByBundle(reactor, os.environ.get("SSL_CERT_FILE") or None)

        self.presign: Callable[[str, int, VariantHeaders], str] | None = None
        self.store = self._make_store(config)
        self.file_store = self.store if isinstance(self.store, FileVariantStore) else None
        folders = {"tmpdir": self._folder}
        if self.file_store is not None:
            folders["store"] = self.file_store.root
        self.disks = DiskMonitor(folders, clock, threads)
        self.bucket_sources: S3Sources | None = None
        self._reactor = reactor
        self._far_files: FarFiles | None = None
        self.sources = self._make_sources(config)

        program = shutil.which("ffmpeg") or "ffmpeg"
        ffprobe = shutil.which("ffprobe") or "ffprobe"
        limits = ChildLimits(config.max_child_memory)
        environment = _child_environment()
        # A trial has the limits of a probe.
        trial = limits.of_child(config.probe_timeout, None)
        cold, self.cell_shortcomings = find_starter([program, ffprobe], trial, environment)
        _check_cells(self.cell_shortcomings, required=config.require_cell)
        self.starter = warm_starter(
            cold, reactor, environment, trial, is_wanted=config.warm_programs
        )
        launcher = Launcher(reactor, clock, environment, self.starter, limits)
        self._upkeep = self._make_upkeep(launcher)
        self.programs = Programs(launcher, program, ffprobe)
        self._monitor = ProgramsMonitor(
            self.programs, self.readiness.programs_checked, self.starter.settle
        )
        # A check of the programs must not trigger another check when it finds them missing.
        reporting = replace(launcher, on_spawn_failure=self._monitor.check)
        self.slots = Slots(
            clock,
            config.max_concurrency,
            config.queue_size,
            config.render_timeout,
            self.readiness.depth_changed,
            metrics.render_rejected,
            lambda is_low: self._measure(metrics.queue_waits["low" if is_low else "normal"]),
            low_capacity=max(1, config.max_concurrency - 1),
            low_queue_size=max(1, config.queue_size // 2),
        )
        metrics.watch(self.slots)
        metrics.watch_disks(self.disks.spaces)
        metrics.watch_process(lambda: {"version": __version__, **self.programs.build})
        probes = config.max_probe_concurrency
        probe_slots = Slots(clock, probes, 0, _PROBE_LONGEST_WAIT, low_capacity=max(1, probes // 2))
        self.prober = Prober(
            reporting,
            ffprobe,
            probe_slots,
            config.probe_timeout,
            lambda: self._measure(metrics.probes),
            program,
        )
        ffmpeg = Ffmpeg(reporting)
        self.decoder = Decoder(ffmpeg, threads)
        self.preparer = Preparer(
            self.sources,
            self.prober,
            ffmpeg,
            program,
            self.programs.probe_resampler,
            config.max_src_bytes,
            self._space,
            threads,
            SeekPoints(threads),
        )
        self.renders = RenderRegistry(
            RenderContext(
                clock,
                self.preparer,
                self.slots,
                ffmpeg,
                Waveforms(self.decoder, threads, self._folder),
                RenderStorage(
                    self.store,
                    self._space,
                    clock,
                    cache_tag=config.cache_tag,
                    timed=lambda: self._measure(metrics.write_backs),
                    build=lambda: self.programs.build_name,
                ),
                metrics,
                config.render_timeout,
                config.max_variant_bytes,
                RecentFailures(clock.seconds),
                cpu_count(),
            )
        )

    async def open(self) -> None:
        """Prove that the store and TMPDIR are writable, allow renders, and start checking ffmpeg.

        With a file store, this does not wait.

        :raises BootError: where one of them is not writable.
        """
        self._is_open = True
        if self._clients is not None:
            self._clients.open()
        if self._far_files is not None:
            self._far_files.open()
        try:
            check_folder(self._folder)
        except OSError as error:
            fault = f"no file can be created in {self._folder} ({error.strerror})"
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
            if self._upkeep is not None:
                self._upkeep.start()

    def deadline(self) -> Deadline:
        """Return the deadline of a render that gets its slot now."""
        return Deadline(self.clock, self._render_timeout, RenderTimeout)

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
        """Return the probe of a source, and how ffprobe opens it; the source is closed.

        :raises Refusal: where the source cannot be probed.
        """

        async def describe(opened: OpenSource, _: bool) -> Probe:
            try:
                return await self.prober.describe(opened)
            finally:
                opened.close()

        probe = await use_source(partial(self.sources.open, source), describe)
        return probe, probe.open_with(local_input(seekable=probe.saw_end))

    async def drain(self, deadline: Deadline) -> None:
        """Wait until the renders with a slot are stored, until a deadline; start no others."""
        self._is_open = False
        draining = Deferred.fromCoroutine(self.renders.drain(deadline))
        await self._monitor.stop()
        if self._upkeep is not None:
            await self._upkeep.stop()
        await draining

    async def close(self, deadline: Deadline | None = None) -> None:
        """Remove temporary files, and close all outbound connections.

        :param deadline: by default, the longest time that a stop may take.
        """
        deadline = deadline or Deadline(self.clock, self.drain_timeout)
        self.starter.close_now()
        if self._far_files is not None:
            self._far_files.close()
        least = max(_MIN_CLOSE_TIMEOUT, deadline.remaining)
        if self.file_store is not None:
            await self.file_store.close(least)
        if self._clients is not None:
            await self._clients.close()
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

    def _make_sources(self, config: Config) -> SourceDispatcher:
        openers: dict[str, Opener] = {
            LocalSource.scheme: unset(
                lambda: NotFound("local sources are disabled: AP_LOCAL_ROOT is not set"),
                "a local source was requested, but AP_LOCAL_ROOT is not set, so local sources are"
                " disabled; set it to the directory that holds them",
            ),
            S3Source.scheme: unset(
                NotConfigured,
                "an s3 source was requested, but no credentials are set; set AWS_ACCESS_KEY_ID,"
                " AWS_SECRET_ACCESS_KEY and AWS_REGION",
            ),
            HttpsSource.scheme: unset(
                lambda: NotFound("not on the allowlist"),
                "an https source was requested, but AP_SOURCE_ALLOWLIST is not set, so every https"
                " host is refused; set it to the hosts that may be sources",
            ),
        }
        if config.local_root is not None:
            openers[LocalSource.scheme] = LocalSources(config.local_root, self._threads).open
        if config.source_s3.configured:
            from audioproxy.sources.s3 import S3Sources

            store = self._object_store(config.source_s3, "AP_S3", "AP_S3")
            self.bucket_sources = S3Sources(store, self._far_reading(config))
            openers[S3Source.scheme] = self.bucket_sources.open
        if config.source_allowlist is not None:
            from audioproxy.sources.https import HttpsSources
            from audioproxy.sources.https_origin import OriginClient

            origins = OriginClient(
                self._client(public_only=config.source_deny_private),
                config.source_allowlist,
                self.clock,
                config.source_headers_file or {},
            )
            openers[HttpsSource.scheme] = HttpsSources(origins, self._far_reading(config)).open
        return SourceDispatcher(
            config.source_allowlist,
            openers,
            lambda scheme: self._measure(self.metrics.openings[scheme]),
            self.clock.seconds,
        )

    def _far_reading(self, config: Config) -> FarReading:
        """Return what all remote sources share."""
        from audioproxy.sources.far_files import FarFiles
        from audioproxy.sources.far_source import FarReading

        if self._far_files is None:
            self._far_files = FarFiles(
                self._folder, self.clock, self._threads, config.max_src_bytes
            )
        return FarReading(
            self._reactor,
            self.clock,
            self._far_files,
            self._threads,
            lambda: self.starter.can_preload(),
            config.max_src_bytes,
            config.render_timeout,
        )

    def _make_store(self, config: Config) -> VariantStore | None:
        where = config.variant_store
        if where is None:
            return None
        if not isinstance(where, BucketStore):
            threads = bounded(self._threads, _MOST_READ_THREADS)
            reads = BlockingCalls(self.clock, threads, _MOST_READS)
            return FileVariantStore(
                where.path,
                self._blocking_calls,
                reads,
                max_bytes=config.variant_store_max_bytes,
            )
        if not config.variant_s3.configured:
            fault = "an s3:// store needs credentials, and none are set"
            raise BootError(Problem("AP_VARIANT_STORE", fault, ""))
        from audioproxy.s3.errors import StoreError
        from audioproxy.variants.s3 import S3VariantStore

        own, shared = config.variant_s3, config.source_s3
        same_endpoint = (own.endpoint, own.addressing) == (shared.endpoint, shared.addressing)
        endpoint_prefix = "AP_S3" if same_endpoint else "AP_VARIANT_S3"
        bundle_prefix = "AP_S3" if own.ca_bundle == shared.ca_bundle else "AP_VARIANT_S3"
        store = self._object_store(own, endpoint_prefix, bundle_prefix)
        if config.serve_mode == "redirect" and not _is_public(store.name):
            warning = Problem(
                "AP_SERVE_MODE",
                f"redirect sends clients to {store.name}, which they may be unable to reach",
                "with AP_SERVE_MODE=proxy this service sends the bytes",
            )
            self.warnings.append(warning)
            _log.warn("{text}", text=str(warning))
        try:
            bucket = S3VariantStore(
                store,
                where.bucket,
                self._space,
                self.clock,
                self._threads,
                presign_ttl=config.presign_ttl if config.serve_mode == "redirect" else None,
            )
        except StoreError as error:
            wanted = f"set {endpoint_prefix}_ADDRESSING to path"
            raise BootError(Problem("AP_VARIANT_STORE", str(error), wanted)) from error
        self.presign = bucket.presign
        return bucket

    def _make_upkeep(self, launcher: Launcher) -> StoreUpkeep | None:
        store = self.file_store
        if store is None or (most := store.usage.max_bytes) is None:
            return None
        usage = store.usage
        self.metrics.watch_store(most, lambda: usage.size)
        # The limits are those of ffmpeg: a prune is a part of this program, and reads no source.
        environment = _prune_environment(launcher.environment, store.root)
        launcher = replace(launcher, environment=environment, limits=None)
        evicted = self.metrics.variants_evicted
        return StoreUpkeep(store, most, launcher, self._threads, time.time, evicted)

    def _object_store(
        self, settings: S3Config, endpoint_prefix: str, bundle_prefix: str
    ) -> ObjectStore:
        """Return an object store.

        :param endpoint_prefix: the prefix of the variables that set its endpoint and addressing.
        :param bundle_prefix: the prefix of the variable that sets its CA bundle.
        """
        from audioproxy.s3.objects import ObjectStore

        client = self._client(settings.ca_bundle, f"{bundle_prefix}_CA_BUNDLE")
        try:
            return ObjectStore(settings, client)
        except ValueError as error:
            wanted = f"set it to path, or {endpoint_prefix}_ENDPOINT to a host name"
            raise BootError(Problem(f"{endpoint_prefix}_ADDRESSING", str(error), wanted)) from error

    def _client(
        self, bundle: str | None = None, variable: str = "", *, public_only: bool = False
    ) -> HttpClient:
        from audioproxy.http_client.client import UnusableBundle

        assert self._clients is not None
        try:
            return self._clients.client(bundle, public_only=public_only)
        except UnusableBundle as error:
            raise BootError(Problem.of(variable if bundle else "SSL_CERT_FILE", error)) from error


def _child_environment() -> dict[str, str]:
    """Return the environment of ffmpeg and ffprobe: only PATH and the locale (D45)."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _check_cells(shortcomings: Sequence[str], *, required: bool) -> None:
    """Warn of children that are not fully confined.

    :raises BootError: if ``required``, instead of the warning.
    """
    if not shortcomings:
        return
    faults = "; ".join(shortcomings)
    if required:
        wanted = "with AP_REQUIRE_CELL=0, the service starts with a warning"
        raise BootError(Problem("AP_REQUIRE_CELL", faults, wanted))
    _log.warn("ffmpeg is not fully confined: {faults}", faults=faults)


def _prune_environment(children: Mapping[str, str], root: str) -> dict[str, str]:
    """Return the environment of `audioproxy store prune`: the store, and where modules are.

    They may be where only PYTHONPATH or a wrapper of this process led to. An empty entry would be
    the working directory.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(audioproxy.__file__)))
    return {
        **children,
        "AP_VARIANT_STORE": f"file://{root}",
        "AP_SERVE_MODE": "proxy",
        "PYTHONPATH": os.pathsep.join(filter(None, (package, *sys.path))),
    }


def _is_public(endpoint: str) -> bool:
    """Return whether an endpoint looks public: https, and a host name with a dot."""
    scheme, _, host = endpoint.partition("://")
    name = host.partition(":")[0]
    return scheme == "https" and "." in name and not name.replace(".", "").isdecimal()
