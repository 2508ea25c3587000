"""A waveform is a render like every other: gate, slot, cap, store, and all who wait for it."""

from __future__ import annotations

import struct
from dataclasses import replace

from twisted.internet.defer import CancelledError

from audioproxy.errors import (
    InvalidOptions,
    OutputTooLarge,
    QueueFull,
    RenderFailed,
    RenderTimeout,
    UndecodableSource,
)
from tests.render.harness import HEADERS, NOTHING_LEFT, Client
from tests.render.test_render import RenderCase
from tests.support.processes import FakeChild, open_descriptors
from tests.support.waveforms import read_drawing

PEAKS = "f:peaks/pts:2"
FRAMES = struct.pack("<8h", 1, 3, -5, -5, 30, 10, 7, 8)
VALUES = [-5, 2, 7, 20]
DOCUMENT_HEADERS = replace(HEADERS, content_type="application/json")


class PeaksCase(RenderCase):
    """A node that draws."""

    def finish(self, encoder: FakeChild, said: bytes = FRAMES, code: int = 0) -> None:
        """Have the encoder put out samples and end, and the threads do their work."""
        encoder.say(said)
        encoder.die(code)
        self.harness.threads.run()

    def assert_dropped(self, client: Client, refusal: type[Exception]) -> None:
        """Require that a client is refused, and that nothing of the render is left."""
        self.assertIs(type(client.outcome), refusal)
        self.assertEqual(self.harness.left(), NOTHING_LEFT)
        self.assertEqual(open_descriptors(), self.before)
        self.assert_nothing_stored()


class GoodEndTests(PeaksCase):
    """A waveform that is drawn"""

    def test_whole(self) -> None:
        """The client gets the document and the store the same bytes, under its key (Peaks 6)."""
        client, encoder = self.harness.render(PEAKS)
        self.assertTrue(client.started)
        self.finish(encoder)
        self.assertEqual(client.outcome, "whole")
        self.assertEqual(read_drawing(client.data).values, VALUES)
        key = self.harness.request(PEAKS).key
        self.assertEqual(self.harness.store.variants, {key: (client.data, DOCUMENT_HEADERS)})

    def test_no_byte_before_the_end(self) -> None:
        """Nobody gets a byte before the last one is known, however long the encoder runs."""
        client, encoder = self.harness.render(PEAKS)
        encoder.say(FRAMES)
        for _ in range(50):
            self.harness.look()
        self.assertFalse(client.began)
        encoder.die()
        self.assertFalse(client.began)
        self.harness.threads.run()
        self.assertEqual(client.outcome, "whole")

    def test_gate_and_slot(self) -> None:
        """It is probed first and takes a render slot, until the document is written."""
        client = self.harness.come(PEAKS)
        self.assertEqual((self.harness.slots.held, self.harness.probe_slots.held), (0, 1))
        self.harness.answer_probe()
        self.assertEqual((self.harness.slots.held, self.harness.probe_slots.held), (1, 0))
        encoder = self.harness.encoder()
        self.assertEqual(encoder.arguments[-3:], ["-f", "s16le", "pipe:1"])
        encoder.say(FRAMES)
        encoder.die()
        # The encoder is dead, but its samples are not drawn.
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
        self.assertIsNone(client.outcome)
        self.harness.threads.run()
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))
        self.assertEqual(client.outcome, "whole")

    def test_in_the_queue(self) -> None:
        """It waits for a slot like every other render, and starts nothing until then."""
        _, other = self.harness.render(path=b"b.wav")
        client = self.harness.come(PEAKS)
        self.harness.answer_probe()
        self.assertEqual((self.harness.slots.depth, self.harness.threads.waiting), (1, 0))
        other.say(b"x")
        other.die()
        self.finish(self.harness.encoder())
        self.assertEqual(client.outcome, "whole")

    def test_joined(self) -> None:
        """Whoever comes before the end, or just after it, shares the one render (COALESCED)."""
        first = self.harness.come(PEAKS)
        probing = self.harness.come(PEAKS)
        self.harness.answer_probe()
        encoder = self.harness.encoder()
        decoding = self.harness.come(PEAKS)
        encoder.say(FRAMES)
        encoder.die()
        drawing = self.harness.come("pts:2/f:peaks/ch:1")
        self.harness.threads.run()
        lingering = self.harness.come(PEAKS)
        self.assertEqual(len(self.harness.spawner.children), 2)
        for client in (probing, decoding, drawing, lingering):
            self.assertEqual((client.started, client.outcome), (False, "whole"))
            self.assertEqual(client.data, first.data)

    def test_each_shape_is_a_variant(self) -> None:
        """Another serialization, width, number of pairs or of channels is another variant."""
        texts = ("", "/pk_fmt:dat", "/pk_bits:8", "/pts:3", "/ch:2", "/t:1", "/gain:1")
        keys = {self.harness.request(f"f:peaks{text}").key for text in texts}
        self.assertEqual(len(keys), len(texts))
        defaults = "f:peaks/pts:800/pk_fmt:json/pk_bits:16/ch:1"
        self.assertEqual(self.harness.request(defaults).key, self.harness.request("f:peaks").key)

    def test_cap_exactly(self) -> None:
        """A document of exactly AP_MAX_VARIANT_BYTES is served and stored."""
        text = "f:peaks/pts:2/pk_fmt:dat"
        self.make(max_variant=24 + 2 * 2 * 2)
        client, encoder = self.harness.render(text)
        self.finish(encoder)
        self.assertEqual((client.outcome, self.harness.stored()), ("whole", client.data))

    def test_without_a_store(self) -> None:
        """Without a store it is drawn all the same, and anew for each request after it (D37)."""
        self.make(stored=False)
        client, encoder = self.harness.render(PEAKS)
        self.finish(encoder)
        self.assertEqual(client.outcome, "whole")
        self.assertTrue(self.harness.come(PEAKS).started)


