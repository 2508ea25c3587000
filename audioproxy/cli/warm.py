"""``audioproxy warm``: fetch URLs, so that variants are stored before clients need them."""

from __future__ import annotations

import os
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from cachetools import FIFOCache
from twisted.internet.defer import CancelledError, DeferredLock

from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.arguments import add_concurrency, add_quiet, integer_to
from audioproxy.cli.exit_status import CRASHED, FAILURE, INTERRUPTED, SUCCESS, UsageError
from audioproxy.cli.fetcher import (
    FAILED,
    NOT_A_VARIANT,
    RENDERED,
    STORED,
    Fetcher,
    FetchFailed,
    redact_url,
)
from audioproxy.cli.output import Output, format_bytes, format_count, progress_bar
from audioproxy.cli.url_input import standard_input
from audioproxy.cli.warm_report import ReportingFetcher, probing_engine
from audioproxy.concurrency.threads import ThreadRunner, thread_per_call
from audioproxy.concurrency.workers import all_results
from audioproxy.errors import reason_of
from audioproxy.files.scratch_files import temporary_folder
from audioproxy.http_client.client import ClientsByBundle, UnusableBundle

DESCRIPTION = """\
Fetch URLs, so that the service renders and stores their variants before clients request them.
Each response is read to its end and discarded. A redirect to the store is not followed: it means
that the variant is stored. Each request has the header X-Audio-Proxy-Lane: low, so the service
renders for its other clients first. While the service is busy, a URL is fetched again after the
time that the service asks for.

examples:
  audioproxy warm https://audio.example/Gx3k.../f:opus/plain/local://piece.wav
  audioproxy warm --concurrency 8 - < urls.txt
  audioproxy warm --json - < urls.txt | jq 'select(.status != 200)'
  audioproxy warm --enclosure https://audio.example/media/Gx3k.../f:mp3/plain/local://e1.wav/e1.mp3
  find . -name '*.wav' -printf 'local://%P\\n' |
      audioproxy sign --options f:opus --base https://audio.example - | audioproxy warm -

Each failure is printed on a line without the signature, since the signature gives access.

With --json and --enclosure, each body is kept in TMPDIR until ffprobe has read its duration.
Results are printed in the order in which they are complete; with --concurrency 1, that is the order
of the URLs.

exit status:
  0    all variants were rendered, or were stored already
  1    at least one was not
  130  stopped by Ctrl-C
"""

# Bytes of the standard input in one read.
_READ_SIZE = 64 * 1024
# Maximum bytes of one line. The service accepts no URL of this length.
_LONGEST_LINE = 64 * 1024
# Number of recent URLs that are remembered, so that duplicates are skipped.
_REMEMBERED = 10_000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="a URL; - reads URLs from the standard input, one per line, and skips blank lines and"
        " lines that begin with #",
    )
    add_concurrency(parser, "at a time (4)")
    parser.add_argument(
        "-t",
        "--timeout",
        type=integer_to(86_400),
        default=600,
        metavar="SECONDS",
        help="seconds without a byte after which a URL fails (600)",
    )
    parser.add_argument(
        "--tries",
        type=integer_to(1_000),
        default=5,
        metavar="N",
        help="requests for a URL while the service is busy and no other URL makes progress (5)",
    )
    add_quiet(parser)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object for each URL, on one line: url, status, result, state"
        " (X-Audio-Proxy), bytes, content_type, etag and duration in seconds, or url, status and"
        " error",
    )
    formats.add_argument(
        "--enclosure",
        action="store_true",
        help="print the elements enclosure and itunes:duration of a feed for each URL, and warn of"
        " URLs that an app may change",
    )


