"""The end of all renders: a shutdown finishes what it can, and waits for nothing for ever (D39)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.errors import QueueFull, RenderFailed
from tests.render.harness import NOTHING_LEFT
from tests.render.test_render import RenderCase


class DrainTests(RenderCase):
    """`RenderRegistry.drain`"""

    def drain(self, seconds: float = 30) -> Deferred[Any]:
        """Begin to shut down."""
        return Deferred.fromCoroutine(self.harness.renders.drain(seconds))

    def test_nothing(self) -> None:
        """Where nothing runs there is nothing to wait for."""
        self.successResultOf(self.drain())

    def test_finishes(self) -> None:
        """A running render comes to its end and is stored, and only then all is over (D39)."""
        self.harness.store.slow = True
        client, encoder = self.harness.render()
        draining = self.drain()
        self.harness.clock.advance(20)
        encoder.say(b"abc")
        encoder.die()
        self.assertEqual(client.outcome, "whole")
        self.assertNoResult(draining)
        self.harness.store.commits[0].callback(None)
        self.successResultOf(draining)
        self.assertEqual(self.harness.stored(), b"abc")
        self.assertEqual(self.harness.left(), NOTHING_LEFT)

    def test_does_not_linger(self) -> None:
        """Finished renders that stay attachable are not waited for (D37)."""
        _, encoder = self.harness.render()
        encoder.say(b"abc")
        encoder.die()
        self.assertIsNotNone(self.harness.renders.find(self.harness.request().key))
        self.successResultOf(self.drain())
        self.assertEqual(self.harness.left(), NOTHING_LEFT)

    def test_no_new_ones(self) -> None:
        """While it drains, a running render can be joined, and no other begun (D39)."""
        _, encoder = self.harness.render()
        self.drain()
        with self.harness.renders.admission() as admitted:
            self.assertFalse(self.harness.come(admitted=admitted).started)
            self.assertRaises(QueueFull, self.harness.come, "f:flac", admitted=admitted)
        encoder.say(b"abc")
        encoder.die()

    def test_let_in_before(self) -> None:
        """Who came before the drain, and whose lookup is still out, gets a render (D39)."""
        with self.harness.renders.admission() as admitted:
            draining = self.drain(30)
            self.assertNoResult(draining)
            client = self.harness.come(admitted=admitted)
        self.assertTrue(client.started)
        self.harness.answer_probe()
        encoder = self.harness.spawner.last
        encoder.say(b"abc")
        self.assertNoResult(draining)
        encoder.die()
        self.harness.look()
        self.successResultOf(draining)
        self.assertEqual(client.outcome, "whole")

    def test_cancels(self) -> None:
        """What still runs after the time is ended, with its children and its clients (D39)."""
        client, encoder = self.harness.render()
        queued = self.harness.come("f:flac")
        self.harness.answer_probe()
        encoder.say(b"abc")
        self.harness.look()
        draining = self.drain(30)
        self.harness.clock.advance(29)
        self.assertEqual(encoder.signals, [])
        self.harness.clock.advance(1)
        self.assertEqual(encoder.signals, ["TERM"])
        self.assertIsInstance(queued.outcome, RenderFailed)
        self.assertNoResult(draining)
        encoder.die(signal=15)
        self.successResultOf(draining)
        self.assertIsInstance(client.outcome, RenderFailed)
        self.assertEqual(self.harness.left(), NOTHING_LEFT)
        self.assert_nothing_stored()

    def test_cancels_what_dies_already(self) -> None:
        """A render that was given up before is not forgotten: its child is dead at the end."""
        self.make(stored=False)
        client, encoder = self.harness.render()
        client.go_away()
        draining = self.drain(0.5)
        self.harness.clock.advance(0.5)
        self.assertNoResult(draining)
        self.assertEqual(self.harness.slots.held, 1)
        encoder.die(signal=15)
        self.successResultOf(draining)
        self.assertEqual(self.harness.left(), NOTHING_LEFT)

    def test_gives_up(self) -> None:
        """A write-back that never returns is left alone a few seconds after the time."""
        self.harness.store.slow = True
        _, encoder = self.harness.render()
        encoder.say(b"abc")
        encoder.die()
        draining = self.drain(30)
        self.harness.clock.advance(30)
        self.assertNoResult(draining)
        self.harness.clock.advance(5)
        self.successResultOf(draining)

    def test_several(self) -> None:
        """All renders are waited for, those that follow in the queue included."""
        _, first = self.harness.render()
        self.harness.come("f:flac")
        self.harness.answer_probe()
        draining = self.drain()
        first.say(b"abc")
        first.die()
        self.assertNoResult(draining)
        second = self.harness.encoder()
        second.say(b"x" * 100)
        second.die()
        self.successResultOf(draining)
        self.assertEqual(len(self.harness.store.variants), 2)

    def test_failed_before(self) -> None:
        """A render that failed is not waited for."""
        self.harness.come(path=b"no.wav")
        self.successResultOf(self.drain())
