"""Programs that are linked once: their real servers, and the children that these fork."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import LogLevel, capturedLogs, formatEvent

from audioproxy.process import fork_server as fork_server_module
from audioproxy.process import spawn as spawn_module
from audioproxy.process import warm as warm_module
from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.child import Child, Exit
from audioproxy.process.find_starter import BINARY
from audioproxy.process.fork_server import ForkServer
from audioproxy.process.spawn import ChildLimits, Launcher, SpawnFailed
from audioproxy.process.starters import Limits, Spawn, Starter
from audioproxy.process.warm import WarmProgram, WarmStarter, warm_starter
from tests.process.test_child_live import ENVIRONMENT, RealCase
from tests.support.processes import open_descriptors, opened_since
from tests.support.programs import FFMPEG
from tests.support.service import (
    PATIENCE,
    PROJECT,
    Process,
    children,
    is_running,
    is_stopped,
    reactor,
    until,
)
from tests.support.stand_ins import ENDLESS, HARMLESS, THREADED, compile_library, compile_program

LIMITS = ChildLimits(1 << 30)
# A service that starts its reactor after its servers, and has a child that it has forked itself,
# with copies of its sockets. It prints the IDs of that child and of one that waits.
SERVICE = """
import os, sys, time
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from tests.process.test_warm_live import LIMITS, connect
warm, launcher = connect(sys.argv[1])
warm.open()

async def launch():
    await warm.settle()
    child = launcher.launch([sys.argv[1], "wait"], {}, 1000, stdout_limit=100)
    own = os.fork()
    if not own:
        time.sleep(1000)
    print(own, child.protocol.pid, flush=True)

Deferred.fromCoroutine(launch()).addErrback(lambda failure: print(failure, flush=True))
reactor.run()
"""


class RecordingStarter:
    """Starter of children without a server.

    :ivar commands: what it has started.
    """

    def __init__(self, starter: Starter) -> None:
        self.commands: list[Sequence[str]] = []
        self._starter = starter

    def start(
        self,
        spawn: Spawn,
        protocol: ProcessProtocol,
        command: Sequence[str],
        descriptors: Mapping[int, int | str],
        limits: Limits,
    ) -> None:
        """Start a child, and note its command line."""
        self.commands.append(command)
        self._starter.start(spawn, protocol, command, descriptors, limits)


def connect(program: str, binary: Path = BINARY) -> tuple[WarmStarter, Launcher]:
    """Return a starter that is not open, with one program, and a launcher that uses it."""
    cells = CellStarter(str(binary), {program: ConfinedProgram.of(program)})
    warm = warm_starter(cells, reactor, ENVIRONMENT, LIMITS.of_child(PATIENCE, None))
    warm._cold = RecordingStarter(cells)  # type: ignore[assignment]
    return warm, Launcher(reactor, reactor, ENVIRONMENT, warm, LIMITS)


@cache
def plain_program() -> str:
    """Return a stand-in, compiled once for all tests in trial's working folder."""
    return str(compile_program(Path("stand-in").resolve()))


