"""The job of a render: what it would run."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.logger import formatEvent

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import EncryptedSource, IrregularSource, RenderTimeout, WrongLength
from audioproxy.grammar.sources import LocalSource
from audioproxy.media.command.progress import REPORT
from audioproxy.media.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.seek_point import SeekPoint
from audioproxy.render.job import Job
from tests.media.test_encryption import CLEAR, TYPE, entry, movie, track
from tests.render.harness import answer_probe
from tests.render.test_render import RenderCase
from tests.support.flac import frame
from tests.support.mpeg import adts
from tests.support.ogg import flac, page, seal
from tests.support.stores import FakeSource

#: Three minutes.
ADTS = adts(400) * 8000


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
        """The job has the command that a render runs; only the probe has been run."""
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

    def test_several_streams(self) -> None:
        """The log says which of several streams is rendered, for debugging (D71)."""
        begun = self.begin()
        answer_probe(self.harness.spawner.last, "10", count=2)
        self.successResultOf(begun)
        texts = [str(formatEvent(each)) for each in self.log.events]
        self.assertIn(" renders the first of 2 audio streams", "\n".join(texts))

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


class PlaceTests(RenderCase):
    """The place at which a job starts to decode"""

    def setUp(self) -> None:
        super().setUp()
        self.make(max_source=10_000_000)

    async def find(self, options: str, found: frozenset[type[IrregularSource]]) -> Job:
        """Return the job for a variant.

        :param found: what renders have found out about the source.
        """
        preparer = self.harness.preparer
        source = await preparer.prepare(self.harness.request(options))
        try:
            if found:
                preparer.irregular[source.opened.identity] = found
            return await preparer.resolve(source, self.deadline())
        finally:
            source.close()

    def deadline(self) -> Deadline:
        return Deadline(self.harness.clock, 100, RenderTimeout)

    def begin(
        self,
        content: bytes,
        kind: str,
        found: frozenset[type[IrregularSource]] = frozenset(),
        options: str = "f:wav/t:60:1",
    ) -> Deferred[Job]:
        """Start to find the job for a source of some content and a container and codec."""
        container, _, codec = kind.partition("/")
        self.harness.sources.content = content
        self.harness.sources.sizes[b"a.wav"] = len(content)
        begun = Deferred.fromCoroutine(self.find(options, found))
        self.harness.answer_probe("200", container, codec)
        self.harness.threads.run()
        return begun

    def test_frames(self) -> None:
        """ffmpeg begins to read at a frame a second ahead of the place, and does not seek.

        That is so whatever renders have found out about the source (D78). The decoder process of an
        irregular source starts there, if its bytes depend on that.
        """
        number = 60 * 44100 // 1024 - 44
        start = 60 * 44100 - number * 1024
        for found in (set(), {IrregularSource}, {WrongLength}):
            job = self.successResultOf(self.begin(ADTS, "aac/aac", frozenset(found)))
            is_one_process = IrregularSource not in found
            self.assertEqual(job.point, SeekPoint(number * 1024, number * 400, "aac"))
            self.assertEqual(job.pipeline.decoder is None, is_one_process)
            decoding = " ".join(job.pipeline.decoder or job.pipeline.encoder)
            self.assertIn(f"-f aac -skip_initial_bytes {number * 400} ", decoding)
            self.assertNotIn("-ss", decoding)
            encoding = " ".join(job.pipeline.encoder)
            self.assertIn(f"atrim=start_sample={start}:end_sample={start + 44100}", encoding)
            self.assertEqual("-skip_initial_bytes" in encoding, is_one_process)

    def test_least_length(self) -> None:
        """No decoder counts the samples of a region that the frames show to be there."""
        for options, found, is_measured in (
            ("f:wav/t:60:5/fade:0:1", frozenset(), False),
            # The start alone matters: the source ends a few seconds later.
            ("f:wav/t:180", frozenset(), False),
            ("f:wav/t:180:99/fade:0:1", frozenset(), True),
            ("f:wav/t:60/fade:0:1", frozenset(), True),
            ("f:wav/fade:0:1", frozenset(), True),
            ("f:wav/t:60:5/fade:0:1", frozenset({WrongLength}), True),
        ):
            begun = self.begin(ADTS, "aac/aac", found, options)
            if is_measured:
                self.harness.encoder().exit_and_end(stdout=b"total_size=8192000\nprogress=end\n")
                self.harness.threads.run()
            job = self.successResultOf(begun)
            self.assertEqual(job.measure is not None, is_measured, options)

    def read(self, job: Job) -> bytes:
        """Return what a child of a job reads."""

        async def run() -> bytes:
            async with self.harness.preparer.open_input(job, self.deadline()) as opened:
                with opened.inherit() as inherited:
                    return Path(f"/dev/fd/{inherited[SOURCE_DESCRIPTOR]}").read_bytes()

        reading = Deferred.fromCoroutine(run())
        self.harness.threads.run()
        return self.successResultOf(reading)

    def test_excerpt(self) -> None:
        """Of Ogg, ffmpeg reads a copy of its headers and of the pages from the place on."""
        pages = [
            page(4096 * (each + 1), frame(chr(each).encode()), flags=4 * (each == 999))
            for each in range(1000)
        ]
        file = seal(flac(*pages))
        job = self.successResultOf(self.begin(file, "ogg/flac"))
        assert job.point is not None
        self.assertEqual(job.point.sample, 60 * 44100 // 4096 * 4096)
        command = " ".join(job.pipeline.encoder)
        self.assertIn("-f ogg ", command)
        self.assertNotIn("-skip_initial_bytes", command)
        # A decode of an irregular source from its start gives the same bytes.
        irregular = frozenset({IrregularSource})
        known = self.successResultOf(self.begin(file, "ogg/flac", irregular))
        self.assertIsNone(known.point)
        # The source is open while its job runs.
        opened = FakeSource(len(file), file)
        opened.is_far = True
        job = replace(job, source=replace(job.source, opened=opened))
        self.addCleanup(opened.close)
        self.assertEqual(self.read(job), job.point.head + file[job.point.offset :])
        opened.close()
