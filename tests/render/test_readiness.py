"""Readiness of a node: its thresholds, and its programs."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import Config
from audioproxy.engine import Engine
from audioproxy.errors import ProbeFailed
from audioproxy.grammar.sources import LocalSource
from audioproxy.process.programs import Programs
from audioproxy.render.readiness import Readiness
from audioproxy.testing import FakeThreads, memory_parts
from tests.support.processes import FakeSpawner
from tests.support.stores import FakeSources


class ReadinessTests(SynchronousTestCase):
    """`Readiness`"""

    def test_thresholds(self) -> None:
        """A node is ready below the threshold, and again at half of it (Health and readiness)."""
        for threshold, depths, expected in (
            (5, (4, 5, 6, 5, 4, 3, 2, 3, 4, 5), "+ - - - - - + + + -"),
            (2, (1, 2, 1, 2, 1), "+ - + - +"),
            (3, (7, 0), "- +"),
            (1, (0, 1, 2, 1, 0), "+ - - - +"),
            (0, (0, 1, 1000, 0), "+ + + +"),
        ):
            readiness = Readiness(threshold)
            self.assertTrue(readiness.ready)
            for depth, sign in zip(depths, expected.split(), strict=True):
                readiness.depth_changed(depth)
                self.assertIs(sign == "+", readiness.ready, (threshold, depths, depth))

    def test_programs(self) -> None:
        """A node is ready only while its programs run, except with a threshold of 0."""
        for threshold in (0, 5):
            readiness = Readiness(threshold)
            readiness.programs_checked(False)
            self.assertIs(threshold == 0, readiness.ready)
            readiness.programs_checked(True)
            self.assertTrue(readiness.ready)

    def test_program_that_goes_and_comes(self) -> None:
        """A node whose ffprobe is removed, and installed again, is ready without a restart (D34).

        A request finds it missing; then both programs are tried until they run.
        """
        clock, spawner = Clock(), FakeSpawner()
        doubles = clock, spawner, FakeThreads(), FakeSources({b"a.wav": 9}, []), None
        parts = memory_parts(Config(allow_insecure=True), *doubles)
        programs = Programs(parts.programs.launcher, "ffmpeg", "ffprobe")
        node = Engine(replace(parts, programs=programs))

        def run_programs() -> None:
            while spawner.alive:
                spawner.last.exit_and_end(stdout=b"version 7 --enable-libsoxr")

        self.successResultOf(Deferred.fromCoroutine(node.open()))
        run_programs()
        self.assertTrue(node.readiness.ready)
        spawner.refusal = FileNotFoundError(2, "No such file or directory")
        probing = Deferred.fromCoroutine(node.probe(LocalSource(b"a.wav")))
        self.failureResultOf(probing, ProbeFailed)
        self.assertFalse(node.readiness.ready)
        spawner.refusal = None
        clock.advance(10)
        run_programs()
        self.assertTrue(node.readiness.ready)
