"""Settings of a run: rounds, sources and folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.programs import FOLDER, Service, service

T = TypeVar("T")

#: The core of the measured server, and the core of the load generator, if there are two.
SERVER, *_, CLIENT = sorted(os.sched_getaffinity(0)) * 2


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings that every series receives.

    :ivar rounds: number of measurements of each side of a comparison.
    :ivar home: folder of all files.
    :ivar scale: share of the usual lengths and numbers. Below 1, a series shows that it runs, and
        its figures mean nothing.
    """

    rounds: int
    home: Path = FOLDER
    scale: float = 1

    @property
    def many(self) -> int:
        """Number of rounds for short measurements."""
        return 3 * self.rounds

    @property
    def few(self) -> int:
        """Number of rounds for long measurements."""
        return min(3, self.rounds)

    @property
    def sounds(self) -> Path:
        """Folder of the sources."""
        return self.home / "sounds"

    def numbers(self, rounds: int) -> Iterable[int]:
        """Return the numbers of rounds; 0 is a round that does not count."""
        return range(0 if self.scale == 1 else 1, rounds + 1)

    def some(self, rows: Iterable[T], few: slice = slice(1)) -> Sequence[T]:
        """Return the rows to measure: all, or a few."""
        return list(rows)[slice(None) if self.scale == 1 else few]

    def count(self, number: int) -> int:
        """Return how many there are of what there usually is this number of."""
        return max(1, round(self.scale * number))

    def seconds(self, seconds: float) -> float:
        """Return the length of what usually has this length."""
        return self.scale * seconds

    def part(self, start: float, length: float) -> str:
        """Return the option for a part of a source."""
        return f"t:{round(self.seconds(start), 3):g}:{round(self.seconds(length), 3):g}"

    def folder(self, name: str) -> Path:
        """Return an empty folder for one series."""
        folder = self.home / "work" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def copies(self, name: str, source: str, count: int) -> Path:
        """Return an empty folder with copies of a source, as ``0`` and so on, with its extension.

        Links to one file would be one source to the service, which it probes once.
        """
        folder = self.folder(name)
        original = self.sounds / source
        for number in range(count):
            shutil.copy(original, folder / f"{number}{original.suffix}")
        return folder

    def service(self, name: str, **settings: str) -> AbstractContextManager[Service]:
        """Run the service on the sources, in an empty folder, on any core."""
        return service(self.folder(name), {"AP_LOCAL_ROOT": str(self.sounds), **settings})
