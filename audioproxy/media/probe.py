"""The command line of ffprobe, and the meaning of its output for a render."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from audioproxy.errors import NothingDecoded, UndecodableSource, VideoSource
from audioproxy.media.info_document import SourceInfo, read_count, read_source_info
from audioproxy.media.inputs import Input
from audioproxy.media.source_length.reading import SourceLength

# ffprobe prints this where a container states no duration. The duration that ffprobe reports is
# then the size divided by the bit rate.
_ESTIMATE_NOTICE = b"Estimating duration from bitrate"

# Used where ffprobe reports no rate, depth or channels (Format and encoding options, 1).
_FALLBACK_RATE = 48000
_FALLBACK_DEPTH = 16
_FALLBACK_CHANNELS = 2
_ONE_BIT_DEPTH = 24

# Bits of the integer formats of decoded samples, as ffprobe names them.
_DECODED_BITS = {"u8": 8, "s16": 16, "s32": 32}

_FLOAT_BITS = 64

# Lossless codecs that may store floating-point samples.
_FLOAT_CODECS = ("wavpack", "mp4als")

# Containers that may pad samples, and the codecs that ffmpeg takes padded samples for.
_MAY_PAD = ("wav", "w64", "caf")
_PADDED = ("pcm_u8", "pcm_s8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be")

# Limits of channels and of the sample rate. ffmpeg mixes no more channels than this. It does not
# resample rates far above the limit, which is the rate of DSD1024. Only a broken header states
# more.
_MOST_CHANNELS = 64
_HIGHEST_RATE = 6_144_000


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known about a source's first audio stream.

    :ivar container: ffprobe's first name for the container, such as ``mov``.
    :ivar duration: seconds, or None where unknown.
    :ivar exact: the duration is stated by the container, not estimated from its size.
    :ivar measured: the duration was measured by a full decode.
    :ivar length: the number of samples, where the end of the source confirms it or a full decode
        has counted them.
    :ivar frame_samples: as that of `SourceLength`.
    :ivar sample_rate: Hz.
    :ivar channels: their number; 2 where unknown.
    :ivar bit_depth: bits of a sample as stored; 24 for one-bit audio.
    :ivar decoded_bits: bits of a decoded sample.
    :ivar layout: the channel layout, such as ``5.1``; None where unknown.
    :ivar may_be_padded: samples may have wider containers than the codec tells ffmpeg.
    :ivar decoder: the decoder that reads the samples; None for the one that ffmpeg chooses.
    :ivar description: the fields of the info document, as ffprobe reports them.
    """

    container: str
    codec: str
    duration: Decimal | None
    exact: bool
    sample_rate: int = _FALLBACK_RATE
    channels: int = _FALLBACK_CHANNELS
    bit_depth: int = _FALLBACK_DEPTH
    decoded_bits: int = _FALLBACK_DEPTH
    layout: str | None = None
    may_be_padded: bool = False
    decoder: str | None = None
    measured: bool = False
    length: SourceLength | None = None
    frame_samples: int = 0
    description: SourceInfo = field(default_factory=SourceInfo)

    @property
    def stores_floats(self) -> bool:
        """Whether the source stores floating-point samples, which may be NaN or infinite."""
        may_store = self.codec in _FLOAT_CODECS and self.decoded_bits == _FLOAT_BITS
        return may_store or self.codec.startswith("pcm_f")

    def with_decoded_samples(self, samples: int) -> Probe:
        """Return a copy with the number of samples that a full decode has counted.

        :raises NothingDecoded: for none.
        """
        if not samples:
            raise NothingDecoded
        return replace(self.with_length(SourceLength(samples)), measured=True)

    def with_length(self, length: SourceLength | None) -> Probe:
        """Return a copy with a length that the end of the source confirms."""
        if length is None or not length.exact:
            return replace(self, length=length)
        duration = Decimal(length.samples) / self.sample_rate
        return replace(self, duration=duration, exact=True, length=length)


def probe_arguments(ffprobe: str, source: Input) -> list[str]:
    """Return ffprobe's command line.

    All streams are requested, so that a video stream is found at any position. The output ends with
    the tags, which may be of any size.
    """
    return [
        ffprobe,
        "-hide_banner",
        "-v",
        "warning",
        "-of",
        "json",
        "-show_entries",
        "format=format_name,duration,bit_rate,size:stream=codec_type,codec_name,sample_fmt,"
        "sample_rate,channels,channel_layout,bits_per_sample,bits_per_raw_sample,duration,bit_rate"
        ":stream_disposition=attached_pic:format_tags",
        *source.probe_arguments(),
    ]