class RefusalTests(PeaksCase):
    """A waveform that comes to nothing"""

    def test_cap(self) -> None:
        """A document past AP_MAX_VARIANT_BYTES is a 500 before the first byte (Errors, 10)."""
        self.make(max_variant=24 + 2 * 2 * 2 - 1)
        client, encoder = self.harness.render("f:peaks/pts:2/pk_fmt:dat")
        self.finish(encoder)
        self.assertFalse(client.began)
        self.assert_dropped(client, OutputTooLarge)

    def test_nothing_decoded(self) -> None:
        """A source that gives not one frame is a 415, whether the encoder noticed or not."""
        for code, stderr in ((0, b""), (1, b"Empty output")):
            self.make()
            client, encoder = self.harness.render(PEAKS)
            encoder.complain(stderr)
            self.finish(encoder, b"", code)
            self.assertFalse(client.began)
            self.assertIsInstance(client.outcome, UndecodableSource)
            self.assert_nothing_stored()

    def test_trim_past_the_end(self) -> None:
        """A ``t`` that turns out to start past the end is a 422 that quotes it (D11)."""
        for code, stderr in ((0, b""), (1, b"Empty output")):
            self.make()
            client, encoder = self.harness.render("f:peaks/t:5")
            encoder.complain(stderr)
            self.finish(encoder, b"", code)
            self.harness.encoder().say(b"out_time_us=4250000\nprogress=end\n")
            self.harness.encoder().die()
            self.assertIn('"t:5"', str(client.outcome))
            self.assert_dropped(client, InvalidOptions)

    def test_trim_well_past_the_end(self) -> None:
        """One that the probe shows to start past the end costs no slot and no encoder (D11)."""
        client = self.harness.come("f:peaks/t:60")
        self.harness.answer_probe()
        self.assertEqual(len(self.harness.spawner.children), 1)
        self.assert_dropped(client, InvalidOptions)

    def test_trim_well_inside(self) -> None:
        """A source that gives nothing well before its end is a 415, whatever ``t`` is."""
        client, encoder = self.harness.render("f:peaks/t:5")
        self.finish(encoder, b"")
        self.harness.encoder().say(b"out_time_us=9000000\nprogress=end\n")
        self.harness.encoder().die()
        self.assertIsInstance(client.outcome, UndecodableSource)

    def test_source_written_to(self) -> None:
        """A waveform of a source that somebody wrote into meanwhile is dropped (D35, D43)."""
        client, encoder = self.harness.render(PEAKS)
        encoder.say(FRAMES)
        self.harness.sources.opened[0].written_to = True
        encoder.die()
        self.harness.threads.run()
        self.assertFalse(client.began)
        self.assert_dropped(client, RenderFailed)

    def test_encoder(self) -> None:
        """An encoder that fails half way is a refusal to all, and not one byte (Errors)."""
        for stderr, refusal in (
            (b"Invalid data found when processing input", UndecodableSource),
            (b"Conversion failed!", RenderFailed),
        ):
            self.make()
            client, encoder = self.harness.render(PEAKS)
            joined = self.harness.come(PEAKS)
            encoder.complain(stderr)
            self.finish(encoder, code=1)
            self.assertFalse(client.began or joined.began)
            self.assertIs(type(joined.outcome), refusal)
            self.assert_dropped(client, refusal)

    def test_timeout(self) -> None:
        """Past AP_RENDER_TIMEOUT it is a 504, since nobody got a byte yet (Errors, 10)."""
        self.make(timeout=100)
        client, encoder = self.harness.render(PEAKS)
        encoder.say(FRAMES)
        self.harness.clock.advance(100)
        self.assertEqual(encoder.signals, ["TERM"])
        self.assertIsInstance(client.outcome, RenderTimeout)
        encoder.die(signal=15)
        self.harness.threads.run()
        self.assert_dropped(client, RenderTimeout)

    def test_no_room(self) -> None:
        """Without room for the document it is a 500, and no encoder is started."""
        self.harness.store.no_room = self.harness.spare.no_room = OSError(28, "No space left")
        client = self.harness.come(PEAKS)
        self.harness.answer_probe()
        self.assertEqual(len(self.harness.spawner.children), 1)
        self.assert_dropped(client, RenderFailed)

    def test_queue_full(self) -> None:
        """With a full queue it is a 429 (Errors, 9)."""
        self.make(queue=0)
        self.harness.render(path=b"b.wav")
        client = self.harness.come(PEAKS)
        self.harness.answer_probe()
        self.assertIsInstance(client.outcome, QueueFull)

    def test_measured(self) -> None:
        """For a fade-out of unknown end the source is measured first, in the same slot (D12)."""
        client = self.harness.come("f:peaks/pts:2/ch:2/fade:0:1")
        self.harness.answer_probe(duration=None)
        self.harness.encoder().say(b"out_time_us=4000000\n")
        self.harness.encoder().die()
        chain = self.harness.encoder().arguments
        self.assertIn(f"afade=t=out:ss={3 * 44100}:ns=44100", chain[chain.index("-af") + 1])
        self.finish(self.harness.encoder())
        self.assertEqual(read_drawing(client.data).values, [-5, 1, -5, 3, 7, 30, 8, 10])


class LeavingTests(PeaksCase):
    """Every client leaves (D36)"""

    def test_with_a_store(self) -> None:
        """With a store, a drawing that has its slot runs on into it (D36)."""
        client, encoder = self.harness.render(PEAKS)
        client.go_away()
        self.assertEqual((encoder.signals, self.harness.slots.held), ([], 1))
        self.finish(encoder)
        self.assertEqual(read_drawing(self.harness.stored() or b"").values, VALUES)

    def test_without_a_store(self) -> None:
        """Without a store it is stopped, and its slot is free when the thread is, too (D36)."""
        self.make(stored=False)
        client, encoder = self.harness.render(PEAKS)
        encoder.say(FRAMES)
        client.go_away()
        self.assertEqual(encoder.signals, ["TERM"])
        encoder.die(signal=15)
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
        self.harness.threads.run()
        self.assertIsInstance(client.outcome, CancelledError)
        self.assertEqual(self.harness.left(), NOTHING_LEFT)
        self.assertEqual(open_descriptors(), self.before)
