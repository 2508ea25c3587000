"""Which ffmpeg is used for what.

The service and its command lines are tried with the first one on the PATH. What makes the sounds
for the tests, and judges what came of them, has to have everything in it: it is another one where
the project's own comes first, as with `make test-ffmpeg`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: Where `make ffmpeg` puts the project's own.
OWN = Path(__file__).parents[2] / "build/ffmpeg/bin"


def _complete(program: str) -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = [folder for folder in folders if Path(folder).resolve() != OWN.resolve()]
    return shutil.which(program, path=os.pathsep.join(others)) or program


#: Those with everything in them.
FFMPEG, FFPROBE = _complete("ffmpeg"), _complete("ffprobe")
