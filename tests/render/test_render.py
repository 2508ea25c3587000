"""One render: its clients, its end, and its cleanup."""

from __future__ import annotations

import signal
from contextvars import copy_context
from typing import Any

from twisted.internet.defer import CancelledError
from twisted.logger import formatEvent
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    InvalidOptions,
    NoSuchSource,
    NothingDecoded,
    OutputDiffers,
    OutputTooLarge,
    ProbeFailed,
    ProbeTimeout,
    QueueFull,
    Refusal,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.files.streams import ConsumerGone
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.exact_length import exact_length_filters
from audioproxy.observe.log_context import set_request_id
from tests.observe.test_metrics import Counts
from tests.render.harness import HEADERS, NOTHING_UNRELEASED, Client, RenderHarness
from tests.support.audio import silence, write_wav
from tests.support.http import Log
from tests.support.processes import FakeChild, open_descriptors, opened_since

PEAKS = "f:peaks/pts:2"
INVALID = b"Invalid data found when processing input"


class RenderCase(SynchronousTestCase):
    """A node that must release all resources at the end of a test."""

    def setUp(self) -> None:
        self.before = open_descriptors()
        self.log = Log(self)
        self.start()

    def start(self, **settings: Any) -> None:
        """Start a node."""
        self.harness = RenderHarness(**settings)
        self.counts = Counts(self.harness.metrics)

    def make(self, **settings: Any) -> None:
        """Shut down the node, and replace it with a new one."""
        self.shut_down()
        self.log.events.clear()
        self.start(**settings)

    def tearDown(self) -> None:
        self.shut_down()

    def shut_down(self) -> None:
        """Shut down the node, and assert that everything is released."""
        self.harness.close()
        self.assert_released()

    def assert_released(self) -> None:
        """Assert that no resource is held any more."""
        self.assertEqual(self.harness.unreleased_resources(), NOTHING_UNRELEASED)
        self.assertEqual(set(), opened_since(self.before))

    def assert_nothing_stored(self) -> None:
        """Assert that nothing can be read from the store after all pending writes (D35)."""
        self.harness.close()
        self.assertEqual(self.harness.store.variants, {})

    def assert_refused(self, refusal: type[Refusal], had_slot: bool = True) -> None:
        """Assert that all clients have the same refusal and that nothing of the render is left.

        The refusal is counted if the render had a slot (Metrics, 1).
        """
        self.assertEqual(self.harness.refusals(), {refusal})
        self.assert_released()
        self.assertEqual(self.outcomes(), {refusal.code: 1} if had_slot else {})
        self.assert_nothing_stored()

    def outcomes(self) -> dict[str, float]:
        """Return how many renders were counted, by their outcome."""
        counts = self.counts.of("renders_total")
        return {series.split(" ")[2]: count for series, count in counts.items()}


class GoodEndTests(RenderCase):
    """Renders that succeed."""

    def test_first_client(self) -> None:
        """The first client receives bytes while they are rendered (MISS), and they are stored."""
        client = self.harness.start_client("f:mp3/br:96")
        self.assertTrue(client.started)
        self.assertEqual((self.harness.slots.held, self.harness.probe_slots.held), (0, 1))
        self.harness.answer_probe()
        self.assertEqual((self.harness.slots.held, self.harness.probe_slots.held), (1, 0))
        self.assertEqual(self.harness.sources.held, 1)
        self.harness.write_output(b"abc")
        self.assertEqual((client.data, client.outcome), (b"abc", None))
        self.assertIsNone(self.harness.stored())
        self.harness.encoder().exit_and_end(stdout=b"def")
        self.assertEqual((client.data, client.outcome), (b"abcdef", "whole"))
        key = self.harness.request("f:mp3/br:96").key
        self.assertEqual(self.harness.store.variants, {key: (b"abcdef", HEADERS)})
        record = self.harness.store.records[key]
        self.assertEqual(("br:96/f:mp3", b"local://a.wav"), (record.options, record.source))
        # The double's validator is the size.
        self.assertEqual(b"1000", record.validator)
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))
        self.harness.clock.advance(0.9)
        self.assertNotEqual(open_descriptors(), self.before)
        self.harness.clock.advance(0.1)
        self.assertEqual(set(), opened_since(self.before))

    def test_first_byte(self) -> None:
        """Clients receive no byte while the output has only container headers."""
        client, encoder = self.harness.render("f:wav")
        empty = ENCODERS["wav"].header_bytes
        self.harness.write_output(b"h" * empty)
        self.assertFalse(client.output_started)
        self.harness.write_output(b"a")
        self.assertEqual(len(client.data), empty + 1)
        encoder.exit_and_end()

    def test_crash_of_the_store(self) -> None:
        """A write-back that crashes is a failed one: the client gets all bytes (Metrics, 5)."""
        self.harness.store.refusal = ZeroDivisionError()
        self.harness.render_whole()
        self.assertEqual(1, self.counts.changes["variant_store_write_failures_total"])


class LengthTests(RenderCase):
    """Outputs that state their length (D57)"""

    def test_warnings(self) -> None:
        """If the source has another length than it states, a warning says so."""
        for stderr, warning in (
            (b"frame:0    pts:500 pts_time:1\naudioproxy.tail=1\n", None),
            (b"frame:0    pts:200 pts_time:1\naudioproxy.tail=1\n", "lacks 0.007 seconds"),
            (b"", "lacks more than 1 second"),
        ):
            self.make()
            self.harness.fill_sources()
            client, encoder = self.harness.render("f:wav")
            encoder.exit_and_end(stdout=b"RIFF____WAVEdata____audio", stderr=stderr)
            self.assertEqual(client.outcome, "whole")
            self.assertEqual(len(self.log.warnings), 1 if warning else 0)
            self.assertIn(warning or "", " ".join(self.log.warnings))


class JoiningTests(RenderCase):
    """Clients that join a running render (COALESCED)."""

    def test_every_moment(self) -> None:
        """Clients that join at any moment before the end get all bytes without another slot."""
        first = self.harness.start_client()
        probing = self.harness.start_probed()
        encoder = self.harness.encoder()
        no_byte = self.harness.start_client()
        encoder.write_stdout(b"abc")
        unseen = self.harness.start_client()
        self.harness.advance_to_size_check()
        half_way = self.harness.start_client()
        self.assertEqual(half_way.data, b"abc")
        encoder.exit_and_end(stdout=b"def")
        lingering = self.harness.start_client()
        self.assertEqual(len(self.harness.spawner.children), 2)
        for client in (probing, no_byte, unseen, half_way, lingering):
            self.assertFalse(client.started)
        for client in (first, probing, no_byte, unseen, half_way, lingering):
            self.assertEqual((client.data, client.outcome), (b"abcdef", "whole"))

    def test_removed_at_once(self) -> None:
        """A node stores a variant at most once in a second, also if it is removed at once (D58).

        So its Last-Modified, which has whole seconds, is that of no other body.
        """
        self.harness.render_whole()
        self.harness.store.stored.clear()
        self.harness.clock.advance(0.9)
        client = self.harness.start_client()
        self.assertEqual((False, b"abc"), (client.started, client.data))
        self.harness.clock.advance(0.1)
        self.harness.render_whole(data=b"xyz")
        self.assertEqual(b"xyz", self.harness.stored())

    def test_in_the_queue(self) -> None:
        """Clients that join a queued render take no place; its timeout begins with its slot."""
        _, other = self.harness.render(path=b"b.wav")
        client = self.harness.start_probed()
        joined = self.harness.start_client()
        self.assertEqual(self.harness.slots.depth, 1)
        self.harness.clock.advance(90)
        other.exit_and_end(stdout=b"x")
        self.harness.clock.advance(90)
        self.assertEqual(self.harness.encoder().signals, [])
        self.harness.encoder().exit_and_end(stdout=b"abc")
        self.assertEqual((joined.data, joined.started, client.outcome), (b"abc", False, "whole"))

    def test_without_a_store(self) -> None:
        """Without a store, every request after the end of a render starts a new render (D37)."""
        self.make(stored=False)
        _, encoder = self.harness.render()
        self.harness.write_output(b"abc")
        during = self.harness.start_client()
        encoder.exit_and_end()
        self.assertEqual((during.data, during.started), (b"abc", False))
        after = self.harness.start_client()
        self.assertEqual((after.data, after.started), (b"", True))


