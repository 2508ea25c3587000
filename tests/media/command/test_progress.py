"""How far an encoder came by a deadline, and which deadline would have been enough."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.progress import (
    STATUS,
    describe_progress,
    encoded_seconds,
    expected_seconds,
    read_share,
)
from tests.support.audio import options_of
from tests.support.probes import Probe, replace

# The reports of FFmpeg 5.1, 7.1 and 9.0, and those of a raw output and before the first packet.
REPORTS = (
    (b"size=    3264kB time=00:03:28.87 bitrate= 128.0kbits/s speed= 112x    \r", 208.87),
    (b"size=    3116KiB time=00:03:19.44 bitrate= 128.0kbits/s speed= 133x    \r", 199.44),
    (b"size=  75KiB time=09:59:59.99 bitrate=N/A speed=9x elapsed=0:00:02.01    \n", 35999.99),
    (b"size=N/A time=123:00:00.50 bitrate=N/A speed=1.1e+03x    \n", 442800.5),
    (b"size=       0kB time=N/A bitrate=N/A speed=N/A    \r", 0),
    (b"size=       1kB time=-00:00:00.02 bitrate=-359.9kbits/s speed=N/A    \r", 0),
    (b"", 0),
)
SOURCE = Probe("wav", "pcm_s16le", Decimal(3600), True, sample_rate=44100)


class ProgressTests(SynchronousTestCase):
    """`audioproxy.media.command.progress`"""

    def test_reports(self) -> None:
        """The reports of all versions are recognized, whatever surrounds them."""
        for report, seconds in REPORTS:
            self.assertEqual(encoded_seconds(report), seconds, report)
            lines = b"a message with size=3\n[out#0] " + report + b"Error time=2\n"
            left = b"a message with size=3\n[out#0] Error time=2\n"
            self.assertEqual(STATUS.sub(b"", lines), left, report)

    def test_expected(self) -> None:
        """The output is as long as the source, or as the part of it that ``t`` selects."""
        unknown = replace(SOURCE, duration=None)
        for options, probe, seconds in (
            ("f:mp3", SOURCE, 3600),
            ("t:100", SOURCE, 3500),
            ("t:100:50", SOURCE, 50),
            ("t:3000:7200", SOURCE, 600),
            ("f:mp3", unknown, None),
            ("t:100", unknown, None),
            ("t:100:50", unknown, 50),
            # Decoded from its start: the share of the output says nothing about the time until t.
            ("t:100:50", replace(SOURCE, container="mp3", codec="mp3"), None),
            ("t:2:50", replace(SOURCE, container="mp3", codec="mp3"), 50),
        ):
            self.assertEqual(expected_seconds(options_of(options), probe), seconds, options)

    def test_read_share(self) -> None:
        """A source is read up to the end of ``t``, or as a whole where its length is unknown."""
        for options, duration, share in (
            ("f:mp3", 3600, 1),
            ("t:100", 3600, 1),
            ("t:800:100", 3600, 0.25),
            ("t:3000:7200", 3600, 1),
            ("t:800:100", None, 1),
            ("t:800:100", 0, 1),
        ):
            length = None if duration is None else Decimal(duration)
            probe = replace(SOURCE, duration=length)
            self.assertEqual(read_share(options_of(options), probe), share, options)

    def test_description(self) -> None:
        """The deadline that would have done follows from the share that was encoded.

        What precedes the encoder, such as a download, is not repeated for the rest. Without a
        known length, the text tells how much was encoded, and without a report there is none.
        """
        report = b"size=1kB time=00:10:00.00 bitrate=9 speed=1x \r"
        for status, expected, begun, elapsed, text in (
            (report, 6000, 0, 300, "10 % of the output was encoded: about 3000 s"),
            (report, 6001, 0, 300, "10 % of the output was encoded: about 3100 s"),
            (report, 6000, 100, 300, "10 % of the output was encoded: about 2100 s"),
            (report, 600_000, 0, 300, "0.1 % of the output was encoded: about 300000 s"),
            (report, None, 0, 300, "600 s of audio were encoded."),
            # The header of the source states too little.
            (report, 600, 0, 300, "600 s of audio were encoded."),
            (b"", 6000, 0, 300, None),
        ):
            found = describe_progress(status, expected, begun, elapsed)
            if text is None:
                self.assertIsNone(found)
            else:
                self.assertIn(text, str(found))
