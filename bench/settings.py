"""Settings of a run: rounds, sources and folders."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.programs import FOLDER, Service, service

#: The core of the measured server, and the core of the load generator.
SERVER, CLIENT = 0, 1


@dataclass(frozen=True, slots=True)
class Bench:
    """Settings that every series receives.

    :ivar rounds: number of measurements of each side of a comparison.
    :ivar sounds: folder of the sources.
    """

    rounds: int
    sounds: Path

    @property
    def many(self) -> int:
        """Number of rounds for short measurements."""
        return 3 * self.rounds

    @property
    def few(self) -> int:
        """Number of rounds for long measurements."""
        return min(3, self.rounds)

    def folder(self, name: str) -> Path:
        """Return an empty folder for one series."""
        folder = FOLDER / "work" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def service(self, name: str, **settings: str) -> AbstractContextManager[Service]:
        """Run the service on the sources, in an empty folder, on any core."""
        return service(self.folder(name), {"AP_LOCAL_ROOT": str(self.sounds), **settings})
