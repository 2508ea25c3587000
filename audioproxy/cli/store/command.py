"""What the commands of ``audioproxy store`` share: arguments, the open store, and the report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel

from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.arguments import add_concurrency, add_quiet
from audioproxy.cli.env_file import load_config
from audioproxy.cli.exit_status import BUSY, FAILURE, INTERRUPTED, SUCCESS, UsageError
from audioproxy.cli.output import Output, progress_bar
from audioproxy.concurrency.threads import await_uncancelled, thread_per_call
from audioproxy.config import Config
from audioproxy.engine import BootError, Engine, build
from audioproxy.variants.catalog import (
    CatalogBusy,
    CatalogError,
    Entry,
    NotSynced,
    OnFailure,
    Page,
    VariantCatalog,
)
from audioproxy.variants.folder_catalog import FolderCatalog
from audioproxy.variants.record import VariantRecord


def add_common_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_concurrency(parser, "files or requests at a time (4)")
    add_quiet(parser)


@dataclass(frozen=True, slots=True)
class OpenStore:
    config: Config
    engine: Engine
    catalog: VariantCatalog
    concurrency: int
    bar: Any

    async def pages(self, *, counted: bool = True) -> AsyncIterator[Page]:
        """Yield all variants, page by page. If ``counted``, the bar counts those of each."""
        self.bar.reset()
        seen = 0
        async with aclosing(self.catalog.pages()) as pages:
            async for page in pages:
                seen += len(page.entries)
                self.bar.total = round(seen / page.covered) if page.covered else None
                yield page
                if counted:
                    self.bar.update(len(page.entries))

    async def records(
        self, on_failure: OnFailure
    ) -> AsyncIterator[tuple[Entry, VariantRecord | None]]:
        """Yield all variants with their records, as `VariantCatalog.read_records` returns them."""
        async for page in self.pages():
            for found in await self.catalog.read_records(page.entries, on_failure):
                yield found


class StoreCommand(ABC):
    """A command. What it has done is printed when it ends, also by Ctrl-C."""

    def __init__(self, arguments: Namespace) -> None:
        self.arguments = arguments
        self.out = Output.of(arguments, progress_bar("variants", arguments.quiet))
        self.failed = 0

    @classmethod
    def execute(cls, arguments: Namespace, environment: Mapping[str, str]) -> int:
        return cls(arguments).run(environment)

    @abstractmethod
    async def work(self, store: OpenStore) -> None:
        """Do everything, except for the report."""

    @property
    def removes(self) -> bool:
        """Whether it removes variants. It ends once a power cut restores none, or says so (D80)."""
        return False

    @property
    def status(self) -> int:
        return FAILURE if self.failed else SUCCESS

    def values(self) -> dict[str, Any]:
        """Return the report for programs; none if the printed rows are the report."""
        return {}

    def lines(self) -> Iterable[str]:
        return ()

    def fail(self, entry: Entry | None, error: Exception) -> None:
        """Count and print a failure of one variant, or of the whole store."""
        self.failed += 1
        self.out.error(f"{'the store' if entry is None else entry.key}: {error}")

    async def remove(
        self,
        store: OpenStore,
        entries: Sequence[Entry],
        on_removed: Callable[[Entry], object],
        *,
        unchanged: bool = False,
    ) -> None:
        """Remove variants; with ``--dry-run``, only call ``on_removed`` for each."""
        if not self.arguments.dry_run:
            await store.catalog.remove(entries, on_removed, self.fail, unchanged=unchanged)
            return
        for entry in entries:
            on_removed(entry)

    def print_report(self, *, interrupted: bool) -> None:
        if values := self.values():
            values |= {"failed": self.failed, "interrupted": interrupted}
            stopped = ["stopped, after this was done:"] if interrupted else []
            self.out.row(values, *stopped, *self.lines())

    def run(self, environment: Mapping[str, str]) -> int:
        config = load_config(environment)
        if config.variant_store is None:
            raise UsageError("AP_VARIANT_STORE: not set; name the store of the service")

        is_synced = True

        async def flush(catalog: VariantCatalog) -> None:
            nonlocal is_synced
            try:
                await catalog.flush()
            except NotSynced as error:
                self.fail(None, error)
            is_synced = True

        async def open_and_work(reactor: Any) -> None:
            nonlocal is_synced
            try:
                engine = Engine(build(config, reactor))
            except BootError as error:
                raise UsageError(str(error)) from None
            most = self.arguments.concurrency
            try:
                catalog = open_catalog(config, engine, reactor, most)
                is_synced = not self.removes
                try:
                    await self.work(OpenStore(config, engine, catalog, most, self.out.bar))
                finally:
                    if self.removes:
                        await await_uncancelled(Deferred.fromCoroutine(flush(catalog)))
            finally:
                await engine.close()

        interrupted = False
        try:
            with self.out.bar:
                # The report counts what the engine would log for each source.
                cli_reactor.run(open_and_work, LogLevel.error)
        except KeyboardInterrupt:
            interrupted = True
            if not is_synced:
                self.fail(None, NotSynced("the sync has not ended"))
        except BrokenPipeError:
            raise
        except CatalogBusy as error:
            self.out.error(str(error))
            return BUSY
        except (CatalogError, OSError) as error:
            self.fail(None, error)
        self.print_report(interrupted=interrupted)
        return INTERRUPTED if interrupted else self.status


def open_catalog(config: Config, engine: Engine, reactor: Any, most: int) -> VariantCatalog:
    """Return the variants of the configured store; ``most`` files or requests go at a time."""
    where, store = config.variant_store, engine.capabilities.bucket
    assert where is not None
    if where.path is not None:
        return FolderCatalog(where.path, thread_per_call(reactor), most)
    # It imports botocore.
    from audioproxy.variants.bucket_catalog import BucketCatalog

    assert where.bucket is not None and store is not None
    return BucketCatalog(store.object_store, where.bucket, most)
