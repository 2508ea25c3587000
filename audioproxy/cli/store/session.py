"""What the commands of ``audioproxy store`` share: arguments, the store, progress, the report."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from twisted.logger import LogLevel

from audioproxy.cli.arguments import integer_to
from audioproxy.cli.env_file import load_config
from audioproxy.cli.exit_status import BUSY, FAILURE, INTERRUPTED, SUCCESS, UsageError
from audioproxy.cli.formatting import format_bytes, format_count, print_errors, printable
from audioproxy.cli.reactor import run
from audioproxy.concurrency.threads import thread_per_call
from audioproxy.config import Config
from audioproxy.engine import BootError, Engine, build
from audioproxy.variants.catalog import (
    CatalogBusy,
    CatalogError,
    Entry,
    OnFailure,
    Page,
    VariantCatalog,
)
from audioproxy.variants.folder_catalog import FolderCatalog
from audioproxy.variants.record import VariantRecord


def add_common_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of every command."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-c",
        "--concurrency",
        type=integer_to(256),
        default=4,
        metavar="N",
        help="files or requests at a time (4)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


@dataclass
class Amount:
    """A number of variants, and their bytes."""

    variants: int = 0
    bytes: int = 0

    def add(self, entry: Entry) -> None:
        """Add a variant."""
        self.variants += 1
        self.bytes += entry.size

    @property
    def values(self) -> dict[str, int]:
        """The numbers by their names in JSON."""
        return {"variants": self.variants, "bytes": self.bytes}

    def __str__(self) -> str:
        return f"{format_count(self.variants, 'variant')}, {format_bytes(self.bytes)}"


class Outcome(ABC):
    """What a command has done so far. It is printed when the command ends, also by Ctrl-C.

    :ivar failed: the number of items for which something failed; each was printed.
    """

    def __init__(self, as_json: bool, bar: Any) -> None:
        self.failed = 0
        self._as_json = as_json
        self._bar = bar

    @property
    def status(self) -> int:
        """The exit status."""
        return FAILURE if self.failed else SUCCESS

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the values of the JSON object."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for a reader."""

    def fail(self, entry: Entry | None, error: Exception) -> None:
        """Count and print a failure of one variant, or of the whole store."""
        self.failed += 1
        with self._bar.external_write_mode():
            print_errors(f"{'the store' if entry is None else entry.key}: {error}")

    def print(self, line: str) -> None:
        """Print a line above the progress bar."""
        with self._bar.external_write_mode():
            print(printable(line), flush=True)

    def print_row(self, line: str) -> None:
        """Print a line about one item, unless the output is one JSON object."""
        if not self._as_json:
            self.print(line)

    def print_report(self, *, interrupted: bool) -> None:
        """Print the report."""
        if self._as_json:
            print(json.dumps({**self.values(), "failed": self.failed, "interrupted": interrupted}))
            return
        if interrupted:
            print("stopped, after this was done:")
        for line in self.lines():
            print(printable(line))


@dataclass(frozen=True, slots=True)
class StoreSession:
    """The open store of one command.

    :ivar bar: the progress bar, which counts variants.
    """

    config: Config
    engine: Engine
    catalog: VariantCatalog
    concurrency: int
    bar: Any

    async def pages(self) -> AsyncIterator[Page]:
        """Yield all variants, page by page. The progress bar gets the expected total."""
        seen = 0
        async with aclosing(self.catalog.pages()) as pages:
            async for page in pages:
                seen += len(page.entries)
                self.bar.total = round(seen / page.covered) if page.covered else None
                yield page

    async def records(
        self, on_failure: OnFailure
    ) -> AsyncIterator[tuple[Entry, VariantRecord | None]]:
        """Yield all variants with their records, as `VariantCatalog.read_records` returns them."""
        async for page in self.pages():
            for found in await self.catalog.read_records(page.entries, on_failure):
                yield found
            self.bar.update(len(page.entries))


def run_command(
    arguments: Namespace,
    environment: Mapping[str, str],
    outcome: Outcome,
    bar: Any,
    work: Callable[[StoreSession], Coroutine[Any, Any, None]],
) -> int:
    """Open the store, do the work of a command, print the report, and return the exit status."""
    config = load_config(environment)
    if config.variant_store is None:
        raise UsageError("AP_VARIANT_STORE: not set; name the store of the service")

    async def open_and_work(reactor: Any) -> None:
        try:
            engine = Engine(build(config, reactor))
        except BootError as error:
            raise UsageError(str(error)) from None
        try:
            catalog = open_catalog(config, engine, reactor, arguments.concurrency)
            await work(StoreSession(config, engine, catalog, arguments.concurrency, bar))
        finally:
            await engine.close()

    interrupted = False
    try:
        with bar:
            # The report counts what the engine would log for each source.
            run(open_and_work, LogLevel.error)
    except KeyboardInterrupt:
        interrupted = True
    except BrokenPipeError:
        raise
    except CatalogBusy as error:
        print_errors(str(error))
        return BUSY
    except (CatalogError, OSError) as error:
        outcome.fail(None, error)
    outcome.print_report(interrupted=interrupted)
    return INTERRUPTED if interrupted else outcome.status


def open_catalog(config: Config, engine: Engine, reactor: Any, most: int) -> VariantCatalog:
    """Return the variants of the configured store.

    :param most: files or requests at a time.
    """
    where, objects = config.variant_store, engine.capabilities.objects
    assert where is not None
    if where.path is not None:
        return FolderCatalog(where.path, thread_per_call(reactor), most)
    # It imports botocore.
    from audioproxy.variants.bucket_catalog import BucketCatalog

    assert where.bucket is not None and objects is not None
    return BucketCatalog(objects, where.bucket, most)
