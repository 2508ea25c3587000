"""The prober: one child for all waiters, and the right error for each failure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Coroutine
from decimal import Decimal
from signal import SIGXCPU
from typing import Any, ClassVar, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.slots import Slots
from audioproxy.errors import (
    EncryptedSource,
    MemoryExceeded,
    NothingDecoded,
    ProbeFailed,
    ProbeTimeout,
    QueueFull,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
    VideoSource,
)
from audioproxy.media.ffprobe import CONTAINER_TAGS, NAMED_TAGS
from audioproxy.media.inputs import Input, local_input
from audioproxy.media.lengths.wav import MUCH_SPACE
from audioproxy.media.probe import Check, Probe
from audioproxy.process import child
from audioproxy.process.prober import OUTPUT_LIMIT, Prober
from audioproxy.process.spawn import Launcher
from tests.media.lengths.test_musepack import musepack
from tests.media.test_bursts import SYNCS, bursts_of, pack
from tests.media.test_encryption import CLEAR, TYPE, entry, movie, track
from tests.media.test_flac_frames import BLOCK, NOISE, SILENCE
from tests.support.lossless import TAG, wavpack
from tests.support.mpeg import MPEG_1, tagged
from tests.support.processes import FakeSpawner
from tests.support.riff import chunk, extensible, sphere, wav
from tests.support.stores import FakeSource

AUDIO = {"codec_type": "audio", "codec_name": "mp3", "sample_rate": "44100", "channels": 1}
VIDEO = {"codec_type": "video", "codec_name": "h264"}
INVALID = b"x.mp3: Invalid data found when processing input\n"

T = TypeVar("T")


def probe_output(*streams: dict[str, object], container: str = "mp3", **extra: object) -> bytes:
    """Return ffprobe's output for a file of ten seconds with some streams.

    :param extra: further fields of the container.
    """
    form = {"format_name": container, "duration": "10.0", **extra}
    return json.dumps({"streams": streams, "format": form}, indent=4).encode()


#: A source of which only the start can be read.
START = local_input(seekable=False)


class ProbedSource(FakeSource):
    """Source that is probed, of which children alone read by default.

    :ivar reads: how often the service has read of it.
    :ivar replacement: the input of a second look, which `replacing` starts.
    """

    def __init__(
        self,
        state: bytes = b"",
        name: bytes = b"a",
        data: bytes = b"",
        opened: Input | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(len(data), data)
        self.identity, self.certain, self.found = name + state, bool(state), opened or local_input()
        self.is_far = True
        self.reads = 0
        self.replacement: Input | None = None
        self.replacing: Callable[[], object] = lambda: None
        vars(self).update(fields)

    async def inspect(
        self, deadline: Deadline, look: Callable[[Input], Coroutine[Any, Any, T]]
    ) -> T:
        looking = Deferred.fromCoroutine(super().inspect(deadline, look))
        self.replacing = looking.cancel
        try:
            return await looking
        except CancelledError:
            assert self.replacement is not None
            return await look(self.replacement)

    async def _fetch(self, deadline: Deadline) -> None:
        self._refuse()
        if self.fetching is not None:
            await deadline.limit(self.fetching)

    async def read(self, offset: int, count: int) -> bytes:
        self.reads += 1
        return await super().read(offset, count)


class ProberCase(SynchronousTestCase):
    """A prober with two slots."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)
        self.slots = Slots(self.clock, 2, 0, 1.0)
        self.cpu_seconds = 0.0
        self.patch(child, "read_cpu_seconds", lambda _: self.cpu_seconds)
        launcher = Launcher(self.spawner, self.clock, {})
        self.prober = Prober(launcher, "ffprobe", self.slots, 10)

    def fetch(self, name: bytes = b"a", source: ProbedSource | None = None) -> Deferred[Probe]:
        """Probe a source, or one with a name."""
        return Deferred.fromCoroutine(self.prober.probe(source or ProbedSource(name=name)))

    def answer(self, probing: Deferred[Probe], output: bytes | None = None) -> Probe:
        """Make the last child report a source of ten seconds, and return the probe."""
        self.spawner.last.exit_and_end(stdout=output or probe_output(AUDIO))
        return self.successResultOf(probing)

    def assert_released(self) -> None:
        """Assert that no slot is held and no timer is left."""
        self.assertEqual((self.slots.held, self.clock.getDelayedCalls()), (0, []))

    def assert_refused(
        self, probing: Deferred[Probe], refusal: type[Exception], row: object = ""
    ) -> None:
        """Assert that a probe is refused, and everything is released."""
        self.assertIs(type(self.failureResultOf(probing, refusal).value), refusal, row)
        self.assert_released()


