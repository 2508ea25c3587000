"""Checks of ffmpeg and ffprobe at boot: missing programs, encoders and filters are named (D34)."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import Config
from audioproxy.engine import Engine
from audioproxy.errors import ProbeFailed
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.sources import LocalSource
from audioproxy.media.command.decoding import decoded_stream, decoder_arguments, measure_arguments
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import encoder_arguments
from audioproxy.media.command.presets import PRESETS
from audioproxy.media.conversion import SOXR, SWRESAMPLE
from audioproxy.media.inputs import local_input
from audioproxy.media.reading import SourceLength
from audioproxy.process.programs import LISTS, Programs, ProgramsMonitor
from audioproxy.process.spawn import Launcher
from audioproxy.process.starters import UtilLinuxStarter
from audioproxy.testing import FakeThreads, memory_parts
from tests.support.audio import options_of
from tests.support.http import Log
from tests.support.probes import Probe
from tests.support.processes import FakeSpawner
from tests.support.stores import FakeSources

PROGRAMS = ("/x/ffmpeg", "/x/ffprobe")


class CapabilitiesCase(SynchronousTestCase):
    """Programs with output that each test sets."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)

    def programs(self, setpriv: str | None = None, ffmpeg: str = PROGRAMS[0]) -> Programs:
        """Return the programs, started by setpriv where its path is given."""
        launcher = Launcher(self.spawner, self.clock, {}, UtilLinuxStarter(setpriv=setpriv))
        return Programs(launcher, ffmpeg, PROGRAMS[1])

    def answer_versions(self, output: bytes = b"version 7 --enable-libsoxr") -> None:
        """Make both programs print their version."""
        for program in PROGRAMS:
            self.assertEqual(self.spawner.last.arguments[0], program)
            self.spawner.last.exit_and_end(stdout=output)

    def answer_lists(self, without: tuple[str, ...] = (), lists: Any = LISTS) -> None:
        """Make ffmpeg print lists of encoders and filters."""
        for flag, _, needed in lists:
            expected = [PROGRAMS[0], "-hide_banner", "-v", "error", flag]
            self.assertEqual(self.spawner.last.arguments, expected)
            for name in needed:
                if name not in without:
                    self.spawner.last.write_stdout(f" A....D {name}  what it does\n".encode())
            self.spawner.last.exit_and_end()

    def answer_configuration(self, *flags: str) -> None:
        """Make ffmpeg print its build configuration."""
        self.assertEqual(self.spawner.last.arguments[1:], ["-hide_banner", "-version"])
        text = f"ffmpeg version 7\n  configuration: --enable-gpl {' '.join(flags)}\n"
        self.spawner.last.exit_and_end(stdout=text.encode())

    def answer_all(self) -> None:
        """Make both programs print their version, and ffmpeg all lists."""
        self.answer_versions()
        self.answer_lists()