class WarmCase(RealCase):
    """A stand-in with a server.

    No test waits for a server that is slow, except for those that never answer.
    """

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        # The first child opens descriptors that stay open.
        await self.start(["/bin/true"]).wait()
        self.patch(fork_server_module, "_ANSWER_TIMEOUT", PATIENCE)
        self.patch(warm_module, "_START_TIMEOUT", PATIENCE)
        # The number of threads of this machine changes.
        self.patch(spawn_module, "_count_threads", lambda: 100)
        self.folder = Path(self.mktemp()).resolve()

    def connect(self, program: str, binary: Path = BINARY) -> WarmProgram:
        """Use a program, which is not started, and return it.

        At the end of the test, no process and no descriptor may be left.
        """
        before = open_descriptors()
        self.program = program
        self.starter, self.launcher = connect(program, binary)

        async def close() -> None:
            await self.starter.close()
            self.assertEqual(([], set()), (children(), opened_since(before)))

        self.addCleanup(close)
        (warm,) = self.starter.programs.values()
        return warm

    async def open(self, program: str | None = None) -> WarmProgram:
        """Use a program, by default the stand-in, and wait for its server."""
        warm = self.connect(program or plain_program())
        self.starter.open()
        await self.starter.settle()
        return warm

    def launch(self, *words: str, **options: Any) -> Child:
        """Start the program."""
        return self.launcher.launch(
            [self.program, *words], {}, PATIENCE, stdout_limit=1 << 20, **options
        )

    async def run_program(self, *words: str) -> Exit:
        """Run the program to its end."""
        return await self.launch(*words).wait()

    async def run_cold(self, *words: str) -> Exit:
        """Run the program to its end, without its server."""
        return (
            await self.cold_launcher()
            .launch([self.program, *words], {}, PATIENCE, stdout_limit=1 << 20)
            .wait()
        )

    def cold_launcher(self) -> Launcher:
        """Return a launcher that uses no server."""
        return Launcher(reactor, reactor, ENVIRONMENT, self.starter._cold, LIMITS)

    @property
    def cold(self) -> list[Sequence[str]]:
        """What was started without a server."""
        starter: Any = self.starter._cold
        return starter.commands  # type: ignore[no-any-return]

    async def waiting(self, child: Child) -> int:
        """Wait until a child waits; return its process ID. It is killed at the end of the test."""

        async def kill() -> None:
            child.kill()
            await child.wait()

        self.addCleanup(kill)
        await until(lambda: child.protocol._stdout.data == b"waiting\n", "the child to wait")
        assert child.protocol.pid is not None
        return child.protocol.pid

    async def until_replaced(self, warm: WarmProgram, server: int) -> None:
        """Wait until a server has ended, and another one is in use."""
        await until(lambda: not is_running(server), "the end of the server")
        await until(lambda: server_of(warm) not in (None, server), "the next server")


def server_of(warm: WarmProgram) -> int | None:
    """Return the process ID of the server in use."""
    return None if warm._current is None else warm._current.pid


def running_server(warm: WarmProgram) -> int:
    """Return the process ID of the server in use, which there has to be."""
    pid = server_of(warm)
    assert pid is not None, warm.obstacle
    return pid


def warnings(events: Sequence[Any]) -> list[str]:
    """Return the text of all warnings and errors."""
    serious = (LogLevel.warn, LogLevel.error, LogLevel.critical)
    return [str(formatEvent(event)) for event in events if event["log_level"] in serious]


def state_of(pid: int) -> dict[str, Any]:
    """Return what the kernel states of a process, beyond its memory and its use of the CPU."""
    folder = Path(f"/proc/{pid}")
    status = dict(
        line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if line
    )
    names = "Name Umask PPid Uid Gid Groups NSsid Threads SigQ SigPnd SigBlk SigIgn SigCgt"
    names += " CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters"
    links = {path.name: os.readlink(path) for path in (folder / "fd").iterdir()}
    return {
        **{name: status[name] for name in names.split() if name in status},
        "limits": (folder / "limits").read_text(),
        "nice": os.getpriority(os.PRIO_PROCESS, pid),
        "policy": os.sched_getscheduler(pid),
        "cpus": os.sched_getaffinity(pid),
        "leads": os.getpgid(pid) == pid,
        "cwd": os.readlink(folder / "cwd"),
        "root": os.readlink(folder / "root"),
        "exe": os.readlink(folder / "exe"),
        "oom": (folder / "oom_score_adj").read_text(),
        "words": (folder / "cmdline").read_bytes().rstrip(b"\0"),
        "descriptors": {name: re.sub(r"\[\d+\]", "", link) for name, link in sorted(links.items())},
    }