class CacheTests(ProberCase):
    """Cached probe results and timeouts"""

    def probe_uncached(self, state: bytes, name: bytes = b"a") -> Probe:
        """Probe a source, and assert that this starts a child."""
        before = len(self.spawner.children)
        probing = self.fetch(source=ProbedSource(state, name))
        self.assertEqual(len(self.spawner.children), before + 1)
        return self.answer(probing)

    def test_unchanged(self) -> None:
        """An unchanged source needs no child and no slot; any other one is probed again."""
        cached = self.probe_uncached(b"1")
        for _ in range(2):
            self.assertEqual(self.successResultOf(self.fetch(source=ProbedSource(b"1"))), cached)
        self.assertEqual((1, 0), (len(self.spawner.children), self.slots.held))
        for state, name in ((b"2", b"a"), (b"1", b"b"), (b"", b"a"), (b"", b"a")):
            self.probe_uncached(state, name)

    def test_forgotten(self) -> None:
        """The probe of a source that changed during its render is forgotten, and no other."""
        for name in (b"a", b"b"):
            self.probe_uncached(b"1", name)
        self.prober.forget(ProbedSource(b"1").identity)
        self.prober.forget(b"unknown")
        self.probe_uncached(b"1")
        self.successResultOf(self.fetch(source=ProbedSource(b"1", b"b")))

    def test_changed_meanwhile(self) -> None:
        """The result for a source that changed during its probe is not cached."""
        source = ProbedSource(b"1")
        probing = self.fetch(source=source)
        source.certain = False
        self.answer(probing)
        self.probe_uncached(b"1")

    def test_refused(self) -> None:
        """A refusal is not cached, since its cause may be gone at the next request."""
        probing = self.fetch(source=ProbedSource(b"1"))
        self.spawner.last.exit_and_end(1)
        self.assert_refused(probing, ProbeFailed)
        self.probe_uncached(b"1")

    def time_out(self, source: ProbedSource, cpu_seconds: float) -> None:
        """Make a probe time out, after it has used the CPU for some seconds."""
        self.cpu_seconds = cpu_seconds
        probing = self.fetch(source=source)
        self.clock.advance(10)
        self.spawner.last.exit_and_end(signal=15)
        self.failureResultOf(probing, ProbeTimeout)

    def test_remembered(self) -> None:
        """A timeout after half of it on the CPU is remembered for a minute of a certain state."""
        self.time_out(ProbedSource(b"1"), 5.1)
        count = len(self.spawner.children)
        self.failureResultOf(self.fetch(source=ProbedSource(b"1")), ProbeTimeout)
        self.assertEqual(count, len(self.spawner.children))
        for source, cpu_seconds in ((ProbedSource(b"2"), 4.9), (ProbedSource(b""), 5.1)):
            self.time_out(source, cpu_seconds)
            self.answer(self.fetch(source=source))
        self.clock.advance(40)
        probing = self.fetch(source=ProbedSource(b"1"))
        # The kernel's limit of CPU time
        self.spawner.last.exit_and_end(signal=SIGXCPU)
        self.failureResultOf(probing, ProbeTimeout)
        self.failureResultOf(self.fetch(source=ProbedSource(b"1")), ProbeTimeout)