class LaneTests(RenderCase):
    """Renders of low requests (D65)."""

    def finish_encoder(self) -> None:
        """End the encoder that was started last."""
        self.harness.encoder().exit_and_end(stdout=b"abc")

    def test_waits_for_listeners(self) -> None:
        """A low render waits for a render that arrives later, and does not count as queued."""
        _, running = self.harness.render()
        low = self.harness.start_probed("cb:1", is_low=True)
        self.assertEqual((0, 1), (self.harness.slots.depth, self.harness.slots.low_depth))
        listener = self.harness.start_probed("cb:2")
        running.exit_and_end(stdout=b"abc")
        self.finish_encoder()
        self.assertEqual(("whole", None), (listener.outcome, low.outcome))
        self.finish_encoder()
        self.assertEqual("whole", low.outcome)
        self.assertIn("render_queue_wait_seconds_count low", self.counts.changes)

    def test_joined_while_it_waits(self) -> None:
        """A listener who joins a waiting low render gets the free slot for it."""
        self.make(capacity=2)
        _, low = (self.harness.start_probed(each, is_low=True) for each in ("cb:1", "cb:2"))
        self.assertEqual((1, 1), (self.harness.slots.held, self.harness.slots.low_depth))
        listener = self.harness.start_client("cb:2")
        self.finish_encoder()
        self.assertFalse(listener.started)
        self.assertEqual(("whole", "whole"), (listener.outcome, low.outcome))

    def test_joined_during_the_probe(self) -> None:
        """A listener who joins a low render during its probe makes it a normal render."""
        self.make(capacity=2)
        self.harness.start_probed("cb:1", is_low=True)
        self.harness.start_client("cb:2", is_low=True)
        self.harness.start_client("cb:2")
        self.harness.answer_probe()
        self.assertEqual(2, self.harness.slots.held)

    def test_probes(self) -> None:
        """Low renders leave probe slots free for listeners."""
        self.make(probes=2)
        self.harness.start_client(is_low=True)
        refused = self.harness.start_client(path=b"b.wav", is_low=True)
        self.assertIsInstance(refused.outcome, QueueFull)
        self.assertIsNone(self.harness.start_client(path=b"b.wav").outcome)


