"""The interface of catalogs: what commands do with all variants of a store.

A catalog touches nothing but what has the name of a variant, in the place of a variant.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Protocol

from audioproxy.variants.record import VariantRecord

#: The name of a variant: its cache key (D5).
KEY = re.compile(r"[0-9a-f]{64}")


class CatalogError(Exception):
    """A store did not carry out what a command needs. The text gives the reason."""


class CatalogBusy(CatalogError):
    """Another process does what only one may do at a time."""


class NotSynced(CatalogError):
    """A power cut may restore variants that were removed."""

    def __init__(self, reason: object) -> None:
        super().__init__(f"a power cut may restore variants that were removed: {reason}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A variant as a catalog lists it.

    :ivar used: Unix seconds of its last use; None where the store does not record it.
    :ivar version: changes when the variant is replaced; None where it is not known yet.
    """

    key: str
    size: int
    stored: float
    used: float | None = None
    version: object = None

    @property
    def last_use(self) -> float:
        """Unix seconds of the last use, or of the storing where it is not recorded."""
        return self.stored if self.used is None else self.used


@dataclass(slots=True)
class Amount:
    """A number of variants, and their bytes."""

    variants: int = 0
    bytes: int = 0

    def add(self, entry: Entry) -> None:
        self.variants += 1
        self.bytes += entry.size


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the variants.

    :ivar covered: the share of the store that was listed, this page included.
    """

    entries: Sequence[Entry]
    covered: float


class Verdict(Enum):
    GOOD = "good"
    UNKNOWN = "stored without a digest"
    BROKEN = "broken"
    GONE = "removed or replaced meanwhile"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    entry: Entry
    reason: str = ""


def compare_digests(entry: Entry, sha256: str, record: VariantRecord) -> Finding:
    if sha256 != record.sha256:
        return Finding(Verdict.BROKEN, entry, "its bytes do not match their digest")
    return Finding(Verdict.GOOD, entry)


class Pace:
    """A limit of bytes per second that several reads share, in any thread.

    :param rate: bytes per second; None for no limit.
    """

    def __init__(self, rate: float | None, seconds: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._seconds = seconds
        self._due = 0.0
        self._lock = Lock()

    def spend(self, size: int) -> float:
        """Return the seconds to wait after ``size`` bytes were read."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._seconds()
            self._due = max(self._due, now) + size / self._rate
            return self._due - now


#: Called with a variant for which something failed, and the error.
OnFailure = Callable[[Entry, Exception], object]


class VariantCatalog(Protocol):
    """All variants of one store.

    Each method raises `CatalogError` or OSError where the store fails. Where it fails for one of
    several variants, ``on_failure`` is called instead.
    """

    def pages(self) -> AsyncGenerator[Page]: ...

    async def find(self, key: str) -> Entry | None: ...

    async def read_records(
        self, entries: Sequence[Entry], on_failure: OnFailure
    ) -> list[tuple[Entry, VariantRecord | None]]:
        """Return those variants that are not gone, with their version and their record, if any."""
        ...

    async def check(self, entry: Entry, pace: Pace) -> Finding:
        """Read the bytes of a variant, and compare them with its digest."""
        ...

    async def remove(
        self,
        entries: Sequence[Entry],
        on_removed: Callable[[Entry], object],
        on_failure: OnFailure,
        *,
        unchanged: bool = False,
    ) -> None:
        """Remove variants.

        :param on_removed: called with each variant, perhaps in a thread, once it is removed.
        :param unchanged: leave variants that were replaced since their version was read.
        """
        ...

    async def flush(self) -> None:
        """Return once no power cut restores what was removed (D80), or raise `NotSynced`."""
        ...