class ResultTests(ProberCase):
    """The result of a probe"""

    def test_failures(self) -> None:
        """Failed probes are refused: 415 for a fault of the source, else 500 `probe_failed`."""
        for stdout, stderr, code, signal, refusal in (
            # A real video stream, and no audio stream (Errors, 415).
            (probe_output(AUDIO, VIDEO), b"", 0, None, VideoSource),
            (probe_output(), b"", 0, None, UndecodableSource),
            (b"", INVALID, 1, None, UndecodableSource),
            # Failures for a reason other than the source.
            (b"", b"who knows", 1, None, ProbeFailed),
            (b"", b"Cannot allocate memory\n" + INVALID, 1, None, MemoryExceeded),
            (b"", b"Cannot allocate memory", None, 9, ProbeFailed),
            (b"", INVALID, 0, 11, ProbeFailed),
            # Output that is not a single JSON document.
            *((text, b"", 0, None, ProbeFailed) for text in (b"", b"{", b"\xff", b"{} {}")),
        ):
            probing = self.fetch()
            self.spawner.last.exit_and_end(code, signal, stdout=stdout, stderr=stderr)
            self.assert_refused(probing, refusal, (stdout, stderr, code, signal))

    def test_copy(self) -> None:
        """A complete source is probed apart from one that still arrives (D61)."""
        partial, whole = (
            ProbedSource(state=b"1", opened=opened) for opened in (START, local_input())
        )
        whole.is_far = False
        self.assertFalse(self.answer(self.fetch(source=partial)).file.saw_end)
        running = [self.fetch(source=partial), self.fetch(b"b")]
        again = Deferred.fromCoroutine(self.prober.probe(whole, pooled=False))
        self.assertTrue(self.answer(again).file.saw_end)
        self.assertTrue(self.successResultOf(self.fetch(source=partial)).file.saw_end)
        for each in running:
            each.addErrback(lambda _: None).cancel()

    def cut_off(self, text: bytes) -> Deferred[Probe]:
        """Start a probe whose output exceeds the limit, and end its child."""
        probing = self.fetch()
        self.spawner.last.write_stdout(text)
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.spawner.last.exit_and_end(signal=15)
        return probing

    def repeat(self, tags: str, text: bytes) -> None:
        """Answer a further probe, which requests fewer tags."""
        self.assertIn(f":{tags} ", " ".join(self.spawner.last.arguments))
        self.spawner.last.write_stdout(text)
        self.spawner.last.exit_and_end()

    def test_endless_output(self) -> None:
        """Endless output is stopped: a 500 without a result, a 415 where there may be video."""
        for text, refusal in (
            (b" " * (OUTPUT_LIMIT + 1), ProbeFailed),
            (probe_output(*[AUDIO] * 10_000), UndecodableSource),
        ):
            probing = self.cut_off(text)
            for tags in (NAMED_TAGS, CONTAINER_TAGS):
                self.repeat(tags, text)
            self.assert_refused(probing, refusal)

    def test_long_tags(self) -> None:
        """If tags exceed the limit, what precedes the cut is known, and the container (D24)."""
        endless, named = "la " * OUTPUT_LIMIT, {"title": "x", "artist": "y"}
        for container, tags, carried in (
            ("mp3", {"title": "x", "lyrics": endless, "artist": "y"}, named),
            ("ogg", {"title": "x", "lyrics": endless, "artist": "y"}, named),
            ("ogg", {"title": "x", "artist": endless}, {"title": "x"}),
        ):

            def output(tags: object, container: str = container) -> bytes:
                """Return ffprobe's output: tags of ogg are those of the stream."""
                if container == "ogg":
                    return probe_output({**AUDIO, "tags": tags}, container=container)
                return probe_output(AUDIO, container=container, tags=tags)

            probing = self.cut_off(output(tags))
            self.repeat(NAMED_TAGS, output(named if carried == named else tags))
            if carried != named:
                self.repeat(CONTAINER_TAGS, probe_output(AUDIO, container=container))
            probe = self.successResultOf(probing)
            found = (probe.container, probe.codec, probe.duration, probe.description.tags)
            self.assertEqual(found, (container, "mp3", 10, carried))
        self.assert_released()

    def test_unsupported_container(self) -> None:
        """A container that is left out is named (D43)."""
        probing = self.fetch()
        stderr = b"[rm @ 0x1] Format not on whitelist 'mp3'\nfile:/dev/fd/3: Invalid argument\n"
        self.spawner.last.exit_and_end(1, stderr=stderr)
        error = self.failureResultOf(probing, UndecodableSource).value
        self.assertEqual(error.message, 'The container "rm" is not supported.')

    def test_signature(self) -> None:
        """A file whose first bytes prove its container is opened with that demuxer."""
        streams = ({**AUDIO, "codec_name": "mp2"}, VIDEO)
        for code, output, stderr in (
            (0, probe_output(*streams, container="mpegts"), b""),
            (1, b"{}", b"file:/dev/fd/3: Invalid data found when processing input\n"),
        ):
            source = ProbedSource(data=b"RIFF\0\0\0\0WAVE" + bytes(60))
            probing = self.fetch(source=source)
            self.assertNotIn("-f", self.spawner.last.arguments)
            self.spawner.last.exit_and_end(code, stdout=output, stderr=stderr)
            words = " ".join(self.spawner.last.arguments)
            self.assertIn(" -f wav -i file:/dev/fd/3", words)
            self.assertIn("-format_whitelist", words)
            found = self.answer(probing, probe_output(AUDIO, container="wav"))
            self.assertEqual((found.container, found.file.demuxer), ("wav", "wav"))
            self.assertEqual(found.open_with(local_input()).demuxer, "wav")

    def test_tags(self) -> None:
        """A container behind large tags is opened there, and the tags are read by themselves."""
        data = b"ID3\4\0\0\0\0\0\5hello" + b"RIFF\0\0\0\0WAVE" + bytes(60)
        tagged = probe_output(VIDEO, container="flac", tags={"title": "x"})
        for code, tags, output in ((0, {"title": "x"}, tagged), (1, {}, b"")):
            source = ProbedSource(data=data)
            probing = self.fetch(source=source)
            first = probe_output(AUDIO, probe_score=48)
            self.spawner.last.exit_and_end(code, stdout=first, stderr=INVALID * code)
            words = " ".join(self.spawner.last.arguments)
            self.assertIn(" -f flac -i file:/dev/fd/3", words)
            self.spawner.last.exit_and_end(stdout=output)
            words = " ".join(self.spawner.last.arguments)
            self.assertIn(" -f wav -skip_initial_bytes 15 -i file:/dev/fd/3", words)
            found = self.answer(probing, probe_output(AUDIO, container="wav"))
            self.assertEqual(
                (found.container, found.file.demuxer, found.skipped), ("wav", "wav", 15)
            )
            self.assertEqual(found.open_with(local_input()).skipped, 15)
            self.assertEqual(found.description.tags, tags)

    def test_pictures(self) -> None:
        """If only packets tell pictures from a film, those of the first seconds are read (D72)."""
        stream = {"codec_type": "video", "codec_name": "mjpeg", "index": 1}
        times = {"one": [0], "slow": [0, 5], "film": [0, 0.04], "endless": [0, 5] * 20_000}
        texts = {}
        for name, seconds in times.items():
            packets = [{"stream_index": 1, "pts_time": str(time)} for time in seconds]
            document = json.loads(probe_output(AUDIO, stream)) | {"packets": packets}
            texts[name] = json.dumps(document, indent=4).encode()
        for first, more, is_film in (
            ("one", "slow", False),
            ("one", "film", True),
            ("one", "endless", True),
            ("film", "endless", True),
        ):
            probing = self.fetch()
            self.spawner.last.exit_and_end(stdout=texts[first])
            words = " ".join(self.spawner.last.arguments)
            self.assertIn(" -read_intervals %+10 ", words)
            self.spawner.last.write_stdout(texts[more])
            self.spawner.last.exit_and_end()
            if is_film:
                self.assert_refused(probing, VideoSource)
            else:
                self.assertEqual(self.successResultOf(probing).codec, "mp3")

    def test_missing_program(self) -> None:
        """Without ffprobe a probe is a 500 `probe_failed` (D34)."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.assert_refused(self.fetch(), ProbeFailed)

    def test_timeout(self) -> None:
        """A probe past AP_PROBE_TIMEOUT is a 504, and holds its slot until its child is dead."""
        probing = self.fetch()
        self.clock.advance(10)
        self.assertNoResult(probing)
        self.assertEqual((self.spawner.last.signals, self.slots.held), (["TERM"], 1))
        self.spawner.last.exit_and_end(signal=15)
        self.assert_refused(probing, ProbeTimeout)


class ExaminationCase(ProberCase):
    """A source of which something is read after ffprobe."""

    PADDED = wav(chunk(b"fmt ", extensible(32, 24)), chunk(b"data", bytes(80)))
    #: For each check: the stream and the container that ffprobe reports, and a good content.
    CONTENTS: ClassVar = {
        Check.ENCRYPTION: (AUDIO, "mov,mp4,m4a", TYPE + movie(CLEAR)),
        Check.JOINED_FILES: ({**AUDIO, "codec_name": "wavpack"}, "wv", wavpack()),
        Check.SAMPLES: ({**AUDIO, "codec_name": "pcm_f24le"}, "wav", PADDED),
    }

    def examine(self, check: Check, source: ProbedSource) -> Deferred[Probe]:
        """Probe a source, of which ffprobe reports what a check is for."""
        probing = self.fetch(source=source)
        if self.slots.held:
            stream, container, _ = self.CONTENTS[check]
            self.spawner.last.exit_and_end(stdout=probe_output(stream, container=container))
        return probing


class ExaminationTests(ExaminationCase):
    """What is read after ffprobe: encryption (D64), joined files, and samples"""

    def test_once(self) -> None:
        """A source is read once for all requests, if it has a certain identity."""
        found = {}
        for check, (*_, content) in self.CONTENTS.items():
            source = ProbedSource(check.name.encode(), data=content)
            found[check] = self.successResultOf(self.examine(check, source))
            self.assertNotIn(check, found[check].pending)
            reads, children = source.reads, len(self.spawner.children)
            self.assertIs(self.successResultOf(self.examine(check, source)), found[check])
            self.assertEqual((source.reads, len(self.spawner.children)), (reads, children))
            self.assertEqual(source.input_calls, [(10, False)])
        # The search for joined files has found the length, and that for samples padded ones.
        length, padded = found[Check.JOINED_FILES].length, found[Check.SAMPLES]
        assert length is not None
        self.assertEqual(length.samples, 20_000)
        self.assertEqual((padded.codec, padded.audio.decoder), ("pcm_s32le", "pcm_s32le"))

    def test_refused(self) -> None:
        """Encrypted sources are refused at each probe, and joined files, of which a part plays."""
        for check, content, refusal in (
            (Check.ENCRYPTION, TYPE + movie(track(entry(b"enca"))), EncryptedSource),
            (Check.JOINED_FILES, wavpack() + TAG + wavpack(), UndecodableSource),
        ):
            source = ProbedSource(check.name.encode(), data=content)
            for _ in range(2):
                self.assert_refused(self.examine(check, source), refusal)

    def test_without_ranges(self) -> None:
        """A source that still arrives is left to the render, which waits for its end."""
        for check in (Check.ENCRYPTION, Check.JOINED_FILES):
            for source in (ProbedSource(size=9, opened=START), ProbedSource(size=None)):
                probe = self.successResultOf(self.examine(check, source))
                self.assertIn(check, probe.pending)
                self.assertEqual(source.reads, 0)

    def test_unreadable(self) -> None:
        """If a source cannot be read, its error is raised; a changed source fails the probe."""
        for check, (stream, container, content) in self.CONTENTS.items():
            for refusal, expected in (
                (UpstreamUnavailable(), UpstreamUnavailable),
                (RenderFailed("The source changed while it was read."), ProbeFailed),
                (ProbeTimeout(), ProbeTimeout),
            ):
                source = ProbedSource(data=content)
                probing = self.fetch(source=source)
                source.refusal = refusal
                self.spawner.last.exit_and_end(stdout=probe_output(stream, container=container))
                self.assert_refused(probing, expected, check)


class DescribeTests(ProberCase):
    """`Prober.describe`"""

    def describe(self, source: ProbedSource) -> Deferred[Probe]:
        """Probe a source for its info document."""
        return Deferred.fromCoroutine(self.prober.describe(source))

    def test_durations(self) -> None:
        """An info document has one duration, whatever ffprobe's version, which is read once."""
        mp3, stream = tagged(MPEG_1, 100), {**AUDIO, "start_time": "0.025057"}
        musepack8, early = {**AUDIO, "codec_name": "musepack8"}, {**AUDIO, "start_time": "0.000000"}
        for number, (reported, found, container, data, opened, duration, reads) in enumerate(
            (
                (musepack8, "1.671837", "mpc8", musepack(89_082), local_input(), "2.02", 1),
                (stream, "2.612245", "mp3", mp3, local_input(), "2.576508", 1),
                (early, "2.612245", "mp3", mp3, local_input(), "2.612245", 0),
                (stream, "2.612245", "mp3", mp3, START, "2.612245", 0),
                (stream, "2.612245", "avi", mp3, local_input(), "2.612245", 0),
            )
        ):
            source = ProbedSource(b"%d" % number, data=data, opened=opened)
            output = probe_output(reported, container=container, duration=found)
            probe = self.answer(self.describe(source), output)
            self.assertEqual(probe.description.duration, Decimal(duration), container)
            if opened is not START:
                self.assertIs(self.successResultOf(self.describe(source)), probe)
            self.assertEqual(source.reads, reads, number)

    def test_undecodable(self) -> None:
        """If the decoder may refuse the audio, one frame is decoded: none is a 415, as in renders.

        A source that has passed is not tried again while it is unchanged.
        """
        output = probe_output({**AUDIO, "codec_name": "flac"}, container="flac")
        complaint = b"[flac @ 0x1] decode_frame() failed\n"
        for number, (code, stdout, stderr, refusal) in enumerate(
            (
                (0, b"total_size=4096\nprogress=end\n", b"", None),
                (0, b"total_size=0\nprogress=end\n", complaint, NothingDecoded),
                (1, b"", b"Decoder (codec flac) not found for input stream #0:0\n", None),
                (1, b"", b"surprise\n", ProbeFailed),
            )
        ):
            source = ProbedSource(b"%d" % number)
            describing = self.describe(source)
            self.spawner.last.exit_and_end(stdout=output, stderr=complaint)
            words = " ".join(self.spawner.last.arguments)
            self.assertRegex(words, "^ffmpeg .* -map 0:a:0 .* -frames:a 1 ")
            self.assertEqual(self.slots.held, 1)
            self.spawner.last.exit_and_end(code, stdout=stdout, stderr=stderr)
            if refusal is not None or code:
                self.assert_refused(describing, refusal or UndecodableSource, stderr)
                continue
            self.assertNotIn(Check.DECODER, self.successResultOf(describing).pending)
            again = self.describe(ProbedSource(b"0"))
            self.assertNotIn(Check.DECODER, self.successResultOf(again).pending)
            self.assert_released()

    def test_undecodable_timeout(self) -> None:
        """A source of which nothing is decoded until AP_PROBE_TIMEOUT is a 504."""
        describing = self.describe(ProbedSource())
        output = json.loads(probe_output(AUDIO)) | {"packets": []}
        self.spawner.last.exit_and_end(stdout=json.dumps(output).encode())
        self.clock.advance(10)
        self.spawner.last.exit_and_end(signal=15)
        self.assert_refused(describing, ProbeTimeout)


