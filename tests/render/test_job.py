"""Preparation of a render, up to the command lines that it would run."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from twisted.internet.defer import Deferred

from audioproxy.errors import (
    EncryptedSource,
    InvalidOptions,
    NotFound,
    NothingDecoded,
    RenderTimeout,
    SourceTooLarge,
)
from audioproxy.grammar.request import InfoRequest, VariantRequest
from audioproxy.grammar.sources import LocalSource
from audioproxy.render.deadline import RenderLimits
from audioproxy.render.job import Commands, find_commands
from tests.media.lengths.test_padded import extensible
from tests.media.lengths.test_pcm import chunk, wav
from tests.media.test_encryption import CLEAR, TYPE, entry, movie, track
from tests.render.test_render import RenderCase
from tests.support.audio import silence, write_wav


class FindCommandsTests(RenderCase):
    """`find_commands`"""

    def begin(self, options: str | None = "", path: bytes = b"a.wav") -> Deferred[Commands]:
        """Start to find the commands for a source; ``options`` None means the info document."""
        source = LocalSource(path)
        request: VariantRequest | InfoRequest = InfoRequest(source)
        if options is not None:
            request = replace(self.harness.request(options), source=source)
        limits = RenderLimits(self.harness.clock, 100, 1)
        return Deferred.fromCoroutine(find_commands(self.harness.preparer, request, limits))

    def test_commands(self) -> None:
        """The returned commands are those that a render runs; only the probe has been run."""
        begun = self.begin("f:opus/t:1:2")
        self.harness.answer_probe()
        plan = self.successResultOf(begun)
        _, encoder = self.harness.render("f:opus/t:1:2")
        probes = [child for child in self.harness.spawner.children if child is not encoder]
        self.assertEqual([plan.ffprobe] * 2, [child.arguments for child in probes])
        self.assertEqual((plan.ffmpeg, None), (encoder.arguments, plan.measure))

    def test_measured(self) -> None:
        """If the filters need a length that the probe does not report, the source is measured."""
        begun = self.begin("f:mp3/fade:0:1")
        self.harness.answer_probe(duration=None)
        self.assertEqual(self.harness.encoder().arguments[0], "ffmpeg")
        self.harness.encoder().exit_and_end(stdout=b"total_size=176400\nprogress=end\n")
        plan = self.successResultOf(begun)
        self.assertEqual(Decimal(4), plan.probe.duration)
        self.assertEqual(self.harness.spawner.children[-1].arguments, plan.measure)
        self.assertIn("ss=132300", " ".join(plan.ffmpeg or []))

    def test_decoder(self) -> None:
        """The command of a source with padded samples names the decoder that reads them."""
        form, data = chunk(b"fmt ", extensible(32, 24)), chunk(b"data", bytes(80))
        self.harness.sources.content = wav(form, data)
        begun = self.begin("f:mp3")
        self.harness.answer_probe(codec="pcm_f24le")
        command = self.successResultOf(begun).ffmpeg or []
        decoder = command.index("-c:a")
        self.assertLess(decoder, command.index("-i"))
        self.assertEqual(command[decoder + 1], "pcm_s32le")

    def test_encrypted(self) -> None:
        """A source that has to be downloaded is examined once it is; encrypted ones are refused."""
        for sound, refused in ((CLEAR, False), (track(entry(b"enca")), True)):
            self.harness.sources.content = TYPE + movie(sound)
            self.harness.sources.sizes[b"a.wav"] = None
            begun = self.begin("f:opus")
            self.harness.answer_probe(container="mov,mp4,m4a")
            if refused:
                self.failureResultOf(begun, EncryptedSource)
            else:
                self.assertIsNotNone(self.successResultOf(begun).ffmpeg)

    def test_info(self) -> None:
        """An info document needs only a probe, for a source of any size (Info endpoint, 4)."""
        begun = self.begin(None, b"huge.wav")
        self.harness.answer_probe()
        plan = self.successResultOf(begun)
        self.assertEqual((None, None), (plan.ffmpeg, plan.measure))

    def test_refusals(self) -> None:
        """Preparation fails with the same errors as a render, and then closes the source."""
        self.failureResultOf(self.begin(path=b"missing.wav"), NotFound)
        self.failureResultOf(self.begin(path=b"huge.wav"), SourceTooLarge)
        self.harness.sources.content = write_wav(silence(44100, 239, 2))
        begun = self.begin("t:99")
        self.harness.answer_probe()
        self.failureResultOf(begun, InvalidOptions)
        self.harness.sources.content = b""
        begun = self.begin("fade:0:1")
        self.harness.answer_probe(duration=None)
        self.harness.encoder().exit_and_end(stdout=b"total_size=0\nprogress=end\n")
        self.failureResultOf(begun, NothingDecoded)
        self.harness.sources.slow = True
        begun = self.begin()
        self.harness.answer_probe()
        fetching = self.harness.sources.opened[-1].fetching
        assert fetching is not None
        fetching.errback(TimeoutError())
        self.failureResultOf(begun, RenderTimeout)
