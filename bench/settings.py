"""How long and how often the series measure, and where they put what they need."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.programs import FOLDER

#: The core of a server that is measured, and that of who asks it.
SERVER, CLIENT = 0, 1


@dataclass(frozen=True, slots=True)
class Bench:
    """What every series is given.

    :ivar rounds: how often each side of a comparison is measured.
    :ivar seconds: how long a load is held.
    :ivar sounds: the folder of the sources.
    """

    rounds: int
    seconds: int
    sounds: Path

    @property
    def many(self) -> int:
        """The rounds of what takes a moment."""
        return 3 * self.rounds

    @property
    def few(self) -> int:
        """The rounds of a plot, whose many points bear each other out."""
        return min(3, self.rounds)

    def folder(self, name: str) -> Path:
        """Return an empty folder for one series."""
        folder = FOLDER / "work" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder
