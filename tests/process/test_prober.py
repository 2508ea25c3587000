"""The prober: one child for all waiters, and the right error for each failure."""

from __future__ import annotations

import json
from decimal import Decimal

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    ProbeFailed,
    ProbeTimeout,
    QueueFull,
    UndecodableSource,
    UpstreamUnavailable,
    VideoSource,
)
from audioproxy.media.inputs import Input, local_input, remote_input
from audioproxy.media.probe import Probe
from audioproxy.process import prober as prober_module
from audioproxy.process.prober import Prober
from audioproxy.process.slots import Slots
from audioproxy.process.spawn import Launcher
from tests.media.test_diagnostics import COMPLETE_SOURCES, CUT_SHORT, REMOTE_FAILURES
from tests.support.processes import FakeSpawner

AUDIO = {"codec_type": "audio", "codec_name": "mp3", "sample_rate": "44100", "channels": 1}
VIDEO = {"codec_type": "video", "codec_name": "h264"}


def probe_output(*streams: dict[str, object]) -> bytes:
    """Return ffprobe's output for a file of ten seconds with some streams."""
    container = {"format_name": "mp3", "duration": "10.0"}
    return json.dumps({"streams": streams, "format": container}).encode()


class FakeSource:
    """Source whose behavior each test sets.

    :ivar input_calls: for each call of `input`, the seconds that it may take, and whether it needs
        the whole source.
    :ivar refusal: raised by `input`, if it is set.
    :ivar state: its fingerprint.
    """

    def __init__(self, source: Input | None = None) -> None:
        self.input_calls: list[tuple[float, bool]] = []
        self.refusal: Exception | None = None
        self.descriptors: dict[int, int] = {}
        self.state = b""
        self._source = source or local_input()

    def fingerprint(self) -> bytes:
        return self.state

    async def input(self, seconds: float, *, whole: bool) -> Input:
        self.input_calls.append((seconds, whole))
        if self.refusal is not None:
            raise self.refusal
        return self._source


