"""The job of a render: what it would run."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import (
    EncryptedSource,
    RenderTimeout,
)
from audioproxy.grammar.sources import LocalSource
from audioproxy.media.command.progress import REPORT
from audioproxy.render.job import Job
from tests.media.lengths.test_padded import extensible
from tests.media.lengths.test_pcm import chunk, wav
from tests.media.test_encryption import CLEAR, TYPE, entry, movie, track
from tests.render.test_render import RenderCase


class PreparerTests(RenderCase):
    """`Preparer`"""

    def begin(self, options: str = "", path: bytes = b"a.wav") -> Deferred[Job]:
        """Start to find the job for a source, and then close it."""
        request = replace(self.harness.request(options), source=LocalSource(path))
        preparer = self.harness.preparer

        async def find() -> Job:
            source = await preparer.prepare(request)
            try:
                deadline = Deadline(self.harness.clock, 100, RenderTimeout)
                return await preparer.resolve(source, deadline)
            finally:
                source.close()

        return Deferred.fromCoroutine(find())

    def test_commands(self) -> None:
        """The job has the command that a render runs; only the probe has been run.

        If the filters need a length that the probe does not report, the source is measured.
        """
        begun = self.begin("f:opus/t:1:2")
        self.harness.answer_probe()
        job = self.successResultOf(begun)
        _, encoder = self.harness.render("f:opus/t:1:2")
        program, *words = job.pipeline.encoder
        self.assertEqual([program, *REPORT, *words], encoder.arguments)
        self.assertEqual((2, None), (job.pipeline.seconds, job.measure))
        begun = self.begin("f:mp3/fade:0:1", b"b.wav")
        self.harness.answer_probe(duration=None)
        measuring = self.harness.encoder()
        measuring.exit_and_end(stdout=b"total_size=176400\nprogress=end\n")
        job = self.successResultOf(begun)
        self.assertEqual(
            (Decimal(4), measuring.arguments), (job.source.probe.duration, job.measure)
        )
        self.assertIn("ss=132300", " ".join(job.pipeline.encoder))

    def test_decoder(self) -> None:
        """The command of a source with padded samples names the decoder that reads them."""
        form, data = chunk(b"fmt ", extensible(32, 24)), chunk(b"data", bytes(80))
        self.harness.sources.content = wav(form, data)
        begun = self.begin("f:mp3")
        self.harness.answer_probe(codec="pcm_f24le")
        command = self.successResultOf(begun).pipeline.encoder
        decoder = command.index("-c:a")
        self.assertLess(decoder, command.index("-i"))
        self.assertEqual(command[decoder + 1], "pcm_s32le")

    def test_probed_again(self) -> None:
        """A source that was probed before its download ended is probed again (D61, D64).

        So its tags do not depend on time, and it is refused if it is encrypted.
        """
        for sound, refused in ((CLEAR, False), (track(entry(b"enca")), True)):
            self.harness.sources.content = TYPE + movie(sound)
            self.harness.sources.sizes[b"a.wav"] = None
            begun = self.begin("f:opus")
            for duration in (None, "10"):
                self.harness.answer_probe(duration, container="mov,mp4,m4a")
            if refused:
                self.failureResultOf(begun, EncryptedSource)
            else:
                self.assertEqual(10, self.successResultOf(begun).source.probe.duration)
