"""Renders of waveforms: probe, slot, size limit, store and joining, as for audio."""

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
from tests.render.harness import HEADERS, NOTHING_UNRELEASED, Client
from tests.render.test_render import RenderCase
from tests.support.processes import FakeChild, open_descriptors
from tests.support.waveforms import parse_waveform

PEAKS = "f:peaks/pts:2"
FRAMES = struct.pack("<8h", 1, 3, -5, -5, 30, 10, 7, 8)
VALUES = [-5, 2, 7, 20]
DOCUMENT_HEADERS = replace(HEADERS, content_type="application/json")


class PeaksCase(RenderCase):
    """A node that renders waveforms."""

    def finish(self, encoder: FakeChild, said: bytes = FRAMES, code: int = 0) -> None:
        """Make the encoder write samples and exit, then run the waiting threads."""
        encoder.exit_and_end(code, stdout=said)
        self.harness.threads.run()

    def assert_dropped(self, client: Client, refusal: type[Exception]) -> None:
        """Assert that a client is refused, and that the render leaves nothing behind."""
        self.assertIs(type(client.outcome), refusal)
        self.assertEqual(self.harness.unreleased_resources(), NOTHING_UNRELEASED)
        self.assertEqual(open_descriptors(), self.before)
        self.assert_nothing_stored()


class GoodEndTests(PeaksCase):
    """Waveforms that are rendered successfully."""

    def test_whole(self) -> None:
        """The client and the variant store receive the same document (Peaks options, 6)."""
        client, encoder = self.harness.render(PEAKS)
        self.assertTrue(client.started)
        self.finish(encoder)
        self.assertEqual(client.outcome, "whole")
        self.assertEqual(parse_waveform(client.data).values, VALUES)
        key = self.harness.request(PEAKS).key
        self.assertEqual(self.harness.store.variants, {key: (client.data, DOCUMENT_HEADERS)})

    def test_no_byte_before_the_end(self) -> None:
        """Clients receive no byte of a waveform before the document is complete."""
        client, encoder = self.harness.render(PEAKS)
        encoder.write_stdout(FRAMES)
        for _ in range(50):
            self.harness.advance_to_size_check()
        self.assertFalse(client.output_started)
        encoder.exit_and_end()
        self.assertFalse(client.output_started)
        self.harness.threads.run()
        self.assertEqual(client.outcome, "whole")

    def test_gate_and_slot(self) -> None:
        """The source is probed first; only then does the waveform take a render slot.

        The slot is held until the document is written.
        """
        client = self.harness.start_client(PEAKS)
        self.assertEqual((self.harness.slots.held, self.harness.probe_slots.held), (0, 1))
        self.harness.answer_probe()
        self.assertEqual((self.harness.slots.held, self.harness.probe_slots.held), (1, 0))
        encoder = self.harness.encoder()
        self.assertEqual(encoder.arguments[-3:], ["-f", "s16le", "pipe:1"])
        encoder.exit_and_end(stdout=FRAMES)
        # The encoder has exited, but its samples are not reduced to a waveform yet.
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
        self.assertIsNone(client.outcome)
        self.harness.threads.run()
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))
        self.assertEqual(client.outcome, "whole")

    def test_in_the_queue(self) -> None:
        """A waveform in the queue starts no encoder before it has a render slot."""
        _, other = self.harness.render(path=b"b.wav")
        client = self.harness.start_client(PEAKS)
        self.harness.answer_probe()
        self.assertEqual((self.harness.slots.depth, self.harness.threads.waiting), (1, 0))
        other.exit_and_end(stdout=b"x")
        self.finish(self.harness.encoder())
        self.assertEqual(client.outcome, "whole")

    def test_joined(self) -> None:
        """Clients that request a waveform before or just after its end share it (COALESCED)."""
        first = self.harness.start_client(PEAKS)
        probing = self.harness.start_client(PEAKS)
        self.harness.answer_probe()
        encoder = self.harness.encoder()
        decoding = self.harness.start_client(PEAKS)
        encoder.exit_and_end(stdout=FRAMES)
        drawing = self.harness.start_client("pts:2/f:peaks/ch:1")
        self.harness.threads.run()
        lingering = self.harness.start_client(PEAKS)
        self.assertEqual(len(self.harness.spawner.children), 2)
        for client in (probing, decoding, drawing, lingering):
            self.assertEqual((client.started, client.outcome), (False, "whole"))
            self.assertEqual(client.data, first.data)

    def test_each_shape_is_a_variant(self) -> None:
        """Each combination of waveform options and filters is a variant with its own cache key."""
        texts = ("", "/pk_fmt:dat", "/pk_bits:8", "/pts:3", "/ch:2", "/t:1", "/gain:1")
        keys = {self.harness.request(f"f:peaks{text}").key for text in texts}
        self.assertEqual(len(keys), len(texts))
        defaults = "f:peaks/pts:800/pk_fmt:json/pk_bits:16/ch:1"
        self.assertEqual(self.harness.request(defaults).key, self.harness.request("f:peaks").key)

    def test_cap_exactly(self) -> None:
        """A waveform document of exactly AP_MAX_VARIANT_BYTES is served and stored."""
        text = "f:peaks/pts:2/pk_fmt:dat"
        self.make(max_variant=24 + 2 * 2 * 2)
        client, encoder = self.harness.render(text)
        self.finish(encoder)
        self.assertEqual((client.outcome, self.harness.stored()), ("whole", client.data))

    def test_without_a_store(self) -> None:
        """Without a variant store, every later request renders the waveform again (D37)."""
        self.make(stored=False)
        client, encoder = self.harness.render(PEAKS)
        self.finish(encoder)
        self.assertEqual(client.outcome, "whole")
        self.assertTrue(self.harness.start_client(PEAKS).started)


