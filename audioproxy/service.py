"""The service: an engine, its HTTP resources, and listeners where it has its own.

Another Twisted application mounts the resource that `make_resource` returns.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from dataclasses import dataclass
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.config import Config, Problem
from audioproxy.engine import BootError, Engine, build
from audioproxy.grammar.request import SigningKeys
from audioproxy.observe.access_log import AccessLog, log_request
from audioproxy.observe.log_context import Logger
from audioproxy.server.channel import ProxySite
from audioproxy.server.fast_path import FastPath
from audioproxy.server.listener import Listener, max_clients
from audioproxy.web.cors import Cors
from audioproxy.web.exchange import Instrumentation
from audioproxy.web.info import InfoHandler
from audioproxy.web.metrics_resource import MetricsResource
from audioproxy.web.resource import AudioProxyResource
from audioproxy.web.variant import VariantHandler

# Connections to the metrics listener. Prometheus needs one; the others are for manual requests.
_MOST_SCRAPERS = 64

# Seconds after which a stop that is not over logs what it waits for. Most are over by then.
_QUIET_STOP = 2.0

_log = Logger()


__all__ = ["AudioProxy", "BootError", "make_resource"]


# For an address that this machine does not have, one of IPv6 where there is none, one of IPv4 that
# is written as one of IPv6, and one with the name of an interface that does not exist.
_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.ENODEV)


@dataclass(slots=True)
class _Address:
    """Where a listener is: an open socket that was given, the path of a Unix socket, or a port.

    :ivar prefix: of the variables that set it.
    """

    prefix: str
    given: socket.socket | None
    bind: str | None
    port: int
    path: str | None = None

    def __str__(self) -> str:
        if self.given is not None or self.bind is None:
            return f"port {self.port}"
        return self.path or f"{self.bind} port {self.port}"

    def listen(self, listener: Listener) -> None:
        """Open the listener, or raise `BootError` with the variable to set."""
        if self.given is not None:
            self.port = listener.listen_on(self.given)
            return
        variable, wanted = f"{self.prefix}PORT", "a free port"
        try:
            if self.path is not None:
                variable = f"{self.prefix}BIND"
                wanted = "a path in a writable directory, of no other process and no other file"
                self.port = 0
                listener.open_unix(self.path)
            else:
                self.port = listener.open(self.port, self.bind or "")
        except OSError as error:
            if error.errno in _NO_ADDRESS:
                variable = variable if self.bind is None else f"{self.prefix}BIND"
                wanted = "an address of this machine"
            fault = f"cannot listen on {self} ({os.strerror(error.errno or 0)})"
            raise BootError(Problem(variable, fault, f"set {variable} to {wanted}")) from error


class AudioProxy(Service):
    """The resource and the engine behind it, as a Twisted service.

    :ivar resource: to be mounted in a site, at its root or below it.
    :ivar metrics: the resource for ``/metrics``, for a site that the public cannot reach.
    :ivar drain_timeout: seconds that a stop waits for renders and responses.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any,
        access_log: AccessLog = log_request,
        *,
        engine: Engine | None = None,
        listens: bool = False,
        listening: socket.socket | None = None,
        metrics_socket: socket.socket | None = None,
    ) -> None:
        """Construct everything; nothing is opened yet.

        :param engine: made of other parts than those of the configuration.
        :param listens: open the ports of the configuration at the start.
        :param listening: a listening socket, used instead of the main port, from which other
            processes may accept too; ``metrics_socket`` is the same for the metrics.
        :raises BootError: for a configuration that cannot be served.
        """
        self._starting: Deferred[None] | None = None
        self.engine = engine = engine or Engine(build(config, reactor))
        self.drain_timeout = engine.drain_timeout
        seconds, metrics = engine.clock.seconds, engine.metrics
        variants = VariantHandler(
            metrics,
            engine.renders,
            engine.preparer,
            engine.store,
            time.time,
            engine.capabilities.presign_ttl,
            engine.capabilities.presign,
            engine.file_store,
            engine.parts.cache_tag,
        )
        instrumentation = Instrumentation(seconds, metrics, Cors(config.allow_origin), access_log)
        self.resource = AudioProxyResource(
            instrumentation,
            SigningKeys(config.signing_pairs, config.allow_insecure),
            variants,
            InfoHandler(engine.sources, engine.prober, engine.parts.cache_tag),
            engine.slots,
            engine.readiness,
        )
        self.metrics = MetricsResource(
            Instrumentation(seconds, metrics, Cors(None), access_log), engine.disks.measure
        )
        port, metrics_port = (config.port, config.metrics_port) if listens else (0, 0)
        self._main = _Address("AP_", listening, config.bind, port, config.socket_path)
        self._scrapes = _Address("AP_METRICS_", metrics_socket, config.metrics_bind, metrics_port)
        self._listeners: tuple[Listener, Listener] | None = None
        if listens:
            fast_path = FastPath(self.resource.verified_paths, variants, instrumentation)
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            most = max_clients(config.max_concurrency + config.max_probe_concurrency, limit)
            evicted = metrics.connection_evicted
            self._listeners = (
                Listener(reactor, ProxySite(self.resource, engine.clock, most, fast_path, evicted)),
                Listener(
                    reactor,
                    ProxySite(self.metrics, engine.clock, _MOST_SCRAPERS, on_eviction=evicted),
                ),
            )

    @property
    def port(self) -> int:
        """The port of the main listener, once it is open; 0 without listeners."""
        return self._main.port

    @property
    def metrics_port(self) -> int:
        """The port of the metrics listener, once it is open; 0 without listeners."""
        return self._scrapes.port

    def startService(self) -> Deferred[None]:
        """Prove that the store is writable, and then open the ports.

        :returns: fires when requests can be served, or fails with `BootError` if the store is not
            writable or a port is taken. With a file store, it has already fired.
        """
        Service.startService(self)
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    def stopService(self) -> Deferred[None]:
        """Close the main port; renders, write-backs and responses finish in bounded time."""
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        try:
            await self.engine.open()
        except BootError:
            self.running = 0
            raise
        if self._listeners is not None:
            main, scrapes = self._listeners
            try:
                self._scrapes.listen(scrapes)
                self._main.listen(main)
            except BootError:
                scrapes.close_now()
                self.engine.close_now()
                raise
            bind = "" if self._scrapes.given else f"{self._scrapes.bind} "
            _log.info("metrics on {bind}port {port}", bind=bind, port=self.metrics_port)
            _log.info("listening on {place}", place=str(self._main))

    async def _stop(self) -> None:
        deadline = Deadline(self.engine.clock, self.drain_timeout)
        report = self.engine.clock.callLater(_QUIET_STOP, self._log_wait, deadline)
        try:
            await self._close(deadline)
        finally:
            if report.active():
                report.cancel()

    async def _close(self, deadline: Deadline) -> None:
        Service.stopService(self)
        if self._starting is not None:
            self._starting.cancel()
        if self._listeners is not None:
            main, scrapes = self._listeners
            await main.close()
            if self._scrapes.given is not None:
                # From now on, the process that has taken over responds alone.
                await scrapes.close()
        await self.engine.drain(deadline)
        await self.resource.active.wait_until_idle(deadline)
        if self._listeners is not None:
            # The engine serves requests that arrive on the last connections.
            await self._listeners[0].wait_until_closed(deadline)
        self.resource.abandon()
        await self.engine.close(deadline)
        if self._listeners is not None:
            # Metrics stay available until the last render has ended.
            await self._listeners[1].close()

    def _log_wait(self, deadline: Deadline) -> None:
        renders, write_backs = self.engine.renders.count()
        responses = self.resource.active.count
        if self._listeners is not None:
            responses += self._listeners[0].count_unsent()
        if renders or responses or write_backs:
            _log.warn(
                "the stop waits for {seconds:.0f} s at most; renders: {renders}, responses:"
                " {responses}, write-backs: {write_backs}",
                seconds=deadline.remaining,
                renders=renders,
                responses=responses,
                write_backs=write_backs,
            )


def make_resource(config: Config, reactor: Any) -> AudioProxy:
    """Return the resource for another Twisted application, with its own start and stop.

    The settings of listeners and of the log have no effect here: both belong to the application.

    :returns: the service. Mount its ``resource``, and its ``metrics`` elsewhere if needed: they
        respond at ``/metrics`` below their mount point. Wait for its ``startService`` before the
        first request, and for its ``stopService`` at the end.
    :raises BootError: for a configuration that cannot be served, such as an empty CA bundle.
    """
    return AudioProxy(config, reactor)
