"""In-memory sources and variant store whose delays and failures a test sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NotFound
from audioproxy.files.scratch_files import AnonymousFile, ScratchFile
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.sources import LocalSource, Source
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.variants.headers import VariantHeaders

T = TypeVar("T")


class FakeSource:
    """Source that states a given size; its descriptor for child processes is /dev/null.

    :ivar written_to: whether the source was written to after it was opened.
    :ivar input_calls: the timeout of each call of `inspect` and `input`, and whether it was one of
        `input`.
    :ivar refusal: raised by `input`, if set.
    :ivar fetching: Deferred for which `input` waits, if set; a test fires it.
    :ivar content: what `read` returns; an exception is raised.
    """

    def __init__(self, size: int | None, content: bytes | Exception = b"") -> None:
        self.size = size
        self.content = content
        self.validator = b"" if size is None else b"%d" % size
        self.identity = self.validator
        self.input_calls: list[tuple[float, bool]] = []
        self.refusal: Exception | None = None
        self.fetching: Deferred[None] | None = None
        self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.closed = self.written_to = False

    @property
    def descriptors(self) -> Mapping[int, int]:
        assert not self.closed, "the source is closed"
        return {SOURCE_DESCRIPTOR: self._descriptor}

    async def inspect(
        self, deadline: Deadline, look: Callable[[Input], Coroutine[Any, Any, T]]
    ) -> T:
        assert not self.closed, "the source is closed"
        self.input_calls.append((deadline.remaining, False))
        return await look(local_input())

    async def input(self, deadline: Deadline) -> Input:
        assert not self.closed, "the source is closed"
        self.input_calls.append((deadline.remaining, True))
        if self.fetching is not None:
            await self.fetching
        if self.refusal is not None:
            raise self.refusal
        if self.size is None and isinstance(self.content, bytes):
            # It was downloaded.
            self.size = len(self.content)
        return local_input()

    async def read(self, offset: int, count: int) -> bytes:
        assert not self.closed, "the source is closed"
        if isinstance(self.content, Exception):
            raise self.content
        return self.content[offset : offset + count]

    def has_certain_identity(self) -> bool:
        return False

    async def unchanged(self) -> bool:
        assert not self.closed, "the source is closed"
        return not self.written_to

    def close(self) -> None:
        assert not self.closed, "the source is closed already"
        self.closed = True
        os.close(self._descriptor)


class FakeSources:
    """`SourceStore` of local sources by path.

    :ivar sizes: the size of each existing source; None for an unknown size.
    :ivar content: the content of sources opened from now on; an exception is raised by reads.
    :ivar opened: all opened sources.
    :ivar slow: whether sources opened from now on have to be fetched first.
    :ivar crash: raised by every `open`, if set.
    """

    def __init__(self, sizes: Mapping[bytes, int | None]) -> None:
        self.sizes = dict(sizes)
        self.opened: list[FakeSource] = []
        self.crash: Exception | None = None
        self.slow = False
        self.content: bytes | Exception = b""

    async def open(self, source: Source) -> FakeSource:
        if self.crash is not None:
            raise self.crash
        if not isinstance(source, LocalSource) or source.path not in self.sizes:
            raise NotFound("no such source")
        opened = FakeSource(self.sizes[source.path], self.content)
        opened.identity = source.canonical + b"\n" + opened.validator
        opened.fetching = Deferred() if self.slow else None
        self.opened.append(opened)
        return opened

    @property
    def held(self) -> int:
        """The number of open sources."""
        return sum(not source.closed for source in self.opened)


class FakeStored:
    """Stored variant in memory."""

    def __init__(self, data: bytes, headers: VariantHeaders) -> None:
        self.size = len(data)
        self.headers = headers
        self._data = data
        self.closed = False

    def read(self, offset: int, limit: int) -> bytes:
        assert not self.closed, "the variant is closed"
        return self._data[offset : offset + limit]

    async def open_range(self, start: int, stop: int) -> FileProducer:
        return FileProducer(self, start, stop)

    def close(self) -> None:
        self.closed = True


class FakeStore:
    """`VariantStore` whose commits can wait, fail or never end.

    :ivar variants: the committed variants.
    :ivar refusal: raised by `commit`, if set.
    :ivar create_error: raised by `create`, if set.
    :ivar commits: a Deferred for each slow commit, in order; a test fires it.
    :ivar slow: whether commits wait.
    """

    def __init__(self) -> None:
        self.variants: dict[str, tuple[bytes, VariantHeaders]] = {}
        self.refusal: Exception | None = None
        self.create_error: OSError | None = None
        self.commits: list[Deferred[None]] = []
        self.slow = False
        self.scratches: list[AnonymousFile] = []

    async def create(self, seconds: float = 10) -> AnonymousFile:
        if self.create_error is not None:
            raise self.create_error
        self.scratches.append(AnonymousFile())
        return self.scratches[-1]

    async def lookup(self, key: str) -> FakeStored | None:
        found = self.variants.get(key)
        return None if found is None else FakeStored(*found)

    async def commit(
        self, key: str, scratch: ScratchFile, size: int, headers: VariantHeaders
    ) -> None:
        if self.slow:
            self.commits.append(Deferred())
            await self.commits[-1]
        if self.refusal is not None:
            raise self.refusal
        data = os.pread(scratch.descriptor, size, 0)
        assert len(data) == size, "the scratch file is shorter than its stated size"
        self.variants[key] = (data, headers)

    async def open(self) -> None:
        pass
