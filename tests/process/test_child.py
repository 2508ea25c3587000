"""One child process: how it starts, how it ends, and what it inherits."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase, TestCase

from audioproxy.log_context import set_request_id
from audioproxy.process import child as child_module
from audioproxy.process.child import Child, ChildTimeout, Exit, describe_exit
from audioproxy.process.spawn import Launcher, SpawnFailed
from tests.support.http import Log as EventLog
from tests.support.processes import FakeSpawner, open_descriptors

ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}


class RealCase(TestCase):
    """Real child processes of the real reactor."""

    timeout = 20

    def setUp(self) -> None:
        self.launcher = Launcher(reactor, reactor, ENVIRONMENT)

    def start(
        self,
        arguments: Sequence[str],
        descriptors: Mapping[int, int] | None = None,
        stdout_limit: int = 65536,
    ) -> Child:
        """Start a program."""
        return self.launcher.launch(arguments, descriptors or {}, stdout_limit=stdout_limit)

    async def run_python(
        self,
        source: str,
        descriptors: Mapping[int, int] | None = None,
        stdout_limit: int = 65536,
        keep_pattern: re.Pattern[bytes] | None = None,
    ) -> Exit:
        """Run a Python program to its end."""
        child = self.launcher.launch(
            [sys.executable, "-c", source],
            descriptors or {},
            stdout_limit=stdout_limit,
            keep_pattern=keep_pattern,
        )
        return await child.wait(15)

    async def run_shell(self, source: str, stdout_limit: int = 65536) -> Exit:
        """Run a shell program to its end."""
        return await self.start(["/bin/sh", "-c", source], {}, stdout_limit).wait(15)


class EndTests(RealCase):
    """How a child ends"""

    async def test_success(self) -> None:
        """Exit status 0 is a success, and all output is read."""
        ended = await self.run_shell("echo out; echo err >&2")
        self.assertEqual(ended, Exit(code=0, stdout=b"out\n", stderr=b"err\n"))
        self.assertTrue(ended.ok)

    async def test_status(self) -> None:
        """A nonzero exit status is reported unchanged."""
        ended = await self.run_shell("exit 7")
        self.assertEqual((ended.code, ended.signal, ended.ok), (7, None, False))
        self.assertEqual(describe_exit(ended), "exit status 7")

    async def test_signal(self) -> None:
        """A child that was ended by a signal has no exit status."""
        ended = await self.run_shell("kill -9 $$")
        self.assertEqual((ended.code, ended.signal, ended.ok), (None, 9, False))
        self.assertEqual(describe_exit(ended), "ended by SIGKILL")

    async def test_nameless_signal(self) -> None:
        """A signal without a name is reported by its number."""
        number = signal.SIGRTMIN + 2
        ended = await self.run_shell(f"kill -{number} $$")
        self.assertEqual(ended.signal, number)
        self.assertEqual(describe_exit(ended), f"ended by signal {number}")

    async def test_long_stderr(self) -> None:
        """The last 8 KiB of stderr are kept, from the first whole word."""
        ended = await self.run_python(
            "import sys; sys.stderr.write('x' * 300000 + ' ' + 'y' * 8000 + 'the cause')"
        )
        self.assertEqual(ended.stderr, b"y" * 8000 + b"the cause")
        self.assertTrue(ended.ok)

    async def test_kept_stderr(self) -> None:
        """Lines that match the pattern are kept before the last output, up to a limit."""
        ended = await self.run_python(
            "import sys; say = sys.stderr.write\n"
            "say('well\\nlost 1\\n' + 'noise\\n' * 4000 + 'lost 2\\n' + 'noise\\n' * 4000)\n"
            "say('the cause')",
            keep_pattern=re.compile(rb"lost \d"),
        )
        self.assertTrue(ended.stderr.startswith(b"lost 1\nlost 2\nnoise\n"), ended.stderr[:80])
        self.assertTrue(ended.stderr.endswith(b"noise\nthe cause"))
        self.assertLess(len(ended.stderr), 9000)
        ended = await self.run_python(
            "import sys; sys.stderr.write('lost 1\\n' * 100000)",
            keep_pattern=re.compile(rb"lost \d"),
        )
        self.assertLess(len(ended.stderr), 11000)

    async def test_stdout_up_to_the_limit(self) -> None:
        """Output of exactly the stdout limit is not an overflow."""
        ended = await self.run_shell("printf 12345", stdout_limit=5)
        self.assertEqual((ended.stdout, ended.overflowed, ended.ok), (b"12345", False, True))

    async def test_stdout_past_the_limit(self) -> None:
        """A child whose output exceeds the limit is stopped; output past the limit is discarded."""
        ended = await self.run_shell("while :; do echo 1234567; done", stdout_limit=16)
        self.assertEqual(ended.stdout, b"1234567\n" * 2)
        self.assertTrue(ended.overflowed)
        self.assertFalse(ended.ok)

    async def test_pipes_held_open(self) -> None:
        """A grandchild that keeps the pipes open delays the end of `wait` only briefly."""
        self.patch(child_module, "_PIPE_GRACE", 0.05)
        reading, writing = os.pipe()
        self.addCleanup(os.close, writing)
        # The grandchild ends when this test closes the other end of its stdin.
        child = self.start(["/bin/sh", "-c", "cat <&3 & echo said"], {3: reading})
        os.close(reading)
        ended = await child.wait(15)
        self.assertEqual((ended.code, ended.stdout), (0, b"said\n"))

    async def test_output_limit(self) -> None:
        """The system stops a write exactly at the limit, and dumps no core (D52)."""
        for size, number in ((5000, None), (5001, signal.SIGXFSZ)):
            reading, writing = os.pipe()
            output = os.open(self.mktemp(), os.O_RDWR | os.O_CREAT)
            try:
                child = self.launcher.launch(
                    ["sh", "-c", f"read go <&3; ulimit -c >&2; exec head -c {size} /dev/zero"],
                    {1: output, 3: reading},
                    output_limit=5000,
                )
                os.write(writing, b"go\n")
                ended = await child.wait(15)
                self.assertEqual((number, b"0"), (ended.signal, ended.stderr.strip()))
                self.assertEqual(5000, os.fstat(output).st_size)
            finally:
                for descriptor in (reading, writing, output):
                    os.close(descriptor)

    async def test_second_wait(self) -> None:
        """A second wait, after the child has ended, returns the same exit."""
        child = self.start(["/bin/true"])
        self.assertEqual(await child.wait(15), await child.wait(15))


class StopTests(RealCase):
    """How a child is stopped"""

    IGNORE_TERM = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'no '))\n"
        "os.write(1, b'up ')\n"
        "while True: signal.pause()"
    )

    async def test_deadline(self) -> None:
        """A child that exceeds its deadline is dead when the wait returns."""
        child = self.start(["/bin/cat", "/dev/zero"], stdout_limit=1 << 40)
        pid = child.protocol.transport.pid
        with self.assertRaises(ChildTimeout):
            await child.wait(0.05)
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    async def test_term_ignored(self) -> None:
        """A child that ignores TERM is killed shortly after."""
        self.patch(child_module, "_TERM_GRACE", 0.1)
        child = self.start([sys.executable, "-c", self.IGNORE_TERM])
        notified: Deferred[None] = Deferred()
        received = child.protocol.outReceived

        def on_output(data: bytes) -> None:
            received(data)
            if not notified.called:
                notified.callback(None)

        self.patch(child.protocol, "outReceived", on_output)
        await notified
        child.stop()
        ended = await child.wait(15)
        self.assertEqual((ended.signal, ended.stdout), (signal.SIGKILL, b"up no "))

    async def test_kill(self) -> None:
        """`kill` sends SIGKILL at once, and has no effect after the child has ended."""
        child = self.start(["/bin/cat", "/dev/zero"], stdout_limit=1 << 40)
        child.kill()
        self.assertEqual((await child.wait(15)).signal, signal.SIGKILL)
        child.kill()
        child.stop()

    async def test_cancelled_caller(self) -> None:
        """A cancelled wait returns only when the child is dead."""
        child = self.start(["/bin/cat", "/dev/zero"], stdout_limit=1 << 40)
        pid = child.protocol.transport.pid
        waiting = Deferred.fromCoroutine(child.wait(15))
        waiting.cancel()
        self.assertNoResult(waiting)
        os.kill(pid, 0)
        with self.assertRaises(CancelledError):
            await waiting
        self.assertRaises(ProcessLookupError, os.kill, pid, 0)

    async def test_death_of_the_service(self) -> None:
        """A service that is ended by SIGKILL leaves no running child (D40)."""
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            self.skipTest("util-linux's setpriv is not installed.")
        service = (
            "import os\n"
            "from twisted.internet import reactor\n"
            "from audioproxy.process.spawn import Launcher\n"
            f"prefix = ({setpriv!r}, '--pdeathsig', 'KILL', '--')\n"
            "launcher = Launcher(reactor, reactor, dict(os.environ), prefix)\n"
            "command = ['/bin/sh', '-c', 'echo $$; exec sleep 60']\n"
            "launcher.launch(command, {1: 1})\n"
            "reactor.run()\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", service], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            os.kill(child, 0)
            parent.kill()
            # The child shares this pipe, which reaches EOF only when the child is dead too.
            parent.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.kill(child, signal.SIGKILL)
            self.fail("the child is still running")
        finally:
            parent.kill()
            parent.wait()


class InheritanceTests(RealCase):
    """What a child inherits"""

    async def test_environment(self) -> None:
        """A child has exactly the given environment, without keys and credentials (D45)."""
        secrets = {"AP_KEY": "00" * 32, "AP_SALT": "ff", "AWS_SECRET_ACCESS_KEY": "s"}
        for name, value in secrets.items():
            before = os.environ.get(name)
            os.environ[name] = value
            if before is None:
                self.addCleanup(os.environ.pop, name)
            else:
                self.addCleanup(os.environ.__setitem__, name, before)
        ended = await self.start([shutil.which("env") or "env"], stdout_limit=65536).wait(15)
        seen = dict(line.split("=", 1) for line in ended.stdout.decode().splitlines())
        self.assertEqual(seen, ENVIRONMENT)

    async def test_stdin(self) -> None:
        """A child that reads its stdin gets EOF."""
        ended = await self.start(["/bin/cat"]).wait(15)
        self.assertEqual((ended.code, ended.stdout), (0, b""))

    async def test_descriptors(self) -> None:
        """A child has each file under the requested descriptor, even if two numbers are swapped."""
        files = []
        for text in (b"one", b"two"):
            reading, writing = os.pipe()
            os.write(writing, text)
            os.close(writing)
            files.append(reading)
            self.addCleanup(os.close, reading)
        one, two = files
        for requested in ({3: one, 4: two}, {one: two, two: one}, {two: two}):
            source = f"import os; print([os.read(fd, 9) for fd in {sorted(requested)}])"
            ended = await self.run_python(source, requested)
            self.assertTrue(ended.ok, ended)
            expected = [{one: b"one", two: b"two"}[requested[n]] for n in sorted(requested)]
            self.assertEqual(ended.stdout.decode().strip(), str(expected))
            for reading, text in ((one, b"one"), (two, b"two")):
                again, writing = os.pipe()
                os.write(writing, text)
                os.close(writing)
                os.dup2(again, reading, inheritable=False)
                os.close(again)

    async def test_no_other_descriptor(self) -> None:
        """A child inherits only the requested descriptors, even if others are inheritable."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        os.set_inheritable(reading, True)
        ended = await self.run_python("import os; print(os.listdir('/proc/self/fd'))")
        # Descriptor 3 is that of the listed folder itself.
        self.assertEqual(ended.stdout, b"['0', '1', '2', '3']\n")

    async def test_no_leak(self) -> None:
        """No descriptor of the service stays open, however children end."""
        await self.run_shell("true")
        before = open_descriptors()
        await self.run_shell("exit 1")
        await self.run_shell("kill -9 $$")
        await self.run_shell("while :; do echo 1234567; done", stdout_limit=16)
        self.assertRaises(SpawnFailed, self.start, ["/no/such/program"])
        with self.assertRaises(ChildTimeout):
            await self.start(["/bin/cat", "/dev/zero"], stdout_limit=1 << 40).wait(0.01)
        self.assertEqual(open_descriptors(), before)


