"""The object graph: everything is constructed here, once, from a `Config` and a reactor.

For a resource inside another Twisted application::

    proxy = make_resource(config, reactor)
    site_root.putChild(b"audio", proxy.resource)
    yield proxy.startService()
    ...
    yield proxy.stopService()

For a service of its own, which also listens, use `make_service`.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from audioproxy._twisted import monotonic_clock
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import thread_per_call
from audioproxy.config import BucketStore, Config
from audioproxy.engine import Backends, BootError
from audioproxy.files.scratch_files import AnonymousSpace, check_folder, temporary_folder
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.request import InfoRequest, SigningKeys, VariantRequest
from audioproxy.grammar.sources import Source
from audioproxy.http_client.ca_bundles import ClientsByBundle
from audioproxy.loudness.measure import RenderLoudnessMeter
from audioproxy.media.loudness import Measurement
from audioproxy.observe.access_log import AccessLog, log_request
from audioproxy.observe.metrics import Metrics
from audioproxy.process.decoder import Decoder
from audioproxy.process.ffmpeg import Encoder
from audioproxy.process.prober import Prober
from audioproxy.process.programs import Programs, ProgramsMonitor
from audioproxy.process.slots import Slots
from audioproxy.process.spawn import Launcher, find_limits, find_parent_death_prefix
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.context import RenderContext
from audioproxy.render.deadline import RenderLimits
from audioproxy.render.job import Commands, Preparer, find_commands
from audioproxy.render.output_encoder import OutputEncoder
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.write_back import RenderStorage
from audioproxy.server.fast_path import FastPath
from audioproxy.server.listener import Listener, max_clients
from audioproxy.server.site import ProxySite
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import Unwritable
from audioproxy.web.cors import Cors
from audioproxy.web.health import Readiness
from audioproxy.web.info import InfoHandler
from audioproxy.web.instrumentation import Instrumentation
from audioproxy.web.metrics_resource import MetricsResource
from audioproxy.web.root import AudioProxyResource
from audioproxy.web.variant import VariantHandler

# Seconds that a stop waits for renders and responses (D39).
_DRAIN = 30.0
# Minimum number of seconds that a stop waits for the store's disk.
_MIN_CLOSE_TIMEOUT = 1.0
# The longest wait for a probe slot, in seconds. The probe pool has no queue, so this only
# determines Retry-After: a probe is short (D21).
_PROBE_LONGEST_WAIT = 1.0
# Connections to the metrics listener. Prometheus needs one; the others are for manual requests.
_MOST_SCRAPERS = 64

_log = Logger()


__all__ = ["AudioProxy", "BootError", "ProxyService", "make_resource", "make_service"]


class AudioProxy(Service):
    """The resource and the objects behind it, as a Twisted service.

    :ivar resource: to be mounted in a site, at its root or below it.
    :ivar metrics: the resource for ``/metrics``, for a site that the public cannot reach.
    :ivar fast_path: the fast path, for a site that has the resource at its root.
    :ivar on_eviction: counts a connection that was closed to make room for a new one.
    :ivar drain_timeout: seconds that a stop waits for renders and responses.
    :ivar store: the variant store, or None.
    :ivar bucket_sources: the sources in an object store, or None.
    :ivar programs: ffmpeg and ffprobe.
    """

    def __init__(self, config: Config, reactor: Any, access_log: AccessLog = log_request) -> None:
        """Construct everything; nothing is opened yet.

        :param reactor: provides processes, time and threads.
        :param access_log: called with the values of each access log line.
        :raises BootError: for a configuration that cannot be served.
        """
        self._clock = clock = monotonic_clock(reactor)
        self._starting: Deferred[None] | None = None
        self._folder = temporary_folder(os.environ)
        self.drain_timeout = min(_DRAIN, config.render_timeout)
        threads = thread_per_call(reactor)
        blocking_calls = BlockingCalls(clock, threads)
        space = AnonymousSpace(blocking_calls.run_detached, self._folder)
        clients = ClientsByBundle(reactor, os.environ.get("SSL_CERT_FILE") or None)
        self._backends = Backends(config, clock, threads, blocking_calls, space, clients)
        self.store = self._backends.store
        self.bucket_sources = self._backends.bucket_sources
        metrics = Metrics()
        self.on_eviction = metrics.connection_evicted
        readiness = Readiness(config.ready_queue_threshold)
        launcher = Launcher(
            reactor,
            clock,
            _child_environment(),
            find_parent_death_prefix(),
            find_limits(config.max_child_memory),
        )
        ffmpeg = shutil.which("ffmpeg") or "ffmpeg"
        ffprobe = shutil.which("ffprobe") or "ffprobe"
        self.programs = Programs(launcher, ffmpeg, ffprobe)
        self._monitor = ProgramsMonitor(self.programs, readiness.programs_checked)
        # A check of the programs must not trigger another check when it finds them missing.
        reporting = replace(launcher, on_spawn_failure=self._monitor.check)
        slots = Slots(
            clock,
            config.max_concurrency,
            config.queue_size,
            config.render_timeout,
            readiness.depth_changed,
            metrics.render_rejected,
        )
        metrics.watch(slots)
        probe_slots = Slots(clock, config.max_probe_concurrency, 0, _PROBE_LONGEST_WAIT)
        encoder = Encoder(reporting)
        decoder = Decoder(encoder, threads)
        sources = self._backends.sources
        prober = Prober(reporting, ffprobe, probe_slots, config.probe_timeout)
        self._preparer = Preparer(
            sources,
            prober,
            encoder,
            ffmpeg,
            self.programs.find_resampler,
            config.max_src_bytes,
        )
        self._limits = RenderLimits(clock, config.render_timeout, config.max_variant_bytes)
        self._renders = RenderRegistry(
            RenderContext(
                self._preparer,
                slots,
                self._limits,
                RenderStorage(self.store, space, clock),
                OutputEncoder(encoder, Waveforms(decoder, threads, self._folder)),
                metrics,
            )
        )
        self._loudness_meter = RenderLoudnessMeter(self._preparer, decoder, slots, self._limits)
        # A file store has no URLs for redirects, so `serve_mode` has no effect on it.
        in_bucket = isinstance(config.variant_store, BucketStore)
        variants = VariantHandler(
            metrics,
            self._renders,
            self._preparer,
            self.store,
            time.time,
            config.presign_ttl if in_bucket and config.serve_mode == "redirect" else None,
        )
        cors, no_cors = Cors(config.allow_origin), Cors(None)
        instrumentation = Instrumentation(clock.seconds, metrics, cors, access_log)
        self.resource = AudioProxyResource(
            instrumentation,
            SigningKeys(config.key, config.salt, config.allow_insecure),
            variants,
            InfoHandler(sources, prober),
            slots,
            readiness,
        )
        small_variants = self.store if isinstance(self.store, FileVariantStore) else None
        self.fast_path = FastPath(
            self.resource.verified_paths, variants, small_variants, instrumentation
        )
        self.metrics = MetricsResource(Instrumentation(clock.seconds, metrics, no_cors, access_log))

    def startService(self) -> Deferred[None]:
        """Prove that the store is writable, and start checking ffmpeg.

        :returns: fires when requests can be served, or fails with `BootError` if the store is not
            writable. With a file store, it has already fired when it is returned.
        """
        Service.startService(self)
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    def stopService(self) -> Deferred[None]:
        """Let renders, write-backs and responses finish, for a bounded time.

        :returns: fires when everything has finished or was stopped.
        """
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    async def find_commands(self, request: VariantRequest | InfoRequest) -> Commands:
        """Prepare a render, and return the commands that it would run. It works without a start.

        :raises Refusal: as a request would be refused.
        """
        self._backends.open()
        return await find_commands(self._preparer, request, self._limits)

    async def measure_loudness(
        self,
        source: Source,
        options: VariantOptions | None = None,
        on_progress: Callable[[float], object] = lambda seconds: None,
    ) -> Measurement:
        """Measure the loudness of a render, or of a source. It works without a start.

        :param options: None for the source itself, with all its channels.
        :param on_progress: called with the seconds of audio that were measured so far, in a thread.
        :raises Refusal: as a request would be refused.
        """
        self._backends.open()
        return await self._loudness_meter.measure(source, options, on_progress)

    def close_store_now(self) -> None:
        """Remove everything from the store that a failed start left there."""
        if self.store is not None:
            self.store.close_now()

    async def _start(self) -> None:
        self._backends.open()
        try:
            check_folder(self._folder)
        except OSError as error:
            self.running = 0
            raise BootError(
                f"TMPDIR: no file can be created in {self._folder} ({error.strerror}); set TMPDIR"
                " to a writable directory"
            ) from error
        if self.store is not None:
            try:
                await self.store.open()
            except Unwritable as error:
                self.running = 0
                raise BootError(f"AP_VARIANT_STORE: {error}") from error
        # The service may have been stopped in the meantime.
        if self.running:
            self._renders.open()
            self._monitor.start()

    async def _stop(self) -> None:
        deadline = self._clock.seconds() + self.drain_timeout
        if self._starting is not None:
            self._starting.cancel()
        await self._monitor.stop()
        await self._renders.drain(self.drain_timeout)
        left = deadline - self._clock.seconds()
        await self.resource.active.wait_until_idle(self._clock, left)
        if self.store is not None:
            await self.store.close(max(_MIN_CLOSE_TIMEOUT, deadline - self._clock.seconds()))
        await self._backends.close()


class ProxyService(Service):
    """The proxy with its own listeners.

    :ivar port: the port of the main listener, once it is open.
    :ivar metrics_port: the port of the metrics listener, once it is open.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any,
        listening: socket.socket | None = None,
        access_log: AccessLog = log_request,
    ) -> None:
        """Construct everything; see `AudioProxy`.

        :param listening: a listening socket, used instead of ``config.port``.
        :param access_log: called with the values of each access log line.
        """
        self.port = config.port
        self.metrics_port = config.metrics_port
        self._config = config
        self._clock = clock = monotonic_clock(reactor)
        self._listening_socket = listening
        self._proxy = AudioProxy(config, reactor, access_log)
        most = max_clients(config.max_concurrency + config.max_probe_concurrency)
        evicted = self._proxy.on_eviction
        site = ProxySite(self._proxy.resource, clock, most, self._proxy.fast_path, evicted)
        self._main = Listener(reactor, site)
        self._metrics_listener = Listener(
            reactor,
            ProxySite(self._proxy.metrics, clock, _MOST_SCRAPERS, on_eviction=evicted),
        )
        self._starting: Deferred[None] | None = None

    def startService(self) -> Deferred[None]:
        """Prove that the store is writable, and then open both ports.

        :returns: fires when both listeners are open, or fails with `BootError` if the store is not
            writable or a port is taken.
        """
        Service.startService(self)
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    async def _start(self) -> None:
        await self._proxy.startService()
        bind = self._config.metrics_bind
        try:
            with _naming_variable(
                "AP_METRICS_PORT", f"{bind} port {self.metrics_port}", "AP_METRICS_BIND"
            ):
                self.metrics_port = self._metrics_listener.open(self.metrics_port, bind)
            if self._listening_socket is not None:
                self.port = self._main.listen_on(self._listening_socket)
            else:
                with _naming_variable("AP_PORT", f"port {self.port}"):
                    self.port = self._main.open(self.port)
        except BootError:
            self._metrics_listener.close_now()
            self._proxy.close_store_now()
            raise
        _log.info("metrics on {bind} port {port}", bind=bind, port=self.metrics_port)
        _log.info("listening on port {port}", port=self.port)

    def stopService(self) -> Deferred[None]:
        """Close the main port, then let running requests finish."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        deadline = self._clock.seconds() + self._proxy.drain_timeout
        Service.stopService(self)
        if self._starting is not None:
            self._starting.cancel()
        await self._main.close()
        await self._proxy.stopService()
        await self._main.wait_until_closed(deadline - self._clock.seconds())
        # Metrics stay available until the last render has ended.
        await self._metrics_listener.close()


def make_resource(config: Config, reactor: Any) -> AudioProxy:
    """Return the resource for another Twisted application, with its own start and stop.

    The settings of listeners and of the log have no effect here: both belong to the application.

    :param config: constructed in code, or by `audioproxy.config.load`.
    :returns: the service. Mount its ``resource``, and its ``metrics`` elsewhere if needed: they
        respond at ``/metrics`` below their mount point. Call its ``startService`` before the first
        request and wait for the Deferred, which fails with `BootError` where the store is not
        writable. Call its ``stopService`` at the end and wait for that Deferred too.
    :raises BootError: for a configuration that cannot be served, such as an empty CA bundle.
    """
    return AudioProxy(config, reactor)


def make_service(config: Config, reactor: Any) -> ProxyService:
    """Return the whole service, with its listeners.

    :raises BootError: for a configuration that cannot be served.
    """
    return ProxyService(config, reactor)


def _child_environment() -> dict[str, str]:
    """Return the environment of ffmpeg and ffprobe: only PATH and the locale (D45)."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


@contextmanager
def _naming_variable(
    port_variable: str, place: str, bind_variable: str = "AP_PORT"
) -> Iterator[None]:
    """Raise `BootError` with the name of the variable if the system refuses a port."""
    try:
        yield
    except OSError as error:
        no_address = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
        variable = bind_variable if no_address else port_variable
        wanted = "an address of this machine" if no_address else "a free port"
        raise BootError(
            f"{variable}: cannot listen on {place} ({os.strerror(error.errno or 0)});"
            f" set {variable} to {wanted}"
        ) from error
