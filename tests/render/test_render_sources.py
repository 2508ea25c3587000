"""Renders of remote sources: fetched in the render slot, and possibly unavailable."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.errors import (
    NoSuchSource,
    NotFound,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UpstreamUnavailable,
)
from tests.render.test_render import PEAKS, RenderCase
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
        """A render probes its source, fetches it completely in the slot, and then encodes."""
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


LOST = "The connection was lost."


class AnewTests(RenderCase):
    """Sources that fail, which are opened anew once"""

    def lose(self) -> None:
        """Let the source ``a.wav`` fail; its child ends as if that was the end of it."""
        for opened in self.harness.sources.opened:
            if b"a.wav" in opened.identity:
                opened.failure = UpstreamUnavailable(LOST)

    def test_during_probe(self) -> None:
        """A source that fails during its probe is opened and probed anew."""
        client = self.harness.start_client()
        self.lose()
        self.harness.answer_probe()
        self.harness.answer_probe()
        self.harness.encoder().exit_and_end(stdout=b"abc")
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual(len(self.harness.sources.opened), 2)

    def test_before_the_first_byte(self) -> None:
        """A source that fails before any client has a byte is rendered anew, in the same slot."""
        for options, written, whole in (
            ("f:wav", b"", b"new" * 99),
            ("f:wav", b"RIFF", b"new" * 99),
            ("f:ogg/fade:0:1", b"", b"new" * 99),
            (PEAKS, b"\1\0\2\0", None),
        ):
            self.make(probes=1)
            client = self.harness.start_client(options)
            self.harness.answer_probe(None if "fade" in options else "10")
            first = self.harness.encoder()
            other = self.harness.start_client(path=b"b.wav")
            first.write_stdout(written)
            self.harness.clock.advance(0.002)
            self.lose()
            first.exit_and_end()
            self.harness.threads.run()
            self.assertEqual(self.harness.slots.held, 1)
            self.assertEqual(self.harness.probe_slots.held, 1)
            self.harness.answer_probe()
            if "fade" in options:
                # The first one failed while it was measured.
                self.harness.encoder().exit_and_end(stdout=b"total_size=176400\nprogress=end\n")
            self.harness.encoder().exit_and_end(stdout=whole or b"\1\0\2\0")
            self.harness.threads.run()
            self.assertEqual(client.outcome, "whole")
            if whole is not None:
                self.assertEqual(client.data, whole)
            self.assertIsNone(other.outcome)
            self.assertEqual({"success": 1}, self.outcomes())

    def test_after_the_first_byte(self) -> None:
        """Once a client has bytes, the failure of the source breaks the stream."""
        client, encoder = self.harness.render("f:flac")
        self.harness.write_output(b"x" * 9999)
        self.lose()
        encoder.exit_and_end()
        self.assertEqual((len(client.data), type(client.outcome)), (9999, UpstreamUnavailable))
        self.assertEqual(len(self.harness.sources.opened), 1)
        self.assert_refused(UpstreamUnavailable)

    def test_twice(self) -> None:
        """A second failure is raised as it is, wherever the first one was."""
        for in_probe in (False, True):
            self.make()
            self.harness.start_client()
            for is_failing in (in_probe, False):
                if is_failing:
                    self.lose()
                    self.harness.answer_probe()
            self.harness.answer_probe()
            for _ in range(1 if in_probe else 2):
                if self.harness.spawner.last.arguments[0] == "ffprobe":
                    self.harness.answer_probe()
                self.lose()
                self.harness.encoder().exit_and_end()
            self.assertEqual(len(self.harness.sources.opened), 2)
            self.assert_refused(UpstreamUnavailable)

    def test_vanished(self) -> None:
        """A source that is missing when it is opened anew is a 404."""
        _, encoder = self.harness.render()
        self.lose()
        del self.harness.sources.sizes[b"a.wav"]
        encoder.exit_and_end()
        self.assert_refused(NoSuchSource)

    def test_deadline(self) -> None:
        """The second attempt has what is left of AP_RENDER_TIMEOUT, and none at its end."""
        for seconds in (60, 100):
            self.make()
            _, encoder = self.harness.render()
            self.harness.clock.advance(seconds)
            self.lose()
            encoder.exit_and_end(signal=None if seconds == 60 else 15)
            if seconds == 60:
                self.harness.answer_probe()
                self.harness.clock.advance(40)
                self.harness.encoder().exit_and_end(signal=15)
            self.assertEqual(len(self.harness.sources.opened), 2 if seconds == 60 else 1)
            self.assert_refused(RenderTimeout)

    def test_not_remembered(self) -> None:
        """A render that took too long since its source failed is tried again at once (D73)."""
        _, encoder = self.harness.render()
        self.lose()
        self.harness.clock.advance(100)
        encoder.exit_and_end(signal=15)
        self.harness.render_whole()