class WarmProgress:
    """Counts of the results so far, shown in a progress bar."""

    def __init__(self, output: Output, seconds: Callable[[], float]) -> None:
        self.received = 0
        self._output = output
        self._seconds = seconds
        self._started = seconds()
        # In the order in which they are printed.
        self._counts = Counter(dict.fromkeys((RENDERED, STORED, NOT_A_VARIANT, FAILED), 0))

    @property
    def failed(self) -> int:
        return self._counts[FAILED]

    def add_bytes(self, size: int) -> None:
        self.received += size

    def add_result(self, result: str) -> None:
        self._counts[result] += 1
        self._output.bar.set_postfix_str(self._counts_text(), refresh=False)
        self._output.bar.update()

    def add_failure(self, url: str, reason: str) -> None:
        self._output.error(f"{redact_url(url)}: {reason}")
        self.add_result(FAILED)

    def summary(self) -> str:
        urls = self._counts.total()
        text = f"{format_count(urls, 'URL')} in {self._seconds() - self._started:.1f} s"
        return f"{text}: {self._counts_text()}; {format_bytes(self.received)}" if urls else text

    def _counts_text(self) -> str:
        return ", ".join(f"{count} {result}" for result, count in self._counts.items() if count)


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    words, concurrency = arguments.urls, arguments.concurrency
    reports = arguments.json or arguments.enclosure
    total = None if "-" in words else len(words)
    output = Output.of(arguments, progress_bar("URLs", arguments.quiet or reports, total))
    progress = WarmProgress(output, time.monotonic)

    async def work(reactor: Any) -> None:
        try:
            client = ClientsByBundle(reactor, environment.get("SSL_CERT_FILE") or None).client()
        except UnusableBundle as error:
            raise UsageError(f"SSL_CERT_FILE: {error}") from None
        fetcher = Fetcher(client, arguments.timeout, arguments.tries, progress.add_bytes)
        urls = read_urls(words, thread_per_call(reactor), lambda: standard_input().fileno())

        async def fetch_one(url: str) -> str:
            return (await fetcher.fetch(url)).result

        try:
            if not reports:
                return await fetch_all(urls, fetch_one, progress, concurrency)
            with TemporaryDirectory(dir=temporary_folder(environment)) as folder:
                engine = probing_engine(folder, reactor, concurrency)
                reporting = ReportingFetcher(fetcher, output, folder, engine)
                try:
                    await fetch_all(urls, reporting.fetch, progress, concurrency)
                finally:
                    await engine.close()
        finally:
            await client.close()

    # The reports have the standard output for themselves.
    stream = sys.stderr if reports else sys.stdout
    try:
        with output.bar:
            cli_reactor.run(work)
    except KeyboardInterrupt:
        print(f"stopped: {progress.summary()}", file=stream)
        return INTERRUPTED
    print(progress.summary(), file=stream)
    return FAILURE if progress.failed else SUCCESS


async def fetch_all(
    urls: AsyncIterator[str],
    fetch_one: Callable[[str], Awaitable[str]],
    progress: WarmProgress,
    concurrency: int,
) -> None:
    """Fetch URLs. Each is read when one of ``concurrency`` slots is free."""
    reading = DeferredLock()

    async def run_worker() -> None:
        while True:
            async with reading:
                url = await anext(urls, None)
            if url is None:
                return
            try:
                progress.add_result(await fetch_one(url))
            except FetchFailed as error:
                progress.add_failure(url, str(error))
            except CancelledError:
                raise
            except OSError as error:
                progress.add_failure(url, reason_of(error))
            except Exception:
                # An unexpected error must fail only its own URL.
                traceback.print_exc()
                progress.add_failure(url, CRASHED)

    await all_results(run_worker() for _ in range(concurrency))


async def read_urls(
    words: Iterable[str],
    in_thread: ThreadRunner,
    stdin: Callable[[], int],
    remembered: int = _REMEMBERED,
) -> AsyncIterator[str]:
    """Yield each URL once: the words, and for the word ``-`` the lines of the standard input."""
    seen: FIFOCache[str, bool] = FIFOCache(remembered)
    async for line in _read_lines(words, in_thread, stdin):
        if line and not line.startswith("#") and line not in seen:
            seen[line] = True
            yield line


async def _read_lines(
    words: Iterable[str], in_thread: ThreadRunner, stdin: Callable[[], int]
) -> AsyncIterator[str]:
    for word in words:
        if word != "-":
            yield word.strip()
            continue
        rest, read = b"", partial(os.read, stdin(), _READ_SIZE)
        # Reading a pipe can block for long, so it runs in a thread. `os.read` is used because
        # Python's buffered reader holds a lock while it reads, which would prevent the process
        # from exiting.
        while piece := await in_thread(read):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise UsageError(
                    f"a line of the standard input has more than {_LONGEST_LINE} bytes"
                )
            for line in lines:
                yield line.decode("utf-8", "replace").strip()
        yield rest.decode("utf-8", "replace").strip()
