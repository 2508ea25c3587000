"""Construction of the sources and the variant store from the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.threads import ThreadRunner, bounded
from audioproxy.config import BucketStore, Config, S3Config
from audioproxy.files.scratch_files import ScratchSpace
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source
from audioproxy.http_client.ca_bundles import ClientsByBundle, UnusableBundle
from audioproxy.sources.allowlist import Allowlist
from audioproxy.sources.dispatcher import SourceDispatcher
from audioproxy.sources.local import LocalSources
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import VariantStore

if TYPE_CHECKING:
    from audioproxy.http_client.client import HttpClient
    from audioproxy.s3.objects import ObjectStore
    from audioproxy.sources.s3 import S3Sources

# Lookups in a file store that run at a time, and lookups that run or wait for a thread.
_MOST_READ_THREADS = 32
_MOST_READS = 512

_log = Logger()


class BootError(Exception):
    """The service cannot start; the text names the variable to change."""


class Backends:
    """The sources and the variant store of one service.

    :ivar sources: opens a source of any kind.
    :ivar store: the variant store, or None.
    :ivar bucket_sources: the sources in an object store, or None.
    """

    def __init__(
        self,
        config: Config,
        clock: IReactorTime,
        run_in_thread: ThreadRunner,
        blocking_calls: BlockingCalls,
        space: ScratchSpace,
        clients: ClientsByBundle,
    ) -> None:
        """Construct everything; nothing is opened yet.

        :raises BootError: for settings that contradict each other, or a CA bundle that cannot be
            read.
        """
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._space = space
        self._clients = clients
        self.store = self._make_store(config, blocking_calls)
        self.bucket_sources: S3Sources | None = None
        allowlist = Allowlist(config.source_allowlist)
        backends: dict[type, Any] = {}
        if config.local_root is not None:
            backends[LocalSource] = LocalSources(config.local_root, run_in_thread)
        if config.source_s3.configured:
            from audioproxy.sources.s3 import S3Sources

            settings = config.source_s3
            store = self._object_store(settings, "AP_S3", "AP_S3")
            ca_file = settings.ca_bundle or clients.ca_file
            self.bucket_sources = S3Sources(store, ca_file, config.render_timeout)
            backends[S3Source] = self.bucket_sources
        # Without an allowlist no host is admitted.
        if config.source_allowlist is not None:
            from audioproxy.sources.download import Downloads
            from audioproxy.sources.https import HttpsSources
            from audioproxy.sources.origin import OriginClient

            backends[HttpsSource] = HttpsSources(
                OriginClient(self._client(), allowlist, clock),
                Downloads(space, run_in_thread, config.max_src_bytes),
                clients.ca_file,
            )
        self.sources = SourceDispatcher(allowlist, backends)

    def open(self) -> None:
        """Allow outbound requests, also after `close`."""
        self._clients.open()

    async def close(self) -> None:
        """Close all outbound connections."""
        await self._clients.close()

    def _make_store(self, config: Config, blocking_calls: BlockingCalls) -> VariantStore | None:
        where = config.variant_store
        if where is None:
            return None
        if not isinstance(where, BucketStore):
            threads = bounded(self._run_in_thread, _MOST_READ_THREADS)
            reads = BlockingCalls(self._clock, threads, _MOST_READS)
            return FileVariantStore(where.path, blocking_calls, reads)
        if not config.variant_s3.configured:
            raise BootError("AP_VARIANT_STORE: an s3:// store needs credentials, and none are set")
        from audioproxy.s3.objects import StoreError
        from audioproxy.variants.s3 import S3VariantStore

        own, shared = config.variant_s3, config.source_s3
        same_endpoint = (own.endpoint, own.addressing) == (shared.endpoint, shared.addressing)
        endpoint_prefix = "AP_S3" if same_endpoint else "AP_VARIANT_S3"
        bundle_prefix = "AP_S3" if own.ca_bundle == shared.ca_bundle else "AP_VARIANT_S3"
        store = self._object_store(own, endpoint_prefix, bundle_prefix)
        if config.serve_mode == "redirect" and not _is_public(store.name):
            _log.warn(
                "AP_SERVE_MODE: redirect sends clients to {endpoint}, which they may be unable to"
                " reach; with AP_SERVE_MODE=proxy this service sends the bytes",
                endpoint=store.name,
            )
        try:
            return S3VariantStore(
                store, where.bucket, self._space, self._clock, self._run_in_thread
            )
        except StoreError as error:
            raise BootError(
                f"AP_VARIANT_STORE: {error}; set {endpoint_prefix}_ADDRESSING to path"
            ) from error

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
            raise BootError(
                f"{endpoint_prefix}_ADDRESSING: {error}; set it to path, or"
                f" {endpoint_prefix}_ENDPOINT to a host name"
            ) from error

    def _client(self, bundle: str | None = None, variable: str = "") -> HttpClient:
        try:
            return self._clients.client(bundle, variable)
        except UnusableBundle as error:
            raise BootError(str(error)) from error


def _is_public(endpoint: str) -> bool:
    """Return whether an endpoint looks public: https, and a host name with a dot."""
    scheme, _, host = endpoint.partition("://")
    name = host.partition(":")[0]
    return scheme == "https" and "." in name and not name.replace(".", "").isdecimal()