class RefusalTests(RenderCase):
    """Renders that are refused or fail."""

    def test_source(self) -> None:
        """A missing source is a 404, one past AP_MAX_SRC_BYTES a 413; no child is started."""
        for path, refusal in ((b"no.wav", NoSuchSource), (b"large.wav", SourceTooLarge)):
            self.make()
            self.harness.sources.sizes[b"large.wav"] = 100_001
            self.harness.start_client(path=path)
            self.assertEqual(self.harness.spawner.children, [])
            self.assert_refused(refusal, had_slot=False)
        self.harness.sources.sizes[b"a.wav"] = 100_000
        self.harness.render_whole()

    def test_probe(self) -> None:
        """A probe that fails, or exceeds AP_PROBE_TIMEOUT, refuses all clients without a slot."""
        for seconds, number, stderr, refusal in (
            (0, None, b"", ProbeFailed),
            (0, None, INVALID, UndecodableSource),
            (10, 15, b"", ProbeTimeout),
        ):
            self.make()
            for _ in range(3):
                self.harness.start_client()
            self.harness.clock.advance(seconds)
            self.harness.spawner.last.exit_and_end(1, number, stderr=stderr)
            self.assertEqual(len(self.harness.spawner.children), 1)
            self.assert_refused(refusal, had_slot=False)

    def test_options_that_the_source_refuses(self) -> None:
        """If ``t`` starts past a confirmed end, clients get 422 without a slot (D11)."""
        for options in ("t:60", "f:peaks/t:60"):
            for busy in (False, True):
                self.make()
                self.harness.sources.content = write_wav(silence(44100, 239, 2))
                if busy:
                    self.harness.render(path=b"b.wav")
                children = len(self.harness.spawner.children)
                client = self.harness.start_probed(options)
                self.assertIsInstance(client.outcome, InvalidOptions)
                self.assertEqual(len(self.harness.spawner.children), children + 1)
                self.assertEqual((self.harness.slots.held, self.harness.slots.depth), (busy, 0))
                self.assertEqual(self.outcomes(), {})

    def test_no_slot(self) -> None:
        """Clients get 429 if the queue is full, or at the end of their wait (Errors, 9)."""
        for options, queue in (("", 0), (PEAKS, 0), ("", 1)):
            self.make(queue=queue)
            _, other = self.harness.render(path=b"b.wav")
            waiting = [self.harness.start_client(options), self.harness.start_client(options)]
            self.harness.answer_probe()
            self.harness.clock.advance(100 * queue)
            self.assertEqual([type(client.outcome) for client in waiting], [QueueFull] * 2)
            other.exit_and_end(stdout=b"x")
            self.assertEqual(sum(self.outcomes().values()), 1)
            self.assertEqual(1, self.counts.changes["render_queue_rejections_total"])

    def test_no_probe_slot(self) -> None:
        """The 429 of a probe that finds no slot does not count as a rejection of the queue."""
        self.make(probes=1)
        self.harness.start_client()
        refused = self.harness.start_client(path=b"b.wav")
        self.assertIsInstance(refused.outcome, QueueFull)
        self.assertNotIn("render_queue_rejections_total", self.counts.changes)

    def test_timeout(self) -> None:
        """At AP_RENDER_TIMEOUT clients get 504 or an abort; a child keeps its slot (Errors, 10)."""
        for options, said, number in (
            ("", b"", 15),
            ("", b"abc", 15),
            ("", b"abc", None),
            (PEAKS, b"abcd", 15),
        ):
            self.make()
            client, encoder = self.harness.render(options)
            self.harness.start_client(options)
            encoder.write_stdout(said)
            self.harness.clock.advance(99)
            self.assertEqual((encoder.signals, client.outcome), ([], None))
            self.harness.clock.advance(1)
            self.assertEqual(encoder.signals, ["TERM"])
            self.assertEqual(self.harness.refusals(), {RenderTimeout})
            self.assertEqual(self.harness.slots.held, 1)
            encoder.exit_and_end(signal=number)
            self.harness.threads.run()
            self.assertEqual(client.data, b"" if options else said)
            self.assert_refused(RenderTimeout)

    def test_new_client_while_the_child_dies(self) -> None:
        """A client that arrives while a cancelled encoder is exiting gets a new render."""
        self.make(stored=False)
        client, dying = self.harness.render()
        client.disconnect()
        new = self.harness.start_probed()
        self.assertEqual(self.harness.spawner.alive, [dying])
        self.assertEqual((new.started, self.harness.slots.depth), (True, 1))
        dying.exit_and_end(signal=15)
        self.harness.encoder().exit_and_end(stdout=b"abc")
        self.assertIsInstance(client.outcome, CancelledError)
        self.assertEqual((new.data, new.outcome), (b"abc", "whole"))

    def test_encoder(self) -> None:
        """An encoder that fails, at any moment, fails all clients; without ffmpeg too (D34)."""
        for options, said, code, stderr, refusal in (
            ("f:flac", b"", 1, INVALID, UndecodableSource),
            ("f:flac", b"x" * 9999, 1, INVALID, UndecodableSource),
            ("f:flac", b"", 1, b"", RenderFailed),
            ("f:flac", b"h" * ENCODERS["flac"].header_bytes, 0, b"", NothingDecoded),
            (PEAKS, b"x" * 9998, 1, INVALID, UndecodableSource),
            (PEAKS, b"x" * 9998, 1, b"Conversion failed!", RenderFailed),
            (PEAKS, b"", 0, b"", NothingDecoded),
            (PEAKS, b"", 1, b"Empty output", NothingDecoded),
        ):
            self.make()
            client, encoder = self.harness.render(options)
            joined = self.harness.start_client(options)
            self.harness.write_output(said)
            encoder.exit_and_end(code, stderr=stderr)
            self.harness.threads.run()
            for each in (client, joined):
                self.assertEqual(len(each.data), 9999 * (len(said) == 9999))
                self.assertEqual(each.output_started, len(said) == 9999)
            self.assert_refused(refusal)
        self.make()
        self.harness.start_client()
        self.harness.spawner.refusal = FileNotFoundError(2, "No such file or directory")
        self.harness.answer_probe()
        self.assert_refused(RenderFailed)

    def test_request_of_log_lines(self) -> None:
        """Log lines of a render have the id of the request that started it (D54)."""

        def start(request_id: str) -> Client:
            set_request_id(request_id)
            return self.harness.start_client()

        first, second = (copy_context().run(start, name) for name in ("first", "second"))
        self.assertEqual((True, False), (first.started, second.started))
        self.harness.answer_probe()
        self.harness.encoder().exit_and_end(signal=signal.SIGKILL)
        lines = [(event.get("request_id"), formatEvent(event)) for event in self.log.events]
        for words, (name, line) in zip(
            ("has a slot", "encoder failed", "has failed"), lines, strict=True
        ):
            self.assertEqual("first", name)
            self.assertIn(words, line)

    def test_source_written_to(self) -> None:
        """If the source changes during a render, the render fails and is not stored (D35, D43)."""
        for options in ("f:flac", PEAKS, "t:5"):
            self.make()
            client, encoder = self.harness.render(options)
            if options == "t:5":
                encoder.exit_and_end(1, stderr=b"Empty output")
            self.harness.sources.opened[0].written_to = True
            self.harness.encoder().exit_and_end(stdout=b"total_size=187425\nprogress=end\n" * 20)
            self.harness.threads.run()
            self.assertEqual(client.output_started, options == "f:flac")
            (warning,) = self.log.warnings
            self.assertIn("a source changed while it was read", warning)
            self.assert_refused(RenderFailed)

    def test_trim_that_gives_nothing(self) -> None:
        """If ``t`` proves to start past the end, that is a 422 (D11); otherwise a 415 (D13)."""
        empty, past, inside = (1, b"Empty output"), b"total_size=187425", b"total_size=9000000"
        for options, end, measured, code, refusal in (
            ("t:5", (0, b""), past, 0, InvalidOptions),
            ("f:peaks/t:5", empty, past, 0, InvalidOptions),
            ("t:5", empty, inside, 0, NothingDecoded),
            ("t:5", empty, b"total_size=0", 0, NothingDecoded),
            ("t:5", empty, b"total_size=0", 1, UndecodableSource),
            ("f:peaks/t:5", empty, inside, 0, NothingDecoded),
            ("t:5", empty, b"", 9, NothingDecoded),
            ("t:5", empty, b"", -9, RenderTimeout),
        ):
            self.make()
            client, encoder = self.harness.render(options)
            encoder.exit_and_end(end[0], stderr=end[1])
            self.harness.threads.run()
            self.assertIsNone(client.outcome)
            self.harness.clock.advance(101 if code < 0 else 0)
            self.harness.encoder().exit_and_end(
                abs(code), stdout=measured + b"\nprogress=end\n", stderr=INVALID * (code == 1)
            )
            self.assertFalse(client.output_started)
            for text in ('"t:5"', "4.25 seconds"):
                self.assertEqual(text in str(client.outcome), refusal is InvalidOptions)
            self.assert_refused(refusal)

    def render_too_short(self, measured: bytes) -> tuple[Client, FakeChild]:
        """Run a render that yields no samples, and the measuring pass that follows it."""
        client, encoder = self.harness.render("f:aac/sr:8000/t:0:0.002")
        self.assertNotIn("apad", " ".join(encoder.arguments))
        encoder.exit_and_end(1, stdout=b"headers", stderr=b"Empty output")
        measuring = self.harness.encoder()
        self.assertIn("-progress", measuring.arguments)
        measuring.exit_and_end(stdout=b"total_size=%s\n" % measured)
        return client, measuring

    def test_shortest_trim(self) -> None:
        """A trim that is too short for the resampler is padded in a second pass (D13)."""
        client, measuring = self.render_too_short(b"4000000")
        encoder = self.harness.encoder()
        self.assertIsNot(encoder, measuring)
        command = " ".join(encoder.arguments)
        # The trim of 0.002 s has 88 samples at 44100 Hz, which are 16 samples at 8000 Hz.
        for words in (
            "apad=whole_len=49152,",
            f",atrim=end_sample=16,{exact_length_filters(16, 8000)}",
        ):
            self.assertIn(words, command)
        encoder.exit_and_end(stdout=b"x" * 100)
        self.assertEqual((client.data, client.outcome), (b"x" * 100, "whole"))
        self.assertEqual(self.harness.stored(), b"x" * 100)

    def test_shortest_trim_that_gives_nothing(self) -> None:
        """If the padded second pass yields nothing, the response is 415; there is no third pass."""
        self.render_too_short(b"4000000")
        self.harness.encoder().exit_and_end(1, stderr=b"Empty output")
        self.assertEqual(
            ["the encoder output no audio (exit status 1: Empty output)"], self.log.warnings
        )
        self.assert_refused(NothingDecoded)
        self.make()
        _, measuring = self.render_too_short(b"0")
        self.assertIs(measuring, self.harness.spawner.last)
        self.assert_refused(NothingDecoded)

    def test_cap(self) -> None:
        """Exceeding AP_MAX_VARIANT_BYTES is a 500, or breaks the response off (Errors, 10)."""
        for first in (b"", b"x" * 10):
            self.make(max_variant=10)
            client, encoder = self.harness.render()
            self.harness.write_output(first)
            self.assertEqual((client.data, encoder.signals), (first, []))
            self.harness.write_output(b"x" * (11 - len(first)))
            self.assertEqual((client.data, encoder.signals), (first, ["TERM"]))
            self.assertIsInstance(client.outcome, OutputTooLarge)
            encoder.exit_and_end(signal=15)
            self.assert_refused(OutputTooLarge)

    def test_cap_at_the_very_end(self) -> None:
        """Output past AP_MAX_VARIANT_BYTES is not stored, however its encoder ends (D52)."""
        for size, number in ((10, signal.SIGXFSZ), (11, None), (10, None)):
            self.make(max_variant=10)
            client, encoder = self.harness.render()
            encoder.exit_and_end(signal=number, stdout=b"x" * size)
            self.assertLessEqual(len(client.data), 10)
            if size > 10 or number:
                self.assert_refused(OutputTooLarge)
            else:
                self.assertEqual((client.outcome, self.harness.stored()), ("whole", b"x" * 10))

    def test_no_room(self) -> None:
        """Without disk space, or the end of a source that is needed (D57), no encoder starts."""
        for options, error in (
            ("", None),
            (PEAKS, None),
            ("f:wav", UpstreamUnavailable),
            ("f:opus/fade:0:1", RenderFailed),
        ):
            self.make()
            if error is None:
                self.harness.fill_disk()
            else:
                self.harness.sources.content = error()
            self.harness.start_client(options)
            self.harness.start_client(options)
            self.harness.answer_probe(container="flac", codec="flac")
            self.assertEqual(len(self.harness.spawner.children), 1)
            self.assert_refused(error or RenderFailed)

    def test_crash(self) -> None:
        """An unexpected exception is a 500, is logged, and leaves nothing behind."""
        self.harness.sources.crash = ZeroDivisionError()
        self.harness.start_client()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assert_refused(RenderFailed, had_slot=False)


