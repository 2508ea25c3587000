"""List the pinned versions that are older than a year: ``outdated.py FOLDER``.

pip and npm know the dates of packages. Images and ffmpeg have theirs in a comment beside the
version.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

_AGE = timedelta(days=365)

#: A package of Python. Groups: its name and its version.
_PACKAGE = re.compile(r"^([\w.-]+)==(\S+)$", re.MULTILINE)
#: An image that is not built here. Groups: its name with its version, and its date, if any.
_IMAGE = re.compile(r"^ +image: (?!audioproxy:)(\S+:\S+)(?: +# (\S+))?$", re.MULTILINE)
#: The version of ffmpeg. Groups: its date, and the name and the version.
_FFMPEG = re.compile(r"(\d{4}-\d\d-\d\d)\.?\nARG FFMPEG_VERSION=(\S+)")


def is_old(day: str) -> bool:
    """Return whether a date, with or without its time, is more than a year ago."""
    return day[:10] < (datetime.now(UTC) - _AGE).isoformat()[:10]


def output(*command: str, check: bool = True) -> str:
    """Return the output of a program."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check).stdout


def old_images(folder: Path) -> Iterator[str]:
    """Yield the images and the ffmpeg that are old, or have no date."""
    text = "".join(path.read_text() for path in sorted(folder.glob("deploy/*/*.yaml")))
    pins = dict(_IMAGE.findall(text))
    for day, version in _FFMPEG.findall((folder / "deploy/container/Containerfile").read_text()):
        pins[f"ffmpeg {version}"] = day
    for name, day in pins.items():
        if not day:
            yield f"{name} has no date"
        elif is_old(day):
            yield f"{name} of {day}"


def old_python_packages(folder: Path) -> Iterator[str]:
    """Yield the packages of Python that are old."""
    text = (folder / "deploy/container/constraints.txt").read_text()
    for name, version in _PACKAGE.findall(text):
        newest = output("pip", "index", "versions", name).split("(")[1].split(")")[0]
        # This fails if all versions are newer.
        limit = f"--uploaded-prior-to=P{_AGE.days}D"
        old = output("pip", "index", "versions", limit, name, check=False)
        if version in old.partition("Available versions: ")[2].split("\n")[0].split(", "):
            yield f"{name} {version}, and the newest is {newest}"


def old_npm_packages(folder: Path) -> Iterator[str]:
    """Yield the packages of npm that are old."""
    pins = set()
    for path in (*folder.glob("*/*/package.json"), *folder.glob("*/*/*/package.json")):
        pins |= json.loads(path.read_text())["dependencies"].items()
    for name, version in sorted(pins):
        found = json.loads(output("npm", "view", name, "version", "time", "--json"))
        if is_old(found["time"][version]):
            yield f"{name} {version}, and the newest is {found['version']}"


def main(folder: Path) -> None:
    """Print a line for each old version."""
    for find in (old_images, old_python_packages, old_npm_packages):
        for line in find(folder):
            print(line, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
