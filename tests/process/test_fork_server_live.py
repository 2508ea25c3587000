"""Children of fork servers: they are what the same program is when it is started anew."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

from twisted.logger import capturedLogs

from audioproxy.process.child import Exit
from audioproxy.process.find_starter import BINARY
from audioproxy.process.fork_server import ForkServer
from tests.support.processes import open_descriptors, opened_since
from tests.support.service import PATIENCE
from tests.support.warm_programs import ENVIRONMENT, WarmCase, running_server, warnings


def state_of(pid: int) -> dict[str, Any]:
    """Return what the kernel states of a process, beyond its memory and its use of the CPU."""
    folder = Path(f"/proc/{pid}")
    status = dict(
        line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if line
    )
    names = "Name Umask PPid Uid Gid Groups NSsid Threads SigPnd SigBlk SigIgn SigCgt"
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
        for launcher in (self.launcher, self.cold_launcher):
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
        """The environment is exactly that of every child, without variables of the server (D45)."""
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
        """A request too long for a message is started anew, with a warning; the server stays."""
        warm = await self.open()
        server = running_server(warm)
        with capturedLogs() as events:
            ended = await self.run_program("print", *["x" * 10_000] * 27)
        self.assertEqual((27, 1), (ended.stdout.count(b"\0"), len(self.cold)))
        (warning,) = warnings(events)
        self.assertIn("Message too long", warning)
        self.assertEqual((server, None), (warm.server_pid, warm.obstacle))

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

    async def test_locked_output(self) -> None:
        """A program ends while another thread holds the lock of its output."""
        await self.open()
        self.assertEqual(Exit(0), await self.run_program("end", "locked"))
        self.assertEqual([], self.cold)

    async def test_zero_in_word(self) -> None:
        """A word with a zero is refused, as it would be two words to the server, which stays."""
        warm = await self.open()
        server = running_server(warm)
        for launcher in (self.launcher, self.cold_launcher):
            with self.assertRaisesRegex(ValueError, "embedded null byte"):
                launcher.launch([self.program, "print", "a\0b"], {}, PATIENCE)
        self.assertEqual((server, None), (warm.server_pid, warm.obstacle))

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
