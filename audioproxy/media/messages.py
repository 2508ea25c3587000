"""The messages of ffmpeg and ffprobe that the service reads: one table for all versions.

Each row has the versions that print the message: 5 is FFmpeg 5.1, 7 is 7.1, and 9 is 9.0. Most rows
were seen in runs of each version; the others are messages of the operating system, or strings in
ffmpeg's libraries.

ffprobe has the same words in all versions. From 7 on, ffmpeg itself prefixes a message with the
part of it that failed, such as ``[in#0 @ 0x1]`` for an input, and names the input on a line of its
own. From 9 on, this prefix replaces the name of the demuxer too.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import cache
from typing import NamedTuple


class Meaning(Enum):
    """What a message says about a source, the output or the service."""

    #: A source can be read, but its content is broken, so it cannot be opened.
    NOT_OPENED = auto()
    #: A failure of the service itself.
    SERVICE_FAILURE = auto()
    DISK_FULL = auto()
    FILE_TOO_LARGE = auto()
    NO_MEMORY = auto()
    #: No packet was output, under ``-abort_on empty_output``.
    NOTHING_DECODED = auto()
    #: Windows Media is encrypted; ffmpeg reads it as if it was clear.
    ENCRYPTED = auto()
    #: A source without audio, or without audio that this ffmpeg can decode.
    UNDECODABLE = auto()
    #: The container is not on the list of demuxers. The group of the pattern is its name.
    UNSUPPORTED_CONTAINER = auto()
    #: An ffmpeg without picture decoders prints this about cover art, whatever the failure is.
    COVER_ART = auto()
    #: The silence of a gap could not be inserted. ffmpeg goes on without it.
    SILENCE_LOST = auto()
    #: The last bytes of the output could not be written. ffmpeg 5 exits with 0 even then.
    END_LOST = auto()
    #: A write of the output failed, at another fault of the disk than a lack of space.
    OUTPUT_LOST = auto()
    #: The reader of a pipe has ended.
    READER_LOST = auto()
    #: The container states no duration; ffprobe divides the size by the bit rate of the first
    #: frames.
    ESTIMATED_DURATION = auto()
    #: A decoder of audio reports a fault, or there is none. The first group of the pattern is the
    #: codec, the second one the number of the stream.
    DECODER_FAULT = auto()
    #: The source changes inside, or holds samples that are no audio.
    IRREGULAR = auto()


class Message(NamedTuple):
    """A regular expression with ``^`` and ``$`` for line ends, and the versions that print it."""

    meanings: tuple[Meaning, ...]
    versions: str
    pattern: bytes


_M = Meaning
_ALL, _OLD, _NEW = "5 7 9", "5", "7 9"

# A broken header may state offsets past the end of the file, or sizes that no file has.
_BROKEN = rb"(?:Input/output error|Invalid argument|Operation not permitted|Result too large"
_BROKEN += rb"|Numerical (?:argument|result) out of (?:domain|range)|Unknown error -?\d+"
_BROKEN += rb"|Value too large for defined data type)"
# The line that follows in ffmpeg names the input.
_INPUT = rb"^\[in#\d+ @ [^\]\n]*\] Error opening input: "
_NEXT_LINE = rb"\nError opening input file "
# What precedes the reason why a write has failed.
_OLD_WRITE = rb"^(?:av_interleaved_write_frame\(\)"
_OLD_WRITE += rb"|(?:Could not write header|Error writing trailer|Error closing file) [^\n]*)"
_NEW_WRITE = rb"^\[(?:aost|out)#[^\]\n]*\] [^\n]*"
# A disk that fails, one that is remounted after that, a lost network file system, and one whose
# program has ended.
_FAULTY = rb": (?:Input/output error|Read-only file system|Stale file handle"
_FAULTY += rb"|Transport endpoint is not connected)$"

MESSAGES = (
    Message((_M.NOT_OPENED,), _ALL, rb"^file:/dev/fd/\d+: " + _BROKEN + rb"$"),
    Message((_M.NOT_OPENED,), _NEW, _INPUT + _BROKEN + _NEXT_LINE + rb"file:/dev/fd/\d+\.$"),
    Message((_M.SERVICE_FAILURE, _M.DISK_FULL), _ALL, rb"No space left on device"),
    Message((_M.SERVICE_FAILURE, _M.DISK_FULL), _ALL, rb"Disk quota exceeded"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"Too many open files"),
    # A thread that cannot be started.
    Message((_M.SERVICE_FAILURE,), _ALL, rb"Resource temporarily unavailable"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"Permission denied"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"No such file or directory"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"error while loading shared libraries"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"Unknown encoder"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"No such filter"),
    Message((_M.SERVICE_FAILURE,), _ALL, rb"Unrecognized option"),
    Message((_M.FILE_TOO_LARGE,), _ALL, rb"File too large"),
    # A broken header may state sizes that need absurd amounts of memory. The second message is that
    # of C++ libraries.
    Message((_M.NO_MEMORY,), _ALL, rb"Cannot allocate memory"),
    Message((_M.NO_MEMORY,), _ALL, rb"std::bad_alloc"),
    Message((_M.NOTHING_DECODED,), _OLD, rb"Empty output"),
    Message((_M.NOTHING_DECODED,), _NEW, rb"Output file is empty"),
    Message((_M.ENCRYPTED,), _ALL, rb"DRM protected stream detected"),
    Message((_M.UNDECODABLE,), _ALL, rb"Invalid data found when processing input"),
    Message((_M.UNDECODABLE,), _ALL, rb"Format not on whitelist"),
    Message(
        (_M.UNSUPPORTED_CONTAINER,),
        _ALL,
        rb"^\[([\w.]+)(?:,[^\]\n ]*)? @ [^\]\n]*\] Format not on whitelist",
    ),
    # HLS is detected, and then not opened, since a descriptor has no extension.
    Message((_M.UNSUPPORTED_CONTAINER,), _NEW, rb"^Not detecting m3u8/(hls) with non standard"),
    Message((_M.UNDECODABLE,), _ALL, rb"moov atom not found"),
    Message((_M.UNDECODABLE,), _OLD, rb"Failed to read frame size"),
    Message((_M.UNDECODABLE,), _NEW, rb"Failed to find two consecutive MPEG audio frames"),
    Message((_M.UNDECODABLE,), _ALL, rb"matches no streams"),
    Message((_M.UNDECODABLE,), _OLD, rb"Decoder \(codec "),
    Message((_M.UNDECODABLE,), _NEW, rb"Decoding requested, but no decoder found"),
    # An ffmpeg without libspeex.
    Message((_M.UNDECODABLE,), _ALL, rb"Unknown decoder "),
    Message((_M.UNDECODABLE,), _ALL, rb"End of file"),
    Message((_M.UNDECODABLE,), _ALL, rb"does not contain any stream"),
    Message((_M.UNDECODABLE,), _ALL, rb"Could not open codec for input stream"),
    Message((_M.UNDECODABLE,), _ALL, rb"[Cc]ould not find codec parameters"),
    # Few or no frames of the stream could be decoded.
    Message((_M.UNDECODABLE,), _OLD, rb"Error while decoding stream"),
    Message((_M.UNDECODABLE,), _NEW, rb"Error submitting packet to decoder"),
    Message((_M.UNDECODABLE,), _NEW, rb"Decoding error: "),
    Message((_M.UNDECODABLE,), _ALL, rb"Error while opening decoder"),
    Message((_M.UNDECODABLE,), _ALL, rb"Cannot determine format of input "),
    Message((_M.UNDECODABLE,), _ALL, rb"Not yet implemented in FFmpeg, patches welcome"),
    Message(
        (_M.COVER_ART,), _ALL, rb"Could not find codec parameters for stream \d+ \(Video: [^\n]*"
    ),
    # Its reason is never printed, and can only be a lack of memory.
    Message(
        (_M.NO_MEMORY, _M.SILENCE_LOST),
        _ALL,
        rb"^\[\w+ @ [^\]\n]*\] \[SWR @ [^\]\n]*\] Failed to compensate for timestamp delta of ",
    ),
    Message((_M.END_LOST,), _OLD, rb"^Error (?:writing trailer of|closing file) "),
    Message((_M.END_LOST,), _NEW, rb"^\[out#[^\]\n]*\] Error (?:writing trailer|closing file): "),
    Message((_M.READER_LOST,), _OLD, _OLD_WRITE + rb": Broken pipe$"),
    Message((_M.READER_LOST,), _NEW, _NEW_WRITE + rb": Broken pipe$"),
    Message((_M.OUTPUT_LOST,), _OLD, _OLD_WRITE + _FAULTY),
    Message((_M.OUTPUT_LOST,), _NEW, _NEW_WRITE + _FAULTY),
    Message((_M.ESTIMATED_DURATION,), _ALL, rb"Estimating duration from bitrate"),
    Message(
        (_M.DECODER_FAULT,),
        _ALL,
        # The messages after (?! are those of demuxers with the name of a codec.
        rb"^\[(?:lib)?([a-z0-9_]+?)(?:float|_fixed)? @ [^\]\n]*\] "
        rb"(?!Estimating |Could not find codec parameters for stream \d+ \(Video)"
        rb"|^Unsupported codec with id \d+ for input stream (\d+)$",
    ),
    Message((_M.IRREGULAR,), _ALL, rb"Changing audio frame properties on the fly"),
    Message((_M.IRREGULAR,), _ALL, rb"Invalid value NaN for volume"),
    # The messages of FFmpeg's AAC encoder, and of LAME 3.100, which aborts.
    Message((_M.IRREGULAR,), _ALL, rb"Input contains \(near\) NaN"),
    Message((_M.IRREGULAR,), _ALL, rb"calc_energy: Assertion"),
)


@cache
def messages(*meanings: Meaning) -> re.Pattern[bytes]:
    """Return the regular expression of all messages with one of the meanings."""
    rows = [row.pattern for row in MESSAGES if not set(meanings).isdisjoint(row.meanings)]
    return re.compile(b"|".join(rows), re.MULTILINE)
