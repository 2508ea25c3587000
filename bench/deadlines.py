"""`python -m bench.deadlines`: the deadlines that long books need, for docs/configuration.md.

Each encoder is measured by the time that it spends on the CPUs. So other programs on the machine
hardly change it, and it holds for a node on which each CPU has an encoder.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from audioproxy.media.command.progress import round_up
from bench.bare import commands
from bench.blocks import fill
from bench.machine import ffmpeg_version, machine, today
from bench.programs import PROJECT
from bench.report import number
from bench.settings import Bench
from bench.sounds import LONG_ENOUGH, long_enough

PAGE = PROJECT / "docs" / "configuration.md"

OPTIONS = (
    *("f:wav", "f:flac", "f:peaks", "f:opus", "f:ogg", "f:mp3", "f:aac", "f:m4a"),
    *("f:mp3/enhance:voice", "f:mp3/norm:ebu"),
)
#: Hours of a book.
BOOKS = (10, 20, 50)

# Of a deadline: machines and sources differ.
_MARGIN = 1.5


def measure(command: Sequence[str]) -> float:
    """Return the seconds that a program spends on the CPUs."""
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{process.returncode} from {command!r}")
    return used.ru_utime + used.ru_stime


def table(speeds: Mapping[str, float], where: str) -> str:
    """Return the table of deadlines.

    :param speeds: the multiple of real time of each of `OPTIONS`.
    :param where: the date, the machine and the programs.
    """
    headings = ["Options", "Speed, x real time", *(f"{hours} hours" for hours in BOOKS)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for options, speed in speeds.items():
        deadlines = [f"{round_up(_MARGIN * 3600 * hours / speed)} s" for hours in BOOKS]
        lines.append(f"| {' | '.join([f'`{options}`', number(speed), *deadlines])} |")
    return "\n".join([*lines, "", where])


def measure_all(bench: Bench) -> Iterator[tuple[str, float]]:
    """Yield the options, each with its speed."""
    source = long_enough(bench)
    for options in bench.some(OPTIONS):
        command = commands(source.parent, f"/insecure/{options}/plain/local://{source.name}").ffmpeg
        yield options, bench.seconds(LONG_ENOUGH) / measure(command)


def main() -> None:
    """Measure all options, and write the table."""
    speeds = {}
    for options, speed in measure_all(Bench(1)):
        print(f"{options}: {speed:.0f} x real time", flush=True)
        speeds[options] = speed
    place = machine()
    where = (
        f"Measured on {today()} with {LONG_ENOUGH // 60} minutes of stereo FLAC at 44.1 kHz, by the"
        f" CPU time of\nffmpeg {ffmpeg_version()}, on one CPU of: {place['CPU']}, {place['cores']}"
        f" cores. The deadlines are {_MARGIN} times what that\nspeed takes."
    )
    PAGE.write_text(fill(PAGE.read_text(), {"deadlines": table(speeds, where)}))


if __name__ == "__main__":
    main()
