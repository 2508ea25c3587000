"""Bare ffprobe and ffmpeg: the command lines of the service, run without the service."""

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

# Bytes of each read: the largest pipe buffer that an unprivileged process may set.
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Commands:
    """The two command lines of a render."""

    ffprobe: list[str]
    ffmpeg: list[str]


def commands(root: Path, url: str) -> Commands:
    """Return the command lines of the service for a URL, with the source as a path.

    :param url: signed path.
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
    """Run ffprobe until it exits."""
    whole(command)


def first_byte(command: Sequence[str], headers: int = 0) -> float:
    """Return the seconds from the start of ffmpeg to its first byte of audio in a pipe.

    :param headers: number of bytes of container headers, which do not count.
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
    """Return the result of `whole` with a reader that copies the output, as a client does."""
    return whole(command, _read)


def whole(command: Sequence[str], take: Callable[[int], int] | None = None) -> tuple[float, int]:
    """Return the seconds that ffmpeg takes for its whole output, and the number of bytes.

    :param take: reader of the pipe; by default, the output is discarded.
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
    """Discard everything from a pipe by splice, and return the number of bytes."""
    size = 0
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        while count := os.splice(pipe, nothing, _READ):
            size += count
    finally:
        os.close(nothing)
    return size


def _spawned(command: Sequence[str]) -> subprocess.Popen[bytes]:
    # close_fds=False lets Python use posix_spawn, its fastest way to start a process.
    return subprocess.Popen(
        command,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _words(line: str) -> list[str]:
    words = shlex.split(line)
    # The service passes the source as descriptor 3. In a shell, these two words do that.
    place = words.index("3<")
    path = words[place + 1]
    return [word.replace("/dev/fd/3", path) for word in words[:place]]