class ChildTests(WarmCase):
    """A forked child is what the same program is when it is started anew"""

    async def both(self, *words: str) -> tuple[Exit, Exit]:
        """Run the program by a fork and anew, and return how both ended."""
        warm = await self.run_program(*words)
        self.assertEqual([], self.cold)
        cold = await self.run_cold(*words)
        self.cold.clear()
        return warm, cold

    async def test_state(self) -> None:
        """Descriptors, limits, identity, rights, signals, niceness and folders are the same."""
        await self.open()
        source = os.open(self.program, os.O_RDONLY)
        self.addCleanup(os.close, source)
        os.set_inheritable(source, True)
        states = []
        for launcher in (self.launcher, self.cold_launcher()):
            child = launcher.launch(
                [self.program, "wait", "for me"], {3: source, 7: source}, PATIENCE,
                stdout_limit=100, output_limit=5_000_000,
            )  # fmt: skip
            states.append(state_of(await self.waiting(child)))
        warm, cold = states
        self.assertEqual(1, len(self.cold))
        self.assertEqual(cold, warm)
        self.assertEqual(
            {"0": "/dev/null", "1": "pipe:", "2": "pipe:", "3": self.program, "7": self.program},
            warm["descriptors"],
        )
        self.assertEqual(("1", True), (warm["NoNewPrivs"], warm["leads"]))
        self.assertIn("5000000", warm["limits"])

    async def test_variables(self) -> None:
        """The environment is that of every child, without the variables of the server."""
        await self.open()
        warm, cold = await self.both("variables")
        self.assertEqual(cold, warm)
        lines = warm.stdout.decode().splitlines()
        self.assertEqual("plain", lines.pop())
        self.assertEqual(ENVIRONMENT, dict(line.split("=", 1) for line in lines))

    async def test_words(self) -> None:
        """Words arrive as they are: empty ones, many, and those that are not ASCII or UTF-8."""
        await self.open()
        words = ["", "ä Ω 𝄞", "\udcff", "two\nlines", *map(str, range(2000)), "x" * 100_000, ""]
        warm, cold = await self.both("print", *words)
        self.assertEqual(cold, warm)
        self.assertEqual([*map(os.fsencode, words), b""], warm.stdout.split(b"\0"))
        self.assertEqual(b"to stderr", warm.stderr)

    async def test_long_command_line(self) -> None:
        """A request too long for a message is started anew, and the server stays."""
        warm = await self.open()
        server = running_server(warm)
        for length, is_cold in ((250_000, False), (270_000, True), (280_000, True)):
            words = ["x" * 10_000] * (length // 10_000)
            with capturedLogs() as events:
                ended = await self.run_program("print", *words)
            self.assertEqual((len(words), 0), (ended.stdout.count(b"\0"), ended.code))
            self.assertEqual(is_cold, bool(self.cold))
            # One warning is enough.
            expected = ["Message too long"] if length == 270_000 else []
            for text, found in zip(expected, warnings(events), strict=True):
                self.assertIn(text, found)
            self.cold.clear()
        self.assertEqual((server, None), (server_of(warm), warm.obstacle))

    async def test_shown_command_line(self) -> None:
        """`ps` shows each child's own command line; of a very long one, the beginning."""
        await self.open()
        for words in ([], ["short"], ["long"] * 3000, ["word" * 3000]):
            pid = await self.waiting(self.launch("wait", *words))
            shown = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
            whole = "\0".join([self.program, "wait", *words]).encode()
            self.assertEqual(whole[: max(8192, len(shown))], shown)
            self.assertEqual("stand-in\n", Path(f"/proc/{pid}/comm").read_text())
        self.assertEqual([], self.cold)

    async def test_names(self) -> None:
        """What assertions print, the name of the program, is right."""
        await self.open()
        warm, cold = await self.both("names")
        self.assertEqual(cold, warm)
        self.assertEqual([self.program, self.program, "stand-in"], warm.stdout.decode().split())

    async def test_getopt(self) -> None:
        """A program that uses getopt(3) finds it as at its start."""
        await self.open()
        warm, cold = await self.both("options", "-a", "word", "-b")
        self.assertEqual((b"ab", cold), (warm.stdout, warm))

    async def test_ends(self) -> None:
        """Exit status, signal and output are those of the program, however it ends."""
        await self.open()
        for way, code, output in (
            ("return", 6, b"unflushed"),
            ("exit", 3, b"unflushed"),
            ("thread", 0, b"unflushed"),
            ("pthread_exit", 0, b"unflushed late"),
            ("quick_exit", 5, b""),
            ("_exit", 4, b""),
        ):
            warm, cold = await self.both("end", way)
            self.assertEqual((Exit(code, stdout=output), cold), (warm, warm), way)
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU):
            warm, cold = await self.both("raise", str(number.value))
            self.assertEqual((Exit(None, number), cold), (warm, warm))

    async def test_random_serials(self) -> None:
        """Children of ffmpeg choose different serial numbers of Ogg streams."""
        await self.open(shutil.which("ffmpeg"))
        serials = []
        for _ in range(4):
            words = ["-v", "error", "-f", "lavfi", "-i", "anullsrc", "-t", "0.1"]
            ended = await self.run_program(*words, "-c:a", "flac", "-f", "ogg", "pipe:1")
            self.assertEqual((0, b"OggS"), (ended.code, ended.stdout[:4]), ended)
            serials.append(ended.stdout[14:18])
        self.assertEqual((4, []), (len(set(serials)), self.cold))

    async def test_random_handshakes(self) -> None:
        """Children of ffmpeg begin TLS handshakes with different random numbers.

        Remote sources are started anew. So this asks the server itself, without a cell.
        """
        warm = await self.open(shutil.which("ffmpeg"))
        assert warm._current is not None
        found = set()
        with socket.create_server(("127.0.0.1", 0)) as listener, open(os.devnull, "r+b") as null:
            listener.settimeout(PATIENCE)
            url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
            for _ in range(4):
                descriptors = dict.fromkeys((0, 1, 2), null.fileno())
                pid = warm._current.fork(["-k", "--", FFMPEG, "-i", url], descriptors)
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(PATIENCE)
                    hello = connection.recv(43, socket.MSG_WAITALL)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                # RFC 8446, section 4.1.2: 32 random bytes follow the two versions.
                self.assertEqual((22, 1), (hello[0], hello[5]))
                found.add(hello[11:43])
        self.assertEqual(4, len(found))