class RefusalTests(PeaksCase):
    """Waveforms that are refused."""

    def test_cap(self) -> None:
        """A waveform past AP_MAX_VARIANT_BYTES is a 500 before its first byte (Errors, 10)."""
        self.make(max_variant=24 + 2 * 2 * 2 - 1)
        client, encoder = self.harness.render("f:peaks/pts:2/pk_fmt:dat")
        self.finish(encoder)
        self.assertFalse(client.output_started)
        self.assert_dropped(client, OutputTooLarge)

    def test_nothing_decoded(self) -> None:
        """A waveform without a decodable frame is a 415, whatever ffmpeg's exit status is."""
        for code, stderr in ((0, b""), (1, b"Empty output")):
            self.make()
            client, encoder = self.harness.render(PEAKS)
            encoder.write_stderr(stderr)
            self.finish(encoder, b"", code)
            self.assertFalse(client.output_started)
            self.assertIsInstance(client.outcome, UndecodableSource)
            self.assert_nothing_stored()

    def test_trim_past_the_end(self) -> None:
        """If a waveform's ``t`` proves to start past the end, the 422 quotes the segment (D11)."""
        for code, stderr in ((0, b""), (1, b"Empty output")):
            self.make()
            client, encoder = self.harness.render("f:peaks/t:5")
            encoder.write_stderr(stderr)
            self.finish(encoder, b"", code)
            self.harness.encoder().exit_and_end(stdout=b"out_time_us=4250000\nprogress=end\n")
            self.assertIn('"t:5"', str(client.outcome))
            self.assert_dropped(client, InvalidOptions)

    def test_trim_well_past_the_end(self) -> None:
        """If the probe shows that ``t`` starts past the end, no slot or encoder is used (D11)."""
        client = self.harness.start_client("f:peaks/t:60")
        self.harness.answer_probe()
        self.assertEqual(len(self.harness.spawner.children), 1)
        self.assert_dropped(client, InvalidOptions)

    def test_trim_well_inside(self) -> None:
        """A waveform without a frame is a 415, not a 422, if ``t`` starts before the end."""
        client, encoder = self.harness.render("f:peaks/t:5")
        self.finish(encoder, b"")
        self.harness.encoder().exit_and_end(stdout=b"out_time_us=9000000\nprogress=end\n")
        self.assertIsInstance(client.outcome, UndecodableSource)

    def test_source_written_to(self) -> None:
        """A waveform is dropped if its source changes during the render (D35, D43)."""
        client, encoder = self.harness.render(PEAKS)
        encoder.write_stdout(FRAMES)
        self.harness.sources.opened[0].written_to = True
        encoder.exit_and_end()
        self.harness.threads.run()
        self.assertFalse(client.output_started)
        self.assert_dropped(client, RenderFailed)

    def test_encoder(self) -> None:
        """If the encoder fails midway, all clients are refused without a byte of the waveform."""
        for stderr, refusal in (
            (b"Invalid data found when processing input", UndecodableSource),
            (b"Conversion failed!", RenderFailed),
        ):
            self.make()
            client, encoder = self.harness.render(PEAKS)
            joined = self.harness.start_client(PEAKS)
            encoder.write_stderr(stderr)
            self.finish(encoder, code=1)
            self.assertFalse(client.output_started or joined.output_started)
            self.assertIs(type(joined.outcome), refusal)
            self.assert_dropped(client, refusal)

    def test_timeout(self) -> None:
        """A waveform past AP_RENDER_TIMEOUT is a 504, since no byte was sent yet (Errors, 10)."""
        self.make(timeout=100)
        client, encoder = self.harness.render(PEAKS)
        encoder.write_stdout(FRAMES)
        self.harness.clock.advance(100)
        self.assertEqual(encoder.signals, ["TERM"])
        self.assertIsInstance(client.outcome, RenderTimeout)
        encoder.exit_and_end(signal=15)
        self.harness.threads.run()
        self.assert_dropped(client, RenderTimeout)

    def test_no_room(self) -> None:
        """If no disk space is left for a waveform, the response is 500; no encoder starts."""
        self.harness.store.create_error = self.harness.fallback_scratch_space.create_error = (
            OSError(28, "No space left")
        )
        client = self.harness.start_client(PEAKS)
        self.harness.answer_probe()
        self.assertEqual(len(self.harness.spawner.children), 1)
        self.assert_dropped(client, RenderFailed)

    def test_queue_full(self) -> None:
        """If the render queue is full, a request for a waveform gets 429 (Errors, 9)."""
        self.make(queue=0)
        self.harness.render(path=b"b.wav")
        client = self.harness.start_client(PEAKS)
        self.harness.answer_probe()
        self.assertIsInstance(client.outcome, QueueFull)

    def test_measured(self) -> None:
        """For a waveform's fade-out, an unknown length is measured in the render slot (D12)."""
        client = self.harness.start_client("f:peaks/pts:2/ch:2/fade:0:1")
        self.harness.answer_probe(duration=None)
        self.harness.encoder().exit_and_end(stdout=b"out_time_us=4000000\n")
        chain = self.harness.encoder().arguments
        self.assertIn(f"afade=t=out:ss={3 * 44100}:ns=44100", chain[chain.index("-af") + 1])
        self.finish(self.harness.encoder())
        self.assertEqual(parse_waveform(client.data).values, [-5, 1, -5, 3, 7, 30, 8, 10])


class LeavingTests(PeaksCase):
    """Waveforms that every client has left (D36)."""

    def test_with_a_store(self) -> None:
        """With a variant store, a waveform that has a render slot is completed and stored (D36)."""
        client, encoder = self.harness.render(PEAKS)
        client.disconnect()
        self.assertEqual((encoder.signals, self.harness.slots.held), ([], 1))
        self.finish(encoder)
        self.assertEqual(parse_waveform(self.harness.stored() or b"").values, VALUES)

    def test_without_a_store(self) -> None:
        """Without a store, an abandoned waveform holds its slot until its thread ends (D36)."""
        self.make(stored=False)
        client, encoder = self.harness.render(PEAKS)
        encoder.write_stdout(FRAMES)
        client.disconnect()
        self.assertEqual(encoder.signals, ["TERM"])
        encoder.exit_and_end(signal=15)
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
        self.harness.threads.run()
        self.assertIsInstance(client.outcome, CancelledError)
        self.assertEqual(self.harness.unreleased_resources(), NOTHING_UNRELEASED)
        self.assertEqual(open_descriptors(), self.before)
