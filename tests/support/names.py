"""Names of hosts that resolve in one service and its ffmpeg, whatever the system's own say.

A bucket that is addressed by its host, as in ``bucket.s3.test``, has to resolve to this machine.
The library of Debian's package libnss-wrapper answers for names in a file, ahead of the system, in
programs that preload it. The service gives nothing of its environment to its children, so they
find programs on the PATH that preload it and become the real ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from shutil import which

from twisted.trial.unittest import SkipTest

_PROGRAMS = ("ffmpeg", "ffprobe")


def library() -> Path | None:
    """Return where the library is, if it is installed."""
    found = [
        path
        for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib")
        for pattern in ("libnss_wrapper.so", "*/libnss_wrapper.so")
        for path in Path(folder).glob(pattern)
    ]
    return found[0] if found else None


def resolving(folder: Path, names: Iterable[str], address: str = "127.0.0.1") -> dict[str, str]:
    """Return the variables of a service in which names resolve to an address.

    :param folder: a new one, for what these variables refer to.
    :raises SkipTest: where the library is missing, unless tests may not do without.
    """
    preloaded = library()
    if preloaded is None:
        problem = "There is no libnss_wrapper.so; Debian's package is libnss-wrapper."
        if os.environ.get("AUDIOPROXY_NSS_WRAPPER") == "required":
            raise AssertionError(problem)
        raise SkipTest(problem)
    programs, hosts = folder / "bin", folder / "hosts"
    programs.mkdir(parents=True)
    hosts.write_text("".join(f"{address} {name}\n" for name in names))
    variables = {"LD_PRELOAD": str(preloaded), "NSS_WRAPPER_HOSTS": str(hosts)}
    words = " ".join(f"{name}={quote(value)}" for name, value in variables.items())
    for name in _PROGRAMS:
        script = programs / name
        script.write_text(f'#!/bin/sh\n{words} exec {quote(which(name) or name)} "$@"\n')
        script.chmod(0o755)
    return {**variables, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
