"""Host names that resolve in one service and its ffmpeg, independently of the system's resolver.

With virtual-hosted addressing, as in ``bucket.s3.test``, a bucket's host name has to resolve to
this machine. Debian's package libnss-wrapper has a library that reads names from a file before it
asks the system. It works in programs that preload it. Of its environment, the service passes only
PATH to its children. So the PATH has scripts that preload the library and exec the real programs.
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
    """Return the path of libnss_wrapper, or None if it is not installed."""
    found = [
        path
        for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib")
        for pattern in ("libnss_wrapper.so", "*/libnss_wrapper.so")
        for path in Path(folder).glob(pattern)
    ]
    return found[0] if found else None


def resolving(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return environment variables with which a service resolves names to 127.0.0.1.

    :param folder: a new folder for the files that the variables name.
    :raises SkipTest: if the library is missing.
    :raises AssertionError: if the library is missing although ``AUDIOPROXY_NSS_WRAPPER`` is
        "required".
    """
    preloaded = library()
    if preloaded is None:
        problem = "There is no libnss_wrapper.so; Debian's package is libnss-wrapper."
        if os.environ.get("AUDIOPROXY_NSS_WRAPPER") == "required":
            raise AssertionError(problem)
        raise SkipTest(problem)
    programs, hosts = folder / "bin", folder / "hosts"
    programs.mkdir(parents=True)
    hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in names))
    variables = {"LD_PRELOAD": str(preloaded), "NSS_WRAPPER_HOSTS": str(hosts)}
    words = " ".join(f"{name}={quote(value)}" for name, value in variables.items())
    for name in _PROGRAMS:
        script = programs / name
        script.write_text(f'#!/bin/sh\n{words} exec {quote(which(name) or name)} "$@"\n')
        script.chmod(0o755)
    return {**variables, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