class MeasuringTests(RenderCase):
    """Renders that must measure the length of their source first (D12)."""

    def measure(self, samples: int) -> None:
        """Make the measuring pass report a length and succeed."""
        self.assertIn("-progress", self.harness.encoder().arguments)
        self.harness.encoder().exit_and_end(stdout=b"total_size=%d\nprogress=end\n" % samples)

    def test_within_the_slot(self) -> None:
        """The measuring pass runs in the render slot, and gives the start of the fade (D12)."""
        client = self.harness.start_probed("fade:0:1", duration=None)
        self.assertEqual(self.harness.slots.held, 1)
        self.measure(4 * 44100)
        self.assertEqual(self.harness.slots.held, 1)
        chain = self.harness.encoder().arguments[self.harness.encoder().arguments.index("-af") + 1]
        self.assertIn(f"afade=t=out:ss={3 * 44100}:ns=44100", chain)
        self.harness.encoder().exit_and_end(stdout=b"abc")
        self.assertEqual(client.outcome, "whole")

    def test_refused(self) -> None:
        """A measuring pass may find no audio, or a start past the end (D11), or be late."""
        for options, duration, samples, seconds, refusal in (
            ("fade:0:1", None, 0, 0, NothingDecoded),
            ("t:5/fade:0:1", None, 4 * 44100, 0, InvalidOptions),
            ("t:60", "10", 4 * 44100, 0, InvalidOptions),
            ("t:60", "10", 61 * 44100, 0, None),
            # The last report arrives exactly at the deadline.
            ("fade:0:1", None, 4 * 44100, 100, RenderTimeout),
            ("fade:0:1", None, None, 100, RenderTimeout),
        ):
            self.make()
            client = self.harness.start_probed(options, duration=duration)
            self.harness.clock.rightNow += seconds
            if samples is None:
                self.harness.clock.advance(0)
                self.harness.encoder().exit_and_end(signal=15)
            else:
                self.measure(samples)
            self.assertEqual("4 seconds" in str(client.outcome), refusal is InvalidOptions)
            if refusal is None:
                self.assertIn("-ss 59 ", " ".join(self.harness.encoder().arguments))
            else:
                self.harness.clock.advance(0)
                self.assert_refused(refusal)


