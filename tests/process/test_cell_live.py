"""What hostile code can do in a cell: `tests.support.hostile` has the attempts."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from socketserver import (
    BaseRequestHandler,
    ThreadingTCPServer,
    ThreadingUDPServer,
    ThreadingUnixStreamServer,
)
from typing import IO, Any, TypeAlias

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.trial.unittest import SkipTest, TestCase

from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.child_limits import ChildLimits
from audioproxy.process.executables import find_obstacle
from audioproxy.process.find_starter import find_starter
from audioproxy.process.fork_server import VARIABLES, ForkServer
from tests.support import hostile
from tests.support.far import FarSource
from tests.support.servers import wait
from tests.support.service import PATIENCE, TEST_PATIENCE, reactor

MEMORY, OUTPUT_LIMIT = 64 << 20, 1 << 20
LIMITS = ChildLimits(MEMORY).of_child(PATIENCE, OUTPUT_LIMIT)
# The interpreter itself, not the link of a virtual environment.
PYTHON = os.path.realpath(sys.executable)
# Descriptor 3 is the program, which the interpreter opens by its path, as ffmpeg opens a source.
SOURCE = [PYTHON, "-I", "-S", "/dev/fd/3"]
# Modules of the interpreter that are libraries: all that this process has imported.
EXTENSIONS = [
    path
    for module in list(sys.modules.values())
    if (path := getattr(module, "__file__", None) or "").startswith(
        sysconfig.get_config_var("DESTSHARED")
    )
]
# How the kernel refuses what a cell forbids. An attempt that fails in another way proves nothing,
# except for these: they reach a limit, the filter ends them, or Python has its own error for it.
REFUSALS = {"EACCES", "EPERM", "ENOSYS"}
OTHER_REFUSALS = {
    "descriptors": "EMFILE",
    "grow_output": "EFBIG",
    "heap": "MemoryError()",
    "i386_abi": f"ended with {-signal.SIGSYS}",
    "locked": "ENOMEM",
    # The library that reads the source lets nothing map it.
    "map_source_as_code": "ENODEV",
    "raise_limit": "ValueError('not allowed to raise maximum limit')",
    # The descriptor of the map is closed.
    "read_map": "EBADF",
    "read_only_memory": "ENOMEM",
    "share_map": "EBADF",
    "shared_source": "ENODEV",
    "write_map": "ENOENT",
}

#: Runs attempts: the path of the output, and the arguments of the attempts.
Run: TypeAlias = Callable[[str, list[str]], subprocess.CompletedProcess[bytes]]

# Python 3.14 creates a callback when ctypes is imported. A linked program has no memory for its
# code, and no attempt calls it.
CALLBACKS = b"""
#include <stdlib.h>
void *ffi_closure_alloc(size_t size, void **code) { return *code = calloc(1, size); }
void ffi_closure_free(void *closure) { free(closure); }
"""

# Prints the rights of the only map of a source, and why it cannot be written.
UNPROTECT = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
(line,) = [line for line in open("/proc/self/maps") if "memfd:map" in line]
start, rights = int(line.partition("-")[0], 16), line.split()[1]
assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(1), 3)
print(rights, errno.errorcode[ctypes.get_errno()], file=sys.stderr)
"""

VICTIM = """
import ctypes, os, signal, sys
secret = ctypes.create_string_buffer(os.environ["SECRET"].encode())
signals = open(sys.argv[2], "ab", buffering=0)
signal.signal(signal.SIGURG, lambda *_: signals.write(b"."))
print(ctypes.addressof(secret), os.open(sys.argv[3], os.O_RDONLY), flush=True)
while True:
    signal.pause()
"""


class Echo(BaseRequestHandler):
    """Returns what it receives."""

    def handle(self) -> None:
        server: Any = self.server
        if isinstance(self.request, tuple):
            received, peer = self.request
            peer.sendto(received, self.client_address)
        else:
            received = self.request.recv(4096)
            self.request.sendall(received)
        server.received.append(received)


