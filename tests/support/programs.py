"""Paths of ffmpeg and ffprobe for the tests.

The service and its command lines use the first ffmpeg on the PATH. With `make test-ffmpeg` that
is the project's own build, which lacks features. Tests generate and decode audio with an ffmpeg
that has all features: the first one that is not the project's own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: Folder in which `make ffmpeg` installs the project's own build.
OWN = Path(__file__).parents[2] / "build/ffmpeg/bin"


def _complete(program: str) -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = [folder for folder in folders if Path(folder).resolve() != OWN.resolve()]
    return shutil.which(program, path=os.pathsep.join(others)) or program


#: Programs with all features.
FFMPEG, FFPROBE = _complete("ffmpeg"), _complete("ffprobe")
