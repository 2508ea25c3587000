"""The service: an engine, its HTTP resources, and listeners where it has its own.

For a resource inside another Twisted application::

    proxy = make_resource(config, reactor)
    site_root.putChild(b"audio", proxy.resource)
    yield proxy.startService()
    ...
    yield proxy.stopService()
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

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


class AudioProxy(Service):
    """The resource and the engine behind it, as a Twisted service.

    :ivar engine: everything below HTTP.
    :ivar resource: to be mounted in a site, at its root or below it.
    :ivar metrics: the resource for ``/metrics``, for a site that the public cannot reach.
    :ivar drain_timeout: seconds that a stop waits for renders and responses.
    :ivar port: of the main listener, once it is open; 0 without listeners.
    :ivar metrics_port: of the metrics listener, once it is open; 0 without listeners.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any,
        access_log: AccessLog = log_request,
        *,
        listens: bool = False,
        listening: socket.socket | None = None,
        metrics_socket: socket.socket | None = None,
    ) -> None:
        """Construct everything; nothing is opened yet.

        :param access_log: called with the values of each access log line.
        :param listens: open the ports of the configuration at the start.
        :param listening: a listening socket, used instead of the main port. Other processes may
            accept from it too.
        :param metrics_socket: the same for the metrics.
        :raises BootError: for a configuration that cannot be served.
        """
        self._starting: Deferred[None] | None = None
        self.engine = engine = Engine(build(config, reactor))
        self.drain_timeout = engine.drain_timeout
        seconds, metrics = engine.clock.seconds, engine.metrics
        variants = VariantHandler(
            metrics,
            engine.renders,
            engine.preparer,
            engine.store,
            time.time,
            None if config.store is None else config.store.presign_ttl,
            engine.capabilities.presign,
            engine.file_store,
            config.cache_tag,
        )
        instrumentation = Instrumentation(seconds, metrics, Cors(config.allow_origin), access_log)
        self.resource = AudioProxyResource(
            instrumentation,
            SigningKeys(config.signing_pairs, config.allow_insecure),
            variants,
            InfoHandler(engine.sources, engine.prober, config.cache_tag),
            engine.slots,
            engine.readiness,
        )
        self.metrics = MetricsResource(
            Instrumentation(seconds, metrics, Cors(None), access_log), engine.disks.measure
        )
        self.port = self.metrics_port = 0
        self._config = config
        self._listening_socket = listening
        self._metrics_socket = metrics_socket
        self._listeners: tuple[Listener, Listener] | None = None
        if listens:
            self.port, self.metrics_port = config.port, config.metrics_port
            fast_path = FastPath(self.resource.verified_paths, variants, instrumentation)
            most = max_clients(config.max_concurrency + config.max_probe_concurrency)
            evicted = metrics.connection_evicted
            self._listeners = (
                Listener(reactor, ProxySite(self.resource, engine.clock, most, fast_path, evicted)),
                Listener(
                    reactor,
                    ProxySite(self.metrics, engine.clock, _MOST_SCRAPERS, on_eviction=evicted),
                ),
            )

    def startService(self) -> Deferred[None]:
        """Prove that the store is writable, and then open the ports.

        :returns: fires when requests can be served, or fails with `BootError` if the store is not
            writable or a port is taken. With a file store, it has already fired when it is
            returned.
        """
        Service.startService(self)
        self._starting = Deferred.fromCoroutine(self._start())
        return self._starting

    def stopService(self) -> Deferred[None]:
        """Close the main port, and let renders, write-backs and responses finish in bounded time.

        :returns: fires when everything has finished or was stopped.
        """
        clock = self.engine.clock
        deadline = Deadline(clock, self.drain_timeout)
        report = clock.callLater(_QUIET_STOP, self._log_wait, deadline)

        def end(outcome: Failure | None) -> Failure | None:
            if report.active():
                report.cancel()
            return outcome

        return Deferred.fromCoroutine(self._stop(deadline)).addBoth(end)

    async def _start(self) -> None:
        try:
            await self.engine.open()
        except BootError:
            self.running = 0
            raise
        if self._listeners is not None:
            main, scrapes = self._listeners
            try:
                self._listen(main, scrapes)
            except BootError:
                scrapes.close_now()
                self.engine.close_now()
                raise
            bind = "" if self._metrics_socket else f"{self._config.metrics_bind} "
            _log.info("metrics on {bind}port {port}", bind=bind, port=self.metrics_port)
            _log.info("listening on {place}", place=self._place)

    @property
    def _place(self) -> str:
        """The address of the main listener, for messages."""
        path, bind = self._config.socket_path, self._config.bind
        if self._listening_socket is None and bind is not None:
            return path or f"{bind} port {self.port}"
        return f"port {self.port}"

    def _listen(self, main: Listener, scrapes: Listener) -> None:
        metrics_bind = self._config.metrics_bind
        place = f"{metrics_bind} port {self.metrics_port}"
        if self._metrics_socket is not None:
            self.metrics_port = scrapes.listen_on(self._metrics_socket)
        else:
            with _naming_variable("AP_METRICS_PORT", place, "AP_METRICS_BIND"):
                self.metrics_port = scrapes.open(self.metrics_port, metrics_bind)
        path, bind = self._config.socket_path, self._config.bind
        if self._listening_socket is not None:
            self.port = main.listen_on(self._listening_socket)
        elif path is not None:
            self.port = 0
            wanted = "a path in a writable directory, of no other process and no other file"
            with _naming_variable("AP_BIND", path, "AP_BIND", wanted):
                main.open_unix(path)
        else:
            with _naming_variable("AP_PORT", self._place, "AP_PORT" if bind is None else "AP_BIND"):
                self.port = main.open(self.port, bind or "")

    async def _stop(self, deadline: Deadline) -> None:
        Service.stopService(self)
        if self._starting is not None:
            self._starting.cancel()
        if self._listeners is not None:
            main, scrapes = self._listeners
            await main.close()
            if self._metrics_socket is not None:
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

    :param config: constructed in code, or by `audioproxy.config.load`.
    :returns: the service. Mount its ``resource``, and its ``metrics`` elsewhere if needed: they
        respond at ``/metrics`` below their mount point. Call its ``startService`` before the first
        request and wait for the Deferred, which fails with `BootError` where the store is not
        writable. Call its ``stopService`` at the end and wait for that Deferred too.
    :raises BootError: for a configuration that cannot be served, such as an empty CA bundle.
    """
    return AudioProxy(config, reactor)


# For an address that this machine does not have, one of IPv6 where there is none, one of IPv4 that
# is written as one of IPv6, and one with the name of an interface that does not exist.
_NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL, errno.ENODEV)


@contextmanager
def _naming_variable(
    port_variable: str, place: str, bind_variable: str, free: str = "a free port"
) -> Iterator[None]:
    """Raise `BootError` with the name of the variable if the system refuses a port.

    :param free: what to set the first variable to.
    """
    try:
        yield
    except OSError as error:
        no_address = error.errno in _NO_ADDRESS
        variable = bind_variable if no_address else port_variable
        fault = f"cannot listen on {place} ({os.strerror(error.errno or 0)})"
        wanted = "an address of this machine" if no_address else free
        raise BootError(Problem(variable, fault, f"set {variable} to {wanted}")) from error