class ServerTests(WarmCase):
    """Servers that end, fail, and are replaced, while no start of a child fails"""

    async def assert_warm(self, warm: WarmProgram) -> None:
        """Require that the next children are forked, and work."""
        self.cold.clear()
        for _ in range(3):
            self.assertEqual(Exit(3, stdout=b"unflushed"), await self.run_program("end", "exit"))
        self.assertEqual(([], None), (self.cold, warm.obstacle))

    async def test_killed(self) -> None:
        """A child is started in spite of a killed server. One warning says so; another starts."""
        for whole_group in (True, False):
            warm = await self.open()
            for _ in range(2):
                server = running_server(warm)
                with capturedLogs() as events:
                    # Without the group, a child that was forked ahead lives on.
                    (os.killpg if whole_group else os.kill)(server, signal.SIGKILL)
                    ended = await self.run_program("end", "exit")
                    self.assertEqual(Exit(3, stdout=b"unflushed"), ended)
                    await self.until_replaced(warm, server)
                self.assertEqual(1, len(warnings(events)), warnings(events))
                await self.assert_warm(warm)
            await self.starter.close()

    async def test_noticed(self) -> None:
        """The end of a server is noticed without a request, and so is that of its spare child."""
        warm = await self.open()
        for is_spare in (False, True):
            server = running_server(warm)
            spare = await until(lambda server=server: self.spare_of(server), "the spare child")
            with capturedLogs() as events:
                os.kill(spare if is_spare else server, signal.SIGKILL)
                await self.until_replaced(warm, server)
            self.assertEqual(1, len(warnings(events)), warnings(events))
            await self.assert_warm(warm)

    def spare_of(self, server: int) -> int | None:
        """Return the child that a server has forked ahead of its request."""
        for pid in children():
            if pid != server and is_running(pid) and os.getpgid(pid) == server:
                return pid
        return None

    async def test_stopped(self) -> None:
        """A stopped server is ended after a moment, and the child started without it."""
        warm = await self.open()
        server = running_server(warm)
        os.killpg(server, signal.SIGSTOP)
        await until(lambda: is_stopped(server), "the stop")
        with capturedLogs() as events:
            with patch.object(fork_server_module, "_ANSWER_TIMEOUT", 0.01):
                child = self.launch("end", "exit")
            self.assertEqual(Exit(3, stdout=b"unflushed"), await child.wait())
            await self.until_replaced(warm, server)
        (warning,) = warnings(events)
        self.assertIn("does not answer", warning)
        await self.assert_warm(warm)

    async def test_fork_fails(self) -> None:
        """A server that cannot fork says why, and forks again as soon as it can."""
        program = str(compile_program(self.folder, "-DFAILS_TO_FORK", "-rdynamic"))
        warm = await self.open(program)
        server = running_server(warm)
        with capturedLogs() as events:
            # The first child was the trial.
            for is_cold in (False, True, False, False):
                self.cold.clear()
                self.assertEqual(3, (await self.run_program("end", "exit")).code)
                self.assertEqual(is_cold, bool(self.cold))
        (warning,) = warnings(events)
        self.assertIn("cannot fork: Resource temporarily unavailable", warning)
        self.assertEqual(server, server_of(warm))

    async def test_child_killed(self) -> None:
        """A child that is killed while it is claimed is replaced by one that is started anew."""
        warm = await self.open()
        server = running_server(warm)

        def set_group(pid: int, group: int) -> None:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        with capturedLogs() as events:
            with patch.object(os, "setpgid", set_group):
                child = self.launch("end", "exit")
            self.assertEqual(Exit(3, stdout=b"unflushed"), await child.wait())
            await self.until_replaced(warm, server)
        (warning,) = warnings(events)
        self.assertIn("a child was killed", warning)

    async def test_no_descriptors_left(self) -> None:
        """Without enough free descriptors, nothing is lost but the child."""
        warm = await self.open()
        server = running_server(warm)
        before = open_descriptors()
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        refused = 0
        for spare in range(16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, limits[1]))
            try:
                child = self.launch("end", "exit")
            except SpawnFailed:
                refused += 1
            else:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                self.assertEqual(3, (await child.wait()).code)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertTrue(3 < refused < 16, refused)
        self.assertEqual((set(), server), (opened_since(before), server_of(warm)))

    async def test_start_without_descriptors(self) -> None:
        """A server that lacks descriptors at its start is started again."""
        warm = self.connect(plain_program())
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(8):
            # The module that starts the program is read at the first start.
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, limits[1]))
            try:
                self.starter.open()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await until(lambda: warm.obstacle is None, "the server")
            await self.starter.close()

    async def test_no_descriptors_for_trial(self) -> None:
        """A server that cannot be tried for lack of descriptors is started again."""
        fails = [True, True]
        fork = WarmProgram._fork

        def exhausted(*arguments: Any) -> None:
            if fails:
                fails.pop()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            fork(*arguments)

        self.patch(WarmProgram, "_fork", exhausted)
        warm = await self.open()
        self.assertIn("Too many open files", str(warm.obstacle))
        await until(lambda: warm.obstacle is None, "the server")

    async def test_replaced_after_forks(self) -> None:
        """A server is replaced after a number of forks, and every child is forked."""
        self.patch(warm_module, "_MOST_FORKS", 3)
        warm = await self.open()
        for _ in range(2):
            server = running_server(warm)
            for _ in range(3):
                self.assertEqual(server, server_of(warm))
                self.assertEqual(3, (await self.run_program("end", "exit")).code)
            await self.until_replaced(warm, server)
        self.assertEqual(([], None), (self.cold, warm.obstacle))

    async def test_replaced_after_crash(self) -> None:
        """A server is replaced when a child has crashed, and not when it was killed."""
        warm = await self.open()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU):
            server = running_server(warm)
            await self.run_program("raise", str(number.value))
            self.assertEqual(server, server_of(warm))
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGSYS):
            server = running_server(warm)
            ended = await self.run_program("raise", str(number.value))
            self.assertEqual(number, ended.signal)
            await self.until_replaced(warm, server)
        await self.assert_warm(warm)

    async def test_replaced_after_upgrade(self) -> None:
        """A server is replaced when its program or a library was, and for no other change."""
        program = compile_program(self.folder, library=HARMLESS)
        warm = await self.open(str(program))

        def upgrade() -> None:
            copy = program.with_name("new")
            shutil.copy(program, copy)
            copy.rename(program)

        for change in (
            upgrade,
            lambda: os.utime(program),
            lambda: compile_library(self.folder, HARMLESS),
        ):
            server = running_server(warm)
            with capturedLogs() as events:
                change()
                # This one is started anew.
                self.assertEqual(3, (await self.run_program("end", "exit")).code)
                self.assertEqual(1, len(self.cold))
                await self.until_replaced(warm, server)
            self.assertEqual([], warnings(events))
            await self.assert_warm(warm)
        server = running_server(warm)
        program.with_name("other").write_bytes(b"")
        await self.assert_warm(warm)
        self.assertEqual(server, server_of(warm))

    async def test_removed(self) -> None:
        """A program that was removed cannot be started, and is linked again when it is back."""
        program = compile_program(self.folder)
        warm = await self.open(str(program))
        program.rename(self.folder / "away")
        with self.assertRaises(SpawnFailed):
            ended = await self.run_program("end", "exit")
            self.assertTrue(ended.never_ran)
            raise SpawnFailed
        self.assertIn("cannot be read (No such file or directory)", str(warm.obstacle))
        (self.folder / "away").rename(program)
        await until(lambda: warm.obstacle is None, "the next server")
        await self.assert_warm(warm)

    async def test_service_killed(self) -> None:
        """Nothing outlives a killed service, even if a process that it has forked does."""
        service = Process()
        reactor.spawnProcess(
            service,
            sys.executable,
            [sys.executable, "-c", SERVICE, plain_program()],
            {**ENVIRONMENT, "PYTHONPATH": str(PROJECT)},
        )
        self.addCleanup(service.signal, signal.SIGKILL)
        found = await service.printed(r"(\d+) (\d+)\n", "the process IDs")
        own, child = map(int, found.groups())
        # The server, its spare child, the child, and the one that the service has forked itself.
        started = await until(
            lambda: len(found := children(service.pid)) == 4 and found, "the processes"
        )
        self.assertTrue({own, child} < set(started))
        service.signal(signal.SIGKILL)
        for pid in set(started) - {own}:
            await until(lambda pid=pid: not is_running(pid), "the end of a process")
        self.assertTrue(is_running(own))
        os.kill(own, signal.SIGKILL)
        # It has held the pipes.
        await service.end()


