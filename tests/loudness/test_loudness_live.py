"""`audioproxy.loudness` and `audioproxy measure` with real sources and real programs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from audioproxy.config import Config
from audioproxy.errors import InvalidOptions, NotFound, UndecodableSource
from audioproxy.loudness import LoudnessMeter
from audioproxy.urls import Variant
from tests.support.audio import measure_loudness, noise, write_wav
from tests.support.children import fork_servers
from tests.support.runs import RunResult, run_program
from tests.support.service import PROJECT, TEST_PATIENCE, all_children, until


class LoudnessMeterTests(TestCase):
    """`LoudnessMeter`"""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.source = write_wav(noise(48000, 2 * 48000, 6, 0.2))
        (self.folder / "a.wav").write_bytes(self.source)
        (self.folder / "b.wav").write_bytes(b"no audio")
        config = Config(
            allow_insecure=True,
            local_root=str(self.folder),
            max_concurrency=2,
            max_probe_concurrency=2,
            queue_size=1,
        )
        self.meter = LoudnessMeter(config, reactor)
        self.addCleanup(lambda: self.meter.close())

    async def test_measured(self) -> None:
        """The source is measured with all its channels, and a variant as it is rendered."""
        seconds: list[float] = []
        whole = await self.meter.measure("local://a.wav", on_progress=seconds.append)
        self.assertEqual(whole, measure_loudness(self.source))
        self.assertEqual(seconds[-1], 2.1)
        part = await self.meter.measure("local://a.wav", Variant(f="wav", t=(0.5, 1), ch=1))
        self.assertEqual(part, measure_loudness(self.source, "ch:1/f:wav/t:0.5:1"))

    async def test_many(self) -> None:
        """Sources wait until one can be measured, however many they are."""
        measuring = [self.meter.measure("local://a.wav") for _ in range(5)]
        results = await gatherResults(map(Deferred.fromCoroutine, measuring))
        self.assertEqual(results, [measure_loudness(self.source)] * 5)
        # All of them were measured by programs that were linked once.
        await until(lambda: len(fork_servers()) == 2, "both fork servers")
        await self.meter.close()
        self.assertEqual([], all_children())

    async def test_refused(self) -> None:
        """Sources and options are refused as a render refuses them; a waveform has no loudness."""
        for source, variant, error in (
            ("local://missing.wav", None, NotFound),
            ("local://b.wav", None, UndecodableSource),
            ("local://a.wav", Variant(t=(9, 1)), InvalidOptions),
            ("local://a.wav", Variant(f="peaks"), InvalidOptions),
        ):
            with self.assertRaises(error):
                await self.meter.measure(source, variant)

    def command(self, *words: str, **variables: str) -> RunResult:
        """Run ``audioproxy measure``."""
        environ = {"AP_LOCAL_ROOT": str(self.folder.resolve()), "PATH": os.environ["PATH"]}
        program = (sys.executable, "-m", "audioproxy.cli.main", "measure")
        return run_program(*program, *words, environment=environ | variables, cwd=PROJECT)

    def test_command(self) -> None:
        """The command measures sources, and says which ones it could not measure."""
        words = ["--target", "-16", "--json", "local://a.wav", "local://missing.wav"]
        ended = self.command(*words)
        self.assertEqual(ended.status, 1, ended.err)
        found, missing = map(json.loads, ended.out.splitlines())
        expected = measure_loudness(self.source, "f:mp3").loudness.integrated
        assert expected is not None
        self.assertApproximates(found["integrated"], expected, 0.006)
        self.assertApproximates(found["gain"], -16 - expected, 0.006)
        self.assertIsNone(missing["integrated"])
        self.assertIn("local://missing.wav: ", ended.err)

    def test_unusable_settings(self) -> None:
        """Settings that are refused only when they are used are named too."""
        ended = self.command("local://a.wav", AP_SOURCE_ALLOWLIST="h", SSL_CERT_FILE="/missing")
        self.assertEqual(ended.status, 2, ended.err)
        self.assertIn("/missing", ended.err)