class ProberCase(SynchronousTestCase):
    """A prober with two slots."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.spawner = FakeSpawner()
        self.addCleanup(self.spawner.kill_all)
        self.slots = Slots(self.clock, 2, 0, 1.0)
        self.launcher = Launcher(self.spawner, self.clock, {})
        self.prober = Prober(self.launcher, "ffprobe", self.slots, 10)

    def fetch(self, identity: bytes = b"a", source: FakeSource | None = None) -> Deferred[Probe]:
        """Probe a source."""
        return Deferred.fromCoroutine(self.prober.probe(identity, source or FakeSource()))

    def refused(self, probing: Deferred[Probe], refusal: type[Exception]) -> Exception:
        """Return the refusal of a probe, and assert that everything is released."""
        error = self.failureResultOf(probing, refusal).value
        self.assertIs(type(error), refusal)
        self.assertEqual((self.slots.held, self.clock.getDelayedCalls()), (0, []))
        return error


class CacheTests(ProberCase):
    """Cached probe results"""

    def make_source(self, state: bytes) -> FakeSource:
        """Return a source with a fingerprint."""
        source = FakeSource()
        source.state = state
        return source

    def probe_uncached(self, state: bytes, identity: bytes = b"a") -> Probe:
        """Probe a source, and assert that this starts a child."""
        before = len(self.spawner.children)
        probing = self.fetch(identity, self.make_source(state))
        self.assertEqual(len(self.spawner.children), before + 1)
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        return self.successResultOf(probing)

    def test_unchanged(self) -> None:
        """An unchanged source needs no child and no slot."""
        cached = self.probe_uncached(b"1")
        for _ in range(2):
            self.assertEqual(self.successResultOf(self.fetch(b"a", self.make_source(b"1"))), cached)
        self.assertEqual(len(self.spawner.children), 1)
        self.assertEqual(self.slots.held, 0)

    def test_changed(self) -> None:
        """A changed source, another source, and a source without a fingerprint are probed again."""
        self.probe_uncached(b"1")
        self.probe_uncached(b"2")
        self.probe_uncached(b"1", b"b")
        for _ in range(2):
            self.probe_uncached(b"")

    def test_changed_meanwhile(self) -> None:
        """The result for a source that changed during its probe is not cached."""
        source = self.make_source(b"1")
        probing = self.fetch(b"a", source)
        source.state = b"2"
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        self.successResultOf(probing)
        self.probe_uncached(b"1")
        self.probe_uncached(b"2")

    def test_refused(self) -> None:
        """A refusal is not cached, since its cause may be gone at the next request."""
        probing = self.fetch(b"a", self.make_source(b"1"))
        self.spawner.last.exit_and_end(1)
        self.refused(probing, ProbeFailed)
        self.probe_uncached(b"1")

    def test_bounded(self) -> None:
        """The cache is bounded, and keeps the sources that were requested last."""
        for number in range(2000):
            self.probe_uncached(b"1", b"%d" % number)
        self.assertLess(len(self.prober._cache), 1000)
        self.successResultOf(self.fetch(b"1999", self.make_source(b"1")))
        self.probe_uncached(b"1", b"0")


class ResultTests(ProberCase):
    """The result of a probe"""

    def test_result(self) -> None:
        """A source is described by its first audio stream."""
        probing = self.fetch()
        self.assertEqual(self.spawner.last.arguments[0], "ffprobe")
        self.spawner.last.write_stdout(probe_output(AUDIO)[:20])
        self.spawner.last.write_stdout(probe_output(AUDIO)[20:])
        self.assertEqual(self.slots.held, 1)
        self.spawner.last.exit_and_end()
        probe = self.successResultOf(probing)
        self.assertEqual((probe.codec, probe.duration), ("mp3", Decimal(10)))
        self.assertEqual((self.slots.held, self.clock.getDelayedCalls()), (0, []))

    def test_video(self) -> None:
        """A source with a real video stream is refused (Errors, 415)."""
        probing = self.fetch()
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO, VIDEO))
        self.refused(probing, VideoSource)

    def test_no_audio(self) -> None:
        """A source without an audio stream is undecodable (Errors, 415)."""
        probing = self.fetch()
        self.spawner.last.exit_and_end(stdout=probe_output())
        self.refused(probing, UndecodableSource)

    def test_faulty_source(self) -> None:
        """A probe whose diagnostic reports a faulty source is a 415."""
        probing = self.fetch()
        self.spawner.last.exit_and_end(
            1, stderr=b"x.mp3: Invalid data found when processing input\n"
        )
        self.refused(probing, UndecodableSource)

    def test_service_failure(self) -> None:
        """A probe that fails for a reason other than its source is a 500 `probe_failed`."""
        for stderr, code, signal in (
            (b"", 1, None),
            (b"who knows", 1, None),
            (b"Cannot allocate memory", 1, None),
            (b"Cannot allocate memory\nInvalid data found when processing input", 1, None),
            (b"error while loading shared libraries: libav.so", 127, None),
            (b"Invalid data found when processing input", 0, 11),
            (b"Invalid data found when processing input", 0, 40),
        ):
            probing = self.fetch()
            self.spawner.last.exit_and_end(code, signal, stderr=stderr)
            self.refused(probing, ProbeFailed)

    def test_bad_output(self) -> None:
        """Output that is not a single JSON document is a 500 `probe_failed`."""
        for text in (b"", b"{", b"\xff", b"{} {}"):
            probing = self.fetch()
            self.spawner.last.exit_and_end(stdout=text)
            self.refused(probing, ProbeFailed)

    def cut_off(self, text: bytes) -> Deferred[Probe]:
        """Start a probe whose output exceeds the limit, and end its child."""
        probing = self.fetch()
        self.spawner.last.write_stdout(text)
        self.assertEqual(self.spawner.last.signals, ["TERM"])
        self.spawner.last.exit_and_end(signal=15)
        return probing

    def test_endless_output(self) -> None:
        """Endless output without a result is stopped, and is a 500 `probe_failed`."""
        self.refused(self.cut_off(b" " * (prober_module._OUTPUT_LIMIT + 1)), ProbeFailed)

    def test_too_many_streams(self) -> None:
        """A source with too many streams to check is a 415: there may be video."""
        text = json.dumps({"streams": [AUDIO] * 10_000, "format": {}}, indent=4).encode()
        self.refused(self.cut_off(text), UndecodableSource)

    def test_long_tags(self) -> None:
        """If a source's tags exceed the output limit, everything before the cut is known."""
        tags = {"title": "x", "lyrics": "la " * prober_module._OUTPUT_LIMIT, "artist": "y"}
        container = {"format_name": "mp3", "duration": "10.0", "tags": tags}
        text = json.dumps({"streams": [AUDIO], "format": container}, indent=4).encode()
        probe = self.successResultOf(self.cut_off(text))
        self.assertEqual((probe.codec, probe.duration), ("mp3", 10))
        self.assertEqual(probe.description.tags, {"title": "x"})

    def test_missing_program(self) -> None:
        """Without ffprobe a probe is a 500 `probe_failed` (D34)."""
        self.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.refused(self.fetch(), ProbeFailed)

    def test_timeout(self) -> None:
        """A probe past AP_PROBE_TIMEOUT is a 504, and holds its slot until its child is dead."""
        probing = self.fetch()
        self.clock.advance(10)
        self.assertNoResult(probing)
        self.assertEqual((self.spawner.last.signals, self.slots.held), (["TERM"], 1))
        self.spawner.last.exit_and_end(signal=15)
        self.refused(probing, ProbeTimeout)