class ObstacleTests(WarmCase):
    """Programs that have no server, and the reason that is given"""

    async def refused(self, program: Path | str, binary: Path = BINARY) -> str:
        """Return why a program has no server."""
        warm = self.connect(str(program), binary)
        with capturedLogs() as events:
            self.starter.open()
            await self.starter.settle()
        self.warned = warnings(events)
        await self.starter.close()
        return str(warm.obstacle)

    async def test_threads(self) -> None:
        """A program whose libraries start threads is started anew, unless they obey a variable."""
        always = compile_program(self.folder / "always", "-DALWAYS=1", library=THREADED)
        self.assertIn("started threads", await self.refused(always))
        (warning,) = self.warned
        self.assertIn(f"{always} is linked at each start, which is slow: a library", warning)
        self.assertEqual(3, (await self.run_program("end", "exit")).code)
        obeys = compile_program(self.folder / "obeys", "-DALWAYS=0", library=THREADED)
        warm = await self.open(str(obeys))
        self.assertIsNone(warm.obstacle)
        pid = await self.waiting(self.launch("wait"))
        self.assertEqual(1, len(os.listdir(f"/proc/{pid}/task")))

    async def test_headers(self) -> None:
        """Scripts, static programs, and those of other machines are started anew, in silence."""
        script = self.folder / "script"
        static = compile_program(self.folder / "static", "-static")
        foreign, short = self.folder / "foreign", self.folder / "short"
        header = bytearray(Path(plain_program()).read_bytes())
        # EM_S390, in the field e_machine.
        header[18:20] = (22).to_bytes(2, "little")
        script.write_text("#!/bin/sh\nexit 3\n")
        for path, data in ((foreign, bytes(header)), (short, b"\x7fELF")):
            path.write_bytes(data)
        for path, words in (
            (script, "script"),
            (static, "statically"),
            (foreign, "another machine"),
            (short, "script, or a program for another machine"),
            (self.folder / "missing", "No such file"),
        ):
            self.assertIn(words, await self.refused(path))
            self.assertEqual([], self.warned)

    async def test_never_linked(self) -> None:
        """A program that is not linked in time is started anew."""
        self.patch(warm_module, "_START_TIMEOUT", 0.01)
        program = compile_program(self.folder, library=ENDLESS)
        self.assertEqual("it takes too long", await self.refused(program))

    async def test_fails(self) -> None:
        """A program whose main fails is started anew, and the reason has what it prints."""
        for action, reason in (
            ('fputs("broken", stderr); return 7', "exit code 7.*broken"),
            ("abort()", "signal 6"),
            ("return 0", "a child fails"),
        ):
            program = compile_program(self.folder, f"-DON_VERSION={action}")
            self.assertRegex(await self.refused(program), reason)
            self.assertEqual(1, len(self.warned), self.warned)

    async def test_hangs(self) -> None:
        """A program whose main hangs is started anew, and the one that hangs is ended."""
        program = compile_program(self.folder, "-DON_VERSION=pause()")
        warm = self.connect(str(program))
        self.starter.open()
        # Not before that: the test is about the child.
        await until(lambda: warm._trial in warm._running, "the first child")
        trial: Any = warm._trial
        pid = trial.transport.pid
        warm._call.reset(0)  # type: ignore[union-attr]
        await self.starter.settle()
        self.assertEqual("it takes too long", warm.obstacle)
        await until(lambda: not is_running(pid), "the end of the first child")

    async def test_no_library(self) -> None:
        """Without the library, or with a broken one, programs are started anew."""
        binary = self.folder / "bin/audioproxy-cell"
        binary.parent.mkdir(parents=True)
        shutil.copy(BINARY, binary)
        program = plain_program()
        self.assertEqual("No such file or directory", await self.refused(program, binary))
        (warning,) = self.warned
        self.assertIn("No such file or directory", warning)
        Path(f"{binary}.so").write_bytes(b"not a library")
        self.assertIn("not linked by the C library", await self.refused(program, binary))

    async def test_closed(self) -> None:
        """A server can be closed at any moment, and more than once; it can be opened again."""
        warm = self.connect(plain_program())
        await self.starter.close()
        await self.starter.settle()
        moments: list[Callable[[], object]] = [
            lambda: True,
            lambda: warm._next is not None and warm._next.pid,
            lambda: warm._trial in warm._running,
            lambda: warm.obstacle is None,
        ]
        for moment in moments:
            self.starter.open()
            await until(moment, "the moment")
            closing = [Deferred.fromCoroutine(self.starter.close()) for _ in range(2)]
            for each in closing:
                await each
            await self.starter.settle()
            self.assertEqual([], children())
            self.assertEqual(3, (await self.run_program("end", "exit")).code)


