"""The machine and the versions of a run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.peers import NGINX
from bench.programs import AUDIOWAVEFORM, FFMPEG, FOLDER, OWN_FFMPEG

_PACKAGES = ("audioproxy", "twisted", "aiohttp", "uvloop")


def machine() -> dict[str, str]:
    """Return a description of this machine."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "CPU": cpu[1] if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "filesystem": printed(["findmnt", "-no", "FSTYPE", "--target", FOLDER], r"\S+"),
        "load at the end": f"{os.getloadavg()[0]:.2f}",
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "?"),
    }


def ffmpeg_version() -> str:
    """Return the version of the system's ffmpeg."""
    return printed([FFMPEG, "-version"], r"version (\S+)")


def versions() -> dict[str, str]:
    """Return the version of each program and package that was measured."""
    return {
        "Python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "ffmpeg": ffmpeg_version(),
        "own ffmpeg": printed([OWN_FFMPEG / "ffmpeg", "-version"], r"version (\S+)"),
        "nginx": printed([NGINX, "-v"], r"nginx/(\S+)"),
        "wrk": printed(["wrk", "--version"], r"wrk \S*?([\d.]+\S*)"),
        "audiowaveform": printed([AUDIOWAVEFORM or "audiowaveform", "--version"], r"v?(\d\S+)"),
    }


def today() -> str:
    """Return the date of today."""
    return datetime.now(UTC).date().isoformat()


def printed(command: Sequence[str | Path], pattern: str) -> str:
    """Return the part of a command's output that a pattern matches, such as a version."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return "not installed"
    found = re.search(pattern, ended.stdout + ended.stderr)
    return found[found.lastindex or 0] if found else "?"
