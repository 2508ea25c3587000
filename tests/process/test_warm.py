"""When servers of programs are started, replaced and started again, without real processes."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.inputs import MAP_DESCRIPTOR, QUESTIONS_DESCRIPTOR
from audioproxy.process import warm
from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.executables import read_folders
from audioproxy.process.fork_server import NotForked
from audioproxy.process.starters import UtilLinuxStarter
from audioproxy.process.warm import WarmProgram
from audioproxy.process.warm_starter import WarmStarter, warm_starter
from tests.support.processes import open_descriptors, opened_since

PROGRAM = "/usr/bin/ffmpeg"


class FakeServer:
    """Server that becomes ready and ends when a test says so.

    :ivar killed: the reasons that it was given.
    :ivar refusal: raised instead of a fork.
    """

    pid = 1
    cpu_seconds = 0.08
    refusal: NotForked | None = None

    def __init__(
        self, ready: Callable[[Any], object], ended: Callable[[Any, str], object], started: float
    ) -> None:
        self.killed: list[str] = []
        self.started = started
        self._ready, self._ended = ready, ended

    def start(self, *_: Any) -> None:
        """Do nothing."""

    def fork(self, *_: Any) -> int:
        """Return a process ID."""
        if self.refusal is not None:
            raise self.refusal
        return 2

    def kill(self, reason: str) -> None:
        """Note the reason."""
        self.killed.append(reason)

    def become_ready(self) -> None:
        """Report that the program is linked."""
        self._ready(self)

    def end(self, reason: str = "gone") -> None:
        """Report the end of the process."""
        self._ended(self, reason)


class FakeProcess:
    """Forked child whose end is an event of its own.

    :ivar signals: what it has received.
    """

    def __init__(
        self,
        reactor: object,
        protocol: ProcessProtocol,
        descriptors: Mapping[int, int | str],
        fork: Callable[[Mapping[int, int]], int],
        exited: Callable[[int], object],
    ) -> None:
        fork({})
        self.signals: list[str] = []
        self._protocol, self._exited = protocol, exited
        self._questions: socket.socket | None = None
        if (questions := descriptors.get(QUESTIONS_DESCRIPTOR)) is not None:
            assert isinstance(questions, int)
            self._questions = socket.socket(fileno=os.dup(questions))
        self._ended = False
        protocol.makeConnection(self)  # type: ignore[arg-type]

    def signalProcess(self, name: str) -> None:
        """Note a signal."""
        if self._ended:
            raise ProcessExitedAlready
        self.signals.append(name)

    def end(self, number: int = 0, *, asks: bool = True) -> None:
        """End, with output, or by a signal.

        :param asks: a child whose source lacks blocks asks for one.
        """
        self._ended = True
        if self._questions is not None:
            with self._questions as questions:
                if asks:
                    questions.send(bytes(8))
        self._exited(number)
        if not number:
            self._protocol.childDataReceived(1, b"ffmpeg version 7\n")
        error = ProcessTerminated(None, number) if number else ProcessDone(0)
        self._protocol.processEnded(Failure(error))


class FakeExecutables:
    """Files of a program.

    :ivar obstacle: why it is never linked ahead.
    :ivar looked: when that was asked for.
    :ivar versions: of files other than the first one of a path.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.obstacle: str | None = None
        self.looked: list[float] = []
        self.versions: dict[str, int] = {}

    def find_obstacle(self, program: str) -> str | None:
        self.looked.append(self._now())
        assert len(self.looked) < 100, "the delays are too short"
        return self.obstacle

    def identify(self, path: str) -> object:
        return self.versions.get(path, 0)

    def read_folders(self, pid: int | None) -> set[str]:
        return set()