class Fixture:
    """Files, servers and a process of the same user, which hostile code could reach.

    :ivar targets: the argument of the attempts.
    :ivar received: what the servers have received.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.received: list[bytes] = []
        secret, unique = secrets.token_hex(), f"hostile-{secrets.token_hex(4)}"
        for folder in ("/tmp", "/dev/shm"):
            stack.callback(Path(folder, unique).unlink, missing_ok=True)
        (self.folder / "files").mkdir()
        for name in hostile.ATTEMPTS:
            self._write(f"files/{name}", secret)
        names = ("variant", "other", "settings", "home", "replaced", "signals")
        paths = {name: self._write(name, secret) for name in names}
        self.source = self._write("source", Path(hostile.__file__).read_text("utf-8"))
        (self.folder / "link").symlink_to(paths["variant"])
        self.victim = subprocess.Popen(
            [PYTHON, "-I", "-S", "-c", VICTIM, secret, paths["signals"], paths["other"]],
            env={"SECRET": secret},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        stack.callback(self.victim.communicate)
        stack.callback(self.victim.kill)
        assert self.victim.stdout is not None
        address, descriptor = self.victim.stdout.readline().split()
        local = ("127.0.0.1", 0)
        unix = str(self.folder / "socket")
        self._serve(ThreadingUnixStreamServer, unix)
        self.targets = {
            **paths,
            "numbers": hostile.system_calls(),
            "secret": secret,
            "unique": unique,
            "source": self.source,
            # Whether blocks of the source arrive on demand
            "far": False,
            "link": str(self.folder / "link"),
            "files": str(self.folder / "files"),
            "port": self._serve(ThreadingTCPServer, local),
            "udp_port": self._serve(ThreadingUDPServer, local),
            "unix": unix,
            "parent": os.getpid(),
            "victim": self.victim.pid,
            # A fork server and another child of it, if the attempts run in a child
            "server": self.victim.pid,
            "sibling": self.victim.pid,
            "victim_address": int(address),
            "victim_fd": int(descriptor),
            "memory": MEMORY,
            "address_space": LIMITS["as"][0],
            "output_limit": OUTPUT_LIMIT,
        }

    def _write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def _serve(self, kind: Any, address: Any) -> int:
        server = self._stack.enter_context(kind(address, Echo))
        server.received = self.received
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self._stack.callback(server.shutdown)
        return int(server.server_address[1]) if isinstance(address, tuple) else 0

    def state(self) -> list[Any]:
        """Return what hostile code might change."""
        pid, paths = self.victim.pid, sorted(self.folder.rglob("*"))
        fields = ("st_mode", "st_uid", "st_size", "st_mtime_ns", "st_nlink")
        return [
            [(path, *(getattr(path.lstat(), field) for field in fields)) for path in paths],
            [os.listxattr(path, follow_symlinks=False) for path in paths],
            self.victim.poll(),
            os.getpriority(os.PRIO_PROCESS, pid),
            (os.sched_getaffinity(pid), os.sched_getscheduler(pid), os.getpgid(pid)),
        ]

    def execute(self, output: str, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Execute a command line with the descriptors of a child.

        :param output: the path of its output.
        """
        shell = ["sh", "-c", 'exec </dev/null 3<"$0" >"$1"; shift; exec "$@"']
        return subprocess.run(
            [*shell, self.source, output, *command],
            stderr=subprocess.PIPE,
            process_group=self.victim.pid,
            timeout=PATIENCE,
        )

    def fork(
        self,
        server: ForkServer,
        output: str,
        words: Sequence[str],
        descriptors: Mapping[int, int] = {},
    ) -> subprocess.CompletedProcess[bytes]:
        """Fork a child of a linked program, with the same descriptors.

        :param descriptors: further ones, or others in their place.
        """
        with ExitStack() as stack:
            files: list[IO[bytes]] = [
                stack.enter_context(open(path, mode))
                for path, mode in ((os.devnull, "rb"), (output, "wb"), (self.source, "rb"))
            ]
            stdin, stdout, source = (file.fileno() for file in files)
            errors = stack.enter_context(tempfile.TemporaryFile())
            wanted = {0: stdin, 1: stdout, 2: errors.fileno(), 3: source, **descriptors}
            status = wait(server.fork(words, wanted))
            errors.seek(0)
            return subprocess.CompletedProcess(words, status, stderr=errors.read())

    def attempt(self, run: Run) -> dict[str, str]:
        """Run all attempts, and return the outcome of each by its name."""
        outcomes: dict[str, str] = {}
        while len(outcomes) < len(hostile.ATTEMPTS):
            with tempfile.NamedTemporaryFile() as output:
                ended = run(output.name, [json.dumps(self.targets), str(len(outcomes))])
                lines = output.read(OUTPUT_LIMIT).partition(b"\0")[0].decode().splitlines()
            if not lines:
                raise AssertionError(ended)
            # An attempt that ends the process leaves a line without an outcome.
            for name, outcome in (line.split("\t") for line in lines):
                outcomes[name] = outcome or f"ended with {ended.returncode}"
        return outcomes


