"""Classification of ffmpeg's diagnostics: source or service."""

from __future__ import annotations

import re
from itertools import product

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    DiskFailed,
    DiskFull,
    EncryptedSource,
    MemoryExceeded,
    NothingDecoded,
    OutputTooLarge,
    Refusal,
    RenderTimeout,
    UndecodableSource,
)
from audioproxy.media.diagnostics import (
    classify,
    exceeded_file_size,
    filled_disk,
    lacked_memory,
    lacks_end,
    lacks_silence,
    lost_output,
    lost_reader,
    one_line,
    unsupported_container,
    verdict,
)
from audioproxy.media.messages import MESSAGES

# How FFmpeg 7 and 9 report a source that they could not open.
_IN = b"[in#0 @ 0x1] Error opening input: "
_FILE = b"\nError opening input file file:/dev/fd/3.\nError opening input files: "
_SUBMITTED = b"[aost#0:0 @ 0x1] Error submitting a packet to the muxer: "
_TRAILER = b"[out#0/wav @ 0x1] Error writing trailer: "


def not_opened(reason: bytes) -> bytes:
    """Return how FFmpeg 7 and 9 report that an input could not be opened."""
    return _IN + reason + _FILE + reason


#: One failure in the words of FFmpeg 5.1, and in those of 7.1 and 9.0; and the refusal. Most are
#: from runs; errors of decoders are composed from the versions' phrases.
WORDINGS: tuple[tuple[bytes, bytes, type[Refusal] | None], ...] = (
    *(
        (b"file:/dev/fd/3: " + reason, not_opened(reason), UndecodableSource)
        for reason in (
            b"Invalid argument",
            b"Input/output error",
            b"Operation not permitted",
            b"End of file",
            b"Invalid data found when processing input",
        )
    ),
    (b"file:/dev/fd/77: No such file or directory", not_opened(b"No such file or directory"), None),
    (
        b"[hls @ 0x1] Format not on whitelist 'mp3,flac'\nfile:/dev/fd/3: Invalid argument",
        b"Not detecting m3u8/hls with non standard extension and non standard mime type\n"
        b"file:/dev/fd/3: Invalid data found when processing input",
        UndecodableSource,
    ),
    (
        b"Decoder (codec none) not found for input stream #0:0",
        b"[aist#0:0/none @ 0x1] Decoding requested, but no decoder found for: none\n"
        b"Error opening output file pipe:1.\nError opening output files: Invalid argument",
        UndecodableSource,
    ),
    (
        b"[mp3 @ 0x1] Failed to read frame size: Could not seek to 1026.",
        b"[mp3 @ 0x1] Failed to find two consecutive MPEG audio frames.",
        UndecodableSource,
    ),
    (
        b"Error while decoding stream #0:0: Operation not permitted",
        b"[dec:x @ 0x1] Error submitting packet to decoder: Operation not permitted\n"
        b"[dec:x @ 0x1] Decoding error: Operation not permitted",
        UndecodableSource,
    ),
    (
        b"Error while decoding stream #0:0: Input/output error",
        b"[aist#0:0/flac @ 0x1] [dec:flac @ 0x1] Decoding error: Input/output error",
        UndecodableSource,
    ),
    (
        b"Cannot determine format of input stream 0:0 after EOF",
        b"[fc#0 @ 0x1] Cannot determine format of input stream 0:0 after EOF",
        UndecodableSource,
    ),
    (
        b"Empty output",
        b"[out#0/wav @ 0x1] Output file is empty, nothing was encoded(check -ss / -t)",
        NothingDecoded,
    ),
    (b"Unknown encoder 'libx'", b"[aost#0:0 @ 0x1] Unknown encoder 'libx'", None),
    (
        b"av_interleaved_write_frame(): No space left on device\n"
        b"Error writing trailer of pipe:1: No space left on device",
        _SUBMITTED + b"No space left on device\n" + _TRAILER + b"No space left on device",
        None,
    ),
    (
        b"av_interleaved_write_frame(): Broken pipe\nError closing file pipe:1: Broken pipe",
        _SUBMITTED + b"Broken pipe\n[out#0/wav @ 0x1] Error closing file: Broken pipe",
        None,
    ),
    (
        b"av_interleaved_write_frame(): Input/output error\n"
        b"Error closing file pipe:1: Input/output error",
        _SUBMITTED + b"Input/output error\n" + _TRAILER + b"Input/output error",
        None,
    ),
    (
        b"Could not write header for output file #0 (incorrect codec parameters ?): Broken pipe",
        b"[out#0/ogg @ 0x1] Could not write header (incorrect codec parameters ?): Broken pipe",
        None,
    ),
)