class StartTests(RealCase):
    """Programs that cannot be started"""

    def test_missing(self) -> None:
        """A missing program is reported at once, with its name."""
        error = self.assertRaises(SpawnFailed, self.start, ["/no/such/program"])
        self.assertEqual(str(error), "/no/such/program: No such file or directory")

    def test_not_a_program(self) -> None:
        """A file that cannot be executed is reported in the same way as a missing program."""
        error = self.assertRaises(SpawnFailed, self.start, [os.path.abspath(os.devnull)])
        self.assertIn("Permission denied", str(error))

    def test_no_descriptors_left(self) -> None:
        """Without enough free descriptors a program is not started, and no descriptor leaks."""
        before = open_descriptors()
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        outcomes = []
        for spare in range(5):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, limits[1]))
            try:
                self.start(["/bin/true"])
            except SpawnFailed as error:
                outcomes.append(str(error))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual(outcomes, ["/bin/true: Too many open files"] * 5)
        self.assertEqual(open_descriptors(), before)


class LauncherTests(SynchronousTestCase):
    """The calls to the reactor"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)

    def start(self, prefix: tuple[str, ...] = (), stdout_limit: int = 10) -> Child:
        launcher = Launcher(self.spawner, self.clock, {"A": "b"}, prefix)
        return launcher.launch(["ffmpeg", "-x"], {}, stdout_limit=stdout_limit)

    def wait(self, child: Child, timeout: float = 5) -> Deferred[Exit]:
        return Deferred.fromCoroutine(child.wait(timeout))

    def test_command(self) -> None:
        """The prefix that kills a child when the service dies precedes the command line (D40)."""
        self.start(("setpriv", "--"))
        self.assertEqual(self.spawner.last.arguments, ["setpriv", "--", "ffmpeg", "-x"])
        self.assertEqual(self.spawner.last.environment, {"A": "b"})

    def test_no_stdout(self) -> None:
        """Without a stdout limit, stdout is not captured."""
        self.start(stdout_limit=0)
        self.assertEqual(self.spawner.last.piped, {2})

    def test_escalation(self) -> None:
        """At the deadline a child gets TERM; two seconds later it gets KILL once."""
        child = self.start()
        waiting = self.wait(child)
        self.clock.advance(4.9)
        self.assertEqual(self.spawner.last.signals, [])
        self.clock.advance(0.1)
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.clock.advance(1.9)
        child.stop()
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.clock.advance(0.1)
        self.assertEqual(self.spawner.last.signals, ["TERM", "KILL"])
        self.clock.advance(60)
        self.assertNoResult(waiting)
        self.spawner.last.exit_and_end(signal=9)
        self.failureResultOf(waiting, ChildTimeout)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def captured_errors(self) -> list[str]:
        """Return a list to which later log events of level error are added."""
        lines: list[str] = []

        def note(event: LogEvent) -> None:
            if event["log_level"] is LogLevel.error:
                lines.append(formatEvent(event))

        globalLogPublisher.addObserver(note)
        self.addCleanup(globalLogPublisher.removeObserver, note)
        return lines

    def test_request_of_a_timer(self) -> None:
        """A timer logs with the id of the request that started the child (D54)."""
        log = EventLog()
        self.addCleanup(log.start())

        async def request() -> None:
            set_request_id("abc")
            Deferred.fromCoroutine(self.start().wait(1)).addErrback(lambda _: None)

        Deferred.fromCoroutine(request())
        self.clock.pump([1, 2, 5])
        self.assertEqual(["abc"], [event.get("request_id") for event in log.events])
        self.spawner.last.exit_and_end(signal=9)

    def test_not_started(self) -> None:
        """`on_spawn_failure` is called only if a program cannot be executed (D34)."""
        notified: list[str] = []
        launcher = Launcher(
            self.spawner,
            self.clock,
            {},
            on_spawn_failure=lambda: notified.append("it did not start"),
        )
        for code, count in ((0, 0), (1, 0), (126, 1), (127, 2)):
            launcher.launch(["x"], {})
            self.spawner.last.exit_and_end(code)
            self.assertEqual(count, len(notified), code)
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.assertRaises(SpawnFailed, launcher.launch, ["x"], {})
        self.assertEqual(3, len(notified))
        # A lack of descriptors is temporary, and not a fault of the program.
        self.spawner.refusal = OSError(24, "Too many open files")
        self.assertRaises(SpawnFailed, launcher.launch, ["x"], {})
        self.assertEqual(3, len(notified))

    def test_survives_a_kill(self) -> None:
        """A child that survives KILL for five seconds is logged as an error, and still awaited."""
        lines = self.captured_errors()
        waiting = self.wait(self.start())
        self.spawner.last.pid = 77
        self.clock.advance(5)
        self.clock.advance(2)
        self.assertEqual(self.spawner.last.signals, ["TERM", "KILL"])
        self.clock.advance(4.9)
        self.assertEqual(lines, [])
        self.clock.advance(0.1)
        self.assertEqual(lines, ["child 77 survived SIGKILL; waiting for its end"])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.clock.advance(1000)
        self.assertNoResult(waiting)
        self.spawner.last.exit_and_end(signal=9)
        self.failureResultOf(waiting, ChildTimeout)
        self.assertEqual((len(lines), self.clock.getDelayedCalls()), (1, []))

    def test_cancelled_after_a_kill(self) -> None:
        """A cancelled wait for a child that survived a kill still waits for its death."""
        waiting = self.wait(self.start())
        self.clock.advance(5)
        self.clock.advance(2)
        self.captured_errors()
        self.clock.advance(5)
        waiting.cancel()
        self.assertNoResult(waiting)
        self.assertEqual(self.spawner.last.signals, ["TERM", "KILL"])
        self.spawner.last.exit_and_end(signal=9)
        self.failureResultOf(waiting, CancelledError)

    def test_killed_in_time(self) -> None:
        """A child that a kill ends in time causes no error and leaves no timer."""
        lines = self.captured_errors()
        child = self.start()
        waiting = self.wait(child, timeout=60)
        child.kill()
        self.clock.advance(4.9)
        self.spawner.last.exit_and_end(signal=9)
        self.assertEqual(self.successResultOf(waiting).signal, 9)
        self.assertEqual((lines, self.clock.getDelayedCalls()), ([], []))

    def test_kill_after_stop(self) -> None:
        """A kill after TERM is sent at once, and only once."""
        lines = self.captured_errors()
        child = self.start()
        waiting = self.wait(child, timeout=60)
        child.stop()
        child.kill()
        self.assertEqual(self.spawner.last.signals, ["TERM", "KILL"])
        self.clock.advance(4.9)
        child.stop()
        self.assertEqual((self.spawner.last.signals, lines), (["TERM", "KILL"], []))
        self.spawner.last.exit_and_end(signal=9)
        self.successResultOf(waiting)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_ends_on_term(self) -> None:
        """A child that ends on TERM is not killed, and leaves no timer."""
        waiting = self.wait(self.start())
        self.clock.advance(5)
        self.spawner.last.exit_and_end(code=255)
        self.failureResultOf(waiting, ChildTimeout)
        self.assertEqual((self.spawner.last.signals, self.clock.getDelayedCalls()), (["TERM"], []))

    def test_cancelled_again(self) -> None:
        """A wait that is cancelled repeatedly returns only when the child is dead."""
        waiting = self.wait(self.start())
        for _ in range(3):
            waiting.cancel()
            self.assertNoResult(waiting)
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.spawner.last.exit(signal=15)
        waiting.cancel()
        self.assertNoResult(waiting)
        self.spawner.last.end()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_two_callers(self) -> None:
        """If one of two waits is cancelled, the child is stopped; the other returns its exit."""
        child = self.start()
        first, second = self.wait(child), self.wait(child)
        first.cancel()
        self.spawner.last.exit_and_end(signal=15)
        self.failureResultOf(first, CancelledError)
        self.assertEqual(self.successResultOf(second).signal, 15)

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

    def test_stop_after_exit(self) -> None:
        """Stopping or killing a child that has just exited is harmless."""
        child = self.start()
        waiting = self.wait(child)
        self.spawner.last.exit()
        child.stop()
        child.kill()
        self.spawner.last.end()
        self.assertTrue(self.successResultOf(waiting).ok)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_signal_refused(self) -> None:
        """A signal that the system refuses to deliver is logged as an error."""
        child = self.start()

        def refuse(name: str) -> None:
            raise PermissionError("not yours")

        self.patch(self.spawner.last, "signalProcess", refuse)
        self.patch(child_module, "_log", log := ErrorLog())
        child.kill()
        self.assertEqual(log.errors, ["not yours"])


class ErrorLog:
    """Logger that keeps errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, form: str, **fields: object) -> None:
        self.errors.append(str(fields["error"]))
