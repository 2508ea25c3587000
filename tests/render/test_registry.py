"""Shutdown of the render registry: renders may finish, within a time limit (D39)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import QueueFull, RenderFailed
from tests.render.test_render import RenderCase


class DrainTests(RenderCase):
    """`RenderRegistry.drain`"""

    def drain(self, seconds: float = 30) -> Deferred[Any]:
        """Start the shutdown."""
        return Deferred.fromCoroutine(
            self.harness.renders.drain(Deadline(self.harness.clock, seconds))
        )

    def test_finishes(self) -> None:
        """A shutdown ends only after all renders, also queued ones, are complete and stored (D39).

        It does not wait for finished renders that can still be joined (D37).
        """
        self.harness.store.slow = True
        client, first = self.harness.render()
        queued = self.harness.start_probed("f:flac")
        draining = self.drain()
        self.harness.clock.advance(20)
        first.exit_and_end(stdout=b"abc")
        self.assertEqual(client.outcome, "whole")
        self.harness.store.commits[0].callback(None)
        self.harness.encoder().exit_and_end(stdout=b"x" * 100)
        self.assertEqual(queued.outcome, "whole")
        self.assertNoResult(draining)
        self.harness.store.commits[1].callback(None)
        self.successResultOf(draining)
        self.assertEqual(len(self.harness.store.variants), 2)
        self.assert_released()
        self.make()
        _, encoder = self.harness.render()
        encoder.exit_and_end(stdout=b"abc")
        self.assertIsNotNone(self.harness.renders.find(self.harness.request().key))
        self.successResultOf(self.drain())
        self.assert_released()

    def test_no_new_ones(self) -> None:
        """During a shutdown, clients can join running renders but cannot start new ones (D39).

        After a shutdown, an embedded proxy that is started again admits requests.
        """
        _, encoder = self.harness.render()
        draining = self.drain()
        with self.harness.renders.admission() as admitted:
            self.assertFalse(self.harness.start_client(admitted=admitted).started)
            self.assertRaises(QueueFull, self.harness.start_client, "f:flac", admitted=admitted)
        encoder.exit_and_end(stdout=b"abc")
        self.successResultOf(draining)
        self.harness.renders.open()
        with self.harness.renders.admission() as admitted:
            self.assertTrue(self.harness.start_client("f:flac", admitted=admitted).started)

    def test_admitted_before_shutdown(self) -> None:
        """A request that was admitted before the shutdown may still start a render (D39)."""
        with self.harness.renders.admission() as admitted:
            draining = self.drain(30)
            self.assertNoResult(draining)
            client = self.harness.start_client(admitted=admitted)
        self.assertTrue(client.started)
        self.harness.answer_probe()
        encoder = self.harness.spawner.last
        encoder.write_stdout(b"abc")
        self.assertNoResult(draining)
        encoder.exit_and_end()
        self.harness.advance_to_size_check()
        self.successResultOf(draining)
        self.assertEqual(client.outcome, "whole")

    def test_cancels(self) -> None:
        """At its time limit, a shutdown ends renders and child processes; clients fail (D39)."""
        client, encoder = self.harness.render()
        queued = self.harness.start_probed("f:flac")
        encoder.write_stdout(b"abc")
        self.harness.advance_to_size_check()
        draining = self.drain(30)
        self.harness.clock.advance(29)
        self.assertEqual(encoder.signals, [])
        self.harness.clock.advance(1)
        self.assertEqual(encoder.signals, ["TERM"])
        self.assertIsInstance(queued.outcome, RenderFailed)
        self.assertNoResult(draining)
        encoder.exit_and_end(signal=15)
        self.successResultOf(draining)
        self.assertIsInstance(client.outcome, RenderFailed)
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
        _, encoder = self.harness.render()
        encoder.exit_and_end(stdout=b"abc")
        draining = self.drain(30)
        self.harness.clock.advance(30)
        self.assertNoResult(draining)
        self.harness.clock.advance(5)
        self.successResultOf(draining)

    def test_idle(self) -> None:
        """A shutdown ends at once without running renders, or if they have failed."""
        self.successResultOf(self.drain())
        self.make()
        self.harness.start_client(path=b"no.wav")
        self.successResultOf(self.drain())