class IrregularTests(RenderCase):
    """Renders of sources that change inside, or hold samples that are no audio (D63)."""

    CHANGE = b"[a @ 0x5] Changing audio frame properties on the fly is not supported.\n"

    def alive(self) -> list[tuple[str, bool]]:
        """Return the name of each child, and whether it is the decoder of another one."""
        children = self.harness.spawner.alive
        return [(child.arguments[0], child.arguments[-2] == "f32le") for child in children]

    def end_pipeline(self, data: bytes) -> None:
        """End a decoder and its encoder."""
        decoder, encoder = self.harness.spawner.alive
        decoder.exit_and_end()
        encoder.exit_and_end(stdout=data)

    def test_before_the_first_byte(self) -> None:
        """A change that is found before a client has a byte costs time, and nothing else."""
        client, encoder = self.harness.render("f:opus")
        encoder.exit_and_end(1, stderr=self.CHANGE)
        self.assertEqual(self.alive(), [("ffmpeg", True), ("ffmpeg", False)])
        self.end_pipeline(b"whole")
        self.assertEqual((client.data, client.outcome), (b"whole", "whole"))
        self.assertEqual(self.harness.stored(), b"whole")
        self.harness.start_probed("f:mp3")
        self.assertEqual(self.alive(), [("ffmpeg", True), ("ffmpeg", False)])
        self.end_pipeline(b"more")
        self.harness.render("f:opus", b"b.wav")
        self.assertEqual(self.alive(), [("ffmpeg", False)])

    def begin_anew(self) -> Client:
        """Return a client that has 1000 bytes of a render that then begins anew."""
        client, encoder = self.harness.render("f:mp3")
        self.harness.write_output(b"x" * 1000)
        self.assertTrue(client.output_started)
        encoder.exit_and_end(1, stderr=self.CHANGE)
        self.assertEqual(self.alive(), [("ffmpeg", True), ("ffmpeg", False)])
        return client

    def test_after_the_first_byte(self) -> None:
        """A change that is found later is a pause: clients get the rest of the second output."""
        client = self.begin_anew()
        late = self.harness.start_client("f:mp3")
        self.harness.write_output(b"x" * 999)
        self.assertEqual((client.data, late.data), (b"x" * 1000,) * 2)
        self.end_pipeline(b"x and more")
        for each in (client, late):
            self.assertEqual((each.data, each.outcome), (b"x" * 1000 + b" and more", "whole"))
        self.assertEqual(self.harness.stored(), client.data)
        self.assertEqual([], self.log.warnings)

    def test_two_at_once(self) -> None:
        """Two renders of a source that find the same at once both begin anew."""
        self.make(capacity=2)
        clients, encoders = zip(
            *(self.harness.render(options) for options in ("f:mp3", "f:opus")), strict=True
        )
        for encoder in encoders:
            encoder.exit_and_end(1, stderr=self.CHANGE)
        for encoder in self.harness.spawner.alive:
            encoder.exit_and_end(stdout=b"" if encoder.arguments[-2] == "f32le" else b"whole")
        self.assertEqual(["whole"] * 2, [client.outcome for client in clients])

    def test_other_bytes(self) -> None:
        """If the second output differs, the stream ends; the variant is not stored (D78)."""
        client = self.begin_anew()
        self.harness.write_output(b"y")
        decoder, encoder = self.harness.spawner.alive
        encoder.exit_and_end(255)
        decoder.exit_and_end(255)
        self.assertIsInstance(client.outcome, OutputDiffers)
        self.assertEqual((client.data, self.harness.stored()), (b"x" * 1000, None))
        (warning,) = self.log.warnings
        self.assertIn("its next render is whole", warning)
        again = self.harness.start_probed("f:mp3")
        self.end_pipeline(b"whole")
        self.assertEqual((again.data, again.outcome), (b"whole", "whole"))

    def test_same_fault(self) -> None:
        """A fault that another attempt has again ends the render."""
        client, encoder = self.harness.render("f:mp3")
        for _ in range(2):
            encoder = self.harness.encoder()
            encoder.exit_and_end(stderr=b"audioproxy.excess=1\n")
        self.assertIs(RenderFailed, type(client.outcome))


