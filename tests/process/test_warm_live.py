"""Programs that are linked once: their real servers, which end, fail and are replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from audioproxy.process.child import Child, Exit
from audioproxy.process.find_starter import BINARY, library_command
from audioproxy.process.spawn import SpawnFailed
from audioproxy.process.warm import WarmProgram
from tests.support.far import FarSource
from tests.support.folders import free_descriptors
from tests.support.processes import open_descriptors, opened_since
from tests.support.service import (
    PATIENCE,
    Process,
    all_children,
    is_running,
    is_stopped,
    reactor,
    until,
)
from tests.support.stand_ins import HARMLESS, THREADED, compile_library, compile_program
from tests.support.warm_programs import (
    WarmCase,
    connect,
    launcher_of,
    plain_program,
    running_server,
    warnings,
)


class ServerTests(WarmCase):
    """Servers that end, fail, and are replaced, while no start of a child fails"""

    async def assert_warm(self, warm: WarmProgram) -> None:
        """Require that the next children are forked, and work."""
        self.cold.clear()
        for _ in range(3):
            self.assertEqual(Exit(3, stdout=b"unflushed"), await self.run_program("end", "exit"))
        self.assertEqual(([], None), (self.cold, warm.obstacle))

    async def test_killed(self) -> None:
        """The end of a server, or of its spare child, is noticed with or without a request."""
        for victim, is_used in (
            ("group", True),
            ("server", True),
            ("server", False),
            ("spare", False),
        ):
            warm = await self.open()
            server = running_server(warm)
            spare = await until(lambda server=server: self.spare_of(server), "the spare child")
            with capturedLogs() as events:
                if victim == "group":
                    os.killpg(server, signal.SIGKILL)
                else:
                    # Without the group, a child that was forked ahead lives on.
                    os.kill(server if victim == "server" else spare, signal.SIGKILL)
                if is_used:
                    ended = await self.run_program("end", "exit")
                    self.assertEqual(Exit(3, stdout=b"unflushed"), ended)
                await self.until_replaced(warm, server)
            self.assertEqual(1, len(warnings(events)), warnings(events))
            await self.assert_warm(warm)
            await self.starter.close()

    def spare_of(self, server: int) -> int | None:
        """Return the child that a server has forked ahead of its request."""
        for pid in all_children():
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
            self.servers[-1].answer_timeout = 0.01
            child = self.launch("end", "exit")
            self.assertEqual(Exit(3, stdout=b"unflushed"), await child.wait())
            await self.until_replaced(warm, server)
        (warning,) = warnings(events)
        self.assertIn("does not answer", warning)
        await self.assert_warm(warm)

    async def test_far(self) -> None:
        """A source that may lack blocks is read by a forked child, and never by another one."""
        warm = self.connect(plain_program())
        self.assertTrue(await self.starter.can_preload())
        source = FarSource(b"far" * 10)
        self.addCleanup(source.close)

        def launch(descriptors: Mapping[int, int]) -> Child:
            words = [self.program, "follow", "read:3:3"]
            return self.launcher.launch(words, descriptors, PATIENCE, stdout_limit=100)

        with source.inherit() as descriptors:
            ended = await launch(descriptors).wait()
            self.assertEqual(Exit(0, stdout=b"3 0\nfar"), ended)
            server = running_server(warm)
            os.killpg(server, signal.SIGKILL)
            with self.assertRaisesRegex(SpawnFailed, "is not linked now"):
                launch(descriptors)
            self.assertTrue(await self.starter.can_preload())
            self.assertNotEqual(server, running_server(warm))
            self.assertEqual(ended, await launch(descriptors).wait())
        self.assertEqual(([], [0]), (self.cold, source.questions))

    async def test_fork_fails(self) -> None:
        """A server that cannot fork says why, and forks again as soon as it can."""
        program = str(compile_program(self.folder, "-DFAILS_TO_FORK", "-rdynamic"))
        warm = await self.open(program)
        server = running_server(warm)
        with capturedLogs() as events:
            # The first two children were the trials.
            for is_cold in (True, False, False):
                self.cold.clear()
                self.assertEqual(3, (await self.run_program("end", "exit")).code)
                self.assertEqual(is_cold, bool(self.cold))
        (warning,) = warnings(events)
        self.assertIn("cannot fork: Resource temporarily unavailable", warning)
        self.assertEqual(server, warm.server_pid)

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
        refused = 0
        for spare in range(16):
            try:
                with free_descriptors(spare):
                    child = self.launch("end", "exit")
            except SpawnFailed:
                refused += 1
            else:
                self.assertEqual(3, (await child.wait()).code)
        self.assertTrue(3 < refused < 16, refused)
        self.assertEqual((set(), server), (opened_since(before), warm.server_pid))

    async def test_start_without_descriptors(self) -> None:
        """A server that lacks descriptors at its start is started again."""
        warm = self.connect(plain_program())
        for spare in range(8):
            # The module that starts the program is read at the first start.
            with free_descriptors(spare):
                self.starter.open()
            await until(lambda: warm.obstacle is None, "the server")
            await self.starter.close()

    async def test_replaced_after_upgrade(self) -> None:
        """A server is replaced when its program or a library was, and for no other change."""
        program = compile_program(self.folder, library=HARMLESS)
        warm = await self.open(str(program))

        def upgrade() -> None:
            copy = program.with_name("new")
            shutil.copy(program, copy)
            copy.rename(program)

        for change in (upgrade, lambda: compile_library(self.folder, HARMLESS)):
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
        self.assertEqual(server, warm.server_pid)


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
        self.assertIn(
            f"{always} is started anew for each child until it is linked again: a library", warning
        )
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

    async def test_streams(self) -> None:
        """A program that reads by streams of the C library gets no source that may lack blocks."""
        program = compile_program(self.folder, "-DUSES_STREAMS")
        warm = await self.open(str(program))
        with capturedLogs() as events:
            self.assertFalse(await self.starter.can_preload())
        (warning,) = warnings(events)
        self.assertIn(f"{program}: it does not read its source", warning)
        self.assertIsNone(warm.obstacle)
        self.assertEqual(3, (await self.run_program("end", "exit")).code)
        self.assertEqual([], self.cold)

    async def test_no_library(self) -> None:
        """Without the library, or with a broken one, programs are started anew."""
        binary = self.folder / "bin/audioproxy-cell"
        binary.parent.mkdir(parents=True)
        shutil.copy(BINARY, binary)
        program = plain_program()
        remedy = f"{binary}.so is missing; build it: `{library_command(f'{binary}.so')}`"
        self.assertEqual(remedy, await self.refused(program, binary))
        (warning,) = self.warned
        self.assertIn(remedy, warning)
        Path(f"{binary}.so").write_bytes(b"not a library")
        self.assertIn("not linked by the C library", await self.refused(program, binary))

    async def test_closed(self) -> None:
        """A server can be closed at any moment, and more than once; it can be opened again."""
        warm = self.connect(plain_program())
        await self.starter.close()
        await self.starter.settle()
        moments: list[Callable[[], object]] = [
            lambda: True,
            lambda: self.servers[-1].pid,
            lambda: self.processes,
            lambda: warm.obstacle is None,
        ]
        for moment in moments:
            self.processes.clear()
            self.starter.open()
            await until(moment, "the moment")
            closing = [Deferred.fromCoroutine(self.starter.close()) for _ in range(2)]
            for each in closing:
                await each
            await self.starter.settle()
            self.assertEqual([], all_children())
            self.assertEqual(3, (await self.run_program("end", "exit")).code)


class EmbeddingTests(WarmCase):
    """An application with children of its own, and several services in one process"""

    async def test_statuses(self) -> None:
        """An application gets the statuses of its own children, and the service those of its."""
        await self.open()
        for number in range(1, 4):
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
        first, _ = connect(program)
        launcher = launcher_of(first)
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
        self.assertEqual(([], server), (self.cold, second.server_pid))