class RemoteTests(ProberCase):
    """A remote source"""

    URL = "https://a.test/b.mp3"

    def test_how_it_is_opened(self) -> None:
        """A probe opens its source with AP_PROBE_TIMEOUT, and does not need the whole source."""
        source = FakeSource(remote_input(self.URL, "us/1"))
        probing = self.fetch(source=source)
        self.assertEqual(source.input_calls, [(10, False)])
        self.assertEqual(self.spawner.last.arguments[-2:], ["-i", self.URL])
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        self.successResultOf(probing)

    def test_source_not_opened(self) -> None:
        """If a source cannot be opened, its error is raised, and no child starts."""
        source = FakeSource()
        source.refusal = UpstreamUnavailable()
        self.refused(self.fetch(source=source), UpstreamUnavailable)
        self.assertEqual(self.spawner.children, [])

    def test_opened_once(self) -> None:
        """A request that shares a probe, or finds no free slot, does not open its source."""
        sources = [FakeSource() for _ in range(3)]
        for source in sources[:2]:
            self.fetch(source=source).addErrback(lambda _: None)
        self.fetch(b"b").addErrback(lambda _: None)
        self.failureResultOf(self.fetch(b"c", sources[2]), QueueFull)
        self.assertEqual([len(source.input_calls) for source in sources], [1, 0, 0])

    def test_diagnostics(self) -> None:
        """A probe that fails because of the connection is refused with the cause."""
        for refusal, diagnostics in REMOTE_FAILURES.items():
            for stderr in diagnostics:
                probing = self.fetch(source=FakeSource(remote_input(self.URL, "us/1")))
                self.spawner.last.exit_and_end(1, stderr=stderr)
                self.refused(probing, refusal or ProbeFailed)

    def test_cut_short(self) -> None:
        """A probe of a source that was cut short is refused, although ffprobe exits with 0."""
        for stderr in CUT_SHORT:
            probing = self.fetch(source=FakeSource(remote_input(self.URL, "us/1")))
            self.spawner.last.exit_and_end(stdout=probe_output(AUDIO), stderr=stderr)
            self.refused(probing, UpstreamUnavailable)

    def test_without_ranges(self) -> None:
        """Without range support, the end of a source is never taken for a lost connection."""
        for stderr in CUT_SHORT:
            probing = self.fetch(source=FakeSource(remote_input(self.URL, "us/1", ranges=False)))
            self.spawner.last.exit_and_end(stdout=probe_output(AUDIO), stderr=stderr)
            self.assertEqual(self.successResultOf(probing).codec, "mp3")

    def test_whole(self) -> None:
        """Messages of ffprobe about recovered connections or other faults do not fail a probe."""
        for stderr in COMPLETE_SOURCES:
            probing = self.fetch(source=FakeSource(remote_input(self.URL, "us/1")))
            self.spawner.last.exit_and_end(stdout=probe_output(AUDIO), stderr=stderr)
            self.successResultOf(probing)


