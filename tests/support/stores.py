"""In-memory sources and variant store whose delays and failures a test sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import NoSuchSource, Refusal
from audioproxy.files.scratch_files import DEFAULT_FOLDER, AnonymousFile, ScratchFile
from audioproxy.files.streams import FileProducer
from audioproxy.grammar.sources import LocalSource, Source
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, Input, local_input
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders

T = TypeVar("T")

#: The record of a variant whose source does not matter.
RECORD = VariantRecord("f:mp3", "a" * 64, 1_800_000_000, b"local://piece.wav", b"1-2")

# What children of all doubles get as their source.
_NULL = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

#: The calls of doubles in order, each with its argument.
Calls: TypeAlias = list[tuple[str, Any]]


class FakeSourceFile:
    """What a child reads.

    :ivar failure: why bytes could not be read; a test sets it.
    :ivar descriptors: what each child inherits.
    """

    def __init__(self, descriptors: Mapping[int, int] | None = None) -> None:
        self.failure: Refusal | None = None
        self.descriptors = descriptors or {}

    @contextmanager
    def inherit(self) -> Iterator[Mapping[int, int]]:
        yield self.descriptors


class FakeSource(FakeSourceFile):
    """Source that states a given size; its descriptor is /dev/null by default.

    :ivar written_to: whether the source was written to after it was opened.
    :ivar is_far: blocks of it may be missing, so children alone read it.
    :ivar certain: whether it has a certain identity.
    :ivar found: how children open it; None for as a file, which still arrives if it has no size.
    :ivar input_calls: the timeout of each call of `inspect`, `input` and `complete`, and whether it
        was one of the latter.
    :ivar refusal: raised by each of them and by `read`, if set.
    :ivar fetching: Deferred for which `input` and `complete` wait, if set; a test fires it.
    :ivar content: what `read` returns; an exception is raised.
    """

    def __init__(
        self, size: int | None, content: bytes | Exception = b"", *, descriptor: int = _NULL
    ) -> None:
        super().__init__({SOURCE_DESCRIPTOR: descriptor})
        self.size = size
        self.content = content
        self.validator = b"" if size is None else b"%d" % size
        self.identity = self.validator
        self.found: Input | None = None
        self.input_calls: list[tuple[float, bool]] = []
        self.refusal: Exception | None = None
        self.fetching: Deferred[None] | None = None
        self.closed = self.written_to = self.is_far = self.certain = False

    @property
    def descriptor(self) -> int | None:
        assert not self.closed, "the source is closed"
        return None if self.is_far else self.descriptors[SOURCE_DESCRIPTOR]

    @contextmanager
    def inherit(self) -> Iterator[Mapping[int, int]]:
        assert not self.closed, "the source is closed"
        yield self.descriptors

    async def inspect(
        self, deadline: Deadline, look: Callable[[Input], Coroutine[Any, Any, T]]
    ) -> T:
        self._note(deadline, False)
        self._refuse()
        return await look(self.found or local_input(seekable=self.size is not None))

    async def input(self, deadline: Deadline, share: float = 1.0) -> Input:
        self._note(deadline, True)
        await self._fetch(deadline)
        return self.found or local_input()

    async def complete(self, deadline: Deadline) -> None:
        self._note(deadline, True)
        await self._fetch(deadline)
        if self.size is None and isinstance(self.content, bytes):
            self.size = len(self.content)

    async def _fetch(self, deadline: Deadline) -> None:
        if self.fetching is not None:
            await self.fetching
        self._refuse()

    def _note(self, deadline: Deadline, is_whole: bool) -> None:
        assert not self.closed, "the source is closed"
        self.input_calls.append((deadline.remaining, is_whole))

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def read(self, offset: int, count: int) -> bytes:
        assert not self.closed, "the source is closed"
        self._refuse()
        if isinstance(self.content, Exception):
            raise self.content
        return self.content[offset : offset + count]

    def has_certain_identity(self) -> bool:
        return self.certain and not self.closed

    async def unchanged(self) -> bool:
        assert not self.closed, "the source is closed"
        return not self.written_to

    def close(self) -> None:
        self.closed = True


class FakeSources:
    """`SourceStore` of local sources by path.

    :ivar sizes: the size of each existing source; None for an unknown size.
    :ivar default_size: the size of every other source, of any scheme; None if there is no other.
    :ivar validator: that of sources opened from now on; by default, it follows from their size.
    :ivar content: the content of sources opened from now on; an exception is raised by reads.
    :ivar opened: all opened sources.
    :ivar reads: for each call of `open` whether the source will be read.
    :ivar is_far: whether blocks of sources opened from now on may be missing.
    :ivar certain: whether sources opened from now on have a certain identity.
    :ivar slow: whether sources opened from now on have to be fetched first.
    :ivar crash: raised by every `open`, if set.
    :ivar calls: the calls of this double, and of others that share the list.
    """

    def __init__(self, sizes: Mapping[bytes, int | None], calls: Calls | None = None) -> None:
        self.sizes = dict(sizes)
        self.default_size: int | None = None
        self.validator: bytes | None = None
        self.opened: list[FakeSource] = []
        self.reads: list[bool] = []
        self.crash: Exception | None = None
        self.slow = self.is_far = self.certain = False
        self.content: bytes | Exception = b""
        self.calls: Calls = [] if calls is None else calls

    async def open(self, source: Source, *, reads: bool = True) -> FakeSource:
        self.calls.append(("open", source.canonical))
        self.reads.append(reads)
        if self.crash is not None:
            raise self.crash
        size = self.default_size
        if isinstance(source, LocalSource) and source.path in self.sizes:
            size = self.sizes[source.path]
        elif size is None:
            raise NoSuchSource("no such source")
        opened = FakeSource(size, self.content)
        opened.certain, opened.is_far = self.certain, self.is_far
        if self.validator is not None:
            opened.validator = self.validator
        opened.identity = source.canonical + b"\n" + opened.validator
        opened.fetching = Deferred() if self.slow else None
        self.opened.append(opened)
        return opened

    @property
    def held(self) -> int:
        """The number of open sources."""
        return sum(not source.closed for source in self.opened)


class FakeStored:
    """Stored variant in memory, which any number of lookups return.

    :ivar size: the stated size, which a test may change.
    :ivar stored: Unix seconds at which it was stored, or None.
    :ivar refusal: raised by `open_range`, if set.
    :ivar error: raised by reads, if set.
    :ivar opened: the number of lookups; ``closed`` is the number of closes.
    """

    def __init__(self, data: bytes, stored: int | None = None) -> None:
        self.data, self.size, self.stored = data, len(data), stored
        self.refusal: Exception | None = None
        self.error: Exception | None = None
        self.opened = self.closed = 0

    def read(self, offset: int, limit: int) -> bytes:
        assert self.closed < self.opened, "the variant is closed"
        if self.error is not None:
            raise self.error
        return self.data[offset : offset + limit]

    async def open_range(self, start: int, stop: int) -> FileProducer:
        if self.refusal is not None:
            raise self.refusal
        return FileProducer(self, start, stop)

    def close(self) -> None:
        self.closed += 1


class FakeStore:
    """`VariantStore` whose commits can wait, fail or never end.

    :ivar stored: the committed variants; ``headers`` and ``records`` are theirs.
    :ivar lookup_error: raised by `lookup`, if set.
    :ivar refusal: raised by `commit`, if set.
    :ivar create_error: raised by `create`, if set.
    :ivar commits: a Deferred for each slow commit, in order; a test fires it.
    :ivar slow: whether commits wait.
    :ivar calls: the lookups, and the calls of other doubles that share the list.
    """

    folder = DEFAULT_FOLDER

    def __init__(self, calls: Calls | None = None) -> None:
        self.stored: dict[str, FakeStored] = {}
        self.headers: dict[str, VariantHeaders] = {}
        self.records: dict[str, VariantRecord] = {}
        self.lookup_error: Exception | None = None
        self.refusal: Exception | None = None
        self.create_error: OSError | None = None
        self.commits: list[Deferred[None]] = []
        self.slow = False
        self.scratches: list[AnonymousFile] = []
        self.calls: Calls = [] if calls is None else calls

    @property
    def variants(self) -> dict[str, tuple[bytes, VariantHeaders]]:
        """The bytes and headers of the committed variants."""
        return {key: (stored.data, self.headers[key]) for key, stored in self.stored.items()}

    async def create(self, seconds: float = 10) -> AnonymousFile:
        if self.create_error is not None:
            raise self.create_error
        self.scratches.append(AnonymousFile())
        return self.scratches[-1]

    async def lookup(self, key: str) -> FakeStored | None:
        self.calls.append(("lookup", key))
        if self.lookup_error is not None:
            raise self.lookup_error
        stored = self.stored.get(key)
        if stored is not None:
            stored.opened += 1
        return stored

    def read_small(self, key: str) -> tuple[int | None, bytes] | None:
        self.calls.append(("read_small", key))
        found = self.stored.get(key)
        return None if found is None else (found.stored, found.data)

    async def commit(
        self,
        key: str,
        scratch: ScratchFile,
        size: int,
        headers: VariantHeaders,
        record: VariantRecord,
    ) -> None:
        if self.slow:
            self.commits.append(Deferred())
            await self.commits[-1]
        if self.refusal is not None:
            raise self.refusal
        data = os.pread(scratch.descriptor, size, 0)
        assert len(data) == size, "the scratch file is shorter than its stated size"
        self.stored[key] = FakeStored(data, record.stored)
        self.headers[key] = headers
        self.records[key] = record

    async def open(self) -> None:
        pass