@cache
def outside() -> set[str]:
    """Return the attempts that succeed without a cell."""
    with ExitStack() as stack:
        fixture = Fixture(stack)
        return succeeded(
            fixture.attempt(lambda output, words: fixture.execute(output, [*SOURCE, *words]))
        )


def succeeded(outcomes: dict[str, str]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome == hostile.SUCCEEDED}


class CellCase(TestCase):
    """Arbitrary code in the place of ffmpeg."""

    def setUp(self) -> None:
        starter, shortcomings = find_starter([], LIMITS, {})
        if not isinstance(starter, CellStarter) or shortcomings:
            raise SkipTest(f"the cell is incomplete: {shortcomings}")
        self.cells = replace(starter, programs={PYTHON: ConfinedProgram.of(PYTHON)})
        stack = ExitStack()
        self.addCleanup(stack.close)
        self.fixture = Fixture(stack)

    def inside(self, run: Run) -> set[str]:
        """Return the attempts that succeed in a cell; check that they change nothing.

        At least 150 attempts succeed without a cell, as the user that runs the test.
        """
        self.assertGreaterEqual(len(outside()), 150)
        before = self.fixture.state()
        outcomes = self.fixture.attempt(run)
        self.assertEqual(before, self.fixture.state())
        failed = {name: outcomes[name] for name in outside() - succeeded(outcomes)}
        others = {name: why for name, why in failed.items() if why not in REFUSALS}
        odd = dict(others.items() - OTHER_REFUSALS.items())
        self.assertEqual({}, odd, "failed for another reason than the cell")
        return succeeded(outcomes)


class CellTests(CellCase):
    """What is executed by ``audioproxy-cell``"""

    def test_local(self) -> None:
        """With a local source, a program can load code and read libraries, and nothing else."""

        def execute(output: str, words: list[str]) -> subprocess.CompletedProcess[bytes]:
            command = self.cells.command_line([*SOURCE, *words], [3], LIMITS)
            return self.fixture.execute(output, command)

        self.assertEqual(set(hostile.LOADING), self.inside(execute))
        self.assertEqual([], self.fixture.received)


