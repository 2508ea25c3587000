"""Bare ffprobe and ffmpeg: the command lines of the service, run without the service."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.programs import KEY, PROJECT, SALT, SYSTEM

#: Options ahead of a URL: FFmpeg 9 verifies certificates, and those of origins here are not known.
UNVERIFIED = ("-tls_verify", "0")
# Bytes of each read: the largest pipe buffer that an unprivileged process may set.
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Commands:
    """The two command lines of a render."""

    ffprobe: list[str]
    ffmpeg: list[str]

    def of(self, url: str) -> Commands:
        """Return the same commands with an https source, which the programs read themselves."""
        new = {"-i": url, "-protocol_whitelist": "https,tls,tcp"}

        def changed(words: list[str]) -> list[str]:
            program, *rest = [new.get(option, word) for option, word in pairwise(["", *words])]
            return [program, *UNVERIFIED, *rest]

        return Commands(changed(self.ffprobe), changed(self.ffmpeg))


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
    # The service passes the source as a descriptor.
    ((number, path),) = parts["descriptors"].items()

    def opened(words: list[str]) -> list[str]:
        return [word.replace(f"/dev/fd/{number}", path) for word in words]

    return Commands(opened(parts["ffprobe"]), opened(parts["ffmpeg"]))


def first_byte(command: Sequence[str], headers: int = 0) -> float:
    """Return the seconds from the start of ffmpeg to its first byte of audio in a pipe.

    :param headers: number of bytes of container headers, which do not count.
    """
    start = time.perf_counter()
    with _spawned(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        size = 0
        while size <= headers:
            if not (chunk := os.read(process.stdout.fileno(), _READ)):
                raise RuntimeError(f"no output from {shlex.join(command)}")
            size += len(chunk)
        took = time.perf_counter() - start
        process.kill()
    return took


def whole(command: Sequence[str]) -> float:
    """Return the seconds of a program, whose output is discarded."""
    start = time.perf_counter()
    with _spawned(command, subprocess.DEVNULL) as process:
        pass
    return _seconds(process, start)


def heard(command: Sequence[str]) -> tuple[float, int]:
    """Return the seconds of a program, and the bytes that a reader copied, as a client does."""
    start, size = time.perf_counter(), 0
    buffer = bytearray(_READ)
    with _spawned(command, subprocess.PIPE) as process:
        assert process.stdout is not None
        while count := os.readv(process.stdout.fileno(), [buffer]):
            size += count
    return _seconds(process, start), size


def children_cpu_seconds() -> float:
    """Return the CPU time of all ended children, and of theirs."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _seconds(process: subprocess.Popen[bytes], start: float) -> float:
    took = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"{process.returncode} from {process.args!r}")
    return took


def _spawned(command: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    # close_fds=False lets Python use posix_spawn, its fastest way to start a process.
    return subprocess.Popen(
        command,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
    )
