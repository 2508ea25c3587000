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

from bench.peers import BIN, NGINX
from bench.programs import AUDIOWAVEFORM, FFMPEG, FOLDER, OWN_FFMPEG

_PEERS = ("aiohttp", "uvloop", "thumbor", "supysonic")


def machine() -> dict[str, str]:
    """Return a description of this machine."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "CPU": cpu[1] if cpu else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "filesystem": _said(["findmnt", "-no", "FSTYPE", "--target", FOLDER], r"\S+"),
        "load, at the beginning": f"{os.getloadavg()[0]:.2f}",
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "?"),
    }


def versions() -> dict[str, str]:
    """Return the version of each program and package that was measured."""
    programs: dict[str, tuple[Sequence[str | Path], str]] = {
        "ffmpeg": ([FFMPEG, "-version"], r"version (\S+)"),
        "ffmpeg, the project's own": ([OWN_FFMPEG / "ffmpeg", "-version"], r"version (\S+)"),
        "nginx": ([NGINX, "-v"], r"nginx/(\S+)"),
        "wrk": (["wrk", "--version"], r"wrk \S*?([\d.]+\S*)"),
        "audiowaveform": ([AUDIOWAVEFORM or "audiowaveform", "--version"], r"v?(\d\S+)"),
    }
    return {
        "audioproxy": version("audioproxy"),
        "Python": platform.python_version(),
        "Twisted": version("twisted"),
        **{name: _said(*how) for name, how in programs.items()},
        **{name: _said(_asked(name), r"\S+") for name in _PEERS},
    }


def today() -> str:
    """Return the date of today."""
    return datetime.now(UTC).date().isoformat()


def _asked(package: str) -> list[str | Path]:
    words = f"from importlib.metadata import version; print(version({package!r}))"
    return [BIN / "python", "-c", words]


def _said(command: Sequence[str | Path], pattern: str) -> str:
    """Return the version in the output of a command."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except FileNotFoundError:
        return "not installed"
    found = re.search(pattern, ended.stdout + ended.stderr)
    return found[found.lastindex or 0] if found and "Traceback" not in ended.stderr else "?"
