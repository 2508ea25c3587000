"""A store in trouble, as a render sees it: it costs the hit to come, and nobody who is there."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, LogLevel, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.blocking_calls import BlockingCalls
from audioproxy.errors import RenderFailed
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.write_back import RenderStorage
from audioproxy.variants.files import FileVariantStore
from audioproxy.web.metrics_resource import exposition
from tests.render.harness import NOTHING_LEFT, Client, RenderHarness
from tests.support.processes import FakeChild, open_descriptors
from tests.support.service import moved, read_metrics
from tests.support.threads import FakeThreads

# What the file store gives a disk to answer in.
CREATE, COMMIT = 10, 120

SUCCESS = 'renders_total{format="mp3",outcome="success"}'
CANCELLED = 'renders_total{format="mp3",outcome="cancelled"}'
LOST = "variant_store_write_failures_total"


class DiskHarness(RenderHarness):
    """A node with a real file store on a disk that answers when a test says so.

    :ivar disk: the threads that wait for it.
    """

    def __init__(self, root: Path, **settings: Any) -> None:
        super().__init__(**settings)
        self.disk = FakeThreads()
        self.variants = FileVariantStore(str(root), BlockingCalls(self.clock, self.disk.in_thread))
        Deferred.fromCoroutine(self.variants.open())
        self.disk.run()
        storage = RenderStorage(self.variants, self.spare)
        self.context = replace(self.context, storage=storage)
        self.renders = RenderRegistry(self.context)

    def render(self, options: str = "", path: bytes = b"a.wav") -> tuple[Client, FakeChild]:
        """Have a client come, the store give a file, and the encoder start."""
        client = self.come(options, path)
        self.answer_probe()
        self.disk.run()
        return client, self.encoder()

    def finish(self, data: bytes = b"abc") -> None:
        """Have the encoder put out all there is."""
        self.encoder().say(data)
        self.encoder().die()

    def found(self, options: str = "") -> bytes | None:
        """Return what the store has."""
        looking: list[Any] = []
        key = self.request(options).key
        Deferred.fromCoroutine(self.variants.lookup(key)).addCallback(looking.append)
        (stored,) = looking
        if stored is None:
            return None
        try:
            data: bytes = stored.read(0, stored.size)
            return data
        finally:
            stored.close()

    def close(self) -> None:
        """Let everything come to its end, and the disk answer."""
        super().close()
        self.disk.run()
        self.clock.advance(1)
        self.disk.run()


class StoreCase(SynchronousTestCase):
    """A node after which nothing may be left, open or running or in the store's scratch folder."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp()).absolute()
        self.root.mkdir()
        self.before = open_descriptors()
        self.harness = DiskHarness(self.root)
        self.counts = self.scrape()
        self.events: list[LogEvent] = []
        globalLogPublisher.addObserver(self.events.append)
        self.addCleanup(globalLogPublisher.removeObserver, self.events.append)

    def tearDown(self) -> None:
        self.harness.close()
        self.assertEqual(self.harness.left(), NOTHING_LEFT)
        self.assertEqual(self.harness.disk.waiting, 0)
        self.assertEqual(self.scratch_files(), [])
        self.harness.variants.abandon()
        self.assertEqual(open_descriptors(), self.before)

    def scrape(self) -> dict[str, float]:
        """Return all metrics."""
        return read_metrics(exposition(self.harness.metrics.registry))

    def counted(self) -> dict[str, float]:
        """Return what was counted since the test began."""
        return moved(self.counts, self.scrape())

    def warnings(self) -> list[str]:
        """Return how each warning begins; there may be no error."""
        levels = [event["log_level"] for event in self.events]
        self.assertNotIn(LogLevel.error, levels)
        self.assertNotIn(LogLevel.critical, levels)
        forms = [e["log_format"] for e in self.events if e["log_level"] is LogLevel.warn]
        return [form.partition(",")[0].partition(" of ")[0] for form in forms]

    def scratch_files(self) -> list[str]:
        """Return the files that renders have in the store."""
        return [name for _, _, names in os.walk(self.root) for name in names if len(name) == 32]

    def break_store(self) -> None:
        """Have the store refuse whatever is asked of it."""
        shutil.rmtree(self.root)

    def assert_served_beside(self, client: Client) -> None:
        """Require that a client has everything, and the loss is counted and told, once."""
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual(self.counted(), {SUCCESS: 1, LOST: 1})
        self.assertEqual(self.warnings(), ["the store takes nothing"])
        self.assertEqual(self.harness.slots.held, 0)


class NoFileTests(StoreCase):
    """A store that gives no file to render into"""

    def test_refused(self) -> None:
        """A store that refuses is rendered beside: all bytes, one loss counted, one warning."""
        self.break_store()
        client, _ = self.harness.render()
        self.harness.finish()
        self.assert_served_beside(client)

    def test_refused_peaks(self) -> None:
        """A waveform is kept from nobody either."""
        self.break_store()
        client, encoder = self.harness.render("f:peaks/pts:1/pk_fmt:dat")
        os.write(encoder.inherited[1], b"\1\0\2\0")
        encoder.die()
        self.harness.threads.run()
        self.assertEqual((client.outcome, len(client.data)), ("whole", 28))
        success = SUCCESS.replace("mp3", "peaks")
        self.assertEqual(self.counted(), {success: 1, LOST: 1})

    def test_late(self) -> None:
        """A store that does not answer is waited for ten seconds, and then rendered beside."""
        client = self.harness.come()
        self.harness.answer_probe()
        self.harness.clock.advance(CREATE - 0.1)
        self.assertEqual(self.harness.spawner.alive, [])
        self.harness.clock.advance(0.1)
        self.harness.finish()
        self.assert_served_beside(client)
        # What it gives in the end is thrown away.
        self.harness.disk.run()
        self.assertEqual(self.scratch_files(), [])
        self.assertIsNone(self.harness.found())

    def test_next_does_not_wait(self) -> None:
        """While the disk hangs, the next render does not wait for it (Metrics, 5)."""
        self.harness.come()
        self.harness.answer_probe()
        self.harness.clock.advance(CREATE)
        self.harness.finish()
        client = self.harness.come("f:flac")
        self.harness.answer_probe()
        self.harness.finish(b"x" * 100)
        self.assertEqual(client.outcome, "whole")
        self.assertEqual(self.counted()[LOST], 2)
        self.assertEqual(self.warnings(), ["the store takes nothing"] * 2)

    def test_comes_back(self) -> None:
        """When the disk answers again, renders are stored again."""
        self.harness.come()
        self.harness.answer_probe()
        self.harness.clock.advance(CREATE)
        self.harness.finish()
        self.harness.disk.run()
        self.harness.render("f:flac")
        self.harness.finish(b"x" * 100)
        self.harness.disk.run()
        self.assertEqual(self.harness.found("f:flac"), b"x" * 100)
        self.assertEqual(self.counted()[LOST], 1)

    def test_time_that_is_left(self) -> None:
        """Waiting for the store is a part of AP_RENDER_TIMEOUT, and does not add to it."""
        self.harness.come()
        self.harness.answer_probe()
        self.harness.clock.advance(CREATE)
        self.harness.clock.advance(100 - CREATE)
        self.assertEqual(self.harness.encoder().signals, ["TERM"])

    def test_joined_beside(self) -> None:
        """A render beside the store is joined like any other, up to its end (D37)."""
        self.break_store()
        self.harness.render()
        half_way = self.harness.come()
        self.harness.finish()
        self.assertEqual((half_way.started, half_way.data), (False, b"abc"))
        self.assertIsNone(self.harness.renders.find(self.harness.request().key))

    def test_nobody_left(self) -> None:
        """A render that nobody waits for and nothing can store is not begun (D36)."""
        client = self.harness.come()
        self.harness.answer_probe()
        client.go_away()
        self.assertEqual(self.harness.slots.held, 1)
        self.break_store()
        self.harness.disk.run()
        self.assertEqual((self.harness.spawner.alive, self.harness.slots.held), ([], 0))
        self.assertEqual(self.counted(), {CANCELLED: 1})
        self.assertIsNone(self.harness.renders.find(self.harness.request().key))

    def test_nobody_left_and_late(self) -> None:
        """The same where the store does not even refuse (D36)."""
        client = self.harness.come()
        self.harness.answer_probe()
        client.go_away()
        self.harness.clock.advance(CREATE)
        self.assertEqual((self.harness.spawner.alive, self.harness.slots.held), ([], 0))
        self.assertEqual(self.counted(), {CANCELLED: 1})

    def test_nobody_left_and_slow(self) -> None:
        """Where the store answers in the end, what nobody waits for runs on into it (D36)."""
        client = self.harness.come()
        self.harness.answer_probe()
        client.go_away()
        self.harness.clock.advance(CREATE - 1)
        self.harness.disk.run()
        self.harness.finish()
        self.harness.disk.run()
        self.assertEqual(self.harness.found(), b"abc")

    def test_all_leave(self) -> None:
        """A render beside the store is stopped when the last one leaves, and not before (D36)."""
        self.break_store()
        client, encoder = self.harness.render()
        other = self.harness.come()
        encoder.say(b"abc")
        self.harness.look()
        client.go_away()
        self.assertEqual(encoder.signals, [])
        other.go_away()
        self.assertEqual((encoder.signals, self.harness.slots.held), (["TERM"], 1))
        encoder.die(signal=15)
        self.assertEqual(self.harness.slots.held, 0)
        self.assertEqual(self.counted(), {CANCELLED: 1})


