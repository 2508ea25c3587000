"""Checks of the space on disks, and of the folder of temporary files."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

from audioproxy.cli.checks.results import CheckResult, bad, good, note
from audioproxy.cli.checks.settings import place_of_variants
from audioproxy.cli.env_file import read_environment
from audioproxy.cli.output import format_bytes
from audioproxy.config import Config
from audioproxy.config.values import listed
from audioproxy.files.disk_space import DiskSpace
from audioproxy.files.scratch_files import AnonymousFile, temporary_folder
from audioproxy.files.whole_transfers import write_whole

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")


async def check_temporary_files(
    config: Config, env_file: str | None = None
) -> AsyncIterator[CheckResult]:
    folder, whose = temporary_folder(os.environ), ""
    if env_file is not None and "TMPDIR" not in read_environment({}, env_file):
        whose = f", of this shell, since {env_file} has no TMPDIR"
    try:
        with closing(AnonymousFile(folder=folder)) as file:
            write_whole(file.descriptor, bytes(4096), 0)
    except OSError as error:
        yield bad(
            "temporary files",
            f"cannot be created in {folder}{whose} ({error.strerror}); set TMPDIR to a writable"
            " directory",
        )
        return
    size, files = 0, []
    if place_of_variants(config)[0] is None:
        size += config.max_variant_bytes
        files.append("variants of AP_MAX_VARIANT_BYTES")
    if config.source_allowlist is not None:
        size += config.max_src_bytes
        files.append("https sources of AP_MAX_SRC_BYTES")
    renders = config.max_concurrency
    yield check_free_space(
        "temporary files",
        folder,
        renders * size,
        f"{renders} renders at a time (AP_MAX_CONCURRENCY), with {listed(files or ['nothing'])},",
        "free some space, set TMPDIR to a larger disk, or lower one of these settings",
        whose,
    )


def check_free_space(
    check: str, path: str, needed: int, consumers: str, advice: str, whose: str = ""
) -> CheckResult:
    """Compare the free bytes of a directory with those that renders may need.

    :param consumers: what needs the space; "may take 2 GB" follows it in the message.
    :param whose: why this directory is checked.
    """
    free = DiskSpace.of(path).free
    text = f"{path} ({filesystem_of(path)}{whose}) is writable and has {format_bytes(free)} free"
    if free < needed:
        return note(check, f"{text}; {consumers} may take {format_bytes(needed)}; {advice}")
    return good(check, text)


def filesystem_of(path: str, mounts: Path = _MOUNTS) -> str:
    """Return the kernel's name of the filesystem that contains a path."""
    found, kind = "", "filesystem unknown"
    try:
        table = mounts.read_text(errors="surrogateescape")
    except OSError:
        return kind
    target = os.path.realpath(path)
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), left.split()[4])
        # If two filesystems have the same mount point, the later mount hides the earlier one.
        if len(mount) >= len(found) and f"{target}/".startswith(f"{mount.rstrip('/')}/"):
            found, kind = mount, right.split()[0]
    return kind
