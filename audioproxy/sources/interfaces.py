"""What a source is to the rest: the protocols that every kind of source implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from audioproxy.grammar.sources import Source
from audioproxy.media.inputs import Input


class OpenSource(Protocol):
    """A source that was checked and is held, so that what was checked is what is read.

    :ivar size: bytes, or None where nothing says so.
    :ivar validator: changes whenever the bytes may have changed; empty where nothing tells that.
    :ivar descriptors: what ffmpeg and ffprobe must inherit to open the last `input`.
    """

    @property
    def size(self) -> int | None: ...  # noqa: D102
    @property
    def validator(self) -> bytes: ...  # noqa: D102
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

    def fingerprint(self) -> bytes:
        """Return what no other bytes of this source ever had; nothing where that is not certain.

        It is stricter than ``validator``, which may be the same for a change within one tick of a
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
