"""Paths of ffmpeg and ffprobe for the tests.

The service and its command lines use the first ffmpeg on the PATH. With `make test-ffmpeg` that
is the project's own build, which lacks features. Tests generate and decode audio with an ffmpeg
that has all features: the first one that is not the project's own.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from audioproxy.media.inputs import SOURCE_DESCRIPTOR

#: Folder in which `make ffmpeg` installs the project's own build.
OWN = Path(__file__).parents[2] / "build/ffmpeg/bin"


def _complete(program: str) -> str:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = [folder for folder in folders if Path(folder).resolve() != OWN.resolve()]
    return shutil.which(program, path=os.pathsep.join(others)) or program


#: Programs with all features.
FFMPEG, FFPROBE = _complete("ffmpeg"), _complete("ffprobe")

#: An ffmpeg that stops itself before it encodes, until it gets SIGCONT.
HELD_FFMPEG = f"""\
#!/bin/sh
case "$*" in *pipe:1*) kill -STOP $$;; esac
exec {FFMPEG} "$@"
"""

#: A stand-in for ffmpeg and ffprobe. The name of the source selects the effect and the program:
#: ``memory-ffmpeg.flac`` allocates half a gigabyte, ``cpu-ffprobe.flac`` uses a CPU for a minute,
#: and ``abort-ffmpeg.flac`` aborts an encoder of mp3, as LAME 3.100 does by an assertion. Otherwise
#: the real program runs.
STAND_IN = f"""\
#!/bin/sh
program=${{0##*/}}
source=$(readlink /proc/$$/fd/{SOURCE_DESCRIPTOR})
case "${{source##*/}} $*" in
"memory-$program.flac "*)
    if ! {sys.executable} -I -S -c '[bytearray(1 << 20) for _ in range(512)]' 2> /dev/null; then
        echo "Cannot allocate memory" >&2
        exit 1
    fi ;;
"cpu-$program.flac "*) timeout 60 sh -c 'while :; do :; done' ;;
"abort-$program.flac "*libmp3lame*)
    echo "ffmpeg: psymodel.c:576: calc_energy: Assertion \\`el >= 0' failed." >&2
    kill -ABRT $$ ;;
esac
case $program in ffmpeg) exec {FFMPEG} "$@" ;; esac
exec {FFPROBE} "$@"
"""


def write_script(path: Path, text: str) -> Path:
    """Write a program, whose folder may be a new one, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_ffmpeg_without_soxr(folder: Path) -> None:
    """Write a program ``ffmpeg`` into a folder that does all that ffmpeg does without libsoxr."""
    write_script(
        folder / "ffmpeg",
        f"""#!/bin/sh
case " $* " in
    *' -version '*) {FFMPEG} "$@" | sed 's/--enable-libsoxr//' ;;
    *' soxr '*) echo 'Requested resampling engine is unavailable' >&2; exit 1 ;;
    *) exec {FFMPEG} "$@" ;;
esac
""",
    )
