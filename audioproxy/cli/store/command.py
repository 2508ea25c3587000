"""The store of one command: its arguments, the catalog with its progress, and the report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from twisted.logger import LogLevel

from audioproxy.cli.arguments import integer_to
from audioproxy.cli.env_file import load_config
from audioproxy.cli.exit_status import BUSY, FAILURE, INTERRUPTED, SUCCESS, UsageError
from audioproxy.cli.output import Output, print_errors, progress_bar
from audioproxy.cli.reactor import run
from audioproxy.concurrency.threads import thread_per_call
from audioproxy.config import BucketStore, Config
from audioproxy.engine import BootError, Engine
from audioproxy.variants.catalog import CatalogBusy, CatalogError, Entry, Page, VariantCatalog
from audioproxy.variants.folder_catalog import FolderCatalog


def add_common_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON")
    add(
        "-c",
        "--concurrency",
        type=integer_to(256),
        default=4,
        metavar="N",
        help="files or requests at a time (4)",
    )
    add("-q", "--quiet", action="store_true", help="show no progress")


def store_output(arguments: Namespace) -> Output:
    """Return the output of a command, with a bar that counts variants."""
    return Output.of(arguments, progress_bar("variants", arguments.quiet))


class Report:
    """What a command has done so far. It is printed when the command ends, also by Ctrl-C.

    :ivar failed: the number of items for which something failed; each was printed.
    """

    def __init__(self, out: Output) -> None:
        self.out = out
        self.failed = 0

    @property
    def status(self) -> int:
        """The exit status."""
        return FAILURE if self.failed else SUCCESS

    def values(self) -> dict[str, Any]:
        """Return the values of the JSON object; none if the printed rows are the report."""
        return {}

    def lines(self) -> Iterable[str]:
        """Return the lines for people."""
        return ()

    def fail(self, entry: Entry | None, error: Exception) -> None:
        """Count and print a failure of one variant, or of the whole store."""
        self.failed += 1
        self.out.error(f"{'the store' if entry is None else entry.key}: {error}")

    def print(self, *, interrupted: bool) -> None:
        """Print the report."""
        if values := self.values():
            values |= {"failed": self.failed, "interrupted": interrupted}
            stopped = ["stopped, after this was done:"] if interrupted else []
            self.out.row(values, *stopped, *self.lines())


@dataclass(frozen=True, slots=True)
class OpenStore:
    """The open store of one command."""

    config: Config
    engine: Engine
    catalog: VariantCatalog
    concurrency: int
    bar: Any

    async def pages(self, *, counted: bool = True) -> AsyncIterator[Page]:
        """Yield all variants, page by page. The progress bar gets the expected total.

        :param counted: whether the bar counts the variants of each page, once it is done.
        """
        self.bar.reset()
        seen = 0
        async with aclosing(self.catalog.pages()) as pages:
            async for page in pages:
                seen += len(page.entries)
                self.bar.total = round(seen / page.covered) if page.covered else None
                yield page
                if counted:
                    self.bar.update(len(page.entries))


def run_command(
    arguments: Namespace,
    environment: Mapping[str, str],
    report: Report,
    work: Callable[[OpenStore], Coroutine[Any, Any, None]],
) -> int:
    """Open the store, do the work of a command, print its report, and return the exit status."""
    config = load_config(environment)
    if config.variant_store is None:
        raise UsageError("AP_VARIANT_STORE: not set; name the store of the service")

    async def open_and_work(reactor: Any) -> None:
        try:
            engine = Engine(config, reactor)
        except BootError as error:
            raise UsageError(str(error)) from None
        most, bar = arguments.concurrency, report.out.bar
        try:
            catalog = open_catalog(config, engine, reactor, most)
            await work(OpenStore(config, engine, catalog, most, bar))
        finally:
            await engine.close()

    interrupted = False
    try:
        with report.out.bar:
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
        report.fail(None, error)
    report.print(interrupted=interrupted)
    return INTERRUPTED if interrupted else report.status


def open_catalog(config: Config, engine: Engine, reactor: Any, most: int) -> VariantCatalog:
    """Return the variants of the configured store.

    :param most: files or requests at a time.
    """
    assert config.variant_store is not None
    if not isinstance(config.variant_store, BucketStore):
        return FolderCatalog(config.variant_store.path, thread_per_call(reactor), most)
    # These modules import botocore.
    from audioproxy.variants.bucket_catalog import BucketCatalog
    from audioproxy.variants.s3 import S3VariantStore

    assert isinstance(engine.store, S3VariantStore)
    return BucketCatalog(engine.store.object_store, config.variant_store.bucket, most)
