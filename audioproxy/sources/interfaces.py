"""The interfaces of sources of every kind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import Refusal
from audioproxy.grammar.sources import Source
from audioproxy.media.inputs import Input

T = TypeVar("T")

#: Lets a child look at an input, and returns what it sees.
Look: TypeAlias = Callable[[Input], Coroutine[Any, Any, T]]


class SourceFile(Protocol):
    """What a child reads: to ffmpeg and ffprobe, every source is a local file.

    :ivar failure: why bytes of the source could not be read since it was opened; None while all
        could. A child takes a failed read for the end of the source, and may exit with 0.
    """

    @property
    def failure(self) -> Refusal | None: ...

    def inherit(self) -> AbstractContextManager[Mapping[int, int]]:
        """Return the descriptors for one child, by their numbers there, for the length of a block.

        The child is started in the block.
        """
        ...


class OpenSource(SourceFile, Protocol):
    """A source that was checked, and stays open so that exactly the checked bytes are read.

    :ivar size: bytes, or None where unknown.
    :ivar validator: changes whenever the bytes may have changed; empty where unknown. All nodes
        have the same one.
    :ivar identity: equal for two sources only if their bytes are the same, as far as is known. This
        node remembers by it what it has found out about a source.
    :ivar descriptor: of a file that has all bytes of the source; None while it may lack some.
    """

    @property
    def size(self) -> int | None: ...
    @property
    def validator(self) -> bytes: ...
    @property
    def identity(self) -> bytes: ...
    @property
    def descriptor(self) -> int | None: ...

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        """Return what a child sees of the source.

        :param look: given the input for ffprobe. It is cancelled and called again, with an input
            that cannot be sought, where the end of the source does not arrive soon.
        :raises Refusal: where the source cannot be read, or not before the deadline.
        """
        ...

    async def input(self, deadline: Deadline, share: float = 1.0) -> Input:
        """Return the input for ffmpeg, which may read the whole source.

        :param share: how much of it is read, from its start on, by estimate.
        :raises Refusal: where the source cannot be read, or not before the deadline.
        """
        ...

    async def complete(self, deadline: Deadline) -> None:
        """Wait for all of a source whose origin serves no ranges; others need no wait.

        :raises Refusal: where it does not arrive, or not before the deadline.
        """
        ...

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes of the source.

        :param count: the range ends within the source.
        :raises Refusal: where the source cannot be read, or has changed.
        """
        ...

    def has_certain_identity(self) -> bool:
        """Return whether no other version of this source has had, or will have, its identity."""
        ...

    async def unchanged(self) -> bool:
        """Return whether the source is the same as when it was opened."""
        ...

    def close(self) -> None:
        """Release the source; repeated calls are harmless."""


class SourceStore(Protocol):
    async def open(self, source: Source, *, reads: bool = True) -> OpenSource:
        """Check and open a source.

        :param reads: its bytes will be read, so a remote one requests the first ones at once.
        :raises NoSuchSource: where it is certainly missing.
        :raises NotFound: where it may be missing, is unreadable or not allowed.
        :raises NotConfigured: where this kind of source is not configured, or its configuration is
            wrong.
        :raises UpstreamUnavailable: where the state of the source cannot be determined now.
        """
        ...
