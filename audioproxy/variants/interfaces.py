"""What a variant store is to the rest: protocols, and the values that pass through them."""

from __future__ import annotations

from typing import Protocol

from audioproxy.scratch import Scratch, ScratchSpace
from audioproxy.streams import ByteStream
from audioproxy.variants.headers import VariantHeaders


class Unwritable(Exception):
    """A store cannot be written to. The text says why, and what would be right."""


class StoredVariant(Protocol):
    """A finished variant in the store, held until it is closed."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> VariantHeaders: ...  # noqa: D102

    async def open_range(self, start: int, stop: int) -> ByteStream:
        """Return the bytes from ``start`` up to ``stop``.

        :raises UpstreamUnavailable, NotConfigured: where the store does not give them.
        """
        ...

    def presign(self, seconds: int) -> str:
        """Return a URL that gives it to anyone for so long.

        :raises NotImplementedError: for a store without URLs, which is served in proxy mode alone.
        """
        ...

    def close(self) -> None:
        """Let go of it."""


class SmallVariantReader(Protocol):
    """Stored variants that are at hand."""

    def read_small(self, key: str) -> tuple[VariantHeaders, bytes] | None:
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

    async def prove(self) -> None:
        """Prove that a store which is not open can be written to, and leave nothing behind.

        :raises Unwritable: where it cannot; the text is that of `open` where both fail.
        """
        ...

    async def close(self, seconds: float) -> None:
        """Leave nothing behind, within so many seconds."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind, at a start that comes to nothing."""
        ...
