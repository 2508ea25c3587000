"""URLs fetched ahead of the listeners: so many at a time, and what came of each."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from tqdm import tqdm
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore

from audioproxy.cli.exit_status import DONE, NO, UsageError, complain
from audioproxy.cli.fetcher import FAILED, OTHER, RENDERED, STORED, Fetcher, FetchFailed, show
from audioproxy.cli.formatting import bytes_in_words, listed_number
from audioproxy.cli.reactor import run
from audioproxy.cli.url_input import standard_input
from audioproxy.http_client.clients import HttpClients, UnusableBundle
from audioproxy.threads import ThreadRunner, thread_per_call

# Bytes of a list that are read at a time.
_PIECE = 64 * 1024
# Bytes of one line. No service takes a URL of so many.
_LONGEST_LINE = 64 * 1024
# URLs that are remembered, so that a list with the same one twice asks for it once.
_REMEMBERED = 10_000

_INTERRUPTED = 130


class Tally:
    """What came of the URLs so far.

    :ivar received: bytes of all bodies.
    """

    def __init__(self, bar: Any, seconds: Callable[[], float]) -> None:
        self.received = 0
        self._bar = bar
        self._seconds = seconds
        self._since = seconds()
        self._counts: Counter[str] = Counter()

    @property
    def failed(self) -> int:
        """How many URLs have failed."""
        return self._counts[FAILED]

    def came(self, size: int) -> None:
        """Count bytes."""
        self.received += size

    def count(self, what: str) -> None:
        """Count a URL."""
        self._counts[what] += 1
        self._bar.set_postfix_str(self._parts(), refresh=False)
        self._bar.update()

    def fail(self, url: str, why: str) -> None:
        """Count a URL that has failed, and say why."""
        with self._bar.external_write_mode(file=sys.stderr):
            complain(f"{show(url)}: {why}")
        self.count(FAILED)

    def summary(self) -> str:
        """Return all of it in one line."""
        urls = self._counts.total()
        took = f"{listed_number(urls, 'URL')} in {self._seconds() - self._since:.1f} s"
        return f"{took}: {self._parts()}; {bytes_in_words(self.received)}" if urls else took

    def _parts(self) -> str:
        order = sorted(self._counts, key=_ORDER.index)
        return ", ".join(f"{self._counts[what]} {what}" for what in order)


_ORDER = (RENDERED, STORED, OTHER, FAILED)


def warm(
    words: list[str],
    environment: Mapping[str, str],
    *,
    concurrency: int,
    timeout: float,
    tries: int,
    quiet: bool,
) -> int:
    """Fetch URLs, say what came of them, and return the exit status.

    :param words: URLs, and a ``-`` for those of the standard input.
    """
    shown = sys.stderr.isatty() and not quiet
    bar = tqdm(
        total=None if "-" in words else len(words),
        unit=" URLs",
        file=sys.stderr,
        disable=not shown,
        leave=False,
    )
    status = DONE
    tally: Tally | None = None

    async def work(reactor: Any) -> None:
        nonlocal tally
        tally = Tally(bar, reactor.seconds)
        clients = HttpClients(reactor, environment.get("SSL_CERT_FILE") or None)
        try:
            client = clients.client()
        except UnusableBundle as error:
            raise UsageError(str(error)) from None
        fetcher = Fetcher(client, reactor, timeout, tries, tally.came)
        urls = read_urls(words, thread_per_call(reactor), lambda: standard_input().fileno())
        try:
            await fetch_all(urls, fetcher, tally, concurrency)
        finally:
            await client.close()

    try:
        with bar:
            run(work)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    assert tally is not None
    print(f"stopped: {tally.summary()}" if status else tally.summary())
    return status or (NO if tally.failed else DONE)


async def fetch_all(
    urls: AsyncIterator[str], fetcher: Fetcher, tally: Tally, concurrency: int
) -> None:
    """Fetch URLs, so many at a time; the list is read no faster than they are fetched."""
    slots = DeferredSemaphore(concurrency)
    running: set[Deferred[None]] = set()

    async def fetch(url: str) -> None:
        try:
            tally.count(await fetcher.fetch(url))
        except FetchFailed as error:
            tally.fail(url, str(error))
        except CancelledError:
            raise
        except Exception as error:
            # Of a thousand URLs it is one.
            tally.fail(url, f"audioproxy warm itself has failed at this ({error!r})")

    def end(_: object, fetching: Deferred[None]) -> None:
        running.discard(fetching)
        slots.release()

    try:
        await slots.acquire()
        async for url in urls:
            fetching = Deferred.fromCoroutine(fetch(url))
            running.add(fetching)
            fetching.addBoth(end, fetching)
            await slots.acquire()
        # This one has a slot that no URL wants any more.
        for _ in range(concurrency - 1):
            await slots.acquire()
    finally:
        for fetching in list(running):
            fetching.cancel()


async def read_urls(
    words: Iterable[str], in_thread: ThreadRunner, stdin: Callable[[], int]
) -> AsyncIterator[str]:
    """Yield words, and in place of a ``-`` the lines of the standard input; each URL once.

    :param stdin: returns its descriptor.
    """
    seen: dict[str, None] = {}
    for word in words:
        async for line in _read_lines(in_thread, stdin()) if word == "-" else _alone(word):
            if line and not line.startswith("#") and line not in seen:
                seen[line] = None
                if len(seen) > _REMEMBERED:
                    del seen[next(iter(seen))]
                yield line


async def _alone(word: str) -> AsyncIterator[str]:
    yield word.strip()


async def _read_lines(in_thread: ThreadRunner, descriptor: int) -> AsyncIterator[str]:
    # Whoever fills the pipe takes its time. A thread waits for it, and one that Python's own
    # buffers know nothing of, since they would keep the process from its end.
    rest = b""
    while piece := await in_thread(lambda: os.read(descriptor, _PIECE)):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise UsageError(f"a line of the standard input has more than {_LONGEST_LINE} bytes")
        for line in lines:
            yield line.decode("utf-8", "replace").strip()
    yield rest.decode("utf-8", "replace").strip()
