"""The media half of the table of output formats: encoder, sample formats, container, stated length.

`audioproxy.grammar.formats` is the other half: what a URL may combine with each format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.values import print_decimal
from audioproxy.media.lengths.headers import (
    FLAC_LENGTH,
    MP3_LENGTH,
    WAV_LENGTH,
    LengthHeader,
    fragmented_mp4_length,
)

# FF_QP2LAMBDA of libavutil: one step of quality, in the unit of -global_quality.
_LAMBDA = 118

#: The lowest and the highest bit rate, in kbps; None where no bit rate can be set.
Bounds = tuple[int, int] | None
Band = tuple[int, Bounds, Bounds]


@dataclass(frozen=True, slots=True)
class FormatEncoding:
    """Encoder and container settings of one output format.

    :ivar encoders: ffmpeg's encoder, and the sample format that it takes, for each bit depth of the
        output; the depth of a format without depths is empty.
    :ivar muxer: arguments that select the container.
    :ivar quality: arguments for ``br``, for ``q``, or for neither; the encoder's own default is
        never used (D9).
    :ivar settings: arguments for everything else that changes the output and that all versions of
        ffmpeg can set, given the output's rate in Hz. Versions differ in their defaults (D77).
    :ivar header_bytes: the most bytes of container headers in an output without audio.
    :ivar exits_zero_when_empty: for an output without audio, ffmpeg exits with 0, since this
        encoder ends with a packet without samples. With all others, it reports an empty output.
    :ivar tags: arguments that write tags of a source; none for a format that carries no tags.
    :ivar tag_overhead: the most bytes of a tag besides its key, the ``=`` and its value.
    :ivar length_header: how the header states the length; None for a header that cannot.
    :ivar is_misread: whether readers show a wrong duration of a stored file, or cannot seek in it,
        if its header states no length (docs/lengths.md).
    :ivar bitrates: bounds by bands of sample rates, where narrower than those of the format.
    """

    encoders: Mapping[str, tuple[str, str]]
    muxer: tuple[str, ...]
    quality: Callable[[VariantOptions], list[str]] = lambda options: []
    settings: Callable[[int], list[str]] = lambda rate: []
    header_bytes: int = 0
    exits_zero_when_empty: bool = False
    tags: Callable[[Mapping[str, str]], list[str]] = lambda tags: []
    tag_overhead: int = 32
    length_header: LengthHeader | None = None
    is_misread: Callable[[VariantOptions], bool] = lambda options: False
    bitrates: tuple[Band, ...] = ()

    def written_tags(self, tags: Mapping[str, str]) -> list[str]:
        """Return the tags of a source that are written, each as ``key=value``."""
        return [word for word in self.tags(tags) if "=" in word]

    def tagged_header_bytes(self, tags: Mapping[str, str]) -> int:
        written = self.written_tags(tags)
        return self.header_bytes + sum(self.tag_overhead + len(tag.encode()) for tag in written)

    def encoded_nothing(self, size: int, tags: Mapping[str, str]) -> bool:
        """Return whether an encoder that exited with 0 after ``size`` bytes encoded no audio.

        Where ffmpeg reports an empty output, the size does not decide: the size of headers varies,
        and as many bytes as headers have at most may also be small headers and some audio.
        """
        return size == 0 or (self.exits_zero_when_empty and size <= self.tagged_header_bytes(tags))


def _bitrate(options: VariantOptions) -> list[str]:
    return ["-b:a", f"{options.br or options.format.default_br}k"]


def _quality(options: VariantOptions) -> Decimal:
    return Decimal(options.format.default_q) if options.q is None else options.q


def _constant_or_variable(options: VariantOptions) -> list[str]:
    if options.q is not None:
        return ["-q:a", print_decimal(options.q)]
    return _bitrate(options)


def _opus_quality(options: VariantOptions) -> list[str]:
    return [*_bitrate(options), "-compression_level", print_decimal(_quality(options))]


def _vorbis_quality(options: VariantOptions) -> list[str]:
    if options.br is not None:
        return _bitrate(options)
    # Equivalent to -q:a, which treats negative values as not set.
    quality = round(_quality(options) * _LAMBDA)
    return ["-flags:a", "+qscale", "-global_quality:a", str(quality)]


def _flac_quality(options: VariantOptions) -> list[str]:
    return ["-compression_level", print_decimal(_quality(options))]


def _flac_settings(rate: int) -> list[str]:
    """Return the arguments for flac: the block size is the largest one that lasts at most 105 ms.

    That is the choice of FFmpeg 5.1 for most levels. FFmpeg 9 would take the size of its first
    frame of audio, and fail at a shorter first frame.
    """
    size = max(
        (size for size in _FLAC_BLOCKS if size * 1000 <= rate * 105), default=_FLAC_BLOCKS[0]
    )
    return ["-frame_size", str(size), *_FLAC_SETTINGS]


def _metadata(tags: Mapping[str, str]) -> list[str]:
    """Return the arguments for tags: each is one word, in which the first ``=`` ends the key."""
    return [word for key, value in tags.items() for word in ("-metadata", f"{key}={value}")]


def _id3_tags(tags: Mapping[str, str]) -> list[str]:
    # Version 2.4, since 2.3 has only years and days.
    return ["-id3v2_version", "4" if tags else "0", *_metadata(tags)]


def _vorbis_comments(tags: Mapping[str, str]) -> list[str]:
    return _metadata({_COMMENT_NAMES.get(key, key.upper()): tags[key] for key in tags})


def _mp4_tags(tags: Mapping[str, str]) -> list[str]:
    """Return the arguments for the tags that MP4 has a place for.

    ffmpeg writes text in place of a number as the number at its start.
    """
    numbers = ("track", "disc")
    return _metadata(
        {
            key: value
            for key, value in tags.items()
            if key != "publisher" and (key not in numbers or _MP4_NUMBER.fullmatch(value))
        }
    )


# The names of Vorbis comments that are not the upper-case key.
_COMMENT_NAMES = {"album_artist": "ALBUMARTIST", "track": "TRACKNUMBER", "disc": "DISCNUMBER"}
# Bytes of the length ahead of a comment.
_COMMENT_LENGTH = 4
# A number over 0, or two as in 3/12, that fits 16 bits.
_MP4_NUMBER = re.compile(r"(?!0+(?:/|$))[0-9]{1,4}(?:/[0-9]{1,4})?")


# Two encoders have narrower bounds of bit rates than their formats at some sample rates and channel
# counts (measured on libvorbis 1.3.7 and libopus 1.3.1). A band starts at a rate in Hz, and has the
# bounds of mono and of stereo. At a rate where two bands of libvorbis meet, the row lists what both
# accept.
_OPUS_BITRATES: tuple[Band, ...] = ((0, (6, 256), (6, 510)),)
_VORBIS_BITRATES: tuple[Band, ...] = (
    (0, None, None),
    (8000, (8, 42), (12, 84)),
    (9000, (12, 42), (16, 84)),
    (9001, (12, 50), (16, 100)),
    (15000, (16, 50), (24, 100)),
    (15001, (16, 100), (24, 200)),
    (19000, (16, 90), (30, 180)),
    (26000, (30, 90), (36, 180)),
    (26001, (30, 190), (36, 380)),
    (40000, (32, 190), (45, 380)),
    (40001, (32, 240), (45, 500)),
    (50001, None, None),
)


def bitrate_bounds(token: str, rate: int, channels: int) -> Bounds:
    """Return the lowest and highest bit rate of a format, or None where no bit rate can be set.

    :param rate: of the output, in Hz.
    :param channels: of the output, 1 or 2.
    """
    general, bands = FORMATS[token].br, ENCODERS[token].bitrates
    if general is None or not bands:
        return general
    _, mono, stereo = [band for band in bands if band[0] <= rate][-1]
    bounds = mono if channels == 1 else stereo
    return None if bounds is None else (max(bounds[0], general[0]), bounds[1])


# Microseconds of audio in each page. No audio reaches a client before the second page is complete.
# Half a second gives the first audio some 10 ms earlier than the default of one second, and a file
# a quarter of a percent larger. A fifth of a second gains only another 4 ms, and makes the file 1 %
# larger than the default does.
_PAGE_DURATION = ("-page_duration", "500000")
# Samples that ffmpeg's AAC encoder adds ahead of the audio.
_AAC_DELAY = 1024

_FRAGMENTED = ("-movflags", "empty_moov+default_base_moof", "-frag_duration", "1000000")

# LAME's default quality, with the bit reservoir.
_LAME_SETTINGS = "-compression_level 3 -reservoir 1 -joint_stereo 1 -abr 0".split()
_OPUS_SETTINGS = (
    "-application audio -vbr on -frame_duration 20 -packet_loss 0 -mapping_family -1"
    " -apply_phase_inv 1"
).split()
_VORBIS_SETTINGS = ["-iblock", "0"]
# FFmpeg 9.1 has another coder by default.
_AAC_SETTINGS = (
    "-aac_coder twoloop -profile:a aac_low -aac_ms auto -aac_is 1 -aac_pns 1 -aac_tns 1 -aac_pce 0"
).split()
_FLAC_SETTINGS = "-lpc_coeff_precision 15 -ch_mode auto -exact_rice_parameters 0".split()
# Block sizes that flac has a code for (RFC 9639, 9.1.1), up to the largest one of its streamable
# subset (7).
_FLAC_BLOCKS = (192, 256, 512, 576, 1024, 1152, 2048, 2304, 4096, 4608, 8192, 16384)

# Mean bit rates of LAME's VBR settings for music, in kbps, stereo at 44.1 kHz (its documentation).
_LAME_VBR_KBPS = (245, 225, 190, 175, 165, 130, 115, 100, 85, 65)

# The encoders of mp3 and opus also take 16-bit samples; resampled or mixed audio would be rounded
# to 16 bits for them.
ENCODERS = {
    "mp3": FormatEncoding(
        {"": ("libmp3lame", "fltp")},
        ("-f", "mp3"),
        quality=_constant_or_variable,
        settings=lambda rate: _LAME_SETTINGS,
        tags=_id3_tags,
        length_header=MP3_LENGTH,
        is_misread=lambda options: options.q is not None,
    ),
    "opus": FormatEncoding(
        {"": ("libopus", "flt")},
        (*_PAGE_DURATION, "-f", "opus"),
        quality=_opus_quality,
        settings=lambda rate: _OPUS_SETTINGS,
        tags=_vorbis_comments,
        header_bytes=140,
        bitrates=_OPUS_BITRATES,
    ),
    "ogg": FormatEncoding(
        {"": ("libvorbis", "fltp")},
        (*_PAGE_DURATION, "-f", "ogg"),
        quality=_vorbis_quality,
        settings=lambda rate: _VORBIS_SETTINGS,
        tags=_vorbis_comments,
        header_bytes=4600,
        bitrates=_VORBIS_BITRATES,
    ),
    "aac": FormatEncoding(
        {"": ("aac", "fltp")},
        ("-f", "adts"),
        quality=_constant_or_variable,
        settings=lambda rate: _AAC_SETTINGS,
    ),
    "m4a": FormatEncoding(
        {"": ("aac", "fltp")},
        (*_FRAGMENTED, "-f", "mp4"),
        quality=_constant_or_variable,
        settings=lambda rate: _AAC_SETTINGS,
        tags=_mp4_tags,
        header_bytes=800,
        length_header=fragmented_mp4_length(_AAC_DELAY),
    ),
    "flac": FormatEncoding(
        {"16": ("flac", "s16"), "24": ("flac", "s32")},
        ("-metadata_header_padding", "0", "-f", "flac"),
        quality=_flac_quality,
        settings=_flac_settings,
        tags=_vorbis_comments,
        tag_overhead=_COMMENT_LENGTH,
        header_bytes=64,
        exits_zero_when_empty=True,
        length_header=FLAC_LENGTH,
        is_misread=lambda options: True,
    ),
    "wav": FormatEncoding(
        {"16": ("pcm_s16le", "s16"), "24": ("pcm_s24le", "s32"), "32f": ("pcm_f32le", "flt")},
        ("-f", "wav"),
        header_bytes=80,
        length_header=WAV_LENGTH,
        is_misread=lambda options: True,
    ),
    # Raw samples, which `audioproxy.media.waveform` reduces to pixels. They have 16 bits, of which
    # dither would be visible in silence.
    "peaks": FormatEncoding({"": ("pcm_s16le", "s16")}, ("-f", "s16le")),
}


def expected_bitrate(options: VariantOptions, rate: int, channels: int) -> int | None:
    """Return the mean bit rate that is expected of an output, in kbps; None for the default."""
    if options.f != "mp3" or options.q is None:
        return options.br or options.format.default_br
    music = _LAME_VBR_KBPS[int(options.q)] * channels / 2 * min(1, rate / 44_100)
    # Of speech, it is about a half. VLC 3 seeks by this rate: too late, or past the end, where it
    # is too high, and too early where it is too low.
    return int(0.75 * music)
