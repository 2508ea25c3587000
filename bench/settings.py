"""Settings of the series: rounds, durations and folders."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.programs import FOLDER

#: The core of the measured server, and the core of the load generator.
SERVER, CLIENT = 0, 1


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings that every series receives.

    :ivar rounds: number of measurements of each side of a comparison.
    :ivar seconds: duration of a load test.
    :ivar sounds: folder of the sources.
    """

    rounds: int
    seconds: int
    sounds: Path

    @property
    def many(self) -> int:
        """Number of rounds for short measurements."""
        return 3 * self.rounds

    @property
    def few(self) -> int:
        """Number of rounds for plots, whose many points confirm one another."""
        return min(3, self.rounds)

    def folder(self, name: str) -> Path:
        """Return an empty folder for one series."""
        folder = FOLDER / "work" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder
