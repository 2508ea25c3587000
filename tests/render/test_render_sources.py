"""Renders of remote sources: fetched in the render slot, and possibly unavailable."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    NotFound,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UpstreamUnavailable,
)
from tests.observe.test_metrics import Counts
from tests.render.harness import NOTHING_UNRELEASED, RenderHarness
from tests.support.audio import silence, write_wav
from tests.support.stores import FakeSource


class SourceCase(SynchronousTestCase):
    """A node whose sources must be fetched; everything must be released at the end of a test."""

    def setUp(self) -> None:
        self.make()

    def make(self, *, stored: bool = True) -> None:
        """Replace the node with a new one."""
        self.harness = RenderHarness(stored=stored)
        self.harness.sources.slow = True
        self.counts = Counts(self.harness.metrics)
        self.addCleanup(self.check, self.harness)

    def check(self, harness: RenderHarness) -> None:
        """Close the node, and assert that everything is released."""
        for source in harness.sources.opened:
            if source.fetching is not None and not source.fetching.called:
                source.fetching.callback(None)
        harness.close()
        self.assertEqual(harness.unreleased_resources(), NOTHING_UNRELEASED)

    @property
    def source(self) -> FakeSource:
        """The source that was opened most recently."""
        return self.harness.sources.opened[-1]

    @property
    def fetching(self) -> Deferred[None]:
        """The running fetch of the most recent source."""
        assert self.source.fetching is not None
        return self.source.fetching

    def outcomes(self) -> dict[str, float]:
        """Return the number of renders for each outcome."""
        return {
            name.split(" ")[2]: value for name, value in self.counts.of("renders_total").items()
        }


class FetchTests(SourceCase):
    """Fetches of a render's source."""

    def test_order(self) -> None:
        """A render probes its source, fetches it completely in the slot, and then encodes.

        A source of unknown size passes the size check.
        """
        for size in (1000, None):
            self.make()
            self.harness.sources.sizes[b"a.wav"] = size
            client = self.harness.start_probed("t:5")
            self.assertEqual(self.source.input_calls, [(10, False), (100, True)])
            self.assertEqual((self.harness.slots.held, self.harness.spawner.alive), (1, []))
            self.harness.clock.advance(30)
            self.fetching.callback(None)
            self.harness.encoder().exit_and_end(stdout=b"abc")
            self.assertEqual((client.outcome, client.data), ("whole", b"abc"))
            self.assertEqual({"success": 1}, self.outcomes())

    def test_not_fetched(self) -> None:
        """A source is not fetched for impossible options (D11), or while a render is queued."""
        self.harness.sources.content = write_wav(silence(44100, 239, 2))
        client = self.harness.start_probed("t:11")
        self.assertEqual(client.outcome.status, 422)  # type: ignore[attr-defined]
        self.assertEqual([whole for _, whole in self.source.input_calls], [False])
        self.harness.start_probed()
        self.harness.start_probed(path=b"b.wav")
        self.assertEqual([whole for _, whole in self.source.input_calls], [False])

    def test_time_left(self) -> None:
        """Fetches, the measuring pass and the encoder share one AP_RENDER_TIMEOUT."""
        client = self.harness.start_probed("fade:0:1", duration=None)
        self.harness.clock.advance(30)
        self.fetching.callback(None)
        self.source.fetching = None
        self.harness.clock.advance(20)
        self.harness.encoder().exit_and_end(stdout=b"total_size=176400\nprogress=end\n")
        self.assertEqual(
            [seconds for seconds, whole in self.source.input_calls if whole], [100, 70, 50]
        )
        self.harness.clock.advance(50)
        self.harness.encoder().exit_and_end(signal=15)
        self.assertIsInstance(client.outcome, RenderTimeout)


class FailureTests(SourceCase):
    """Sources that cannot be fetched."""

    def test_refused(self) -> None:
        """Clients receive the refusal of a failed fetch, and no encoder is started."""
        for refusal in (NotFound, SourceTooLarge, UpstreamUnavailable, RenderFailed, RenderTimeout):
            self.make()
            clients = [self.harness.start_probed(), self.harness.start_client()]
            self.assertEqual(len(self.harness.sources.opened), 1)
            self.source.refusal = refusal()
            self.fetching.callback(None)
            self.assertEqual([type(client.outcome) for client in clients], [refusal] * 2)
            self.assertEqual({refusal.code: 1}, self.outcomes())
            self.assertIsNone(self.harness.stored())
            self.assertEqual(self.harness.unreleased_resources(), NOTHING_UNRELEASED)

    def test_too_slow(self) -> None:
        """At AP_RENDER_TIMEOUT clients get 504 at once; the slot is held until the fetch ends."""
        client = self.harness.start_probed()
        self.harness.clock.advance(100)
        self.assertIsInstance(client.outcome, RenderTimeout)
        self.assertEqual(self.harness.slots.held, 1)
        self.source.refusal = UpstreamUnavailable()
        self.fetching.callback(None)
        self.assertEqual({"render_timeout": 1}, self.outcomes())

    def test_left_alone(self) -> None:
        """Without a store, a fetch is cancelled when its last client leaves (D36)."""
        self.make(stored=False)
        client = self.harness.start_probed()
        client.disconnect()
        self.assertTrue(self.fetching.called)
        self.assertEqual({"cancelled": 1}, self.outcomes())

    def test_cut_short(self) -> None:
        """A source that breaks off midway breaks the response and is not stored (Errors, 8)."""
        client = self.harness.start_probed()
        self.fetching.callback(None)
        self.harness.write_output(b"abc")
        self.assertEqual(client.data, b"abc")
        self.harness.encoder().exit_and_end(stderr=b"https://a.test/b: Connection reset by peer\n")
        self.assertIsInstance(client.outcome, UpstreamUnavailable)
        self.assertEqual({"upstream_unavailable": 1}, self.outcomes())
        self.assertIsNone(self.harness.stored())
