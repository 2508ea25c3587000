"""The seams between a render and the places that hold its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from audioproxy.grammar.sources import Source
from audioproxy.media.inputs import Input


@dataclass(frozen=True, slots=True)
class VariantHeaders:
    """The response headers that are kept with a stored variant."""

    content_type: str
    cache_control: str
    content_disposition: str | None = None


class OpenSource(Protocol):
    """A source that was checked and is held, so that what was checked is what is read.

    :ivar size: bytes.
    :ivar material: changes whenever the bytes may have changed.
    :ivar input: how ffmpeg and ffprobe open it.
    :ivar descriptors: what they must inherit to do so.
    """

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def material(self) -> bytes: ...  # noqa: D102
    @property
    def input(self) -> Input: ...  # noqa: D102
    @property
    def descriptors(self) -> Mapping[int, int]: ...  # noqa: D102

    def unchanged(self) -> bool:
        """Tell whether the source is still what it was when it was opened."""
        ...

    def close(self) -> None:
        """Let go of it."""


class SourceStore(Protocol):
    """Opens sources of one kind or of all."""

    async def open(self, source: Source) -> OpenSource:
        """Check a source and hold it.

        :raises NotFound: where it is missing, unreadable or not allowed.
        :raises NotConfigured: where this kind of source has no backend.
        """
        ...


class Readable(Protocol):
    """Bytes at rest that are read by offset."""

    def read(self, offset: int, limit: int) -> bytes:
        """Return 1 to ``limit`` bytes from ``offset``, or none past the end."""
        ...


class StoredVariant(Readable, Protocol):
    """A finished variant in the store, held open until it is closed."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> VariantHeaders: ...  # noqa: D102

    def close(self) -> None:
        """Let go of it."""


class Scratch(Protocol):
    """An open file for the output of one render.

    :ivar descriptor: what the encoder inherits as its stdout.
    """

    @property
    def descriptor(self) -> int: ...  # noqa: D102

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


class VariantStore(ScratchSpace, Protocol):
    """Where finished variants are kept under their cache keys."""

    async def lookup(self, key: str) -> StoredVariant | None:
        """Return the variant stored under ``key``.

        :raises UpstreamUnavailable: where the store cannot tell.
        """
        ...

    async def commit(self, key: str, scratch: Scratch, size: int, headers: VariantHeaders) -> None:
        """Store what a render of ``size`` bytes wrote into ``scratch``, all or nothing.

        :raises OSError: where the store refuses; nothing readable is left then.
        """
        ...
