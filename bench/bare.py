"""The bare programs: the very command lines that the service would run, without the service."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.programs import KEY, PROJECT, SALT, SYSTEM

# What a pipe holds at the most for anybody, and how much is read of it at once.
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Commands:
    """The two programs of a render."""

    ffprobe: list[str]
    ffmpeg: list[str]


def commands(root: Path, url: str) -> Commands:
    """Return what the service would run for a URL, with the source by its path.

    :param url: signed.
    """
    environment = {
        "PATH": SYSTEM,
        "AP_KEY": KEY.hex(),
        "AP_SALT": SALT.hex(),
        "AP_LOCAL_ROOT": str(root),
    }
    program = Path(sys.executable).with_name("audioproxy")
    ended = subprocess.run(
        [program, "explain", "--json", url],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        check=True,
    )
    parts = json.loads(ended.stdout)
    return Commands(_words(parts["ffprobe"]), _words(parts["ffmpeg"]))


def probe(command: Sequence[str]) -> None:
    """Run ffprobe to its end."""
    whole(command)


def first_byte(command: Sequence[str], headers: int = 0) -> float:
    """Return the seconds from the start of ffmpeg to its first byte out of a pipe.

    :param headers: so many bytes are nothing to hear yet.
    """
    start = time.perf_counter()
    with _spawned(command) as process:
        assert process.stdout is not None
        size = 0
        while size <= headers:
            if not (chunk := os.read(process.stdout.fileno(), _READ)):
                raise RuntimeError(f"no output from {shlex.join(command)}")
            size += len(chunk)
        took = time.perf_counter() - start
        process.kill()
    return took


def heard(command: Sequence[str]) -> tuple[float, int]:
    """Return the same as `whole` where somebody reads the output, as a client of ours does."""
    return whole(command, _read)


def whole(command: Sequence[str], take: Callable[[int], int] | None = None) -> tuple[float, int]:
    """Return the seconds that ffmpeg takes for all of its output, and how many bytes that is.

    :param take: what takes the output out of a pipe, by default for nothing at all.
    """
    start = time.perf_counter()
    with _spawned(command) as process:
        assert process.stdout is not None
        size = (take or discard)(process.stdout.fileno())
    if process.returncode:
        raise RuntimeError(f"{process.returncode} from {shlex.join(command)}")
    return time.perf_counter() - start, size


def _read(pipe: int) -> int:
    size = 0
    buffer = bytearray(_READ)
    while count := os.readv(pipe, [buffer]):
        size += count
    return size


def discard(pipe: int) -> int:
    """Take all that comes out of a pipe, as cheaply as there is, and return how much it was."""
    size = 0
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        while count := os.splice(pipe, nothing, _READ):
            size += count
    finally:
        os.close(nothing)
    return size


def _spawned(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # close_fds=False is what lets Python take posix_spawn, its quickest way.
    return subprocess.Popen(
        command,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _words(line: str) -> list[str]:
    words = shlex.split(line)
    # The service hands the source over as descriptor 3, which a shell does by these two words.
    place = words.index("3<")
    path = words[place + 1]
    return [word.replace("/dev/fd/3", path) for word in words[:place]]
