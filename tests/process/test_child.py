"""One child process: how its end is reported, and how it is stopped."""

from __future__ import annotations

import re
import signal

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.observe.log_context import set_request_id
from audioproxy.process.child import Child, ChildTimeout, Exit, describe_exit
from audioproxy.process.spawn import Launcher, SpawnFailed
from audioproxy.process.starters import Starter, UtilLinuxStarter
from tests.support.http import Log
from tests.support.processes import FakeSpawner
from tests.support.stores import FakeSourceFile


class ChildTests(SynchronousTestCase):
    """`Launcher.launch` and `Child`"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)
        self.log = Log()
        self.addCleanup(self.log.start())

    def start(
        self,
        starter: Starter | None = None,
        stdout_limit: int = 10,
        keep_pattern: re.Pattern[bytes] | None = None,
        timeout: float = 5,
    ) -> Child:
        """Start a child."""
        return Launcher(self.spawner, self.clock, {"A": "b"}, starter or UtilLinuxStarter()).launch(
            ["ffmpeg", "-x"], {}, timeout, stdout_limit=stdout_limit, keep_pattern=keep_pattern
        )

    def wait(self, child: Child) -> Deferred[Exit]:
        """Wait for the end of a child."""
        return Deferred.fromCoroutine(child.wait())

    @property
    def signals(self) -> list[str]:
        """The signals that the last child received."""
        return self.spawner.last.signals

    def tearDown(self) -> None:
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_command(self) -> None:
        """The command line of the starter is run; stdout is captured up to a limit (D40)."""
        for limit, piped in ((1, {1, 2}), (0, {2})):
            self.start(UtilLinuxStarter(setpriv="setpriv"), stdout_limit=limit)
            last = self.spawner.last
            self.assertEqual(
                last.arguments, ["setpriv", "--pdeathsig", "KILL", "--", "ffmpeg", "-x"]
            )
            self.assertEqual((last.environment, last.piped), ({"A": "b"}, piped))

    def test_not_started(self) -> None:
        """`on_spawn_failure` is called only if a program cannot be executed (D34)."""
        failures: list[None] = []
        launcher = Launcher(
            self.spawner, self.clock, {}, on_spawn_failure=lambda: failures.append(None)
        )
        for code, count in ((0, 0), (1, 0), (126, 1), (127, 2)):
            launcher.launch(["x"], {}, 5)
            self.spawner.last.exit_and_end(code)
            self.assertEqual(count, len(failures), code)
        # A lack of descriptors is temporary, and not a fault of the program.
        for error in (FileNotFoundError(2, "No such file"), OSError(24, "Too many open files")):
            self.spawner.refusal = error
            self.assertRaises(SpawnFailed, launcher.launch, ["x"], {}, 5)
            self.assertEqual(3, len(failures), error)
        self.spawner.refusal = None
        source = FakeSourceFile({3: -1})
        self.assertRaises(SpawnFailed, launcher.launch, ["x"], {}, 5, source=source)

    def test_exits(self) -> None:
        """An exit status or a signal is reported, and only exit status 0 is a success."""
        nameless = signal.SIGRTMIN + 2
        for code, number, text in (
            (0, None, "exit status 0"),
            (7, None, "exit status 7"),
            (None, 9, "ended by SIGKILL"),
            (None, nameless, f"ended by signal {nameless}"),
        ):
            child = self.start()
            waiting = self.wait(child)
            self.spawner.last.exit_and_end(code or 0, number, stdout=b"out", stderr=b"err")
            ended = self.successResultOf(waiting)
            self.assertEqual(ended, Exit(code, number, b"out", b"err"))
            self.assertEqual((ended.ok, describe_exit(ended)), (code == 0, text))
            self.assertEqual(ended, self.successResultOf(self.wait(child)))

    def stderr(self, data: bytes, keep_pattern: re.Pattern[bytes] | None = None) -> bytes:
        """Return what is reported of a child's stderr, which arrives in many pieces."""
        waiting = self.wait(self.start(keep_pattern=keep_pattern))
        for start in range(0, len(data), 4096):
            self.spawner.last.write_stderr(data[start : start + 4096])
        self.spawner.last.exit_and_end()
        return self.successResultOf(waiting).stderr

    def test_kept_stderr(self) -> None:
        """Lines that match the pattern are kept before the last output, up to 2 KiB."""
        pattern, noise = re.compile(rb"lost \d"), b"noise\n" * 4000
        text = b"well\nlost 1\n" + noise + b"lost 2\n" + noise + b"the cause"
        found = self.stderr(text, pattern)
        self.assertTrue(found.startswith(b"lost 1\nlost 2\nnoise\n"), found[:80])
        self.assertTrue(found.endswith(b"noise\nthe cause"))
        self.assertLess(len(found), 9000)
        length = len(self.stderr(b"lost 1\n" * 100_000, pattern))
        self.assertTrue(8192 + 2000 < length <= 8192 + 2048 + len(b"lost 1\n"), length)

    def test_endless_stderr(self) -> None:
        """After a megabyte of stderr, half a megabyte a second is read, until the child exits."""
        child = self.start(timeout=60)
        waiting, pipe = self.wait(child), self.spawner.last.pipes[2]

        def read() -> int:
            count = 0
            while pipe.is_read:
                self.assertIsNotNone(child.read_stderr())
                self.spawner.last.write_stderr(b"x" * 8192)
                count += 8192
            self.assertIsNone(child.read_stderr())
            return count

        self.assertEqual(read(), 1 << 20)
        for _ in range(8):
            self.clock.advance(0.1)
            self.assertFalse(pipe.is_read)
            self.clock.advance(0.025)
            self.assertEqual(read(), 1 << 16)
        self.spawner.last.exit(7)
        self.assertTrue(pipe.is_read)
        self.spawner.last.end()
        self.assertEqual(self.successResultOf(waiting), Exit(7, stderr=b"x" * 8192))

    def test_stderr_that_goes_on(self) -> None:
        """A child that prints on while its stderr is read does not keep the reader."""
        child = self.start()
        printed = self.spawner.last
        self.patch(printed.pipes[2], "doRead", lambda: printed.write_stderr(b"x"))
        self.assertEqual({ord("x")}, set(child.read_stderr() or b""))

    def test_reports(self) -> None:
        """Reports of an encoder displace no other line, and split none; the last one is kept."""
        report = b"size=  %dkB time=00:00:0%d.00 bitrate= 8.0kbits/s speed=  9x    "
        # A report interrupts the line of another thread, and may arrive in pieces.
        pieces = [
            b"[eval] ",
            report % (1, 1) + b"\r",
            b"0.5\nlost",
            report % (2, 2),
            b"\r the end\n",
        ]
        waiting = self.wait(self.start())
        for piece in pieces + [report % (4, 4) + b"\r"] * 1000 + [report % (5, 5) + b"\n"]:
            self.spawner.last.write_stderr(piece)
        self.clock.advance(5)
        self.spawner.last.exit_and_end()
        self.assertEqual(
            self.failureResultOf(waiting, ChildTimeout).value.status, report % (5, 5) + b"\n"
        )
        found = self.stderr(b"".join(pieces))
        self.assertEqual(found, b"[eval] 0.5\nlost the end\n")

    def test_stdout_limit(self) -> None:
        """A child is stopped if its stdout exceeds the limit; output past it is not read."""
        for more, overflowed in ((b"45", False), (b"456", True)):
            waiting = self.wait(self.start(stdout_limit=5))
            self.spawner.last.write_stdout(b"123")
            self.spawner.last.write_stdout(more)
            self.assertEqual(self.signals, ["TERM"] * overflowed)
            self.assertEqual(self.spawner.last.stdout_closed, overflowed)
            self.spawner.last.exit_and_end()
            ended = self.successResultOf(waiting)
            self.assertEqual((ended.stdout, ended.overflowed), (b"12345", overflowed))
            self.assertEqual(ended.ok, not overflowed)

    def test_pipes_held_open(self) -> None:
        """A second after the exit the pipes are closed, and the status is kept."""
        waiting = self.wait(self.start())
        self.spawner.last.exit(3)
        self.clock.advance(0.9)
        self.assertFalse(self.spawner.last.pipes_closed)
        self.clock.advance(0.1)
        self.assertTrue(self.spawner.last.pipes_closed)
        self.spawner.last.end()
        self.assertEqual(self.successResultOf(waiting).code, 3)

    def test_request_of_a_timer(self) -> None:
        """A timer logs with the id of the request that started the child (D54)."""

        async def request() -> None:
            set_request_id("abc")
            Deferred.fromCoroutine(self.start(timeout=1).wait()).addErrback(lambda _: None)

        Deferred.fromCoroutine(request())
        self.clock.pump([1, 2, 5])
        self.assertEqual(["abc"], [event.get("request_id") for event in self.log.events])
        self.spawner.last.exit_and_end(signal=9)

    def test_escalation(self) -> None:
        """At the deadline a child gets TERM, and two seconds later KILL; then it is awaited.

        One that survives this for 5 s is logged, once.
        """
        for cancelled in (False, True):
            self.log.events.clear()
            child = self.start()
            waiting = self.wait(child)
            self.spawner.last.pid = 77
            for seconds, signals in (
                (4.9, []),
                (0.1, ["TERM"]),
                (1.9, ["TERM"]),
                (0.1, ["TERM", "KILL"]),
                (4.9, ["TERM", "KILL"]),
            ):
                self.clock.advance(seconds)
                if signals:
                    child.stop()
                self.assertEqual((signals, []), (self.signals, self.log.texts))
            self.clock.advance(0.1)
            error = "child 77 survived SIGKILL; waiting for its end"
            self.assertEqual((self.log.texts, self.clock.getDelayedCalls()), ([error], []))
            if cancelled:
                waiting.cancel()
            self.clock.advance(1000)
            self.assertNoResult(waiting)
            self.assertEqual(self.signals, ["TERM", "KILL"])
            self.spawner.last.exit_and_end(signal=9)
            self.failureResultOf(waiting, CancelledError if cancelled else ChildTimeout)
            self.assertEqual(self.log.texts, [error])

    def test_cancelled_again(self) -> None:
        """A wait cancelled repeatedly ends when the child is dead; other waits get its exit."""
        child = self.start()
        waiting, other = self.wait(child), self.wait(child)
        for _ in range(3):
            waiting.cancel()
            self.assertNoResult(waiting)
        self.assertEqual(self.signals, ["TERM"])
        self.spawner.last.exit(signal=15)
        waiting.cancel()
        self.assertNoResult(waiting)
        self.spawner.last.end()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.successResultOf(other).signal, 15)

    def test_stop_after_exit(self) -> None:
        """Stopping or killing a child that has just exited, or has ended, is harmless."""
        child = self.start()
        waiting = self.wait(child)
        for event in (self.spawner.last.exit, self.spawner.last.end):
            event()
            child.stop()
            child.kill()
        self.assertTrue(self.successResultOf(waiting).ok)
        self.assertEqual(self.log.texts, [])

    def test_signal_refused(self) -> None:
        """A signal that the system refuses to deliver is logged as an error."""
        child = self.start()
        self.spawner.last.refusal = PermissionError("not yours")
        child.kill()
        self.assertEqual(self.log.texts, ["cannot signal a child: not yours"])
