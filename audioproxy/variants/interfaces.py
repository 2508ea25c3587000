"""Variant stores: the interfaces of every kind, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from audioproxy.scratch import ScratchFile, ScratchSpace
from audioproxy.streams import ByteStream


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
    """The response headers that are stored with a variant."""

    content_type: str
    cache_control: str
    content_disposition: str | None = None


class StoredVariant(Protocol):
    """A variant in the store, open until it is closed."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def headers(self) -> VariantHeaders: ...  # noqa: D102

    async def open_range(self, start: int, stop: int) -> ByteStream:
        """Return the bytes from ``start`` up to ``stop``.

        :raises UpstreamUnavailable, NotConfigured: where the store fails.
        """
        ...

    def presign(self, seconds: int) -> str | None:
        """Return a URL that anyone can read for so many seconds; None where unsupported."""
        ...

    def close(self) -> None:
        """Release it; again is harmless."""


class SmallVariantReader(Protocol):
    """Reads small variants without waiting."""

    def read_small(self, key: str) -> tuple[VariantHeaders, bytes] | None:
        """Return a small variant whole; None where that would take long."""
        ...


class VariantStore(ScratchSpace, Protocol):
    """A store of finished variants by cache key."""

    async def lookup(self, key: str) -> StoredVariant | None:
        """Return the variant stored under ``key``.

        :raises UpstreamUnavailable: where the store fails.
        :raises NotConfigured: where the endpoint, the region or the addressing is wrong.
        """
        ...

    async def commit(
        self, key: str, scratch: ScratchFile, size: int, headers: VariantHeaders
    ) -> None:
        """Store the ``size`` bytes that a render wrote into ``scratch``, all or nothing.

        :raises Exception: where the store refuses; then nothing can be read under ``key``.
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
        """Remove temporary files, within so many seconds."""
        ...

    def abandon(self) -> None:
        """Remove temporary files after a boot that failed."""
        ...
