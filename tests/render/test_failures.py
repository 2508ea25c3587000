"""Renders that have failed by their size or their deadline are not repeated for a minute (D73)."""

from __future__ import annotations

from audioproxy.errors import OutputTooLarge, QueueFull, Refusal, RenderFailed, RenderTimeout
from tests.render.harness import Client
from tests.render.test_render import PEAKS, RenderCase

# Less than the lifetime of a failure.
SOON = 59


class RepetitionTests(RenderCase):
    """A node on which a render has failed."""

    def fail(self, refusal: type[Refusal], options: str = "", *, begun: bool = False) -> None:
        """Make a render fail, before or after clients have bytes; its encoder has ended."""
        _, encoder = self.harness.render(options)
        self.end(refusal, begun=begun)
        encoder.exit_and_end(signal=15)
        self.harness.threads.run()
        self.assertEqual(self.harness.refusals(), {refusal})

    def end(self, refusal: type[Refusal], *, begun: bool = False) -> None:
        """Make the running encoder reach a limit."""
        if begun:
            self.harness.write_output(b"x" * 10)
        if refusal is RenderTimeout:
            self.harness.clock.advance(100)
        else:
            self.harness.write_output(b"x" * 10_001)

    def ask(self, options: str = "", *, is_low: bool = False) -> Client:
        """Start another client, whose request ends the running children of the earlier ones."""
        return self.harness.start_client(options, is_low=is_low)

    def test_refused_at_once(self) -> None:
        """A repetition gets the same error at once: no probe, no slot, no render counted."""
        for refusal, options, begun in (
            (RenderTimeout, "", False),
            (RenderTimeout, "", True),
            (OutputTooLarge, "", False),
            (OutputTooLarge, "", True),
            (RenderTimeout, PEAKS, False),
        ):
            self.make(timeout=100)
            self.fail(refusal, options, begun=begun)
            spawned = len(self.harness.spawner.children)
            for is_low in (False, True) * 5:
                client = self.ask(options, is_low=is_low)
                self.assertIs(type(client.outcome), refusal)
                self.assertEqual((client.output_started, client.data), (False, b""))
                self.assertIn("less than a minute ago", str(client.outcome))
            self.assertEqual(len(self.harness.spawner.children), spawned)
            self.assertEqual(self.outcomes(), {refusal.code: 1})
            self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))

    def test_found_irregular(self) -> None:
        """A time-out after a source was found irregular is not remembered."""
        self.make(timeout=100)
        _, encoder = self.harness.render()
        encoder.exit_and_end(1, stderr=b"Changing audio frame properties on the fly")
        for remembered in (False, True):
            self.harness.clock.advance(100)
            self.harness.spawner.kill_all()
            client = self.ask()
            if not remembered:
                self.assertIsNone(client.outcome)
                self.harness.answer_probe()
        self.assertIn("less than a minute ago", str(client.outcome))

    def test_while_the_child_dies(self) -> None:
        """A request between the deadline and the end of the encoder is refused, too."""
        for refusal in (RenderTimeout, OutputTooLarge):
            self.make()
            _, dying = self.harness.render()
            self.end(refusal)
            client = self.ask()
            self.assertIs(type(client.outcome), refusal)
            self.assertEqual(self.harness.spawner.alive, [dying])

    def test_for_a_minute(self) -> None:
        """After a minute the variant is rendered again; refusals do not prolong the minute."""
        self.fail(RenderTimeout)
        for _ in range(2):
            self.harness.clock.advance(SOON / 2)
            self.assertIsInstance(self.ask().outcome, RenderTimeout)
        self.harness.clock.advance(1)
        self.harness.render_whole()

    def test_others(self) -> None:
        """Other variants of the source are rendered, the same one of others, and new versions."""
        self.fail(OutputTooLarge)
        for options, path, size in (
            ("ch:1", b"a.wav", 1000),
            ("", b"b.wav", 1000),
            ("", b"a.wav", 1001),
        ):
            self.harness.sources.sizes[path] = size
            self.harness.render_whole(options, path)

    def test_no_version(self) -> None:
        """A source without a validator may be another one each time, so each request renders it."""
        self.harness.sources.validator = b""
        for _ in range(2):
            self.fail(OutputTooLarge)
        self.assertEqual(self.outcomes(), {"render_failed": 2})

    def test_no_download(self) -> None:
        """A source that has to be downloaded is not downloaded for a repetition."""
        self.harness.sources.slow = True
        self.harness.start_probed()
        self.harness.clock.advance(100)
        fetching = self.harness.sources.opened[0].fetching
        assert fetching is not None
        fetching.callback(None)
        self.assertIsInstance(self.ask().outcome, RenderTimeout)
        self.assertEqual(self.harness.sources.opened[1].input_calls, [])

    def test_other_ends(self) -> None:
        """No other end is remembered: a crash, a cancellation, or a wait in the queue (429)."""
        self.make(stored=False)
        client, encoder = self.harness.render()
        encoder.exit_and_end(code=1)
        self.assertIs(type(client.outcome), RenderFailed)
        client, encoder = self.harness.render()
        client.disconnect()
        encoder.exit_and_end(signal=15)
        _, other = self.harness.render(path=b"b.wav")
        waiting = self.harness.start_probed()
        self.harness.clock.advance(100)
        self.assertIs(type(waiting.outcome), QueueFull)
        other.exit_and_end(signal=15)
        self.harness.render_whole()