class WriteBackTests(StoreCase):
    """A store that gives a file, and does not take it"""

    def hang(self) -> Client:
        """Have a render end, and the disk not take what it put out."""
        client, _ = self.harness.render()
        self.harness.finish()
        self.assertEqual(self.harness.disk.waiting, 1)
        return client

    def test_refused(self) -> None:
        """A write-back that fails costs no client a byte; it is counted and told, once."""
        client, encoder = self.harness.render()
        encoder.say(b"abc")
        self.break_store()
        encoder.die()
        self.harness.disk.run()
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual(self.counted(), {SUCCESS: 1, LOST: 1})
        self.assertEqual(self.warnings(), ["write-back"])

    def test_nobody_waits(self) -> None:
        """Clients have had their last byte, and the slot is free, before the disk answers."""
        client = self.hang()
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))
        self.assertEqual(self.counted(), {SUCCESS: 1})

    def test_attached(self) -> None:
        """While the disk hangs, whoever asks is given the finished bytes (COALESCED, D37)."""
        self.hang()
        self.assertIsNone(self.harness.found())
        for _ in range(4):
            self.harness.clock.advance(COMMIT / 4 - 1)
            client = self.harness.come()
            self.assertEqual((client.started, client.data), (False, b"abc"))
        self.harness.disk.run()
        self.assertEqual(self.harness.found(), b"abc")
        self.assertEqual(self.counted(), {SUCCESS: 1})

    def test_late(self) -> None:
        """After two minutes it is given up: counted, told, forgotten at once, its file removed."""
        self.hang()
        self.harness.clock.advance(COMMIT - 0.1)
        self.assertEqual(self.counted(), {SUCCESS: 1})
        self.harness.clock.advance(0.1)
        self.assertEqual(self.counted(), {SUCCESS: 1, LOST: 1})
        self.assertEqual(self.warnings(), ["write-back"])
        # Bytes that no store has are given to no later request (D37).
        self.assertIsNone(self.harness.renders.find(self.harness.request().key))
        self.assertNotEqual(self.scratch_files(), [])
        self.harness.disk.run()
        self.assertEqual(self.scratch_files(), [])

    def test_late_is_all_or_nothing(self) -> None:
        """What the disk does of it in the end is a whole variant, found by the next request."""
        self.hang()
        self.harness.clock.advance(COMMIT)
        self.harness.clock.advance(1)
        self.assertIsNone(self.harness.found())
        self.harness.disk.run()
        self.assertEqual(self.harness.found(), b"abc")

    def test_next_does_not_wait(self) -> None:
        """While a write-back is late, the next render is made beside the store, at once."""
        self.hang()
        self.harness.clock.advance(COMMIT)
        self.harness.clock.advance(1)
        client = self.harness.come()
        self.assertTrue(client.started)
        self.harness.answer_probe()
        self.harness.finish()
        self.assertEqual((client.data, client.outcome), (b"abc", "whole"))
        self.assertEqual(self.counted(), {SUCCESS: 2, LOST: 2})
        self.assertEqual(self.warnings(), ["write-back", "the store takes nothing"])

    def test_slow_reader(self) -> None:
        """One who reads slowly keeps the bytes of a lost render until it has them all (D38)."""
        _, encoder = self.harness.render("", b"a.wav")
        slow = self.harness.come(room=0)
        encoder.say(b"a")
        self.harness.look()
        encoder.say(b"bc")
        encoder.die()
        self.harness.clock.advance(COMMIT)
        self.harness.clock.advance(1)
        self.assertEqual((slow.data, slow.outcome), (b"a", None))
        slow.consumer.drain()
        slow.consumer.drain()
        self.assertEqual((slow.data, slow.outcome), (b"abc", "whole"))

    def test_drain(self) -> None:
        """A shutdown waits for a hung disk no longer than for all else (D39)."""
        self.hang()
        draining = Deferred.fromCoroutine(self.harness.renders.drain(30))
        self.harness.clock.advance(30)
        self.assertNoResult(draining)
        self.harness.clock.advance(5)
        self.successResultOf(draining)
        closing = Deferred.fromCoroutine(self.harness.variants.close(10))
        self.harness.clock.advance(CREATE)
        self.successResultOf(closing)

    def test_drain_while_a_file_is_made(self) -> None:
        """A render that still waits for its file is ended with the others (D39)."""
        client = self.harness.come()
        self.harness.answer_probe()
        draining = Deferred.fromCoroutine(self.harness.renders.drain(5))
        self.harness.clock.advance(5)
        self.successResultOf(draining)
        self.assertIsInstance(client.outcome, RenderFailed)
        self.assertEqual(self.counted(), {CANCELLED: 1})
        self.harness.disk.run()
        self.assertEqual(self.scratch_files(), [])
