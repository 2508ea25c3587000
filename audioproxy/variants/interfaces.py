"""The interfaces of variant stores of every kind, and of their values."""

from __future__ import annotations

from typing import Protocol

from audioproxy.errors import Unusable
from audioproxy.files.scratch_files import ScratchFile, ScratchSpace
from audioproxy.files.streams import ByteStream
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders


class Unwritable(Unusable):
    """A store cannot be written to."""


class NoRoom(Exception):
    """The bound of a store leaves no room for a variant, which is not stored.

    :ivar needed: bytes of the variant.
    """

    def __init__(self, needed: int, used: int | None, most: int) -> None:
        self.needed = needed
        has = "an unknown number" if used is None else str(used)
        super().__init__(f"{needed} bytes have no room: the store has {has} of {most} bytes")


class VariantChanged(Exception):
    """A variant is not the one that was looked up. The text states the difference."""


class StoredVariant(Protocol):
    """A variant in the store, open until it is closed."""

    @property
    def size(self) -> int: ...
    @property
    def stored(self) -> int | None:
        """Unix seconds at which it was stored, by its record; None without one."""
        ...

    async def open_range(self, start: int, stop: int) -> ByteStream:
        """Return the bytes from ``start`` up to ``stop``.

        :raises VariantChanged: where the variant was replaced or removed since its lookup.
        :raises UpstreamUnavailable, NotConfigured: where the store fails.
        """
        ...

    def close(self) -> None:
        """Release the variant; repeated calls are harmless."""


class VariantStore(ScratchSpace, Protocol):
    """A store of finished variants by cache key."""

    async def lookup(self, key: str) -> StoredVariant | None:
        """Return the variant stored under ``key``.

        :raises UpstreamUnavailable: where the store fails.
        :raises NotConfigured: where the endpoint, the region or the addressing is wrong.
        """
        ...

    async def commit(
        self,
        key: str,
        scratch: ScratchFile,
        size: int,
        headers: VariantHeaders,
        record: VariantRecord,
    ) -> None:
        """Store the ``size`` bytes that a render wrote into ``scratch``, all or nothing.

        :param record: without the digest of the bytes, which the store adds.
        :raises NoRoom: where the bound of the store leaves no room for them.
        :raises Exception: where the store refuses; then nothing can be read under ``key``.
        """
        ...

    async def open(self) -> None:
        """Prove that the store can be written to, by writing something and removing it.

        :raises Unwritable: where it cannot.
        """
        ...
