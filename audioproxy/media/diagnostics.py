"""Diagnostics of ffmpeg and ffprobe: which refusal they imply, and their redaction for logs."""

from __future__ import annotations

import re

from audioproxy.errors import (
    EncryptedSource,
    MemoryExceeded,
    NotFound,
    NothingDecoded,
    Refusal,
    UndecodableSource,
    UpstreamUnavailable,
)

_DISK_FULL = (b"No space left on device", b"Disk quota exceeded")

# Messages of ffmpeg and of its C++ libraries. A broken header may state sizes that need absurd
# amounts of memory.
_NO_MEMORY = (b"Cannot allocate memory", b"std::bad_alloc")

# Failures of the service itself. They are checked before those of sources: an encoder that ran out
# of disk space may have reported an error of the source earlier.
_SERVICE_FAILURES = (
    *_DISK_FULL,
    b"Too many open files",
    # A thread that cannot be started.
    b"Resource temporarily unavailable",
    b"Permission denied",
    b"No such file or directory",
    b"error while loading shared libraries",
    b"Unknown encoder",
    b"No such filter",
    b"Unrecognized option",
)

# A local source that exists but cannot be opened, because its content is broken. A broken header
# may state offsets past the end of the file.
_OPEN_FAILURES = re.compile(
    rb"^file:/dev/fd/\d+: (?:Input/output error|Invalid argument"
    rb"|Numerical (?:argument|result) out of (?:domain|range)|Operation not permitted"
    rb"|Result too large|Unknown error -?\d+|Value too large for defined data type)$",
    re.MULTILINE,
)

# Messages about a source without audio, or without audio that this ffmpeg can decode.
_SOURCE_FAILURES = (
    b"Invalid data found when processing input",
    b"Format not on whitelist",
    b"moov atom not found",
    b"Failed to read frame size",
    b"matches no streams",
    b"Decoder (codec ",
    b"End of file",
    b"does not contain any stream",
    b"Could not open codec for input stream",
    b"could not find codec parameters",
    b"Could not find codec parameters",
    # Few or no frames of the stream could be decoded.
    b"Error while decoding stream",
    b"Error while opening decoder",
    b"Cannot determine format of input stream",
    b"Not yet implemented in FFmpeg, patches welcome",
)

# Printed for a container that is not on the list of demuxers, before the name of ffmpeg's demuxer.
_UNSUPPORTED_CONTAINER = re.compile(rb"^\[([\w.]+)[^\]\n]*\] Format not on whitelist", re.MULTILINE)

#: Printed about the encryption of Windows Media, which ffmpeg reads as if it was clear.
ENCRYPTED = re.compile(rb"DRM protected stream detected")

# An ffmpeg without picture decoders prints this message about cover art, whatever the failure is.
# So the message is removed before a diagnostic is searched for the phrases above.
_COVER_ART_MESSAGE = re.compile(rb"Could not find codec parameters for stream \d+ \(Video: [^\n]*")

# Failures of a remote source that was available to the service's own request a moment before. A
# certificate that cannot be verified is the origin's fault, as in the service's own requests (D48).
# ffmpeg follows no redirects and reports one as an input/output error. That counts as a fault of
# the source, like broken audio. ffmpeg 5 puts the name of the input before the reason; later
# versions put the step that failed there.
_REMOTE_FAILURES: tuple[tuple[bytes, type[Refusal]], ...] = (
    (
        rb"Peer certificate failed verification|certificate's owner does not match",
        UpstreamUnavailable,
    ),
    (rb"Server returned 40[134] ", NotFound),
    (
        rb"Server returned |Failed to resolve hostname|Stream ends prematurely"
        rb"|Will reconnect at \d+ in [1-9]|HTTP error \d"
        rb"|^\[tls @ [^\]]*\] IO error"
        rb"|(?:^https?://\S+|Error during demuxing|Error opening input(?: files?)?):"
        rb" (?:Connection (?:refused|reset by peer|timed out)"
        rb"|Network is unreachable|No route to host|Broken pipe)$",
        UpstreamUnavailable,
    ),
    (rb"^https?://\S+: Input/output error$", UndecodableSource),
)