class FindMissingTests(CapabilitiesCase):
    """`Programs.probe_missing` and `Programs.probe_resampler`"""

    def find(self, setpriv: str | None = None) -> Deferred[list[str]]:
        """Start to check the programs."""
        return Deferred.fromCoroutine(self.programs(setpriv).probe_missing())

    def test_unusable(self) -> None:
        """Programs that cannot be started, also by setpriv, or that hang are named."""
        stderr = b"setpriv: failed to execute: No such file"
        for code, why in (
            (127, f"cannot be run (exit status 127: {stderr.decode()})"),
            (None, "did not respond within 20 seconds"),
        ):
            finding = self.find("setpriv")
            for _ in PROGRAMS:
                self.clock.advance(20 if code is None else 19.9)
                self.spawner.last.exit_and_end(code or 0, None if code else 15, stderr=stderr)
            self.assertEqual(self.successResultOf(finding), [f"{each} {why}" for each in PROGRAMS])
            self.assertEqual(self.clock.getDelayedCalls(), [])
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        expected = [
            f"{each} cannot be run ({each}: No such file or directory)" for each in PROGRAMS
        ]
        self.assertEqual(self.successResultOf(self.find()), expected)

    def test_list_that_fails(self) -> None:
        """An ffmpeg that cannot list its encoders is reported as failing, not as lacking them."""
        finding = self.find()
        self.answer_versions()
        self.spawner.last.exit_and_end(1)
        self.answer_lists(lists=LISTS[1:])
        expected = ["/x/ffmpeg cannot be run (exit status 1)"]
        self.assertEqual(self.successResultOf(finding), expected)

    def find_resampler(self, programs: Programs) -> Deferred[str]:
        """Start to look for the resampler."""
        return Deferred.fromCoroutine(programs.probe_resampler())

    def test_found_once(self) -> None:
        """libsoxr is used if ffmpeg, asked once, has it; its lack is stated (D60)."""
        for flags, resampler, name, text in (
            (("--enable-libsoxr",), SOXR, "soxr", ""),
            ((), SWRESAMPLE, "swr", "/x/ffmpeg lacks libsoxr, so "),
        ):
            programs = self.programs()
            self.assertEqual({"ffmpeg": "", "resampler": ""}, programs.build)
            finding = self.find_resampler(programs)
            self.answer_configuration(*flags)
            self.assertEqual(self.successResultOf(finding), resampler)
            self.assertEqual(self.successResultOf(self.find_resampler(programs)), resampler)
            stating = Deferred.fromCoroutine(programs.probe_shortcoming())
            found = self.successResultOf(stating) or ""
            self.assertEqual((found[: len(text)], "\n" in found), (text, False))
            self.assertEqual(bool(found), bool(text))
            # The metrics have it, too.
            self.assertEqual({"ffmpeg": "7", "resampler": name}, programs.build)

    def test_replaced(self) -> None:
        """ffmpeg is asked again after its file was replaced."""
        path = self.mktemp()
        programs = self.programs(ffmpeg=path)
        for flag, resampler in (("", SWRESAMPLE), ("--enable-libsoxr", SOXR)):
            Path(f"{path}.new").write_text(flag)
            os.replace(f"{path}.new", path)
            finding = self.find_resampler(programs)
            self.answer_configuration(flag)
            self.assertEqual(self.successResultOf(finding), resampler)

    def test_build_name(self) -> None:
        """A build is named by its version, and a digest of its configuration and libraries (D78).

        It is visible ASCII, whatever a program prints. The build of ffprobe does not matter, and no
        program is asked for this alone.
        """
        programs = self.programs()
        self.assertEqual("", programs.build_name)
        names = []
        for output in (
            b"ffmpeg version 7.1-a x\nconfiguration: --enable-libopus\nlibavcodec 61. 19.101\n",
            b"ffmpeg version 7.1-a x\nconfiguration: --enable-gpl\nlibavcodec 61. 19.101\n",
            b"ffmpeg version 7.1-a x\nconfiguration: --enable-libopus\nlibavcodec 61. 19.102\n",
            b"\xff and a space",
        ):
            for _ in range(2):
                checking = Deferred.fromCoroutine(programs.probe_versions())
                self.spawner.last.exit_and_end(stdout=output)
                self.spawner.last.exit_and_end(stdout=b"ffprobe version 1")
                self.successResultOf(checking)
                names.append(programs.build_name)
        self.assertEqual((names[::2], 4), (names[1::2], len(set(names))))
        versions = [name.partition(":")[0] for name in names[::2]]
        self.assertEqual(["7.1-a"] * 3 + ["unknown"], versions)
        self.assertRegex(" ".join(names), r"\A([!-~]+:[0-9a-f]{8} ?){8}\Z")
        checking = Deferred.fromCoroutine(programs.probe_versions())
        for _ in PROGRAMS:
            self.spawner.last.exit_and_end(127)
        self.successResultOf(checking)
        self.assertEqual(names[-1], programs.build_name)

    def test_failure(self) -> None:
        """If ffmpeg cannot be run, libsoxr is assumed, and ffmpeg is asked again next time."""
        programs = self.programs()
        for _ in range(2):
            finding = self.find_resampler(programs)
            self.spawner.last.exit_and_end(127)
            self.assertEqual(self.successResultOf(finding), SOXR)