class ServerCase(SynchronousTestCase):
    """`WarmProgram` with a clock, and servers that are no processes"""

    def setUp(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with a program that has no server."""
        self.clock = Clock()
        self.clock.advance(1_000_000)
        self.servers: list[FakeServer] = []
        self.processes: list[FakeProcess] = []
        self.files = FakeExecutables(lambda: self.now)
        confined = ConfinedProgram((PROGRAM,), is_script=False)
        self.cells = CellStarter("/bin/audioproxy-cell", {PROGRAM: confined})
        self.patch(warm, "executables", self.files)
        self.warm = WarmProgram(
            PROGRAM,
            self.cells,
            self.clock,
            {},
            {},
            new_server=self.new_server,
            new_process=self.new_process,
        )
        self.starter = WarmStarter(self.cells, {PROGRAM: self.warm}, is_wanted=True)

    def new_server(self, *arguments: Any) -> Any:
        """Return a server."""
        self.servers.append(FakeServer(*arguments, self.now))
        return self.servers[-1]

    def new_process(self, *arguments: Any) -> FakeProcess:
        """Return a forked child."""
        process = FakeProcess(*arguments)
        self.processes.append(process)
        return process

    @property
    def now(self) -> float:
        """Seconds since the start of the test."""
        return self.clock.seconds() - 1_000_000

    def run_next(self) -> None:
        """Let time pass until the next call is due."""
        (call,) = self.clock.getDelayedCalls()
        self.clock.advance(call.getTime() - self.clock.seconds())

    def make_ready(self, *, asks: bool = True) -> FakeServer:
        """Let the last server and its first children succeed, and return it."""
        self.servers[-1].become_ready()
        for _ in range(2):
            self.processes[-1].end(asks=asks)
        return self.servers[-1]

    def launch(self) -> bool:
        """Return whether a child was forked."""
        return self.warm.start(ProcessProtocol(), [PROGRAM], {}, {})


class ScheduleTests(ServerCase):
    """When a server is started, replaced and started again"""

    def test_replaced_while_linked(self) -> None:
        """A server of a program that was replaced meanwhile is not used."""
        self.files.versions["/proc/1/exe"] = 1
        self.warm.open()
        self.servers[-1].become_ready()
        self.assertEqual(["it was replaced while it was linked"], self.servers[-1].killed)
        self.assertFalse(self.launch())

    def test_delays(self) -> None:
        """A program that cannot be linked is tried again after delays that double."""
        self.files.obstacle = "it is a script"
        with capturedLogs() as events:
            self.warm.open()
            for _ in range(12):
                self.run_next()
        self.assertEqual([0, 0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363], self.files.looked)
        self.assertEqual([], events)
        self.files.obstacle = None
        self.run_next()
        self.make_ready()
        self.assertTrue(self.launch())

    def test_failures(self) -> None:
        """A server that ends before it is ready, or soon after, is started again, later each time.

        One warning is enough. After a minute of use, it is started at once.
        """
        ready = f"{PROGRAM} is linked once, and forked"
        lost = f"{PROGRAM} is started anew for each child until it is linked again: gone"
        for use, starts, logged in (
            (None, [0, 0, 1, 3, 7], [lost]),
            (0, [0, 0, 1, 3, 7], [ready, lost] * 4),
            (61, [0, 61, 122, 183, 244], [ready, lost] * 4),
        ):
            self.begin()
            with capturedLogs() as events:
                self.warm.open()
                for _ in range(4):
                    if use is not None:
                        self.make_ready()
                        self.clock.advance(use)
                    self.servers[-1].end()
                    self.run_next()
            self.assertEqual(starts, [server.started for server in self.servers], use)
            self.assertEqual(logged, [formatEvent(event) for event in events], use)

    def test_slow(self) -> None:
        """A server that is not ready in time is ended; the same for its first child."""
        self.warm.open()
        self.clock.advance(20)
        self.assertEqual(["it takes too long"], self.servers[-1].killed)
        self.servers[-1].end()
        self.run_next()
        self.servers[-1].become_ready()
        self.clock.advance(20)
        self.assertEqual(["it takes too long"], self.servers[-1].killed)
        self.servers[-1].end()
        self.assertEqual(["KILL"], self.processes[-1].signals)
        self.processes[-1].end(signal.SIGKILL)
        self.assertFalse(self.launch())

    def test_failed_replacement(self) -> None:
        """A server stays in use while the next one fails, and no later event ends the next one."""
        self.warm.most_forks = 1
        self.warm.open()
        first = self.make_ready()
        self.assertTrue(self.launch())
        child = self.processes[-1]
        self.servers[-1].end()
        self.run_next()
        self.servers[-1].end()
        self.assertTrue(self.launch())
        self.assertIsNone(self.warm.obstacle)
        # Another start is due in a second. A crash comes first, and adds none.
        child.end(signal.SIGSEGV)
        self.assertEqual(["a child has crashed"], first.killed)
        self.run_next()
        last = self.make_ready()
        self.clock.pump([1, 20])
        self.assertEqual((last, []), (self.servers[-1], last.killed))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_replaced_after_forks(self) -> None:
        """A server is replaced after a number of forks, and every child is forked."""
        self.warm.most_forks = 3
        self.warm.open()
        for _ in range(2):
            server = self.make_ready()
            self.assertEqual([True] * 4, [self.launch() for _ in range(4)])
            self.assertEqual([], server.killed)
            self.make_ready()
            self.assertEqual(["replaced"], server.killed)
            self.assertEqual([True] * 3, [self.launch() for _ in range(3)])

    def test_replaced_after_crash(self) -> None:
        """A server is replaced when a child has crashed, and not when it was killed."""
        self.warm.open()
        server = self.make_ready()
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU):
            self.assertTrue(self.launch())
            self.processes[-1].end(number)
        self.assertEqual([], server.killed)
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGSYS):
            self.assertTrue(self.launch())
            self.processes[-1].end(number)
            self.assertEqual(["a child has crashed"], self.servers[-1].killed)
            self.run_next()
            self.make_ready()

    def test_refusals(self) -> None:
        """A server that cannot fork for now stays; one that is lost is ended and started again."""
        self.warm.open()
        server = self.make_ready()
        with capturedLogs() as events:
            server.refusal = NotForked("it cannot fork", is_lost=False)
            for _ in range(3):
                self.assertFalse(self.launch())
            self.assertEqual((1, []), (len(events), server.killed))
            server.refusal = NotForked("it does not answer", is_lost=True)
            self.assertFalse(self.launch())
        self.assertEqual((2, ["it does not answer"]), (len(events), server.killed))
        self.run_next()
        self.make_ready()
        server.end()
        self.assertTrue(self.launch())

    def test_closed_during_a_trial(self) -> None:
        """After the end of all processes, nothing of a trial is open, and nothing starts again."""
        before = open_descriptors()
        for ended in (0, 1):
            self.begin()
            self.warm.open()
            (server,) = self.servers
            server.become_ready()
            for _ in range(ended):
                self.processes[-1].end()
            closing = Deferred.fromCoroutine(self.warm.close())
            closing.addCallback(lambda _: opened_since(before))
            self.assertEqual((["closed"], ["KILL"]), (server.killed, self.processes[-1].signals))
            server.end()
            self.assertNoResult(closing)
            self.processes[-1].end()
            self.assertEqual(set(), self.successResultOf(closing))
            self.assertEqual(([], 1), (self.clock.getDelayedCalls(), len(self.servers)))


class FarTests(ServerCase):
    """Children of sources whose blocks arrive on demand"""

    def ask(self, starter: WarmStarter | None = None) -> Deferred[bool]:
        """Return whether remote sources can be read on demand, in the future."""
        return Deferred.fromCoroutine((starter or self.starter).can_preload())

    def launch_far(self) -> None:
        """Start a child whose source may lack blocks."""
        self.starter.start(self.fail, ProcessProtocol(), [PROGRAM], {MAP_DESCRIPTOR: 0}, {})

    def assert_refused(self) -> None:
        """Require that such a child is not started in another way either."""
        error = self.assertRaises(OSError, self.launch_far)
        self.assertEqual(errno.EAGAIN, error.errno)

    def warned(self, events: Sequence[Any]) -> list[str]:
        """Return the warnings about remote sources."""
        texts = map(str, map(formatEvent, events))
        return [text for text in texts if "remote sources are copied" in text]

    def test_ready(self) -> None:
        """They are possible as soon as the program is linked, which the first question starts."""
        first, second = self.ask(), self.ask()
        self.assertNoResult(first)
        self.make_ready()
        self.assertEqual([True] * 3, [self.successResultOf(d) for d in (first, second, self.ask())])
        self.launch_far()
        self.assertEqual(3, len(self.processes))

    def test_lost(self) -> None:
        """Without a server, none is started. A question waits for one that is being linked."""
        self.ask()
        self.make_ready().end()
        self.assert_refused()
        # The next one is started at once.
        waiting = self.ask()
        self.run_next()
        self.assertNoResult(waiting)
        self.make_ready()
        self.assertTrue(self.successResultOf(waiting))
        # This one has been lost so soon that the next one has to wait.
        with capturedLogs() as events:
            self.servers[-1].end()
            self.assertEqual([False] * 2, [self.successResultOf(self.ask()) for _ in range(2)])
        (warning,) = self.warned(events)
        self.assertIn(f"{PROGRAM}: gone; AP_WARM_PROGRAMS=1", warning)
        self.assert_refused()
        with capturedLogs() as events:
            self.run_next()
            waiting = self.ask()
            self.make_ready()
            self.assertTrue(self.successResultOf(waiting))
            self.servers[-1].end()
            self.assertFalse(self.successResultOf(self.ask()))
        self.assertEqual(1, len(self.warned(events)))

    def test_does_not_ask(self) -> None:
        """A program that does not ask for blocks, or crashes, is linked for other sources only."""
        for ends in ({"asks": False}, {"number": signal.SIGSEGV}):
            waiting = self.ask()
            self.servers[-1].become_ready()
            self.processes[-1].end()
            self.processes[-1].end(**ends)
            self.assertFalse(self.successResultOf(waiting))
            self.assertTrue(self.launch())
            self.assertIsNone(self.warm.obstacle)
            self.assert_refused()
            self.starter.close_now()
            self.servers[-1].end()
            self.starter.open()

    def test_closed(self) -> None:
        """A question is answered by the end of the servers, and starts none afterwards."""
        waiting = self.ask()
        with capturedLogs() as events:
            self.starter.close_now()
            self.assertFalse(self.successResultOf(waiting))
            self.assertFalse(self.successResultOf(self.ask()))
        self.assertEqual(([], 1), (self.warned(events), len(self.servers)))

    def test_impossible(self) -> None:
        """Without a cell, or servers, one warning says why, and what is required."""
        incomplete = CellStarter("/bin/audioproxy-cell", {}, ("/x/ffprobe",))
        for cold, is_wanted, reason in (
            (UtilLinuxStarter(), True, "audioproxy-cell is missing"),
            (self.cells, False, "AP_WARM_PROGRAMS is 0"),
            (incomplete, True, "without a cell: /x/ffprobe"),
        ):
            starter = warm_starter(cold, self.clock, {}, {}, is_wanted=is_wanted)
            with capturedLogs() as events:
                for _ in range(2):
                    self.assertFalse(self.successResultOf(self.ask(starter)))
            (warning,) = self.warned(events)
            self.assertIn(f": {reason}; ", warning)


class FoldersTests(SynchronousTestCase):
    """What the maps of a process say of its libraries"""

    def read(self, *lines: str) -> Sequence[str]:
        """Return the folders of a process with these maps."""
        folder = Path(self.mktemp())
        (folder / "1").mkdir(parents=True)
        (folder / "1/exe").symlink_to(PROGRAM)
        (folder / "1/maps").write_text("\n".join(lines) + "\n")
        return sorted(read_folders(1, str(folder)))

    def test_folders(self) -> None:
        """Folders of libraries count: not that of the program, and not those of data."""
        self.assertEqual(
            ["/lib/a b", "/usr/lib"],
            self.read(
                "55d0-55d1 r-xp 00000000 08:01 1    /usr/bin/ffmpeg",
                "7f00-7f01 r-xp 00000000 08:01 2    /usr/lib/liba.so",
                "7f01-7f02 r-xp 00000000 08:01 3    /lib/a b/libb.so",
                "7f02-7f03 r--p 00000000 08:01 4    /usr/share/locale",
                "7f03-7f04 r-xp 00000000 00:00 0    [vdso]",
                "7f04-7f05 rw-p 00000000 00:00 0",
                "7f05-7f06 rw-p 00000000 00:00 0    [stack]",
            ),
        )

    def test_refused(self) -> None:
        """A library that was replaced is refused, and memory for code or for all children."""
        for line, words in (
            ("7f00-7f01 r-xp 00000000 08:01 2    /usr/lib/liba.so (deleted)", "was replaced"),
            ("7f00-7f01 rwxp 00000000 00:00 0    [stack]", "writable and executable"),
            ("7f00-7f01 rwxp 00000000 00:00 0", "writable and executable"),
            ("7f00-7f01 rw-s 00000000 00:01 9    /dev/zero (deleted)", "children would share"),
        ):
            error = self.assertRaises(ValueError, self.read, line)
            self.assertIn(words, str(error))
