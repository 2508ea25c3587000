"""What ffmpeg and ffprobe say on stderr: who is to blame, and what may be repeated."""

from __future__ import annotations

import re

from audioproxy.errors import (
    NotFound,
    NothingDecoded,
    Refusal,
    UndecodableSource,
    UpstreamUnavailable,
)

# The service's own troubles. They come first: an encoder that ran out of disk may have
# complained about the source before.
_OURS = (
    b"No space left on device",
    b"Cannot allocate memory",
    b"Too many open files",
    b"Permission denied",
    b"No such file or directory",
    b"error while loading shared libraries",
    b"Unknown encoder",
    b"No such filter",
    b"Unrecognized option",
)

# A local source that cannot be opened: the file is there, and what is in it is broken. Sizes in
# a broken header ask for absurd amounts of memory, or lead behind the end of the file.
_UNOPENED = re.compile(
    rb"^file:/dev/fd/\d+: (?:Cannot allocate memory|Input/output error|Invalid argument"
    rb"|Numerical (?:argument|result) out of (?:domain|range)|Operation not permitted"
    rb"|Result too large|Value too large for defined data type)$",
    re.MULTILINE,
)

# What a source is told by that is no audio, or none that this ffmpeg knows.
_SOURCES = (
    b"Invalid data found when processing input",
    b"Format not on whitelist",
    b"moov atom not found",
    b"Failed to read frame size",
    b"matches no streams",
    b"Decoder (codec ",
    b"End of file",
    b"does not contain any stream",
    b"could not find codec parameters",
    b"Could not find codec parameters",
    # A stream of which hardly a frame could be decoded, or not one.
    b"Error while decoding stream",
    b"Cannot determine format of input stream",
    b"Not yet implemented in FFmpeg, patches welcome",
)

# What is said of cover art by an ffmpeg that has no decoders of pictures, whatever goes wrong then.
_PICTURE = re.compile(rb"Could not find codec parameters for stream \d+ \(Video: [^\n]*")

# What a remote source is told by that was there a moment ago, when it was asked about, and is not
# given now. A certificate that does not hold is the origin's fault, as it is when the service asks
# (D48). A redirect, which nobody follows, is a fault of the source, like broken audio: ffmpeg calls
# it an input/output error. ffmpeg 5 names the input ahead of what is wrong with it, later versions
# name the step.
_REMOTE: tuple[tuple[re.Pattern[bytes], type[Refusal]], ...] = (
    (
        re.compile(rb"Peer certificate failed verification|certificate's owner does not match"),
        UpstreamUnavailable,
    ),
    (re.compile(rb"Server returned 40[134] "), NotFound),
    (
        re.compile(
            rb"Server returned |Failed to resolve hostname|Stream ends prematurely"
            rb"|Will reconnect at \d+ in [1-9]|HTTP error \d"
            rb"|^\[tls @ [^\]]*\] IO error"
            rb"|(?:^https?://\S+|Error during demuxing|Error opening input(?: files?)?):"
            rb" (?:Connection (?:refused|reset by peer|timed out)"
            rb"|Network is unreachable|No route to host|Broken pipe)$",
            re.MULTILINE,
        ),
        UpstreamUnavailable,
    ),
    (re.compile(rb"^https?://\S+: Input/output error$", re.MULTILINE), UndecodableSource),
)

#: What ffmpeg says of a connection that was lost for good. It goes on with what it has as if that
#: were all, or from another place than it should, and ends well. One that could be made again at
#: the first attempt did no harm. Of a second attempt it does not say how it ended.
CUT_SHORT = re.compile(
    rb"Will reconnect at \d+ in [1-9]\d* second|HTTP error \d"
    rb"|Stream ends prematurely at \d+, should be 18446744073709551615"
    rb"|^https?://\S+: Input/output error$"
    rb"|(?:^https?://\S+|Error during demuxing): Connection (?:reset by peer|timed out)$",
    re.MULTILINE,
)

# ffmpeg 5 ends with status 0 all the same; later versions do not.
_END_LOST = re.compile(rb"^(?:\[[^\]\n]*\] )?Error (?:writing trailer|closing file)", re.MULTILINE)

# With `-abort_on empty_output`, of an output without a single packet.
_NOTHING = b"Empty output"

# A URL may hold quotes itself; one at its very end is the sentence's.
_QUERY = re.compile(r"\?\S*?(?=['\"]?(?:\s|$))")
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s]*@")
# The end of a diagnostic names the cause; more than this is no help in a log line.
_LONGEST = 500


def classify(stderr: bytes) -> type[Refusal] | None:
    """Return the refusal that a source has earned, or None where it is not known to blame."""
    if _UNOPENED.search(stderr):
        return UndecodableSource
    if any(phrase in stderr for phrase in _OURS):
        return None
    for pattern, refusal in _REMOTE:
        if pattern.search(stderr):
            return refusal
    if _NOTHING in stderr:
        return NothingDecoded
    heard = _PICTURE.sub(b"", stderr)
    if any(phrase in heard for phrase in _SOURCES):
        return UndecodableSource
    return None


def was_cut_short(stderr: bytes) -> bool:
    """Tell whether a remote source stopped before its end."""
    return CUT_SHORT.search(stderr) is not None


def lacks_end(stderr: bytes) -> bool:
    """Return whether the last bytes of the output could not be written."""
    return _END_LOST.search(stderr) is not None


def passed_limit(stderr: bytes) -> bool:
    """Return whether a write failed at the limit of the size of files (EFBIG)."""
    return b"File too large" in stderr


def redact(stderr: bytes) -> str:
    """Return the end of a diagnostic as one printable line without secrets.

    Query strings go, since a presigned URL's is a credential, and user information.
    """
    text = without_secrets(stderr.decode("utf-8", "replace"))
    line = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    printable = "".join(c if c.isprintable() else "?" for c in line)
    return printable if len(printable) <= _LONGEST else "..." + printable[-_LONGEST:]


def without_secrets(text: str) -> str:
    """Return text with no query string and no user information in any URL of it."""
    return _USER_INFORMATION.sub("", _QUERY.sub("", text))
