"""What sources and stores on other machines share; other nodes do not import it, nor OpenSSL."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime

from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.config import BootError, Limits, Problem, S3Config
from audioproxy.http_client.client import ClientsByBundle, HttpClient, UnusableBundle
from audioproxy.sources.far_files import FarFiles
from audioproxy.sources.far_source import FarReading

if TYPE_CHECKING:
    from audioproxy.s3.objects import ObjectStore


class Remote:
    """The HTTP clients of a node, and the files that keep blocks of remote sources.

    :ivar reading: reads sources of all kinds.
    :param can_preload: as of `FarReading`.
    """

    def __init__(
        self,
        reactor: Any,
        clock: IReactorTime,
        threads: ThreadRunner,
        folder: str,
        limits: Limits,
        can_preload: Callable[[], Coroutine[Any, Any, bool]],
    ) -> None:
        self._clients = ClientsByBundle(reactor, os.environ.get("SSL_CERT_FILE") or None)
        self._files = FarFiles(folder, clock, threads, limits.max_src_bytes)
        self.reading = FarReading(
            reactor,
            clock,
            self._files,
            threads,
            can_preload,
            limits.max_src_bytes,
            limits.render_timeout,
        )

    def client(
        self, bundle: str | None = None, variable: str = "", *, public_only: bool = False
    ) -> HttpClient:
        """Return the client that trusts a CA bundle, which a variable names.

        :raises BootError: for a bundle that cannot be read.
        """
        try:
            return self._clients.client(bundle, public_only=public_only)
        except UnusableBundle as error:
            raise BootError(Problem.of(variable if bundle else "SSL_CERT_FILE", error)) from error

    def object_store(
        self, settings: S3Config, endpoint_prefix: str, bundle_prefix: str
    ) -> ObjectStore:
        """Return an object store.

        :param endpoint_prefix: of the variables that set its endpoint and addressing.
        :param bundle_prefix: of the variable that sets its CA bundle.
        """
        # It imports botocore, which takes a tenth of a second.
        from audioproxy.s3.objects import ObjectStore

        client = self.client(settings.ca_bundle, f"{bundle_prefix}_CA_BUNDLE")
        try:
            return ObjectStore(settings, client)
        except ValueError as error:
            wanted = f"set it to path, or {endpoint_prefix}_ENDPOINT to a host name"
            raise BootError(Problem(f"{endpoint_prefix}_ADDRESSING", str(error), wanted)) from error

    def open(self) -> None:
        """Allow requests again after `close`."""
        self._clients.open()
        self._files.open()

    async def close(self) -> None:
        """Give up all blocks, and close all connections."""
        self._files.close()
        await self._clients.close()
