"""Renders of remote sources: fetched in the render slot, and possibly unavailable."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.errors import (
    InvalidOptions,
    NotFound,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UpstreamUnavailable,
)
from tests.render.test_render import RenderCase
from tests.support.audio import silence, write_wav
from tests.support.stores import FakeSource


class SourceCase(RenderCase):
    """A node whose sources must be fetched."""

    def start(self, **settings: Any) -> None:
        super().start(**settings)
        self.harness.sources.slow = True

    def shut_down(self) -> None:
        for source in self.harness.sources.opened:
            if source.fetching is not None and not source.fetching.called:
                source.fetching.callback(None)
        super().shut_down()

    @property
    def source(self) -> FakeSource:
        """The source that was opened most recently."""
        return self.harness.sources.opened[-1]

    @property
    def fetching(self) -> Deferred[None]:
        """The running fetch of the most recent source."""
        assert self.source.fetching is not None
        return self.source.fetching


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
            self.assertEqual(self.source.input_calls[-1], (100, True))
            self.assertEqual({(10, False)}, set(self.source.input_calls[:-1]))
            self.assertEqual((self.harness.slots.held, self.harness.spawner.alive), (1, []))
            self.harness.clock.advance(30)
            self.fetching.callback(None)
            if size is None:
                # The first probe has read what had been downloaded.
                self.harness.answer_probe()
            self.harness.encoder().exit_and_end(stdout=b"abc")
            self.assertEqual((client.outcome, client.data), ("whole", b"abc"))
            self.assertEqual({"success": 1}, self.outcomes())

    def test_not_fetched(self) -> None:
        """A source is not fetched for impossible options (D11), or while a render is queued."""
        self.harness.sources.content = write_wav(silence(44100, 239, 2))
        client = self.harness.start_probed("t:11")
        self.assertIsInstance(client.outcome, InvalidOptions)
        self.assertFalse(any(whole for _, whole in self.source.input_calls))
        self.harness.start_probed()
        self.harness.start_probed(path=b"b.wav")
        self.assertFalse(any(whole for _, whole in self.source.input_calls))

    def test_time_left(self) -> None:
        """Fetches, the measuring pass and the encoder share one AP_RENDER_TIMEOUT."""
        self.harness.start_probed("fade:0:1", duration=None)
        self.harness.clock.advance(30)
        self.fetching.callback(None)
        self.source.fetching = None
        self.harness.clock.advance(20)
        self.harness.encoder().exit_and_end(stdout=b"total_size=176400\nprogress=end\n")
        whole = [seconds for seconds, is_whole in self.source.input_calls if is_whole]
        self.assertEqual(whole, [100, 50])
        self.harness.clock.advance(49)
        self.assertEqual(self.harness.encoder().signals, [])
        self.harness.clock.advance(1)
        self.assertEqual(self.harness.encoder().signals, ["TERM"])
        self.harness.encoder().exit_and_end(signal=15)
        self.assert_refused(RenderTimeout)

    def test_refused(self) -> None:
        """Clients receive the refusal of a failed fetch, and no encoder is started."""
        for refusal in (NotFound, SourceTooLarge, UpstreamUnavailable, RenderFailed, RenderTimeout):
            self.make()
            self.harness.start_probed()
            self.harness.start_client()
            self.assertEqual(len(self.harness.sources.opened), 1)
            self.source.refusal = refusal()
            self.fetching.callback(None)
            self.assert_refused(refusal)

    def test_too_slow(self) -> None:
        """At AP_RENDER_TIMEOUT clients get 504 at once; the slot is held until the fetch ends."""
        client = self.harness.start_probed()
        self.harness.clock.advance(100)
        self.assertIsInstance(client.outcome, RenderTimeout)
        self.assertEqual(self.harness.slots.held, 1)
        self.source.refusal = UpstreamUnavailable()
        self.fetching.callback(None)
        self.assert_refused(RenderTimeout)

    def test_left_alone(self) -> None:
        """Without a store, a fetch is cancelled when its last client leaves (D36)."""
        self.make(stored=False)
        self.harness.start_probed().disconnect()
        self.assertTrue(self.fetching.called)
        self.assertEqual({"cancelled": 1}, self.outcomes())
