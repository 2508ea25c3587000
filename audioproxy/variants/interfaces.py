"""The seams between a render and the places that hold its bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer

from audioproxy.errors import Refusal
from audioproxy.grammar.sources import Source
from audioproxy.media.inputs import Input


class Unwritable(Exception):
    """A store cannot be written to. The text says why, and what would be right."""


@dataclass(slots=True)
class Examination:
    """What came of trying a store out.

    :ivar place: what was tried, and where it is.
    :ivar trouble: why it cannot be used, and what would be right; None where it can.
    :ivar presigned: why a presigned URL does not give what was written, empty where it does; None
        where that was not tried.
    :ivar clock_ahead: seconds by which this machine's clock is ahead of the store's; None where
        nothing tells.
    """

    place: str
    trouble: str | None = None
    presigned: str | None = None
    clock_ahead: int | None = None


@dataclass(frozen=True, slots=True)
class VariantHeaders:
    """The response headers that are kept with a stored variant."""

    content_type: str
    cache_control: str
    content_disposition: str | None = None


class OpenSource(Protocol):
    """A source that was checked and is held, so that what was checked is what is read.

    :ivar size: bytes, or None where nothing says so.
    :ivar material: changes whenever the bytes may have changed; empty where nothing tells that.
    :ivar descriptors: what ffmpeg and ffprobe must inherit to open the last `input`.
    """

    @property
    def size(self) -> int | None: ...  # noqa: D102
    @property
    def material(self) -> bytes: ...  # noqa: D102
    @property
    def descriptors(self) -> Mapping[int, int]: ...  # noqa: D102

    async def input(self, seconds: float, *, whole: bool) -> Input:
        """Return how ffmpeg and ffprobe open it.

        :param seconds: for which it is needed; what gives access to it lives no longer.
        :param whole: all of it is needed, as it is for a render, and not only enough to tell what
            it is. What cannot be read safely where it is, is fetched for that.
        :raises Refusal: where it cannot be had.
        :raises TimeoutError: where it cannot be had in time.
        """
        ...

    def revision(self) -> bytes:
        """Return what no other bytes of this source ever had; nothing where that is not certain.

        It is stricter than ``material``, which may be the same for a change within one tick of a
        clock, and not the same on every node.
        """
        ...

    async def unchanged(self) -> bool:
        """Tell whether the source is still what it was when it was opened."""
        ...

    def close(self) -> None:
        """Let go of it."""


class SourceStore(Protocol):
    """Opens sources of one kind or of all."""

    async def open(self, source: Source) -> OpenSource:
        """Check a source and hold it.

        :raises NotFound: where it is missing, unreadable or not allowed.
        :raises UndecodableSource: where it cannot be read in the way that is required.
        :raises NotConfigured: where this kind of source has no backend, or a wrong one.
        :raises UpstreamUnavailable: where nothing can be told of it now.
        """
        ...


class Readable(Protocol):
    """Bytes at rest that are read by offset."""

    def read(self, offset: int, limit: int) -> bytes:
        """Return 1 to ``limit`` bytes from ``offset``, or none past the end."""
        ...


class Growing(Readable, Protocol):
    """Bytes to which others are added.

    :ivar size: how many there are so far.
    """

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def ended(self) -> bool: ...  # noqa: D102
    @property
    def failure(self) -> Refusal | None: ...  # noqa: D102

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call ``follower`` on every change from now on; returns what ends that."""
        ...


class Flow(Protocol):
    """Bytes that go to one consumer, once, from wherever they are. They are sent, or dropped."""

    def send(self, consumer: IConsumer) -> Deferred[None]:
        """Send them as a push producer, at the consumer's pace.

        :returns: fires when everything is written and the producer is unregistered, or fails.
            Cancelling it ends the flow.
        """
        ...

    def drop(self) -> None:
        """Let go of what they would have come from."""


class StoredVariant(Protocol):
    """A finished variant in the store, held until it is closed."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> VariantHeaders: ...  # noqa: D102

    async def stretch(self, start: int, stop: int) -> Flow:
        """Return the bytes from ``start`` up to ``stop``.

        :raises UpstreamUnavailable, NotConfigured: where the store does not give them.
        """
        ...

    def presign(self, seconds: int) -> str | None:
        """Return a URL that gives it to anyone for so long; None where the store has none."""
        ...

    def close(self) -> None:
        """Let go of it."""


class Scratch(Protocol):
    """An open file for the output of one render.

    :ivar descriptor: what the encoder inherits as its stdout.
    """

    @property
    def descriptor(self) -> int: ...  # noqa: D102

    def grown(self, size: int) -> None:
        """Hear that there are so many bytes now, which will not change any more."""

    def close(self) -> None:
        """Close the file; unless it was committed, nothing of it is left."""


class ScratchSpace(Protocol):
    """Where renders put their output while it grows."""

    async def create(self, seconds: float) -> Scratch:
        """Return a new empty file.

        :param seconds: that the caller can wait.
        :raises OSError: where there is no room or no right to.
        """
        ...


class Shelf(Protocol):
    """Stored variants that are at hand."""

    def glance(self, key: str) -> tuple[VariantHeaders, bytes] | None:
        """Return a small variant whole, without a wait; None for what would take more."""
        ...


class VariantStore(ScratchSpace, Protocol):
    """Where finished variants are kept under their cache keys."""

    async def lookup(self, key: str) -> StoredVariant | None:
        """Return the variant stored under ``key``.

        :raises UpstreamUnavailable: where the store cannot tell.
        :raises NotConfigured: where it says that it is the wrong one.
        """
        ...

    async def commit(self, key: str, scratch: Scratch, size: int, headers: VariantHeaders) -> None:
        """Store what a render of ``size`` bytes wrote into ``scratch``, all or nothing.

        :raises Exception: where the store refuses; nothing readable is left then.
        """
        ...

    async def open(self) -> None:
        """Prove that the store can be written to, by writing something and removing it.

        :raises Unwritable: where it cannot.
        """
        ...

    async def examine(self, seconds: int) -> Examination:
        """Try all that a service asks of the store, without an `open`; leave nothing behind.

        :param seconds: that a presigned URL lives, where the store has such.
        """
        ...

    async def close(self, seconds: float) -> None:
        """Leave nothing behind, within so many seconds."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind, at a start that comes to nothing."""
        ...