class ProgramsMonitorTests(CapabilitiesCase):
    """`ProgramsMonitor`: checks that are repeated until both programs can be run"""

    def setUp(self) -> None:
        super().setUp()
        self.log = Log()
        self.addCleanup(self.log.start())
        self.reports: list[bool] = []

    def watch(self) -> ProgramsMonitor:
        """Start the monitor."""
        monitor = ProgramsMonitor(self.programs(), self.reports.append)
        monitor.start()
        self.addCleanup(lambda: self.successResultOf(Deferred.fromCoroutine(monitor.stop())))
        return monitor

    def test_good(self) -> None:
        """Programs that run are reported once, even if a feature is missing (D34, D60)."""
        complete = b"version 7 --enable-libsoxr"
        for version, without, logged in (
            (complete, (), ""),
            (complete, ("libopus",), "renders will fail: /x/ffmpeg lacks the encoder libopus; "),
            (b"version 7", (), "/x/ffmpeg lacks libsoxr, so "),
        ):
            self.watch()
            self.assertEqual([], self.reports)
            self.answer_versions(version)
            self.assertEqual([True], self.reports)
            self.answer_lists(without=without)
            self.assertEqual([], self.spawner.alive)
            texts = [text[: len(logged)] for text in self.log.texts]
            self.assertEqual([logged] * bool(logged), texts)
            self.reports.clear()
            self.log.events.clear()

    def test_bad(self) -> None:
        """A program that does not run is reported at once, and checked until it runs (D34)."""
        monitor = self.watch()
        self.spawner.last.exit_and_end(127)
        self.spawner.last.exit_and_end(stdout=b"version 7")
        self.assertEqual([False], self.reports)
        (event,) = self.log.events
        self.assertEqual("/x/ffmpeg cannot be run (exit status 127)", event["missing"])
        for reports in ([False, False], [False, False, True]):
            self.assertEqual([], self.spawner.alive)
            self.clock.advance(10)
            self.assertEqual("/x/ffmpeg", self.spawner.last.arguments[0])
            code, output = (0, b"version 7 --enable-libsoxr") if reports[-1] else (127, b"")
            self.spawner.last.exit_and_end(code, stdout=output)
            self.spawner.last.exit_and_end()
            self.assertEqual(reports, self.reports)
        self.answer_lists()
        self.assertEqual([event], self.log.events)
        self.assertEqual([], self.clock.getDelayedCalls())
        monitor.check()
        self.answer_all()
        self.assertEqual([False, False, True, True], self.reports)

    def test_requests_during_a_check(self) -> None:
        """Requests for a check that arrive during a check cause one more check in all."""
        monitor = self.watch()
        monitor.check()
        monitor.check()
        self.answer_all()
        self.assertEqual(([True], []), (self.reports, self.spawner.alive))
        self.clock.advance(10)
        self.answer_all()
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

    def test_readiness(self) -> None:
        """A node whose ffprobe is removed, and installed again, is ready without a restart (D34).

        A request finds it missing; then both programs are tried until they run.
        """
        doubles = self.spawner, FakeThreads(), FakeSources({b"a.wav": 9}, []), None
        parts = memory_parts(Config(allow_insecure=True), self.clock, *doubles)
        node = Engine(replace(parts, programs=self.programs()))
        self.successResultOf(Deferred.fromCoroutine(node.open()))
        self.answer_all()
        self.assertTrue(node.readiness.ready)
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        probing = Deferred.fromCoroutine(node.probe(LocalSource(b"a.wav")))
        self.failureResultOf(probing, ProbeFailed)
        self.assertFalse(node.readiness.ready)
        self.spawner.refusal = None
        self.clock.advance(10)
        self.answer_all()
        self.assertTrue(node.readiness.ready)


#: Sources that may need a decoder of their own, of integers and of floating-point numbers.
IRREGULAR = (
    Probe("flac", "flac", None, False),
    Probe("wav", "pcm_u8", None, False, decoded_bits=8),
    Probe("flac", "flac", None, False, decoded_bits=20),
    Probe("flac", "flac", None, False, decoded_bits=32),
    Probe("mp3", "mp3", None, False, decoded_bits=64),
    Probe("wav", "pcm_f64le", None, False, decoded_bits=64),
)


def _after(option: str, words: list[str]) -> str:
    """Return the argument of an option."""
    return words[words.index(option) + 1]


class RequirementsTests(SynchronousTestCase):
    """`LISTS` and the functions that use them"""

    def test_encoders(self) -> None:
        """Boot checks every encoder that a render can use (D34)."""
        used = {
            ENCODERS[token].encoders[depth][0]
            for token, form in FORMATS.items()
            for depth in form.depths or ("",)
        }
        used |= {f"pcm_{decoded_stream(source).decoded}" for source in IRREGULAR}
        used |= {_after("-c:a", measure_arguments("ffmpeg", local_input(), IRREGULAR[0]))}
        self.assertEqual(used, set(LISTS[0][2]))

    def test_filters(self) -> None:
        """Boot checks every filter that a render can use (D34)."""
        chains = [",".join(chain(44100, "stereo", SOXR)) for chain in PRESETS.values()]
        stages = "t:1:0.3/fade:0.1:0.1/gain:3/norm:ebu/enhance:voice"
        for ch, channels, layout in ((1, 2, None), (1, 9, None), (2, 2, "2 channels (BL+BR)")):
            options = options_of(f"f:wav/ch:{ch}/{stages}")
            probe = Probe("wav", "pcm_s16le", None, False, channels=channels, layout=layout)
            probe = probe.with_length(SourceLength(480_000))
            words = encoder_arguments("ffmpeg", local_input(), options, probe)
            chains.append(_after("-af", words))
        for probe in IRREGULAR:
            words = encoder_arguments("ffmpeg", local_input(), options_of("f:mp3/t:5"), probe)
            decoder = decoder_arguments("ffmpeg", local_input(), probe)
            chains += (_after("-af", words), _after("-af", decoder))
        # Filters are separated by commas or semicolons, and may have labels before them.
        stages = [stage for chain in chains for stage in re.split(r"(?<!\\)[,;]", chain)]
        used = {re.sub(r"^(\[\w+\])+", "", stage).partition("=")[0] for stage in stages}
        self.assertEqual(used, set(LISTS[1][2]))