#: ffmpeg's messages about a connection that was lost for good. ffmpeg then treats the bytes that it
#: has as the whole source, or continues at a wrong offset, and exits with 0. A connection that was
#: restored at the first attempt does no harm. ffmpeg does not report how a second attempt ended, so
#: a second attempt counts as a loss.
CUT_SHORT = re.compile(
    rb"Will reconnect at \d+ in [1-9]\d* second|HTTP error \d"
    rb"|Stream ends prematurely at \d+, should be 18446744073709551615"
    rb"|^https?://\S+: Input/output error$"
    rb"|(?:^https?://\S+|Error during demuxing): Connection (?:reset by peer|timed out)$",
    re.MULTILINE,
)

# ffmpeg 5 exits with 0 despite these errors; later versions do not.
_END_LOST = re.compile(rb"^(?:\[[^\]\n]*\] )?Error (?:writing trailer|closing file)", re.MULTILINE)

# A write to a pipe whose reader has ended, by ffmpeg 5 and by ffmpeg 7.
_READER_LOST = re.compile(
    rb"(?:av_interleaved_write_frame\(\)|Error (?:submitting|muxing) a packet[^\n:]*"
    rb"|Error writing trailer[^\n:]*): Broken pipe"
)

# Printed under `-abort_on empty_output` for an output without a single packet, by ffmpeg 5 and by
# ffmpeg 7.
_EMPTY_OUTPUT = (b"Empty output", b"Output file is empty")

# A URL may contain quotes. A quote at its very end belongs to the message around the URL.
_QUERY = re.compile(r"\?\S*?(?=['\"]?(?:\s|$))")
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s]*@")
# The most characters of a diagnostic in a log line. Its end names the cause.
_LONGEST = 500


def classify(stderr: bytes) -> type[Refusal] | None:
    """Return the refusal for a fault of the source, or None where no such fault is recognized."""
    if _OPEN_FAILURES.search(stderr):
        return UndecodableSource
    if any(phrase in stderr for phrase in _SERVICE_FAILURES):
        return None
    if lacked_memory(stderr):
        return MemoryExceeded
    for pattern, refusal in _REMOTE_FAILURES:
        if re.search(pattern, stderr, re.MULTILINE):
            return refusal
    if any(phrase in stderr for phrase in _EMPTY_OUTPUT):
        return NothingDecoded
    if ENCRYPTED.search(stderr):
        return EncryptedSource
    without_cover_art = _COVER_ART_MESSAGE.sub(b"", stderr)
    if any(phrase in without_cover_art for phrase in _SOURCE_FAILURES):
        return UndecodableSource
    return None


def unsupported_container(stderr: bytes) -> str | None:
    """Return ffmpeg's first name of a container that is not supported; None for other failures."""
    found = _UNSUPPORTED_CONTAINER.search(stderr)
    return found[1].decode() if found else None


def was_cut_short(stderr: bytes) -> bool:
    """Return whether the connection to a remote source was lost before the source's end."""
    return CUT_SHORT.search(stderr) is not None


def lacks_end(stderr: bytes) -> bool:
    """Return whether the last bytes of the output could not be written."""
    return _END_LOST.search(stderr) is not None


def lost_reader(stderr: bytes) -> bool:
    """Return whether the reader of a pipe ended before the end of the output."""
    return _READER_LOST.search(stderr) is not None and not was_cut_short(stderr)


def lacked_memory(stderr: bytes) -> bool:
    """Return whether memory could not be allocated."""
    return any(text in stderr for text in _NO_MEMORY)


def exceeded_file_size(stderr: bytes) -> bool:
    """Return whether a write failed at the file size limit (EFBIG)."""
    return b"File too large" in stderr


def filled_disk(stderr: bytes) -> bool:
    """Return whether a write failed since the disk is full or a quota is reached."""
    return any(text in stderr for text in _DISK_FULL)


def redact(stderr: bytes) -> str:
    """Return the end of a diagnostic as one printable line without secrets.

    Query strings are removed, since the query of a presigned URL is a credential. User information
    is removed too.
    """
    text = without_secrets(stderr.decode("utf-8", "replace"))
    line = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    printable = "".join(c if c.isprintable() else "?" for c in line)
    return printable if len(printable) <= _LONGEST else "..." + printable[-_LONGEST:]


def without_secrets(text: str) -> str:
    """Return text without the query strings and the user information of its URLs."""
    return _USER_INFORMATION.sub("", _QUERY.sub("", text))
