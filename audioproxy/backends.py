"""Where bytes come from and go to, as a configuration says: each kind of source, and the store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from audioproxy.blocking_calls import BlockingCalls
from audioproxy.config import BucketStore, Config, S3Config
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source
from audioproxy.scratch import ScratchSpace
from audioproxy.sources.allowlist import Allowlist
from audioproxy.sources.dispatcher import SourceDispatcher
from audioproxy.sources.local import LocalSources
from audioproxy.threads import InThread
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import VariantStore

if TYPE_CHECKING:
    from audioproxy.http_client.client import HttpClient
    from audioproxy.s3.objects import ObjectStore
    from audioproxy.sources.s3 import S3Sources

# Where systems keep the certificates that they trust, in one file, as ffmpeg wants it: Debian,
# Fedora, SUSE, Alpine.
_SYSTEM_TRUST = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_log = Logger()


class BootError(Exception):
    """The service cannot start; the text names the variable to change."""


class Trust:
    """Who is trusted, and a client for each who is, made when one is wanted.

    Two stores with one bundle share a client, and with it a pool of connections.

    :ivar ca_file: PEM file of what is trusted where nothing else is said; None where the system has
        none in one file.
    """

    def __init__(self, reactor: Any, own_file: str | None) -> None:
        """Find the system's certificates.

        :param own_file: SSL_CERT_FILE: takes the place of the system's.
        """
        self.ca_file = own_file or next(filter(os.path.isfile, _SYSTEM_TRUST), None)
        self._reactor = reactor
        self._own_file = own_file
        self._clients: dict[str | None, HttpClient] = {}

    def client(self, bundle: str | None = None, variable: str = "") -> HttpClient:
        """Return the client that trusts a bundle; None is what is trusted in general.

        :param variable: which names the bundle, where there is one.
        :raises BootError: where the bundle cannot be read.
        """
        # Loaded for those who need it: a service of local files starts in half the time without.
        from audioproxy.http_client.client import HttpClient, read_trust

        path = bundle or self._own_file
        if path not in self._clients:
            try:
                self._clients[path] = HttpClient(self._reactor, read_trust(path))
            except (OSError, ValueError) as error:
                name = variable if bundle else "SSL_CERT_FILE"
                raise BootError(
                    f"{name}: no certificates could be read ({error}); a file of certificates in"
                    " PEM form is required"
                ) from error
        return self._clients[path]

    def open(self) -> None:
        """Let requests out, after a `close` too."""
        for client in self._clients.values():
            client.open()

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.close()


class Backends:
    """The sources and the store of one service.

    :ivar sources: opens a source of any kind.
    :ivar store: where variants are kept, or None.
    :ivar bucket_sources: the sources in an object store, or None.
    """

    def __init__(
        self,
        config: Config,
        clock: IReactorTime,
        threads: InThread,
        blocking_calls: BlockingCalls,
        space: ScratchSpace,
        trust: Trust,
    ) -> None:
        """Build everything; nothing is opened yet.

        :raises BootError: for settings that do not go together.
        """
        self._clock = clock
        self._threads = threads
        self._space = space
        self._trust = trust
        self.store = self._make_store(config, blocking_calls)
        self.bucket_sources: S3Sources | None = None
        allowlist = Allowlist(config.source_allowlist)
        backends: dict[type, Any] = {}
        if config.local_root is not None:
            backends[LocalSource] = LocalSources(config.local_root)
        if config.source_s3.configured:
            from audioproxy.sources.s3 import S3Sources

            settings = config.source_s3
            store = self._object_store(settings, "AP_S3", "AP_S3")
            ca_file = settings.ca_bundle or trust.ca_file
            self.bucket_sources = S3Sources(store, ca_file, config.render_timeout)
            backends[S3Source] = self.bucket_sources
        # Without an allowlist no host is admitted.
        if config.source_allowlist is not None:
            from audioproxy.sources.https import HttpsSources

            backends[HttpsSource] = HttpsSources(
                client=trust.client(),
                allowlist=allowlist,
                ca_file=trust.ca_file,
                space=space,
                clock=clock,
                in_thread=threads,
                limit=config.max_src_bytes,
            )
        self.sources = SourceDispatcher(allowlist, backends)

    def open(self) -> None:
        """Begin, or begin again."""
        self._trust.open()

    async def close(self) -> None:
        """Close what is open to other machines."""
        await self._trust.close()

    def _make_store(self, config: Config, blocking_calls: BlockingCalls) -> VariantStore | None:
        where = config.variant_store
        if where is None:
            return None
        if not isinstance(where, BucketStore):
            return FileVariantStore(where.path, blocking_calls)
        if not config.variant_s3.configured:
            raise BootError("AP_VARIANT_STORE: an s3:// store needs credentials, and none are set")
        from audioproxy.s3.objects import StoreError
        from audioproxy.variants.s3 import S3VariantStore

        own, shared = config.variant_s3, config.source_s3
        reach = (own.endpoint, own.addressing) == (shared.endpoint, shared.addressing)
        place = "AP_S3" if reach else "AP_VARIANT_S3"
        trusted = "AP_S3" if own.ca_bundle == shared.ca_bundle else "AP_VARIANT_S3"
        store = self._object_store(own, place, trusted)
        if config.serve_mode == "redirect" and not _is_public(store.name):
            _log.warn(
                "AP_SERVE_MODE: redirect sends clients to {endpoint}, which they may not reach;"
                " with AP_SERVE_MODE=proxy they are served from here",
                endpoint=store.name,
            )
        try:
            return S3VariantStore(store, where.bucket, self._space, self._clock, self._threads)
        except StoreError as error:
            raise BootError(f"AP_VARIANT_STORE: {error}; set {place}_ADDRESSING to path") from error

    def _object_store(self, settings: S3Config, place: str, trusted: str) -> ObjectStore:
        """Return a store.

        :param place: how the variables begin that say where it is.
        :param trusted: how the one begins that says by what authority it is known.
        """
        from audioproxy.s3.objects import ObjectStore

        client = self._trust.client(settings.ca_bundle, f"{trusted}_CA_BUNDLE")
        try:
            return ObjectStore(settings, client)
        except ValueError as error:
            raise BootError(
                f"{place}_ADDRESSING: {error}; set it to path, or {place}_ENDPOINT to a host name"
            ) from error


def _is_public(endpoint: str) -> bool:
    """Tell whether an endpoint looks like one for everybody: https, to a name with a dot."""
    scheme, _, host = endpoint.partition("://")
    name = host.partition(":")[0]
    return scheme == "https" and "." in name and not name.replace(".", "").isdecimal()
