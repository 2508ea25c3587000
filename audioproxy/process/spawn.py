"""Words ahead of a child's command line: what it is to us, before it is itself."""

from __future__ import annotations

import os
import shutil
import subprocess

from twisted.logger import Logger

_SECONDS = 5

_log = Logger()


def find_parent_death_prefix() -> tuple[str, ...]:
    """Return the words that end a child when this process dies, however that happens (D40).

    The encoder writes into a file, so no broken pipe would tell it. Where util-linux is
    missing, a child of a killed service runs to its own end, into a file without a name.
    """
    leash: tuple[str, ...] = (shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL", "--")
    try:
        # Other programs of that name do not know the option.
        subprocess.run([*leash, "true"], check=True, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        _log.warn("util-linux's setpriv is not there: encoders may outlive a killed service")
        return ()
    return leash


def find_session_prefix() -> tuple[str, ...]:
    """Return the words that keep a terminal's Ctrl-C from a child.

    Encoders would get it too, which would leave the drain nothing to wait for.
    """
    setsid = shutil.which("setsid") if os.isatty(0) else None
    return () if setsid is None else (setsid,)