def read_probe(
    stdout: bytes, stderr: bytes, *, cut_off: bool = False, seekable: bool = True
) -> Probe:
    """Parse the output of an ffprobe that did not fail.

    :param cut_off: the output was longer than its limit, and ``stdout`` is its beginning.
    :param seekable: ffprobe could read the end of the source. Otherwise its estimates of duration
        and bit rate are worthless.
    :raises VideoSource: for a genuine video stream; embedded cover art is not video.
    :raises UndecodableSource: where no audio stream can be decoded.
    :raises ValueError: for output that does not have the form of ffprobe's.
    """
    text = stdout.decode("utf-8", "replace")
    try:
        output = json.loads(_close_brackets(text) if cut_off else text)
        container = dict(output.get("format", {}))
        streams = [dict(stream) for stream in output.get("streams", [])]
        video = any(_is_video(stream) for stream in streams)
    except (AttributeError, RecursionError, TypeError) as error:
        raise ValueError("the output does not have the form of ffprobe's") from error
    if cut_off and not container:
        raise UndecodableSource("The source has more streams than can be examined.")
    if video:
        raise VideoSource
    audio = next((s for s in streams if s.get("codec_type") == "audio"), None)
    if audio is None:
        raise UndecodableSource("The source has no audio stream.")
    if (audio.get("codec_name") or "unknown") == "unknown":
        raise UndecodableSource("The source's audio is in a codec that cannot be decoded.")
    description = read_source_info(container, audio)
    exact = _ESTIMATE_NOTICE not in stderr
    if not exact and not seekable:
        description = replace(description, duration=None, bitrate=None)
    rate = description.sample_rate or _FALLBACK_RATE
    channels = description.channels or _FALLBACK_CHANNELS
    if rate > _HIGHEST_RATE or channels > _MOST_CHANNELS:
        raise UndecodableSource(
            f"The source states {channels} channels at {rate} Hz, which is not supported."
        )
    duration = description.duration
    container_name = str(container.get("format_name", "")).split(",")[0]
    codec = str(audio["codec_name"])
    return Probe(
        container=container_name,
        codec=codec,
        duration=duration,
        exact=duration is not None and exact,
        sample_rate=rate,
        channels=channels,
        bit_depth=_bit_depth(codec, audio.get("sample_fmt"), description.bit_depth),
        decoded_bits=_decoded_bits(audio.get("sample_fmt"), description.bit_depth),
        layout=str(audio.get("channel_layout") or "") or None,
        may_be_padded=container_name in _MAY_PAD and _may_be_padded(codec, audio),
        description=description,
    )


def _may_be_padded(codec: str, audio: dict[str, Any]) -> bool:
    """Return whether a header states more bits a second than samples of its codec have.

    ffmpeg takes 24 bits in containers of 32 bits for a codec of floats that few files have.
    """
    fields = ("bit_rate", "sample_rate", "channels", "bits_per_sample")
    stated, rate, channels, bits = (read_count(audio.get(field)) or 0 for field in fields)
    return codec == "pcm_f24le" or (codec in _PADDED and stated > rate * channels * bits)


def _bit_depth(codec: str, sample_format: object, stated: int | None) -> int:
    """Return the bits of a sample, from which the default depth of an output follows.

    Samples of one bit, at megahertz, hold more than 16 bits in the range of hearing (D69). DSD and
    DST are such. ffprobe states 8 bits for a byte of them, also in WavPack; the samples of all
    other codecs with 8 bits are decoded to integers.
    """
    if codec == "dst" or (stated == 8 and str(sample_format).startswith("flt")):
        return _ONE_BIT_DEPTH
    return stated or _FALLBACK_DEPTH


def _decoded_bits(sample_format: object, stated: int | None) -> int:
    """Return the bits of the samples that a decoder outputs.

    Decoders output 20 and 24 bits as 32. Floating point has more bits than any integer output.
    """
    bits = _DECODED_BITS.get(str(sample_format).removesuffix("p"), _FLOAT_BITS)
    return stated if bits == 32 and stated in (20, 24) else bits


def _close_brackets(text: str) -> str:
    """Return the whole lines of output that was cut off, with all brackets and braces closed.

    ffprobe writes each field, bracket and brace on a line of its own.
    """
    *lines, _ = text.split("\n")
    unclosed: list[str] = []
    for line in map(str.strip, lines):
        if line.endswith(("{", "[")):
            unclosed.append("}" if line.endswith("{") else "]")
        elif line.startswith(("}", "]")) and unclosed:
            unclosed.pop()
    return "".join(["\n".join(lines).rstrip().removesuffix(","), *reversed(unclosed)])


def _is_video(stream: dict[str, Any]) -> bool:
    picture = stream.get("disposition", {}).get("attached_pic", 0)
    return stream.get("codec_type") == "video" and not picture
