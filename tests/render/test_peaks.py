"""Renders of waveforms: probe, slot, size limit, store and joining, as for audio."""

from __future__ import annotations

import struct

from audioproxy.errors import OutputTooLarge
from audioproxy.variants.response_headers import VariantHeaders
from tests.render.harness import HEADERS
from tests.render.test_render import PEAKS, RenderCase
from tests.support.waveforms import parse_waveform

FRAMES = struct.pack("<8h", 1, 3, -5, -5, 30, 10, 7, 8)


class PeaksTests(RenderCase):
    """A node that renders waveforms."""

    def test_whole(self) -> None:
        """Client and store get the same waveform, once it is complete (Peaks options, 6)."""
        client, encoder = self.harness.render(PEAKS)
        self.assertTrue(client.started)
        self.assertEqual(encoder.arguments[-3:], ["-f", "s16le", "pipe:1"])
        encoder.write_stdout(FRAMES)
        for _ in range(50):
            self.harness.advance_to_size_check()
        encoder.exit_and_end()
        # The encoder has exited, but its samples are not reduced to a waveform yet.
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (1, 1))
        self.assertFalse(client.output_started)
        self.harness.threads.run()
        self.assertEqual((self.harness.slots.held, self.harness.sources.held), (0, 0))
        self.assertEqual(client.outcome, "whole")
        self.assertEqual(parse_waveform(client.data).values, [-5, 2, 7, 20])
        headers = VariantHeaders("application/json", HEADERS.cache_control)
        key = self.harness.request(PEAKS).key
        self.assertEqual(self.harness.store.variants, {key: (client.data, headers)})

    def test_cap(self) -> None:
        """A waveform past AP_MAX_VARIANT_BYTES is a 500 before its first byte (Errors, 10)."""
        for cap in (32, 31):
            self.make(max_variant=cap)
            client, encoder = self.harness.render("f:peaks/pts:2/pk_fmt:dat")
            encoder.exit_and_end(stdout=FRAMES)
            self.harness.threads.run()
            if cap == 32:
                self.assertEqual((client.outcome, self.harness.stored()), ("whole", client.data))
        self.assertFalse(client.output_started)
        self.assert_refused(OutputTooLarge)
