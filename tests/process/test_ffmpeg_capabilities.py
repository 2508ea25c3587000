"""Checks of ffmpeg and ffprobe at boot: missing programs, encoders and filters are named (D34)."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.ffmpeg_capabilities import LISTS, Programs, ProgramsMonitor
from audioproxy.process.spawn import Launcher
from tests.support.http import Log
from tests.support.processes import FakeSpawner

PROGRAMS = ("/x/ffmpeg", "/x/ffprobe")


class CapabilitiesCase(SynchronousTestCase):
    """Programs with output that each test sets."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)
        self.finding: Deferred[list[str]]

    def find(self, prefix: tuple[str, ...] = ()) -> None:
        launcher = Launcher(self.spawner, self.clock, {}, prefix)
        programs = Programs(launcher, "/x/ffmpeg", "/x/ffprobe")
        self.finding = Deferred.fromCoroutine(programs.find_missing())

    def answer_versions(self) -> None:
        for program in ("/x/ffmpeg", "/x/ffprobe"):
            self.assertEqual(self.spawner.last.arguments[0], program)
            self.spawner.last.exit_and_end(stdout=b"version 7")

    def answer_lists(self, without: tuple[str, ...] = ()) -> None:
        for flag, _, needed in LISTS:
            self.assertIn(flag, self.spawner.last.arguments)
            for name in needed:
                if name not in without:
                    self.spawner.last.write_stdout(f" A....D {name}  what it does\n".encode())
            self.spawner.last.exit_and_end()


