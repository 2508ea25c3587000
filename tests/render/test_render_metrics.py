"""Metrics of renders: durations and gauges."""

from __future__ import annotations

from audioproxy.media.command.encoders import ENCODERS
from tests.render.test_render import RenderCase


class MetricsTests(RenderCase):
    """Durations and gauges; `RenderCase.assert_refused` counts renders that fail."""

    def test_time_in_the_slot(self) -> None:
        """A render's duration excludes the probe, the queue and the write-back."""
        self.harness.store.slow = True
        _, other = self.harness.render("f:wav", path=b"b.wav")
        self.harness.clock.advance(3)
        self.harness.start_client("f:ogg")
        self.harness.clock.advance(4)
        self.harness.answer_probe()
        self.harness.clock.advance(5)
        other.exit_and_end(1)
        self.harness.clock.advance(6)
        self.harness.encoder().exit_and_end(stdout=b"x" * (ENCODERS["ogg"].header_bytes + 1))
        self.harness.clock.advance(7)
        expected = {
            "render_duration_seconds_sum wav render_failed": 12,
            "render_duration_seconds_sum ogg success": 6,
        }
        self.assertEqual(expected, self.counts.of("render_duration_seconds_sum"))

    def gauges(self) -> tuple[float, ...]:
        """Return the changes of renders running, slots held and queue depth since the start."""
        names = ("renders_running", "render_slots_held", "render_queue_depth")
        changes = self.counts.changes
        return tuple(changes.get(name, 0) for name in names)

    def test_gauges(self) -> None:
        """The gauges follow renders that take slots, wait, leave the queue and end."""
        self.make(capacity=2, queue=3)
        for number, expected in enumerate(((1, 1, 0), (2, 2, 0), (2, 2, 1), (2, 2, 2))):
            before = self.gauges()
            self.harness.start_client(f"cb:{number}")
            # A probe changes no gauge.
            self.assertEqual(before, self.gauges())
            self.harness.answer_probe()
            self.assertEqual(expected, self.gauges())
        self.harness.clients[2].disconnect()
        self.assertEqual((2, 2, 1), self.gauges())
        for expected in ((2, 2, 0), (1, 1, 0), (0, 0, 0)):
            encoder = self.harness.spawner.alive[0]
            encoder.exit_and_end(stdout=b"abc")
            self.assertEqual(expected, self.gauges())