class EmbeddingTests(WarmCase):
    """An application with children of its own, and several services in one process"""

    async def test_statuses(self) -> None:
        """An application gets the statuses of its own children, and the service those of its."""
        await self.open()
        for number in range(1, 6):
            child = self.launch("wait")
            pid = await self.waiting(child)
            other = os.fork()
            if not other:
                os._exit(10 + number)
            process = Process()
            reactor.spawnProcess(process, "/bin/sh", ["sh", "-c", f"exit {20 + number}"], {})
            ended = self.launch("raise", str(signal.SIGKILL.value))
            shell = subprocess.run(["sh", "-c", f"exit {30 + number}"])
            self.assertEqual(Exit(None, signal.SIGKILL), await ended.wait())
            self.assertEqual(30 + number, shell.returncode)
            self.assertEqual(20 + number, await process.end())
            self.assertEqual(10 + number, os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
            self.assertTrue(child.is_running)
            os.kill(pid, signal.SIGTERM)
            self.assertEqual(Exit(None, signal.SIGTERM, stdout=b"waiting\n"), await child.wait())
        self.assertEqual([], self.cold)

    async def test_two_services(self) -> None:
        """Two services have a server each, and the end of one leaves the other as it is."""
        program = plain_program()
        first, launcher = connect(program)
        first.open()
        await first.settle()
        child = launcher.launch([program, "wait"], {}, PATIENCE, stdout_limit=100)
        second = await self.open()
        server = running_server(second)
        self.assertNotEqual(server, running_server(first.programs[program]))
        await self.waiting(child)
        await first.close()
        # The children of the first one run on.
        self.assertTrue(child.is_running)
        self.assertEqual(3, (await self.run_program("end", "exit")).code)
        self.assertEqual(([], server), (self.cold, server_of(second)))


class ServerProtocolTests(WarmCase):
    """One server, which a test starts by itself"""

    def test_unknown_program(self) -> None:
        """A server that cannot be started leaves no descriptor open."""
        before = open_descriptors()

        def spawn(*_: Any) -> None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        server = ForkServer(lambda _: None, lambda *_: None)
        for library in (f"{BINARY}.so", "/nowhere"):
            self.assertRaises(OSError, server.start, spawn, library, ["/nowhere"])
        self.assertEqual(set(), opened_since(before))