class SampleTests(ExaminationCase):
    """A source whose samples are checked, and may be padded"""

    def test_arriving(self) -> None:
        """The samples of a source that arrives are checked by the render, which waits for it.

        Padded ones are checked at once, as far as the time suffices: only the header tells them.
        A source that is too large for a render has an info document.
        """
        plain = AUDIO | {"codec_name": "pcm_s16le"}
        source = ProbedSource(b"1", data=self.PADDED, opened=START)
        probing = self.fetch(source=source)
        self.assertIn(
            Check.SAMPLES, self.answer(probing, probe_output(plain, container="wav")).pending
        )
        self.assertEqual(source.reads, 0)
        for outcome in ("arrives", "is late", "is too large"):
            source = ProbedSource(data=self.PADDED, opened=START, fetching=Deferred())
            probing = self.examine(Check.SAMPLES, source)
            self.assertNoResult(probing)
            if outcome == "arrives":
                source.fetching.callback(None)
            elif outcome == "is late":
                self.clock.advance(10)
            else:
                source.fetching.errback(SourceTooLarge())
            probe = self.successResultOf(probing)
            codec = "pcm_s32le" if outcome == "arrives" else "pcm_f24le"
            self.assertEqual((probe.codec, probe.file.saw_end), (codec, False))
            self.assert_released()

    def test_flac(self) -> None:
        """Of flac that looks like noise, a piece is decoded in a slot, once while it is unchanged.

        A render that holds a slot needs none for it.
        """
        content = bytes(99) + SILENCE + NOISE
        stream = AUDIO | {"codec_name": "flac", "channels": 2}
        packet = {"codec_type": "audio", "pts": 0, "pos": "99"}
        output = json.loads(probe_output(stream, container="flac")) | {"packets": [packet] * 8}
        noise, bursts = NOISE[:999], pack(bursts_of(SYNCS["AC-3"]), "pcm_s32le")
        for code, piece, pooled, refusal in (
            *(
                (0, noise, True, None),
                (0, noise, False, None),
                (0, bursts, True, UndecodableSource),
            ),
            (1, b"", True, ProbeFailed),
        ):
            source = ProbedSource(b"%d" % len(self.spawner.children), data=content)
            probing = Deferred.fromCoroutine(self.prober.probe(source, pooled=pooled))
            self.spawner.last.exit_and_end(stdout=json.dumps(output).encode())
            words = " ".join(self.spawner.last.arguments)
            self.assertRegex(words, f"^ffmpeg .* atrim=start_sample={BLOCK}:end_sample=")
            self.assertEqual(self.slots.held, int(pooled))
            self.spawner.last.exit_and_end(code, stdout=piece)
            if refusal is not None:
                self.assert_refused(probing, refusal)
                continue
            self.assertNotIn(Check.SAMPLES, self.successResultOf(probing).pending)
            again = Deferred.fromCoroutine(self.prober.probe(source))
            self.assertNotIn(Check.SAMPLES, self.successResultOf(again).pending)
            self.assert_released()

    def test_unread_by_ffprobe(self) -> None:
        """Plain samples in a container that ffprobe refuses are described without it (D43)."""
        for data, container in ((sphere(), "nistsphere"), (sphere()[:99], None)):
            probing = self.fetch(source=ProbedSource(data=data))
            # A container that is not on the list is looked for once more, with its signature.
            self.spawner.last.exit_and_end(1, stderr=INVALID)
            if container is None:
                self.assert_refused(probing, UndecodableSource)
            else:
                self.assertEqual(self.successResultOf(probing).container, container)
        refused = sphere(sample_coding="-s9 shortpack")
        probing = self.fetch(source=ProbedSource(data=refused))
        self.spawner.last.exit_and_end(1, stderr=INVALID)
        self.assertIn("NIST SPHERE", self.failureResultOf(probing, UndecodableSource).value.message)

    def test_examined_start(self) -> None:
        """The start of a large file tells of space behind the samples, and of plain samples."""
        for size, opened, data, expected in (
            (MUCH_SPACE + 999, local_input(), self.PADDED, True),
            (MUCH_SPACE + 999, START, self.PADDED, False),
            (MUCH_SPACE, local_input(), self.PADDED, False),
            (MUCH_SPACE + 999, local_input(), b"ID3", False),
        ):
            padded = data.ljust(200_000, b"\0")
            source = ProbedSource(data=padded, size=size, opened=opened)
            probing = self.fetch(source=source)
            for option in ("-ignore_length", "-probesize"):
                self.assertIs(option in self.spawner.last.arguments, expected, option)
            if opened is START:
                self.assertEqual(source.reads, 0)
            found = self.answer(probing)
            self.assertIs(found.open_with(local_input()).is_pcm, expected)