INVALID = b"file:/dev/fd/3: Invalid data found when processing input"
SOURCE_FAILURES = (
    INVALID,
    b"[mov,mp4,m4a,3gp,3g2,mj2 @ 0x1] moov atom not found\nfile:/dev/fd/3: Invalid data found",
    b"Stream map '0:a:0' matches no streams.",
    b"Output file #0 does not contain any stream",
    b"[wav @ 0x1] Could not find codec parameters for stream 0",
    b"file:/dev/fd/3: could not find codec parameters",
    b"[flac @ 0x1] invalid max blocksize: 1\nCould not open codec for input stream 0",
    b"file:/dev/fd/3: Unknown error 16763986",
    b"Cannot determine format of input stream 0:0 after EOF\nError marking filters as finished",
    b"Error while opening decoder for input stream #0:0 : Function not implemented",
    b"file:/dev/fd/3: Not yet implemented in FFmpeg, patches welcome",
    b"Truncating packet of size 4036 to 10\nfile:/dev/fd/3: Input/output error",
)

SERVICE_FAILURES = (
    b"av_interleaved_write_frame(): No space left on device",
    b"file:/dev/fd/3: Permission denied",
    b"file:/dev/fd/3: No such file or directory",
    b"file:/dev/fd/3: Too many open files",
    b"ffmpeg: error while loading shared libraries: libavdevice.so.59",
    b"[AVFilterGraph @ 0x1] No such filter: 'loudnorm'",
    b"Unrecognized option 'tls_verify'.",
)

#: Messages about output whose last bytes could not be written; ffmpeg 5 exits with 0 even then.
END_LOST = (
    b"Error writing trailer of pipe:1: No space left on device\n"
    b"Error closing file pipe:1: No space left on device",
    b"Error closing file pipe:1: Input/output error",
    b"[out#0/ogg @ 0x55] Error writing trailer: No space left on device",
)

#: The message about a gap that is not silent, for lack of memory; ffmpeg exits with 0.
SILENCE_LOST = (
    b"[Parsed_aresample_1 @ 0x55] [SWR @ 0x56] Failed to compensate for timestamp delta of 590.0"
)

#: Messages about sources that are complete.
COMPLETE_SOURCES = (
    b"[flac @ 0x55] invalid residual",
    b"[matroska,webm @ 0x55] File ended prematurely",
    b"file:/dev/fd/3: Input/output error",
)


class VerdictTests(SynchronousTestCase):
    """`verdict`"""

    def test_order(self) -> None:
        """Limits of the kernel come first, and only memory explains a signal (D13, D52)."""
        large, memory = b"x: File too large\n", b"x: Cannot allocate memory\n"
        for ended_by, stderr, refusal in (
            ("SIGXCPU", large, RenderTimeout),
            ("SIGXFSZ", b"", OutputTooLarge),
            (None, large + memory, OutputTooLarge),
            ("SIGKILL", memory + INVALID, MemoryExceeded),
            ("SIGKILL", INVALID, None),
            (None, END_LOST[0] + INVALID, DiskFull),
            (None, END_LOST[1] + b"\n" + INVALID, DiskFailed),
            (None, INVALID, UndecodableSource),
            (None, b"", None),
        ):
            self.assertIs(verdict(ended_by, stderr), refusal, (ended_by, stderr))


