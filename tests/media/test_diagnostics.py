"""Who is to blame for what ffmpeg says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NothingDecoded, UndecodableSource
from audioproxy.media.diagnostics import classify, redact
from tests.support.strategies import PROMISE

SOURCES = (
    b"file:/dev/fd/3: Invalid data found when processing input",
    b"[hls @ 0x1] Format not on whitelist 'mp3,flac'\nfile:/dev/fd/3: Invalid argument",
    b"[mov,mp4,m4a,3gp,3g2,mj2 @ 0x1] moov atom not found\nfile:/dev/fd/3: Invalid data found",
    b"[mp3 @ 0x1] Failed to read frame size: Could not seek to 1026.",
    b"[mp3 @ 0x1] Invalid frame size (417): Could not seek to 670.\n"
    b"file:/dev/fd/3: Invalid argument",
    b"Stream map '0:a:0' matches no streams.",
    b"Decoder (codec none) not found for input stream #0:0",
    b"file:/dev/fd/3: End of file",
    b"Output file #0 does not contain any stream",
    b"[wav @ 0x1] Could not find codec parameters for stream 0",
    b"file:/dev/fd/3: could not find codec parameters",
    b"Cannot determine format of input stream 0:0 after EOF\nError marking filters as finished",
    b"Error while decoding stream #0:0: Operation not permitted",
    b"file:/dev/fd/3: Not yet implemented in FFmpeg, patches welcome",
    b"Truncating packet of size 4036 to 10\nfile:/dev/fd/3: Input/output error",
    b"[mov @ 0x1] error reading header\nfile:/dev/fd/3: Cannot allocate memory",
    b"[asf @ 0x1] Failed to read extradata of size 10\nfile:/dev/fd/3: Cannot allocate memory",
)

SERVICE = (
    b"av_interleaved_write_frame(): No space left on device",
    b"Error writing trailer of pipe:1: No space left on device",
    b"pipe:1: Permission denied",
    b"file:/dev/fd/3: Permission denied",
    b"file:/dev/fd/3: No such file or directory",
    b"file:/dev/fd/3: Too many open files",
    b"Error initializing output stream 0:0 -- Cannot allocate memory",
    b"ffmpeg: error while loading shared libraries: libavdevice.so.59",
    b"Unknown encoder 'libmp3lame'",
    b"[AVFilterGraph @ 0x1] No such filter: 'loudnorm'",
    b"Unrecognized option 'tls_verify'.",
)


class ClassifyTests(SynchronousTestCase):
    """`classify`"""

    def test_sources(self) -> None:
        """A source that cannot be decoded is a 415 (Errors; D13)."""
        for stderr in SOURCES:
            self.assertIs(classify(stderr + b"\n"), UndecodableSource, stderr)

    def test_nothing(self) -> None:
        """A source without a sample is told from one that is broken (D11)."""
        self.assertIs(classify(b"Empty output\n"), NothingDecoded)
        self.assertIs(
            classify(b"[mp3 @ 0x1] Invalid data found when processing input\nEmpty output\n"),
            NothingDecoded,
        )

    def test_service(self) -> None:
        """The service's own troubles are never blamed on a source (Errors, 500)."""
        for stderr in (b"", b"Something new.\n", b"Conversion failed!\n", *SERVICE):
            self.assertIs(classify(stderr), None, stderr)

    def test_service_first(self) -> None:
        """A full disk is a full disk, whatever the source was like (Errors, 500)."""
        for ours in SERVICE:
            for stderr in (SOURCES[0] + b"\n" + ours, ours + b"\nEmpty output\n"):
                self.assertIs(classify(stderr), None, stderr)

    def test_remote(self) -> None:
        """Trouble on the line to a remote source is no fault in what it holds (Errors, note 8)."""
        for what in (b"Input/output error", b"Connection timed out", b"Cannot allocate memory"):
            self.assertIs(classify(b"https://a.test/b: " + what + b"\n"), None, what)


class RedactTests(SynchronousTestCase):
    """`redact`"""

    def test_secrets(self) -> None:
        """No query string and no user information reaches a log line (D45)."""
        for stderr, line in (
            (b"https://b.test/k?X-Amz-Signature=abc&d=e: 403", "https://b.test/k 403"),
            (b"opening 'https://b.test/k?secret' failed", "opening 'https://b.test/k' failed"),
            (b"https://user:password@b.test/k failed", "https://b.test/k failed"),
            (b"mail a@b.test", "mail a@b.test"),
        ):
            self.assertEqual(redact(stderr), line)

    def test_one_line(self) -> None:
        """A diagnostic is one printable line (D28)."""
        self.assertEqual(redact(b" a \n\n\r\n b\tc\n"), "a / b?c")
        self.assertEqual(redact(b"a\x1b[31m\xff\x00\xe2\x80\xa8b"), "a?[31m\ufffd? / b")
        self.assertEqual(redact(b""), "")

    def test_length(self) -> None:
        """Of a long diagnostic the end is kept, which names the cause."""
        self.assertEqual(redact(b"x" * 500), "x" * 500)
        self.assertEqual(redact(b"begin" + b"x" * 600 + b"end"), "..." + "x" * 497 + "end")

    @PROMISE
    @given(stderr=st.binary(max_size=700))
    def test_any_bytes(self, stderr: bytes) -> None:
        """Whatever a child says is classified, and logged in one short line (D28)."""
        classify(stderr)
        line = redact(stderr + b"\nhttps://u:p@h/k?q=secret x")
        self.assertTrue(line.isprintable())
        self.assertLessEqual(len(line), 503)
        self.assertNotIn("secret", line)