class SourceTests(ProberCase):
    """How a source is opened, and its failures"""

    def test_how_it_is_opened(self) -> None:
        """A source is opened with AP_PROBE_TIMEOUT; if it cannot be, no child starts."""
        source = ProbedSource(refusal=UpstreamUnavailable())
        self.assert_refused(self.fetch(source=source), UpstreamUnavailable)
        self.assertEqual(self.spawner.children, [])
        null = os.open(os.devnull, os.O_RDONLY)
        self.addCleanup(os.close, null)
        source = ProbedSource()
        source.descriptors = {3: null, 4: null}
        probing = self.fetch(source=source)
        self.assertEqual(source.input_calls, [(10, False)])
        self.assertLessEqual({3, 4}, set(self.spawner.last.inherited))
        self.assertEqual(self.spawner.last.arguments[-2:], ["-i", "file:/dev/fd/3"])
        self.answer(probing)

    def test_failed(self) -> None:
        """A source that could not be read is refused, however ffprobe has ended."""
        self.cpu_seconds = 9.0
        for failure, refusal in (
            (UpstreamUnavailable(), UpstreamUnavailable),
            (RenderFailed("The source changed while it was read."), ProbeFailed),
        ):
            for code, number, stderr in ((0, None, b""), (1, None, INVALID), (None, 15, b"")):
                source = ProbedSource(state=b"1")
                probing = self.fetch(source=source)
                source.failure = failure
                if number is not None:
                    self.clock.advance(10)
                self.spawner.last.exit_and_end(
                    code, number, stdout=probe_output(AUDIO), stderr=stderr
                )
                self.assert_refused(probing, refusal, (code, number, stderr))
        self.answer(self.fetch(source=ProbedSource(state=b"1")))

    def test_replaced(self) -> None:
        """If the end of the source does not arrive, the child is stopped, and reads the start."""
        source = ProbedSource(replacement=START)
        probing = self.fetch(source=source)
        first = self.spawner.last
        source.replacing()
        self.assertEqual(first.signals, ["TERM"])
        first.exit_and_end(signal=15)
        self.assertEqual(self.spawner.last.arguments[-4:], START.probe_arguments()[-4:])
        self.assertFalse(self.answer(probing).file.saw_end)


