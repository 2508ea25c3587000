"""The parts of an engine, made from the settings: the one place where the configuration is spread.

It reads down: each part is made by one call, from settings and from the parts above it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime

from audioproxy import __version__
from audioproxy._twisted import monotonic_clock
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner, bounded, thread_per_call
from audioproxy.config import (
    BootError,
    Config,
    Limits,
    Problem,
    SourceSettings,
    StoreSettings,
    cpu_count,
)
from audioproxy.files.disk_space import DiskMonitor
from audioproxy.files.scratch_files import AnonymousSpace, temporary_folder
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source
from audioproxy.observe.log_context import Logger
from audioproxy.observe.metrics import Metrics
from audioproxy.process.child_limits import ChildLimits
from audioproxy.process.find_starter import find_starter
from audioproxy.process.programs import Programs
from audioproxy.process.spawn import Launcher
from audioproxy.process.store_upkeep import StoreUpkeep
from audioproxy.process.warm_starter import WarmStarter, warm_starter
from audioproxy.sources.dispatcher import SourceDispatcher, unset_openers
from audioproxy.sources.interfaces import SourceStore
from audioproxy.sources.local import LocalSources
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import VariantStore
from audioproxy.variants.response_headers import VariantHeaders

if TYPE_CHECKING:
    from audioproxy.engine.remote import Remote
    from audioproxy.sources.s3 import S3Sources
    from audioproxy.variants.s3 import S3VariantStore

# Lookups in a file store that run at a time, and lookups that run or wait for a thread.
_MOST_READ_THREADS = 32
_MOST_READS = 512

_log = Logger()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What only some stores can do; None where the store cannot, or there is none.

    :ivar folder: the store itself; it reads small variants at once, and can have a bound.
    :ivar bucket: the store itself; it has an object store.
    :ivar presign: returns the presigned URL of a variant from its cache key, a number of seconds
        and the headers that its response should have; None in proxy mode too.
    :ivar presign_ttl: the most seconds for which such a URL works.
    """

    folder: FileVariantStore | None = None
    bucket: S3VariantStore | None = None
    presign: Callable[[str, int, VariantHeaders], str] | None = None
    presign_ttl: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is made of: time, threads, disks, children, sources and the store.

    :ivar clock: monotonic.
    :ivar space: temporary files.
    :ivar disks: those of TMPDIR and of a store in a folder.
    :ivar cell_shortcomings: why ffmpeg and ffprobe are not fully confined here, with remedies.
    :ivar sources: opens a source of any kind.
    :ivar bucket_sources: the sources in an object store, or None.
    :ivar warnings: what may be wrong with the settings. Each is logged too.
    """

    limits: Limits
    clock: IReactorTime
    threads: ThreadRunner
    space: AnonymousSpace
    disks: DiskMonitor
    metrics: Metrics
    starter: WarmStarter
    programs: Programs
    sources: SourceStore
    bucket_sources: S3Sources | None = None
    store: VariantStore | None = None
    capabilities: Capabilities = Capabilities()
    upkeep: StoreUpkeep | None = None
    remote: Remote | None = None
    cpus: int = 1
    cache_tag: CacheTagHeader | None = None
    cell_shortcomings: Sequence[str] = ()
    warnings: Sequence[Problem] = ()


def build(config: Config, reactor: Any) -> Parts:
    """Make the parts of an engine. Nothing is opened.

    :param reactor: provides processes, time and threads.
    :raises BootError: for settings that contradict each other, or a CA bundle that cannot be read.
    """
    limits = config.limits
    clock = monotonic_clock(reactor)
    threads = thread_per_call(reactor)
    metrics = Metrics()
    folder = temporary_folder(os.environ)
    blocking_calls = BlockingCalls(clock, threads)
    space = AnonymousSpace(blocking_calls.run_detached, folder)

    ffmpeg, ffprobe = (shutil.which(name) or name for name in ("ffmpeg", "ffprobe"))
    # Children get only PATH and the locale (D45).
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    child_limits = ChildLimits(config.max_child_memory)
    # A trial has the limits of a probe.
    trial = child_limits.of_child(limits.probe_timeout, None)
    cold, shortcomings = find_starter([ffmpeg, ffprobe], trial, environment)
    starter = warm_starter(cold, reactor, environment, trial, is_wanted=config.warm_programs)
    launcher = Launcher(reactor, clock, environment, starter, child_limits)
    programs = Programs(launcher, ffmpeg, ffprobe)
    metrics.watch_process(lambda: {"version": __version__, **programs.build})

    remote = None
    if config.has_outbound_requests:
        from audioproxy.engine.remote import Remote

        remote = Remote(reactor, clock, threads, folder, limits, starter.can_preload)
    store, capabilities = _make_store(config.store, remote, clock, threads, blocking_calls, space)
    warnings = _check_redirects(capabilities)
    sources, bucket_sources = _make_sources(config.sources, remote, clock, threads, metrics)
    _check_cells(shortcomings, required=config.require_cell)

    folders, upkeep = {"tmpdir": folder}, None
    if capabilities.folder is not None:
        folders["store"] = capabilities.folder.root
        upkeep = _make_upkeep(capabilities.folder, launcher, threads, metrics)
    disks = DiskMonitor(folders, clock, threads)
    metrics.watch_disks(disks.spaces)
    return Parts(
        limits=limits,
        clock=clock,
        threads=threads,
        cpus=cpu_count(),
        space=space,
        disks=disks,
        metrics=metrics,
        starter=starter,
        cell_shortcomings=shortcomings,
        programs=programs,
        remote=remote,
        store=store,
        capabilities=capabilities,
        upkeep=upkeep,
        sources=sources,
        bucket_sources=bucket_sources,
        cache_tag=config.cache_tag,
        warnings=warnings,
    )


def _make_store(
    settings: StoreSettings | None,
    remote: Remote | None,
    clock: IReactorTime,
    threads: ThreadRunner,
    blocking_calls: BlockingCalls,
    space: AnonymousSpace,
) -> tuple[VariantStore | None, Capabilities]:
    if settings is None:
        return None, Capabilities()
    where = settings.where
    if where.path is not None:
        reads = BlockingCalls(clock, bounded(threads, _MOST_READ_THREADS), _MOST_READS)
        folder = FileVariantStore(where.path, blocking_calls, reads, max_bytes=settings.max_bytes)
        return folder, Capabilities(folder)
    assert where.bucket is not None and remote is not None
    if not settings.s3.configured:
        fault = "an s3:// store needs credentials, and none are set"
        raise BootError(Problem("AP_VARIANT_STORE", fault, ""))
    from audioproxy.s3.errors import StoreError
    from audioproxy.variants.s3 import S3VariantStore

    prefix = settings.endpoint_prefix
    objects = remote.object_store(settings.s3, prefix, settings.bundle_prefix)
    ttl = settings.presign_ttl
    try:
        store = S3VariantStore(objects, where.bucket, space, clock, threads, presign_ttl=ttl)
    except StoreError as error:
        wanted = f"set {prefix}_ADDRESSING to path"
        raise BootError(Problem("AP_VARIANT_STORE", str(error), wanted)) from error
    return store, Capabilities(None, store, None if ttl is None else store.presign, ttl)


def _make_sources(
    settings: SourceSettings,
    remote: Remote | None,
    clock: IReactorTime,
    threads: ThreadRunner,
    metrics: Metrics,
) -> tuple[SourceDispatcher, S3Sources | None]:
    openers, bucket_sources = unset_openers(), None
    if settings.local_root is not None:
        openers[LocalSource.scheme] = LocalSources(settings.local_root, threads).open
    if remote is not None and settings.s3.configured:
        from audioproxy.sources.s3 import S3Sources

        objects = remote.object_store(settings.s3, "AP_S3", "AP_S3")
        bucket_sources = S3Sources(objects, remote.reading)
        openers[S3Source.scheme] = bucket_sources.open
    if remote is not None and settings.allowlist is not None:
        from audioproxy.sources.https import HttpsSources
        from audioproxy.sources.https_origin import OriginClient

        client = remote.client(public_only=settings.deny_private)
        origins = OriginClient(client, settings.allowlist, clock, settings.headers)
        openers[HttpsSource.scheme] = HttpsSources(origins, remote.reading).open
    dispatcher = SourceDispatcher(
        settings.allowlist,
        openers,
        lambda scheme: metrics.openings[scheme].measure(clock.seconds),
        clock.seconds,
    )
    return dispatcher, bucket_sources


def _make_upkeep(
    store: FileVariantStore, launcher: Launcher, threads: ThreadRunner, metrics: Metrics
) -> StoreUpkeep | None:
    usage = store.usage
    if (most := usage.max_bytes) is None:
        return None
    metrics.watch_store(most, lambda: usage.size)
    return StoreUpkeep(store, most, launcher, threads, time.time, metrics.variants_evicted)


def _check_redirects(store: Capabilities) -> Sequence[Problem]:
    """Warn of redirects to a store that looks as if clients cannot reach it."""
    if store.presign is None or store.bucket is None:
        return ()
    endpoint = store.bucket.object_store.name
    if _is_public(endpoint):
        return ()
    fault = f"redirect sends clients to {endpoint}, which they may be unable to reach"
    wanted = "with AP_SERVE_MODE=proxy this service sends the bytes"
    warning = Problem("AP_SERVE_MODE", fault, wanted)
    _log.warn("{text}", text=str(warning))
    return (warning,)


def _check_cells(shortcomings: Sequence[str], *, required: bool) -> None:
    """Warn of children that are not fully confined, or raise `BootError` if that is required."""
    if not shortcomings:
        return
    faults = "; ".join(shortcomings)
    if required:
        wanted = "with AP_REQUIRE_CELL=0, the service starts with a warning"
        raise BootError(Problem("AP_REQUIRE_CELL", faults, wanted))
    _log.warn("ffmpeg is not fully confined: {faults}", faults=faults)


def _is_public(endpoint: str) -> bool:
    """Return whether an endpoint looks public: https, and a host name with a dot."""
    scheme, _, host = endpoint.partition("://")
    name = host.partition(":")[0]
    return scheme == "https" and "." in name and not name.replace(".", "").isdecimal()