class LeavingTests(RenderCase):
    """Renders that every client has left (D36)."""

    def test_with_a_store(self) -> None:
        """With a store, a render that has its slot is completed and stored (D36)."""
        for said, reconnects in ((b"", False), (b"abc", False), (b"abc", True)):
            self.make()
            client, encoder = self.harness.render()
            self.harness.write_output(said)
            client.disconnect()
            self.assertEqual((encoder.signals, self.harness.slots.held), ([], 1))
            back = self.harness.start_client() if reconnects else None
            encoder.exit_and_end(stdout=b"def")
            self.assertEqual(self.harness.stored(), said + b"def")
            self.assertNotEqual(client.outcome, "whole")
            if back is not None:
                self.assertEqual((back.started, back.data), (False, b"abcdef"))

    def test_without_a_store(self) -> None:
        """Without a store, an abandoned render is stopped in each pass, and is counted (D36)."""
        for options, duration, seconds, said, at_once in (
            ("", "10", 0, b"", False),
            ("", "10", 1, b"abc", False),
            ("", "10", 3, b"abc", False),
            ("", "10", 0, b"abc", True),
            ("fade:0:1", None, 0, b"", False),
            ("t:5", "10", 0, b"", False),
            (PEAKS, "10", 0, b"abcd", False),
        ):
            self.make(stored=False, timeout=2.5)
            client = self.harness.start_probed(options, duration=duration)
            if options == "t:5":
                self.harness.encoder().exit_and_end(1, stderr=b"Empty output")
            if at_once:
                client.consumer.on_write = client.consumer.disconnect
            self.harness.write_output(said)
            if not at_once:
                client.disconnect()
            self.harness.clock.pump([seconds / 2] * 2)
            signals = ["TERM", "KILL"] if seconds > 2 else ["TERM"]
            self.assertEqual(self.harness.encoder().signals, signals)
            self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
            self.harness.encoder().exit_and_end(signal=15)
            if options == PEAKS:
                self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
                self.harness.threads.run()
            kind = ConsumerGone if client.output_started else CancelledError
            self.assertIsInstance(client.outcome, kind)
            self.assertEqual(self.outcomes(), {"cancelled": 1})
            self.assert_released()

    def test_before_the_slot(self) -> None:
        """An abandoned render without a slot is dropped; a shared probe continues (D36)."""
        for stored in (True, False):
            self.make(stored=stored)
            _, other = self.harness.render(path=b"b.wav")
            client = self.harness.start_probed()
            self.assertEqual(self.harness.slots.depth, 1)
            client.disconnect()
            self.assertEqual((self.harness.slots.depth, self.harness.slots.held), (0, 1))
            self.assertIsInstance(client.outcome, CancelledError)
            self.assertEqual(other.signals, [])
            other.exit_and_end(stdout=b"x")
            self.assertEqual((self.harness.spawner.alive, self.outcomes()), ([], {"success": 1}))
            client = self.harness.start_client()
            other_client = self.harness.start_client("f:flac")
            client.disconnect()
            self.assertEqual(self.harness.spawner.last.signals, [])
            self.harness.answer_probe()
            alive = [child.arguments[0] for child in self.harness.spawner.alive]
            self.assertEqual((alive, other_client.outcome), (["ffmpeg"], None))
            self.assertEqual(self.outcomes(), {"success": 1})