class SharingTests(ProberCase):
    """Shared probes"""

    def test_one_child(self) -> None:
        """Requests for one identity share a child, a slot and its result (Info endpoint, 6)."""
        for code in (0, 1):
            probing = [self.fetch(b"7-8") for _ in range(5)]
            other = self.fetch(b"7-9")
            running = self.spawner.alive
            self.assertEqual((len(running), self.slots.held), (2, 2))
            running[0].exit_and_end(code, stdout=probe_output(AUDIO))
            for each in probing:
                if code:
                    self.failureResultOf(each, ProbeFailed)
                else:
                    self.successResultOf(each)
            self.assertNoResult(other)
            self.answer(other)

    def test_failed_source_of_another(self) -> None:
        """A request is not refused for the source of another one that could not be read."""
        one, two = ProbedSource(state=b"1"), ProbedSource(state=b"1")
        first, second = self.fetch(source=one), self.fetch(source=two)
        one.failure = UpstreamUnavailable()
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        self.failureResultOf(first, UpstreamUnavailable)
        self.answer(second)
        self.assert_released()

    def test_all_cancelled(self) -> None:
        """When all requests are cancelled, the probe is stopped, and then its slot is free."""
        probing = [self.fetch() for _ in range(2)]
        for each in probing:
            each.cancel()
            self.failureResultOf(each, CancelledError)
        self.assertEqual((self.spawner.last.signals, self.slots.held), (["TERM"], 1))
        self.spawner.last.exit_and_end(signal=15)
        self.assert_released()

    def test_pool_full(self) -> None:
        """A probe that finds no free slot is a 429 at once: there is no queue (D21)."""
        sources = [ProbedSource(name=name) for name in (b"a", b"b", b"a", b"c")]
        for source in sources[:2]:
            self.fetch(source=source).addErrback(lambda _: None)
        shared = self.fetch(source=sources[2]).addErrback(lambda _: None)
        error = self.failureResultOf(self.fetch(source=sources[3]), QueueFull).value
        self.assertEqual((error.retry_after, len(self.spawner.children)), (1, 2))
        self.assertEqual([len(source.input_calls) for source in sources], [1, 1, 0, 0])
        self.assertNoResult(shared)
        self.spawner.kill_all()
        self.fetch(b"c").addErrback(lambda _: None)
        self.assertEqual(len(self.spawner.alive), 1)