class SharingTests(ProberCase):
    """Shared probes"""

    def test_one_child(self) -> None:
        """All requests for one source share one child and one slot (Info endpoint, 6)."""
        probing = [self.fetch() for _ in range(5)]
        self.assertEqual((len(self.spawner.children), self.slots.held), (1, 1))
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        probes = {self.successResultOf(each) for each in probing}
        self.assertEqual(len(probes), 1)

    def test_one_failure(self) -> None:
        """All requests that share a probe get its refusal."""
        probing = [self.fetch() for _ in range(3)]
        self.spawner.last.exit_and_end(1)
        for each in probing:
            self.refused(each, ProbeFailed)

    def test_two_sources(self) -> None:
        """Two sources are probed by two child processes."""
        one, two = self.fetch(b"a"), self.fetch(b"b")
        first, second = self.spawner.children
        first.exit_and_end(1)
        self.failureResultOf(one, ProbeFailed)
        self.assertNoResult(two)
        second.exit_and_end(stdout=probe_output(AUDIO))
        self.successResultOf(two)

    def test_later(self) -> None:
        """A request after a failed probe starts a new child."""
        first = self.fetch()
        self.spawner.last.exit_and_end(1)
        self.failureResultOf(first, ProbeFailed)
        second = self.fetch()
        self.assertEqual(len(self.spawner.children), 2)
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        self.successResultOf(second)

    def test_cancelled_sharer(self) -> None:
        """Cancelling one request, even the first, leaves the others their result."""
        for cancelled in range(3):
            probing = [self.fetch() for _ in range(3)]
            probing[cancelled].cancel()
            self.failureResultOf(probing.pop(cancelled), CancelledError)
            self.assertEqual(self.spawner.last.signals, [])
            self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
            for each in probing:
                self.successResultOf(each)

    def test_all_cancelled(self) -> None:
        """When all requests are cancelled, the probe is stopped, and then its slot is free."""
        probing = [self.fetch() for _ in range(2)]
        for each in probing:
            each.cancel()
            self.failureResultOf(each, CancelledError)
        self.assertEqual((self.spawner.last.signals, self.slots.held), (["TERM"], 1))
        self.spawner.last.exit_and_end(signal=15)
        self.assertEqual((self.slots.held, self.clock.getDelayedCalls()), (0, []))

    def test_new_client_while_probe_exits(self) -> None:
        """A request gets a new probe while the child of a cancelled probe still runs."""
        self.fetch().addErrback(lambda _: None).cancel()
        stopped_child = self.spawner.last
        later = self.fetch()
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        self.assertEqual(self.successResultOf(later).codec, "mp3")
        stopped_child.exit_and_end(signal=15)
        self.assertEqual((self.slots.held, self.clock.getDelayedCalls()), (0, []))

    def test_request_during_notification(self) -> None:
        """A request that starts while waiters receive a result starts a new probe."""
        later: list[Deferred[Probe]] = []
        first = self.fetch().addErrback(lambda _: later.append(self.fetch()))
        second = self.fetch()
        self.spawner.last.exit_and_end(1)
        self.assertEqual(len(self.spawner.children), 2)
        self.successResultOf(first)
        self.failureResultOf(second, ProbeFailed)
        self.spawner.last.exit_and_end(stdout=probe_output(AUDIO))
        self.successResultOf(later[0])

    def test_pool_full(self) -> None:
        """A probe that finds no free slot is a 429 at once: there is no queue (D21)."""
        self.fetch(b"a").addErrback(lambda _: None)
        self.fetch(b"b").addErrback(lambda _: None)
        shared = self.fetch(b"a").addErrback(lambda _: None)
        error = self.failureResultOf(self.fetch(b"c"), QueueFull).value
        self.assertEqual((error.retry_after, len(self.spawner.children)), (1, 2))
        self.assertNoResult(shared)
        self.spawner.kill_all()
        self.fetch(b"c").addErrback(lambda _: None)
        self.assertEqual(len(self.spawner.alive), 1)
