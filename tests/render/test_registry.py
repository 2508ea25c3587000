"""The end of all renders: a shutdown finishes what it can, and waits for nothing for ever (D39)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.errors import QueueFull, RenderFailed
from tests.render.studio import NOTHING_LEFT
from tests.render.test_render import JobCase


class DrainTests(JobCase):
    """`RenderRegistry.drain`"""

    def drain(self, seconds: float = 30) -> Deferred[Any]:
        """Begin to shut down."""
        return Deferred.fromCoroutine(self.studio.renders.drain(self.studio.clock, seconds))

    def test_nothing(self) -> None:
        """Where nothing runs there is nothing to wait for."""
        self.successResultOf(self.drain())

    def test_finishes(self) -> None:
        """A running render comes to its end and is stored, and only then all is over (D39)."""
        self.studio.store.slow = True
        client, encoder = self.studio.render()
        draining = self.drain()
        self.studio.clock.advance(20)
        encoder.say(b"abc")
        encoder.die()
        self.assertEqual(client.outcome, "whole")
        self.assertNoResult(draining)
        self.studio.store.commits[0].callback(None)
        self.successResultOf(draining)
        self.assertEqual(self.studio.stored(), b"abc")
        self.assertEqual(self.studio.left(), NOTHING_LEFT)

    def test_does_not_linger(self) -> None:
        """Finished renders that stay attachable are not waited for (D37)."""
        _, encoder = self.studio.render()
        encoder.say(b"abc")
        encoder.die()
        self.assertIsNotNone(self.studio.renders.find(self.studio.order().key))
        self.successResultOf(self.drain())
        self.assertEqual(self.studio.left(), NOTHING_LEFT)

    def test_no_new_ones(self) -> None:
        """While it drains, a running render can be joined, and no other begun (D39)."""
        _, encoder = self.studio.render()
        self.drain()
        with self.studio.renders.admission() as admitted:
            self.assertFalse(self.studio.come(admitted=admitted).started)
            self.assertRaises(QueueFull, self.studio.come, "f:flac", admitted=admitted)
        encoder.say(b"abc")
        encoder.die()

    def test_let_in_before(self) -> None:
        """Who came before the drain, and whose lookup is still out, gets a render (D39)."""
        with self.studio.renders.admission() as admitted:
            draining = self.drain(30)
            self.assertNoResult(draining)
            client = self.studio.come(admitted=admitted)
        self.assertTrue(client.started)
        self.studio.answer_probe()
        encoder = self.studio.spawner.last
        encoder.say(b"abc")
        self.assertNoResult(draining)
        encoder.die()
        self.studio.look()
        self.successResultOf(draining)
        self.assertEqual(client.outcome, "whole")

    def test_cancels(self) -> None:
        """What still runs after the time is ended, with its children and its clients (D39)."""
        client, encoder = self.studio.render()
        queued = self.studio.come("f:flac")
        self.studio.answer_probe()
        encoder.say(b"abc")
        self.studio.look()
        draining = self.drain(30)
        self.studio.clock.advance(29)
        self.assertEqual(encoder.signals, [])
        self.studio.clock.advance(1)
        self.assertEqual(encoder.signals, ["TERM"])
        self.assertIsInstance(queued.outcome, RenderFailed)
        self.assertNoResult(draining)
        encoder.die(signal=15)
        self.successResultOf(draining)
        self.assertIsInstance(client.outcome, RenderFailed)
        self.assertEqual(self.studio.left(), NOTHING_LEFT)
        self.assert_nothing_stored()

    def test_cancels_what_dies_already(self) -> None:
        """A render that was given up before is not forgotten: its child is dead at the end."""
        self.make(stored=False)
        client, encoder = self.studio.render()
        client.go_away()
        draining = self.drain(0.5)
        self.studio.clock.advance(0.5)
        self.assertNoResult(draining)
        self.assertEqual(self.studio.slots.held, 1)
        encoder.die(signal=15)
        self.successResultOf(draining)
        self.assertEqual(self.studio.left(), NOTHING_LEFT)

    def test_gives_up(self) -> None:
        """A write-back that never returns is left alone a few seconds after the time."""
        self.studio.store.slow = True
        _, encoder = self.studio.render()
        encoder.say(b"abc")
        encoder.die()
        draining = self.drain(30)
        self.studio.clock.advance(30)
        self.assertNoResult(draining)
        self.studio.clock.advance(5)
        self.successResultOf(draining)

    def test_several(self) -> None:
        """All renders are waited for, those that follow in the queue included."""
        _, first = self.studio.render()
        self.studio.come("f:flac")
        self.studio.answer_probe()
        draining = self.drain()
        first.say(b"abc")
        first.die()
        self.assertNoResult(draining)
        second = self.studio.encoder()
        second.say(b"x" * 100)
        second.die()
        self.successResultOf(draining)
        self.assertEqual(len(self.studio.store.variants), 2)

    def test_failed_before(self) -> None:
        """A render that failed is not waited for."""
        self.studio.come(path=b"no.wav")
        self.successResultOf(self.drain())
