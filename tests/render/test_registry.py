"""Shutdown of the render registry: renders may finish, within a time limit (D39)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import Stopping
from tests.render.test_render import RenderCase
from tests.support.http import Log


def counts(log: Log) -> tuple[int, int]:
    """Return the counts of renders and of write-backs in the only warning."""
    (event,) = [each for each in log.events if each["log_level"] is LogLevel.warn]
    return event["renders"], event["write_backs"]


class DrainTests(RenderCase):
    """`RenderRegistry.drain`"""

    def drain(self, seconds: float = 30) -> Deferred[Any]:
        """Start the shutdown."""
        return Deferred.fromCoroutine(
            self.harness.renders.drain(Deadline(self.harness.clock, seconds))
        )

    def test_finishes(self) -> None:
        """A shutdown waits for renders with a slot (D39), and not for those that can be joined."""
        self.harness.store.slow = True
        client, encoder = self.harness.render()
        draining = self.drain()
        self.harness.clock.advance(20)
        encoder.exit_and_end(stdout=b"abc")
        self.assertEqual(client.outcome, "whole")
        self.assertNoResult(draining)
        self.harness.store.commits[0].callback(None)
        self.successResultOf(draining)
        self.assertEqual(len(self.harness.store.variants), 1)
        self.assert_released()
        self.make()
        self.harness.render_whole()
        self.assertFalse(self.harness.start_client().started)
        self.successResultOf(self.drain())
        self.assert_released()

    def test_no_new_ones(self) -> None:
        """During a shutdown, clients can join running renders but cannot start new ones (D39)."""
        _, encoder = self.harness.render()
        draining = self.drain()
        self.assertFalse(self.harness.start_client().started)
        self.assertRaises(Stopping, self.harness.start_client, "f:flac")
        encoder.exit_and_end(stdout=b"abc")
        self.successResultOf(draining)
        self.harness.renders.open()
        self.assertTrue(self.harness.start_client("f:flac").started)

    def test_without_a_slot(self) -> None:
        """A shutdown stops renders that are probed or wait for a slot at once (D39)."""
        client, encoder = self.harness.render()
        queued = self.harness.start_probed("f:flac")
        probed = self.harness.start_client("f:wav")
        self.assertIsNone(probed.outcome)
        draining = self.drain()
        for waiting in (queued, probed):
            self.assertIsInstance(waiting.outcome, Stopping)
        self.assertEqual(0, self.harness.slots.depth)
        self.assertIsNone(client.outcome)
        self.assertNoResult(draining)
        encoder.exit_and_end(stdout=b"abc")
        self.assertEqual(client.outcome, "whole")
        self.successResultOf(draining)

    def test_cancels(self) -> None:
        """At its time limit, a shutdown ends renders and child processes; clients fail (D39)."""
        client, encoder = self.harness.render()
        encoder.write_stdout(b"abc")
        self.harness.advance_to_size_check()
        draining = self.drain(30)
        self.harness.clock.advance(29)
        self.assertEqual(encoder.signals, [])
        log = Log(self)
        self.harness.clock.advance(1)
        self.assertEqual(encoder.signals, ["TERM"])
        self.assertEqual((1, 0), counts(log))
        self.assertIsInstance(client.outcome, Stopping)
        self.assertNoResult(draining)
        encoder.exit_and_end(signal=15)
        self.successResultOf(draining)
        self.assert_released()
        self.assert_nothing_stored()

    def test_waits_for_cancelled_render(self) -> None:
        """A shutdown waits for the child process of a render that was cancelled before."""
        self.make(stored=False)
        client, encoder = self.harness.render()
        client.disconnect()
        draining = self.drain(0.5)
        self.harness.clock.advance(0.5)
        self.assertNoResult(draining)
        self.assertEqual(self.harness.slots.held, 1)
        encoder.exit_and_end(signal=15)
        self.successResultOf(draining)
        self.assert_released()

    def test_gives_up(self) -> None:
        """A shutdown stops waiting for a hanging write-back five seconds after the time limit."""
        self.harness.store.slow = True
        self.harness.render_whole()
        draining = self.drain(30)
        log = Log(self)
        self.harness.clock.advance(30)
        self.assertEqual((0, 1), counts(log))
        self.assertNoResult(draining)
        self.harness.clock.advance(5)
        self.successResultOf(draining)
