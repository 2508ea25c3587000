"""Socket activation and readiness notification: sd_listen_fds(3), sd_notify(3).

Both protocols use a few environment variables, and need no library.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

from audioproxy.config.model import ConfigError, Problem

# The first descriptor that is passed follows stdin, stdout and stderr.
_FIRST_DESCRIPTOR = 3

_ADVICE = "set ListenStream= to a port, and leave Accept= out, in the socket unit"


#: Variables that are meant for this process, so its children do not inherit them.
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET")


def find_socket(environ: Mapping[str, str], pid: int) -> socket.socket | None:
    """Return the listening socket that systemd passed, or None.

    :param pid: of this process; sockets for another process are ignored.
    :raises ConfigError: for anything except one listening TCP socket.
    """
    count = environ.get("LISTEN_FDS") or "0"
    if environ.get("LISTEN_PID") != str(pid) or count == "0":
        return None
    if count != "1":
        fault = f"{count} sockets" if count.isdecimal() else "not a number"
        raise _refused(fault, "one is required: keep one ListenStream= in the socket unit")
    try:
        given = socket.socket(fileno=_FIRST_DESCRIPTOR)
    except OSError as error:
        fault = f"descriptor {_FIRST_DESCRIPTOR} is not a socket ({error.strerror})"
        raise _refused(fault, _ADVICE) from error
    # A listening socket of these address families is a stream socket.
    listening = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listening or given.family not in (socket.AF_INET, socket.AF_INET6):
        given.close()
        raise _refused(f"descriptor {_FIRST_DESCRIPTOR} is not a listening TCP socket", _ADVICE)
    given.set_inheritable(False)
    return given


def find_notifier(environ: Mapping[str, str]) -> Callable[[str], None]:
    """Return a function that sends a state to systemd, such as ``READY=1``, if systemd wants it."""
    name = environ.get("NOTIFY_SOCKET", "")
    # The name of an abstract socket begins with a NUL, which a variable cannot contain.
    address = name.replace("@", "\0", 1) if name.startswith("@") else name

    def notify(state: str) -> None:
        # A notification that fails must not stop the service.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)

    return notify if name else lambda state: None


def _refused(fault: str, wanted: str) -> ConfigError:
    return ConfigError([Problem("LISTEN_FDS", fault, wanted)])