class ClassifyTests(SynchronousTestCase):
    """`classify`"""

    def test_local(self) -> None:
        """The cause of a failure decides the error code (Errors; D13).

        A source that cannot be decoded is distinguished from a source without a sample (D11). The
        service's own failures are never attributed to a source (Errors, 500).
        """
        broken = b"[mp3 @ 0x1] Invalid data found when processing input\nEmpty output"
        for refusal, diagnostics in (
            (UndecodableSource, SOURCE_FAILURES),
            (NothingDecoded, (b"Empty output", b"[out#0/wav @ 0x1] Output file is empty", broken)),
            (None, (b"", b"Something new.", b"Conversion failed!", *SERVICE_FAILURES)),
        ):
            for stderr in diagnostics:
                self.assertIs(classify(stderr + b"\n"), refusal, stderr)

    def test_wordings(self) -> None:
        """A failure means the same in the words of each version of ffmpeg."""
        for old, new, refusal in WORDINGS:
            self.assertIs(classify(old + b"\n"), refusal, old)
            self.assertIs(classify(new + b"\n"), refusal, new)
            for detects in (lacks_end, lost_output, lost_reader, filled_disk, exceeded_file_size):
                self.assertIs(detects(old), detects(new), (detects, new))

    def test_versions(self) -> None:
        """The versions of each message whose words have changed are those that print it."""
        texts = [(n, words) for *pair, _ in WORDINGS for n, words in enumerate(pair)]
        for row in MESSAGES:
            found = {n for n, words in texts if re.search(row.pattern, words, re.M)}
            if row.versions != "5 7 9":
                self.assertEqual(found, {row.versions != "5"}, row)

    def test_encrypted(self) -> None:
        """Encrypted Windows Media is named, whatever fails because of it (D64)."""
        notice = b"[asf @ 0x1] DRM protected stream detected, decoding will likely fail!\n"
        for stderr in (notice, *(notice + failure for failure in SOURCE_FAILURES[:1])):
            self.assertIs(classify(stderr), EncryptedSource)

    def test_unsupported_container(self) -> None:
        """A container that is left out is named as ffmpeg names it (D43)."""
        forbidden = b" Format not on whitelist 'mp3,flac'\n"
        for line, name in (
            (b"[hls @ 0x1]" + forbidden, "hls"),
            (b"[3dostr @ 0x1]" + forbidden, "3dostr"),
            (b"[mov,mp4 @ 0x1]" + forbidden, "mov"),
            # From FFmpeg 7 on, for a playlist that is read from a descriptor.
            (b"Not detecting m3u8/hls with non standard extension and non standard mime\n", "hls"),
        ):
            for stderr in (line, b"[other @ 0x1] x\n" + line):
                self.assertEqual(unsupported_container(stderr + INVALID), name)
        # ffmpeg 9 prints the number of the input in place of the container.
        numbered = b"[in#0 @ 0x1]" + forbidden
        for stderr in (*SERVICE_FAILURES, b"[mp3 @ 0x1] Format mp3 detected", numbered, b""):
            self.assertIsNone(unsupported_container(stderr))

    def test_cover(self) -> None:
        """Messages of an ffmpeg without image decoders about a cover have no effect (Errors)."""
        cover = (
            b"[mp3 @ 0x1] Could not find codec parameters for stream 1 (Video: mjpeg, none):"
            b" unspecified size\nConsider increasing the value for the 'analyzeduration' (0)\n"
            b"Unsupported codec with id 7 for input stream 1\n"
        )
        for stderr in (b"", SERVICE_FAILURES[0], SOURCE_FAILURES[0]):
            self.assertIs(classify(cover + stderr), classify(stderr), stderr)

    def test_several_causes(self) -> None:
        """A failure of the service precedes a broken source (Errors, 500)."""
        memory = (
            b"Error while filtering: Cannot allocate memory",
            b"[mov @ 0x1] error reading header\nfile:/dev/fd/3: Cannot allocate memory",
            b"x std::bad_alloc",
            SILENCE_LOST,
        )
        for refusal, first, then in (
            (None, SOURCE_FAILURES[:1], SERVICE_FAILURES),
            (None, SERVICE_FAILURES, (b"Empty output",)),
            (None, SERVICE_FAILURES, memory),
            (MemoryExceeded, SOURCE_FAILURES[:1], memory),
        ):
            for stderr, more in product(first, then):
                self.assertIs(classify(stderr + b"\n" + more), refusal, (stderr, more))

    def test_lost_output(self) -> None:
        """Lost last bytes are detected, and a file size limit, a full disk or no memory (D52)."""
        too_large = (
            b"av_interleaved_write_frame(): File too large\nError writing trailer of pipe:1",
            b"Error closing file pipe:1: File too large\n",
        )
        full = (
            b"av_interleaved_write_frame(): No space left on device",
            b"pipe:1: Disk quota exceeded",
        )
        no_reader = (
            b"av_interleaved_write_frame(): Broken pipe",
            b"[out#0/s32le @ 0x55] Error muxing a packet: Broken pipe",
            b"[out#0/s32le @ 0x55] Error writing trailer: Broken pipe",
        )
        faulty = (
            END_LOST[1],
            b"av_interleaved_write_frame(): Read-only file system",
            b"[out#0/wav @ 0x55] Error writing trailer: Stale file handle",
            b"[aost#0:0/flac @ 0x55] Error: Transport endpoint is not connected",
        )
        quoted = b"[mp3 @ 0x1] title: Error writing trailer of pipe:1"
        quoted_silence = b"[mp3 @ 0x1] title: " + SILENCE_LOST
        for detects, detected, others in (
            (lacks_end, END_LOST, (b"", *COMPLETE_SOURCES, quoted)),
            (lacks_silence, (SILENCE_LOST,), (b"", *END_LOST, quoted_silence)),
            (exceeded_file_size, too_large, (b"", *SERVICE_FAILURES, *END_LOST)),
            (filled_disk, full, (b"", *too_large, *SERVICE_FAILURES[2:])),
            (lost_output, faulty, (b"", *full, *COMPLETE_SOURCES, *SOURCE_FAILURES)),
            (lost_reader, no_reader, (b"", *full)),
            (lacked_memory, (b"x std::bad_alloc", b"x: Cannot allocate memory"), (b"", *full)),
        ):
            for stderr in (*detected, *others):
                self.assertIs(detects(stderr), stderr in detected, stderr)


class OneLineTests(SynchronousTestCase):
    """`one_line`"""

    def test_printable(self) -> None:
        """A diagnostic is one printable line (D28)."""
        self.assertEqual(one_line(b" a \n\n\r\n b\tc\n"), "a / b?c")
        self.assertEqual(one_line(b"a\x1b[31m\xff\x00\xe2\x80\xa8b"), "a?[31m\ufffd? / b")
        self.assertEqual(one_line(b""), "")

    def test_length(self) -> None:
        """A long diagnostic keeps its end, which names the cause."""
        self.assertEqual(one_line(b"x" * 500), "x" * 500)
        self.assertEqual(one_line(b"begin" + b"x" * 600 + b"end"), "..." + "x" * 497 + "end")
