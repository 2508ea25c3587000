"""Container headers that state the length of an output.

An encoder that writes to a pipe cannot know the length when it writes the header. The service knows
it before (`audioproxy.media.command.exact_length`), and writes it into the scratch file before a
reader sees it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from audioproxy.media.lengths.ends import id3_bytes
from audioproxy.media.lengths.mpeg_frame import FrameHeader, tag_checksum

#: Bytes that replace those at an offset.
Patch: TypeAlias = tuple[int, bytes]

_MAX_32 = 0xFFFF_FFFF

# Header bytes at most: RIFF with a format chunk of 40 bytes, and a fact chunk.
_WAV_HEADER = 80 + 12
_FACT = 12
# The chunk of RF64 with sizes of 64 bits (EBU Tech 3306).
_DS64 = 36

# Samples that libmp3lame adds ahead of the audio (ENCDELAY of LAME).
_MP3_DELAY = 576
# It encodes a multiple of the samples of a frame, and then this number of samples.
_MP3_FLUSH = 1152
# Bit rate of the header frame where that of the other frames is lower. At each sample rate, the
# frame has room for the tag.
_MP3_FRAME_KBPS = 64
_HAS_FRAMES = 1
# VBR methods of the tag.
_CONSTANT, _VARIABLE = 1, 4
# Some readers use the delay only if the tag names this version.
_LAME = b"LAME3.100"


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The audio of an output. The number of samples is less than 2**36.

    :ivar sample_bytes: of one channel, for uncompressed audio.
    :ivar varies: the bit rate of frames of an mp3 varies, so the mean is an estimate.
    """

    samples: int
    rate: int
    channels: int
    sample_bytes: int = 0
    kbps: int | None = None
    varies: bool = False

    @property
    def data_bytes(self) -> int:
        return self.samples * self.channels * self.sample_bytes


@dataclass(frozen=True, slots=True)
class LengthHeader:
    """How a format states its length.

    :ivar patches: the changes of the header, which it is given with the prefix.
    :ivar suffix: the bytes after the encoder's output, given the size of the file so far.
    :ivar muxer: ffmpeg's arguments for a header that can state the length, where needed.
    :ivar muxer_bytes: bytes by which these arguments make the header longer.
    """

    prefix: Callable[[OutputForm], bytes] = lambda form: b""
    patches: Callable[[OutputForm, bytes], Iterator[Patch]] = lambda form, header: iter(())
    suffix: Callable[[OutputForm, int], bytes] = lambda form, size: b""
    muxer: Callable[[OutputForm], list[str]] = lambda form: []
    muxer_bytes: int = 0


def _wav_patches(form: OutputForm, header: bytes) -> Iterator[Patch]:
    """Yield the header with all sizes, and with a fact chunk ahead of the samples.

    Without a fact chunk, ffmpeg and Chromium read no duration from a stream.
    """
    encoded = header[_FACT:]
    data = encoded.index(b"data")
    size, start = form.data_bytes, data + _FACT
    riff_size = start + size + size % 2
    changed = bytearray(encoded[:data])
    fact = b"fact" + struct.pack("<2I", 4, min(form.samples, _MAX_32))
    if changed.startswith(b"RF64"):
        changed[20:44] = struct.pack("<3Q", riff_size, size, form.samples)
        yield 0, bytes(changed + fact)
    else:
        changed[4:8] = struct.pack("<I", riff_size)
        yield 0, bytes(changed + fact)
        yield start + 4, struct.pack("<I", size)


def _flac_patches(form: OutputForm, header: bytes) -> Iterator[Patch]:
    # The low 36 bits of eight bytes (RFC 9639, 8.2), which the encoder has set to 0.
    yield 18, (int.from_bytes(header[18:26], "big") | form.samples).to_bytes(8, "big")


def _mp4_patches(delay: int, form: OutputForm, header: bytes) -> Iterator[Patch]:
    """Yield the durations of the movie, the track and the media (ISO/IEC 14496-12, 8.2 and 8.4)."""
    movie = header.index(b"mvhd")
    movie_rate = int.from_bytes(header[movie + 16 : movie + 20], "big")
    samples = form.samples + delay
    movie_duration = -(-samples * movie_rate // form.rate)
    if max(samples, movie_duration) >= _MAX_32:
        return
    yield movie + 20, movie_duration.to_bytes(4, "big")
    yield header.index(b"tkhd") + 24, movie_duration.to_bytes(4, "big")
    yield header.index(b"mdhd") + 20, samples.to_bytes(4, "big")


def _mp3_prefix(form: OutputForm) -> bytes:
    """Return a frame without audio that states the number of frames, the delay and the padding.

    It states neither the number of bytes nor a seek table: with them, ffprobe finds no duration in
    a pipe, and without the number, no reader uses a table. Some readers then go by the bit rate of
    this frame: TagLib 2.2 for the duration, VLC 3 for seeks. The layout is that of LAME ("Mp3 Info
    Tag rev 1").
    """
    kbps = form.kbps or 0
    header = FrameHeader(_MP3_FRAME_KBPS, form.rate, form.channels)
    frames = -(-form.samples // header.samples) + _MP3_FLUSH // header.samples
    padding = frames * header.samples - form.samples - _MP3_DELAY
    tag = b"Xing" if form.varies else b"Info"
    tag += _HAS_FRAMES.to_bytes(4, "big") + frames.to_bytes(4, "big")
    tag += _LAME + bytes((_VARIABLE if form.varies else _CONSTANT,))
    # No low-pass frequency, peak, gain or flags are stated.
    tag += bytes(10) + bytes((0 if form.varies else min(kbps, 255),))
    tag += (_MP3_DELAY << 12 | padding).to_bytes(3, "big") + bytes(10)
    if form.varies:
        kbps = max(rate for rate in header.bitrates if rate <= max(kbps, _MP3_FRAME_KBPS))
    if kbps in header.bitrates:
        same_rate = replace(header, kbps=kbps)
        if same_rate.length >= 4 + header.side_information + len(tag) + 2:
            header = same_rate
    frame = bytes(header) + bytes(header.side_information) + tag
    return (frame + tag_checksum(frame).to_bytes(2, "big")).ljust(header.length, b"\0")


def _mp3_patches(form: OutputForm, header: bytes) -> Iterator[Patch]:
    frame = _mp3_prefix(form)
    encoded = header[len(frame) :]
    # ffmpeg has written the ID3v2 tag behind the frame.
    if encoded.startswith(b"ID3"):
        yield 0, encoded[: id3_bytes(encoded)] + frame


def fragmented_mp4_length(delay: int) -> LengthHeader:
    """Return how fragmented MP4 states its length, with the samples of the encoder's delay.

    ffmpeg 5.1 decodes these whether an edit list skips them or not, and mutagen counts them, so
    there is no edit list: the stated duration has them.
    """
    return LengthHeader(patches=partial(_mp4_patches, delay))


WAV_LENGTH = LengthHeader(
    # Space for a fact chunk, to which the rest of the header is moved.
    prefix=lambda form: bytes(_FACT),
    patches=_wav_patches,
    suffix=lambda form, size: b"\0" if form.data_bytes % 2 and size % 2 else b"",
    muxer=lambda form: ["-rf64", "always"] if form.data_bytes + _WAV_HEADER > _MAX_32 else [],
    muxer_bytes=_DS64,
)
FLAC_LENGTH = LengthHeader(patches=_flac_patches)
MP3_LENGTH = LengthHeader(prefix=_mp3_prefix, patches=_mp3_patches)
