"""Services and commands without the second that their imports take.

One process of the suite has imported the package, and forks a child for each start. A child has the
command line, variables, folder and descriptors of a new interpreter, and runs the same code.

Such children are children of the tests' process, by CLONE_PARENT of clone(2), as those of
`audioproxy.process.fork_server` are: a test signals and reaps them as any other. The process that
forks has no thread and no reactor; each child installs its own.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import json
import os
import platform
import secrets
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from tests.support.servers import Server, wait

PROJECT = Path(__file__).parents[2]

#: Command line of the ``audioproxy`` command.
COMMAND = (sys.executable, "-m", "audioproxy.cli.main")

# Modules with all that services and commands import, besides those of the command itself. An
# import of the reactor's modules does not install it.
_MODULES = (
    "audioproxy.tap",
    "audioproxy.engine.remote",
    "audioproxy.process.waveforms",
    "audioproxy.sources.https",
    "audioproxy.sources.s3",
    "audioproxy.variants.bucket_catalog",
    "audioproxy.variants.s3",
    "shtab",
    "tqdm",
    "twisted.internet.epollreactor",
    "twisted.internet.ssl",
    "twisted.plugins",
    "twisted.scripts.twistd",
)
#: Variables of the fork server alone. A child shows its own in the room of the first one, where
#: `/proc/self/environ` finds them. OpenBLAS starts a thread for each CPU otherwise.
VARIABLES = {"ROOM": " " * 16_384, "OPENBLAS_NUM_THREADS": "1"}
_LARGEST_REQUEST = 100_000
# Descriptors of a child are below this number.
_FIRST_FREE = 1000

_PID = struct.Struct("i")
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_SET_PDEATHSIG, _PR_GET_TID_ADDRESS = 1, 40


# In the process of the tests


def can_fork(command: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Return whether a fork is like a new process, for a service or the ``audioproxy`` command.

    Variables that an interpreter, the C library or the loader read when they start need a new one.
    """
    other = {name for name in variables if name.startswith(("PYTHON", "LD_", "LC_", "LANG"))}
    return (
        (tuple(command[:3]) == COMMAND or tuple(command[:2]) == (sys.executable, "-c"))
        and other == {"PYTHONPATH"}
        and variables["PYTHONPATH"] == str(PROJECT)
    )


def fork(
    command: Sequence[str],
    variables: Mapping[str, str],
    path: str | None,
    descriptors: Mapping[int, int],
) -> int:
    """Start a child of this process, and return its process ID.

    :param path: its working directory.
    :param descriptors: of this process, by their numbers in the child.
    """
    numbers = sorted(descriptors)
    words = [command, dict(variables), os.path.abspath(path or "."), numbers]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(server()[0])
        except ConnectionRefusedError:
            # It has ended in another test, which has failed.
            server()[1].kill()
            server.cache_clear()
            connection.connect(server()[0])
        sent = [descriptors[number] for number in numbers]
        socket.send_fds(connection, [json.dumps(words).encode()], sent)
        answer = connection.recv(_PID.size)
    if not answer:
        raise OSError(f"the fork server has failed: {server()[1].output_tail}")
    return int(_PID.unpack(answer)[0])


def run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a child to its end, without input; return its exit status, stdout and stderr."""
    with (
        open(os.devnull) as null,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        numbers = {number: each.fileno() for number, each in enumerate((null, out, err))}
        status = wait(fork(command, variables, None, numbers))
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()


@cache
def server() -> tuple[bytes, Server]:
    """Start the fork server, and return its address, which is no file."""
    address = b"\0audioproxy-tests-" + secrets.token_hex(8).encode()
    code = "from tests.support.preloaded import serve, take_over; take_over(serve())"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), **VARIABLES}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        words = (sys.executable, "-c", code, str(listener.fileno()))
        log = Path("preloaded.log").absolute()
        return address, Server(words, variables, log, descriptors=[listener.fileno()])


# In the fork server


def serve() -> tuple[Any, list[int]]:
    """Import everything, and fork for each request; return a request in its child."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    preload()
    fork_here = _find_fork()
    while True:
        connection, _ = listener.accept()
        data, descriptors, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 64)
        pid = fork_here()
        if not pid:
            connection.close()
            listener.close()
            return json.loads(data), descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(_PID.pack(pid))
        connection.close()


def take_over(request: tuple[Any, list[int]]) -> None:
    """Become the process of a request: run its code."""
    (command, variables, path, numbers), descriptors = request
    # It ends with the process of the tests, even if that is killed or interrupted.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Each descriptor is moved out of the way of all others first.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, _FIRST_FREE) for each in descriptors]
    os.closerange(3, _FIRST_FREE)
    for number, descriptor in zip(numbers, moved, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if "LISTEN_FDS" in variables:
        variables.setdefault("LISTEN_PID", str(os.getpid()))
    # Python has set LC_CTYPE when it started, as it does in each new process (PEP 538).
    for name in set(os.environ) - {"LC_CTYPE"}:
        del os.environ[name]
    _show_variables(variables)
    os.environ.update(variables)
    time.tzset()
    os.chdir(path)
    main: Any = sys.modules["__main__"].__dict__
    if command[1] == "-c":
        sys.argv, sys.path[0] = ["-c", *command[3:]], ""
        exec(compile(command[2], "<string>", "exec"), main)
    else:
        module = sys.modules[command[2]]
        sys.argv, sys.path[0] = [str(module.__file__), *command[3:]], path
        sys.exit(module.main())


def preload() -> None:
    """Import what services and commands need, but no reactor, which each fork installs itself."""
    from audioproxy import cli

    for name in (
        *_MODULES,
        *(each.name for each in walk_packages(cli.__path__, f"{cli.__name__}.")),
    ):
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules, "an import has installed the reactor"
    assert len(os.listdir("/proc/self/task")) == 1, "an import has started a thread"
    assert tempfile.tempdir is None, "an import has read TMPDIR"
    gc.collect()
    gc.freeze()


def _find_fork() -> Any:
    """Return a function as `os.fork`, whose child is a child of this process's parent."""
    # These keep the interpreter's lock, which fork(3) would keep too.
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
    address = ctypes.c_void_p()
    flags = _CLONE_PARENT | signal.SIGCHLD
    # Where the C library keeps the thread's ID; some kernels do not tell.
    if not libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        flags |= _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID
    number, last = (
        (56, (address, None)) if platform.machine() == "x86_64" else (220, (None, address))
    )
    libc.syscall.restype = ctypes.c_long
    clone = partial(libc.syscall, *map(ctypes.c_long, (number, flags, 0, 0)), *last)

    def fork_here() -> int:
        python.PyOS_BeforeFork()
        pid = int(clone())
        (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
        if pid < 0:
            raise OSError("clone has failed")
        return pid

    return fork_here


def _show_variables(variables: Mapping[str, str]) -> None:
    """Write the variables where the kernel found those of this process; see proc(5) for them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    shown = b"\0".join(os.fsencode(f"{name}={value}") for name, value in variables.items())
    ctypes.memmove(start, shown[: end - start - 1].ljust(end - start, b"\0"), end - start)