class FindMissingTests(CapabilitiesCase):
    """`Programs.find_missing`"""

    def test_complete(self) -> None:
        """Nothing is reported missing for a complete ffmpeg."""
        self.find()
        self.answer_versions()
        self.answer_lists()
        self.assertEqual(self.successResultOf(self.finding), [])

    def test_encoder_and_filter(self) -> None:
        """A missing encoder and a missing filter are named."""
        self.find()
        self.answer_versions()
        self.answer_lists(without=("libopus", "deesser"))
        missing = self.successResultOf(self.finding)
        self.assertEqual(
            missing, ["/x/ffmpeg lacks the encoder libopus", "/x/ffmpeg lacks the filter deesser"]
        )

    def test_both_programs(self) -> None:
        """Programs that cannot be started are named."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.find()
        missing = self.successResultOf(self.finding)
        self.assertEqual(
            missing,
            [f"{each} cannot be run ({each}: No such file or directory)" for each in PROGRAMS],
        )

    def test_program_behind_a_prefix(self) -> None:
        """A program that the spawn prefix cannot execute is named."""
        self.find(("setpriv", "--"))
        self.spawner.last.exit_and_end(stdout=b"version 7")
        self.spawner.last.exit_and_end(
            127, stderr=b"setpriv: failed to execute /x/ffprobe: No such file"
        )
        why = "exit status 127: setpriv: failed to execute /x/ffprobe: No such file"
        missing = self.successResultOf(self.finding)
        self.assertEqual(missing, [f"/x/ffprobe cannot be run ({why})"])

    def test_program_that_hangs(self) -> None:
        """A program that does not respond counts as missing."""
        self.find()
        for _ in range(2):
            self.clock.advance(20)
            self.spawner.last.exit_and_end(signal=15)
        missing = self.successResultOf(self.finding)
        self.assertEqual(
            missing, [f"{each} did not respond within 20 seconds" for each in PROGRAMS]
        )
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_list_that_fails(self) -> None:
        """An ffmpeg that cannot list its encoders is reported as failing, not as lacking them."""
        self.find()
        self.answer_versions()
        self.spawner.last.exit_and_end(1)
        for name in LISTS[1][2]:
            self.spawner.last.write_stdout(f" ..C {name}  A->A  what it does\n".encode())
        self.spawner.last.exit_and_end()
        missing = self.successResultOf(self.finding)
        self.assertEqual(missing, ["/x/ffmpeg cannot be run (exit status 1)"])


class ProgramsMonitorTests(CapabilitiesCase):
    """`ProgramsMonitor`: checks that are repeated until both programs can be run"""

    def setUp(self) -> None:
        super().setUp()
        self.log = Log()
        self.addCleanup(self.log.start())
        self.reports: list[bool] = []

    def watch(self, start: bool = True) -> ProgramsMonitor:
        """Start the monitor."""
        launcher = Launcher(self.spawner, self.clock, {})
        programs = Programs(launcher, "/x/ffmpeg", "/x/ffprobe")
        monitor = ProgramsMonitor(programs, self.reports.append)
        if start:
            monitor.start()
        self.addCleanup(lambda: self.successResultOf(Deferred.fromCoroutine(monitor.stop())))
        return monitor

    def errors(self) -> list[str]:
        """Return the events that were logged as errors."""
        return [str(event["missing"]) for event in self.log.events]

    def test_good(self) -> None:
        """Programs that run are reported once, even if encoders are missing (D34)."""
        for without, error in (((), []), (("libopus",), ["/x/ffmpeg lacks the encoder libopus"])):
            self.watch()
            self.assertEqual([], self.reports)
            self.answer_versions()
            self.assertEqual([True], self.reports)
            self.answer_lists(without=without)
            self.assertEqual([], self.spawner.alive)
            self.assertEqual(error, self.errors())
            self.reports.clear()

    def test_bad(self) -> None:
        """A program that does not run is reported at once, and checked until it runs (D34)."""
        monitor = self.watch()
        self.spawner.last.exit_and_end(127)
        self.spawner.last.exit_and_end(stdout=b"version 7")
        self.assertEqual([False], self.reports)
        self.assertEqual(["/x/ffmpeg cannot be run (exit status 127)"], self.errors())
        for reports in ([False, False], [False, False, True]):
            self.assertEqual([], self.spawner.alive)
            self.clock.advance(10)
            self.assertEqual("/x/ffmpeg", self.spawner.last.arguments[0])
            self.spawner.last.exit_and_end(0 if reports[-1] else 127)
            self.spawner.last.exit_and_end()
            self.assertEqual(reports, self.reports)
        self.answer_lists()
        self.assertEqual(1, len(self.errors()))
        self.assertEqual([], self.clock.getDelayedCalls())
        monitor.check()
        self.answer_versions()
        self.answer_lists()
        self.assertEqual([False, False, True, True], self.reports)

    def test_requests_during_a_check(self) -> None:
        """Requests for a check that arrive during a check cause one more check in all."""
        monitor = self.watch()
        monitor.check()
        monitor.check()
        self.answer_versions()
        self.answer_lists()
        self.assertEqual(([True], []), (self.reports, self.spawner.alive))
        self.clock.advance(10)
        self.answer_versions()
        self.answer_lists()
        self.assertEqual([True, True], self.reports)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_stopped(self) -> None:
        """A stop ends a running check, and no check follows."""
        monitor = self.watch()
        (child,) = self.spawner.alive
        stopping = Deferred.fromCoroutine(monitor.stop())
        self.assertNoResult(stopping)
        child.exit_and_end(None)
        self.successResultOf(stopping)
        monitor.check()
        self.assertEqual(([], []), (self.spawner.alive, self.reports))

    def test_not_started(self) -> None:
        """A check that is requested before the start runs after it."""
        monitor = self.watch(start=False)
        monitor.check()
        self.assertEqual([], self.spawner.alive)
        monitor.start()
        self.assertEqual(1, len(self.spawner.alive))
        self.answer_versions()
        self.answer_lists()
        self.assertEqual([True], self.reports)


class FindVersionTests(SynchronousTestCase):
    """`Programs.find_versions`"""

    def test_version(self) -> None:
        """The version is the text after the word "version", or empty in other output."""
        spawner = FakeSpawner()
        self.addCleanup(spawner.kill_all)
        launcher = Launcher(spawner, Clock(), {})
        for output, version in (
            (
                b"ffmpeg version 5.1.9-0+deb12u1 Copyright (c) 2000-2025 the FFmpeg developers",
                "5.1.9-0+deb12u1",
            ),
            (b"something else", ""),
        ):
            programs = Programs(launcher, "/x/ffmpeg", "/x/ffprobe")
            finding = Deferred.fromCoroutine(programs.find_versions())
            for _ in range(2):
                spawner.last.exit_and_end(stdout=output)
            versions = {"/x/ffmpeg": version, "/x/ffprobe": version}
            self.assertEqual(self.successResultOf(finding), versions)