class LinkedTests(CellCase):
    """What is forked by a fork server"""

    timeout = TEST_PATIENCE

    async def link(self, prefix: Sequence[str] = ()) -> ForkServer:
        """Link the interpreter, with all modules that the attempts import: it can load none.

        :param prefix: the words ahead of the command line, of a program that is not preloaded.
        """
        callbacks = str(self.fixture.folder / "callbacks.so")
        words = ["cc", "-shared", "-fPIC", "-o", callbacks, "-x", "c", "-"]
        subprocess.run(words, input=CALLBACKS, check=True, timeout=PATIENCE)
        ready: Deferred[ForkServer] = Deferred()
        ended: Deferred[str] = Deferred()

        def end(_: ForkServer, reason: str) -> None:
            ended.callback(reason)
            if not ready.called:
                ready.errback(AssertionError(reason))

        def spawn(
            protocol: ProcessProtocol, command: Sequence[str], descriptors: Mapping[int, int | str]
        ) -> None:
            preloaded = os.pathsep.join((VARIABLES["LD_PRELOAD"], callbacks, *EXTENSIONS))
            environment = {**VARIABLES, "LD_PRELOAD": preloaded}
            if prefix:
                settings = (f"{name}={value}" for name, value in environment.items())
                command, environment = [*prefix, "env", *settings, *command], dict(os.environ)
            reactor.spawnProcess(protocol, command[0], command, environment, childFDs=descriptors)

        server = ForkServer(ready.callback, end, PATIENCE)
        server.start(spawn, self.cells.library, self.cells.server_command(PYTHON, {}))

        async def close() -> None:
            server.kill("closed")
            await ended

        self.addCleanup(lambda: Deferred.fromCoroutine(close()))
        return await ready

    def fork_sibling(self, server: ForkServer) -> int:
        """Fork a child that waits until the end of the test, and return its process ID."""
        with open(os.devnull, "r+b") as null:
            words = ["-k", "--", PYTHON, "-I", "-S", "-c", "import signal; signal.pause()"]
            pid = server.fork(words, dict.fromkeys(range(3), null.fileno()))
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        return pid

    async def attempt(self, descriptors: Mapping[int, int], **targets: object) -> None:
        """Require that no attempt succeeds, and that no server receives anything.

        :param descriptors: those of the source.
        """
        server = await self.link()
        sibling = self.fork_sibling(server)
        self.fixture.targets |= {"server": server.pid, "sibling": sibling, **targets}

        def fork(output: str, words: list[str]) -> subprocess.CompletedProcess[bytes]:
            request = self.cells.request([*SOURCE, *words], {3, *descriptors}, LIMITS)
            at = request.index("--")
            request[at:at] = ["-r", sysconfig.get_path("stdlib")]
            return self.fixture.fork(server, output, request, descriptors)

        self.assertEqual(set(), self.inside(fork))
        self.assertEqual([], self.fixture.received)

    async def test_linked(self) -> None:
        """With a local source, no attempt succeeds."""
        await self.attempt({})

    async def test_far(self) -> None:
        """With a remote source, whose blocks arrive on demand, no attempt succeeds either."""
        source = FarSource(Path(self.fixture.source).read_bytes())
        self.addCleanup(source.close)
        for block in range(source.blocks):
            source.put(block)
        with source.inherit() as descriptors:
            await self.attempt(descriptors, far=True)
        self.assertEqual((True, []), (source.is_intact(), source.questions))

    async def test_mapped(self) -> None:
        """Without Landlock and filters, too, a child cannot make its map of a source writable."""
        server = await self.link()
        source = FarSource(b"x")
        self.addCleanup(source.close)
        words = ["-k", "-m", "--", PYTHON, "-I", "-S", "-c", UNPROTECT]
        with source.inherit() as descriptors:
            ended = self.fixture.fork(server, os.devnull, words, descriptors)
        self.assertEqual((0, b"r--s EACCES\n"), (ended.returncode, ended.stderr))

    async def test_hidden(self) -> None:
        """Without Landlock and filters, too, a child cannot open the memory of its server."""
        # As in a cell, root has no capability to do so.
        prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if not os.getuid() else []
        server = await self.link(prefix)
        sibling = self.fork_sibling(server)
        code = "import os, sys; os.open(sys.argv[1], os.O_WRONLY)"
        words = ["-k", "--", PYTHON, "-I", "-S", "-c", code]
        of_sibling, of_server = (
            self.fixture.fork(server, os.devnull, [*words, f"/proc/{pid}/mem"])
            for pid in (sibling, server.pid)
        )
        if of_sibling.returncode:
            raise SkipTest("this machine hides the memory of all other processes")
        self.assertIn(b"PermissionError", of_server.stderr)

    def test_embedded(self) -> None:
        """Programs are linked ahead in applications that embed Python, too."""
        self.patch(sys, "executable", "")
        self.assertIsNone(find_obstacle(PYTHON))
