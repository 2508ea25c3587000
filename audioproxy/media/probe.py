"""The command line of ffprobe, and the meaning of its output for a render."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from audioproxy.errors import EncryptedSource, NothingDecoded, UndecodableSource, VideoSource
from audioproxy.media.command.inputs import Input
from audioproxy.media.info_document import (
    SourceInfo,
    parse_count,
    parse_seconds,
    parse_source_info,
)
from audioproxy.media.lengths.reading import SourceLength
from audioproxy.media.messages import Meaning, messages
from audioproxy.media.tags import CARRIED_TAGS, carried_tags

# Containers of bare frames or samples, and codecs whose bit rate does not change in them, so that
# the quotient is right. ffprobe knows no right bit rate of ADPCM. The bit rate of MPEG audio that
# does change is an average, and no multiple of 1000.
_CONSTANT_RATE = re.compile(r"(?:(?:wav|w64|caf|au|aiff) pcm_|(?:e?ac3|dts) |mp3 mp[123]$)")

# The tag of an encrypted stream in matroska.
_ENCRYPTION_TAG = "enc_key_id"

#: ffprobe's messages that count even if many others follow.
NOTICES = messages(Meaning.CUT_SHORT, Meaning.ESTIMATED_DURATION, Meaning.ENCRYPTED)

# Packets at the start of a source, among which one of audio is looked for: those of cover art come
# first.
_PACKETS = 8

# The start of the last object in ffprobe's output. Strings in the output have no line ends.
_FORMAT_START = b'\n    "format": {'

# Used where ffprobe reports no rate, depth or channels (Format and encoding options, 1).
_FALLBACK_RATE = 48000
_FALLBACK_DEPTH = 16
_FALLBACK_CHANNELS = 2
_ONE_BIT_DEPTH = 24

# The tag with which iTunes states an encoder's delay and padding.
_GAPLESS_TAG = "iTunSMPB"

# Bits of the integer formats of decoded samples, as ffprobe names them.
_DECODED_BITS = {"u8": 8, "s16": 16, "s32": 32}

_FLOAT_BITS = 64

# Lossless codecs that may store floating-point samples.
_FLOAT_CODECS = ("wavpack", "mp4als")

# Containers that may pad samples, and the codecs that ffmpeg takes padded samples for.
_MAY_PAD = ("wav", "w64", "caf")
_PADDED = ("pcm_u8", "pcm_s8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be")

# FFmpeg 7.0 and 7.1 decode Speex of more than this rate, in Hz, to twice its samples. libspeex is
# right (findings/ffmpeg7-wideband-speex.sh).
_HIGHEST_SPEEX_RATE = 8000

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
    :ivar seekable: as that of `SourceLength`; False where no search for the length has found it.
    :ivar has_gaps: as that of `SourceLength`; None where no search for the length has told.
    :ivar first_stamp: as that of `SourceLength`.
    :ivar irregular: a render has found that the source needs a decoder of its own
        (`audioproxy.media.command.decoding`).
    :ivar sample_rate: Hz.
    :ivar channels: their number; 2 where unknown.
    :ivar bit_depth: bits of a sample as stored; 24 for one-bit audio.
    :ivar decoded_bits: bits of a decoded sample.
    :ivar layout: the channel layout, such as ``5.1``; None where unknown.
    :ivar may_be_padded: samples may have wider containers than the codec tells ffmpeg.
    :ivar demuxer: the demuxer that the first bytes prove; None for the one that ffmpeg detects.
    :ivar decoder: the decoder that reads the samples; None for the one that ffmpeg chooses.
    :ivar may_be_encrypted: the audio may be encrypted, which ffprobe does not report.
    :ivar may_count_padding: the duration of the description may include the encoder's delay and
        padding, which ffprobe before FFmpeg 8.0 counts.
    :ivar saw_end: ffprobe could read the end of the source, where some containers have their tags.
    :ivar ignore_length: the header of a wav file states no samples, but the file has some.
    :ivar start: seconds from the zero of the container's time to the first sample.
    :ivar seek_offset: seconds from the time from which ffmpeg counts a seek to the first sample.
    :ivar first_time_stamp: of the first packet of audio, in the unit of the container.
    :ivar stream_bitrate: bits per second of the stream, as its header states them, or None.
    :ivar gapless: the value of the tag ``iTunSMPB``, or an empty string.
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
    demuxer: str | None = None
    decoder: str | None = None
    measured: bool = False
    length: SourceLength | None = None
    frame_samples: int = 0
    may_be_encrypted: bool = False
    may_count_padding: bool = False
    saw_end: bool = True
    ignore_length: bool = False
    seekable: bool = False
    has_gaps: bool | None = None
    first_stamp: int | None = None
    irregular: bool = False
    start: Decimal = Decimal(0)
    seek_offset: Decimal = Decimal(0)
    first_time_stamp: int = 0
    stream_bitrate: int | None = None
    gapless: str = ""
    description: SourceInfo = field(default_factory=SourceInfo)

    @property
    def decodes_to_floats(self) -> bool:
        """Whether the decoder outputs floating-point samples, not integers."""
        return self.decoded_bits == _FLOAT_BITS

    @property
    def stores_floats(self) -> bool:
        """Whether the source stores floating-point samples, which may be NaN or infinite."""
        may_store = self.codec in _FLOAT_CODECS and self.decodes_to_floats
        return may_store or self.codec.startswith("pcm_f")

    @property
    def carried_tags(self) -> dict[str, str]:
        """The tags that outputs carry (D61)."""
        return carried_tags(self.description.tags)

    def open_with(self, source: Input) -> Input:
        """Return the input with what ffmpeg does not find out about the source by itself."""
        return replace(
            source,
            demuxer=self.demuxer,
            decoder=self.decoder,
            ignore_length=self.ignore_length,
        )

    def with_decoded_samples(self, samples: int) -> Probe:
        """Return a copy with the number of samples that a full decode has counted.

        :raises NothingDecoded: for none.
        """
        if not samples:
            raise NothingDecoded
        stated, length, seekable = self.length, SourceLength(samples), self.seekable
        if stated is not None and stated.exact:
            if abs(samples - stated.samples) <= stated.block:
                length = replace(stated, is_stated_only=False)
            else:
                seekable = False
        return replace(
            self,
            duration=Decimal(length.samples) / self.sample_rate,
            exact=True,
            measured=True,
            length=length,
            seekable=seekable,
        )

    def with_length(self, length: SourceLength | None) -> Probe:
        """Return a copy with a length that the end of the source confirms."""
        probe = replace(self.with_seek_data(length), length=length)
        if length is None or not length.exact:
            return probe
        duration = Decimal(length.samples) / self.sample_rate
        return replace(probe, duration=duration, exact=True)

    def with_seek_data(self, length: SourceLength | None) -> Probe:
        """Return a copy with what decoding depends on, but without the length itself."""
        if length is None:
            return self
        return replace(
            self,
            frame_samples=length.frame_samples,
            seekable=length.seekable,
            has_gaps=length.has_gaps,
            first_stamp=length.first_stamp,
        )


#: The tags that ffprobe is asked for: all of them; those with a use of their own; these without
#: those of streams. Tags may be of any size. Those of streams precede what is known about the
#: container, and its own tags are the end of the output.
ALL_TAGS = "format_tags:stream_tags"
_NAMES = ",".join((*CARRIED_TAGS, _ENCRYPTION_TAG, _GAPLESS_TAG))
NAMED_TAGS = f"format_tags={_NAMES}:stream_tags={_NAMES}"
CONTAINER_TAGS = f"format_tags={_NAMES}"


def probe_arguments(ffprobe: str, source: Input, *, tags: str = ALL_TAGS) -> list[str]:
    """Return ffprobe's command line.

    All streams are requested, so that a video stream is found at any position. The first packets
    tell whether there is any audio.
    """
    return [
        *(ffprobe, "-hide_banner", "-v", "warning", "-of", "json"),
        *("-read_intervals", f"%+#{_PACKETS}"),
        "-show_entries",
        "packet=codec_type,pts:format=format_name,start_time,duration,bit_rate,size"
        ":stream=codec_type,codec_name,sample_fmt,sample_rate,channels,channel_layout,bits_per_sample"
        ",bits_per_raw_sample,start_time,duration,bit_rate"
        f":stream_disposition=attached_pic:{tags}",
        *source.probe_arguments(),
    ]


def has_container(stdout: bytes) -> bool:
    """Return whether output that was cut off has the fields of the container."""
    return _FORMAT_START in stdout


def parse_probe(
    stdout: bytes,
    stderr: bytes,
    *,
    cut_off: bool = False,
    seekable: bool = True,
    tagged: bytes = b"",
) -> Probe:
    """Parse the output of an ffprobe that did not fail.

    :param cut_off: the output was longer than its limit, and ``stdout`` is its beginning.
    :param seekable: ffprobe could read the end of the source. Otherwise its estimates of duration
        and bit rate are worthless.
    :param tagged: the beginning of an output with all tags, if ``stdout`` has fewer.
    :raises EncryptedSource: where ffprobe reports encrypted audio.
    :raises VideoSource: for a genuine video stream; embedded cover art is not video.
    :raises UndecodableSource: where no audio stream can be decoded.
    :raises ValueError: for output that does not have the form of ffprobe's.
    """
    try:
        output = _parse(stdout, cut_off=cut_off)
        container = dict(output.get("format", {}))
        streams = [dict(stream) for stream in output.get("streams", [])]
        video = any(
            not stream.get("disposition", {}).get("attached_pic", 0)
            and stream.get("codec_type") == "video"
            for stream in streams
        )
        audio = _first_audio(streams)
        more = _parse(tagged, cut_off=True) if tagged else {}
        tags = _tags(_first_audio(more.get("streams", []))) | _tags(audio)
        packets = [dict(packet) for packet in output.get("packets", [])]
        container_tags = _tags(more.get("format")) | _tags(container)
    except (AttributeError, RecursionError, TypeError) as error:
        raise ValueError("the output does not have the form of ffprobe's") from error
    if cut_off and not container:
        raise UndecodableSource("The source has more streams than can be examined.")
    if video:
        raise VideoSource
    if audio is None:
        raise UndecodableSource("The source has no audio stream.")
    if messages(Meaning.ENCRYPTED).search(stderr) or _ENCRYPTION_TAG in tags:
        raise EncryptedSource
    if (audio.get("codec_name") or "unknown") == "unknown":
        raise UndecodableSource("The source's audio is in a codec that cannot be decoded.")
    description = parse_source_info({**container, "tags": container_tags}, {**audio, "tags": tags})
    exact = messages(Meaning.ESTIMATED_DURATION).search(stderr) is None
    name, codec = str(container.get("format_name", "")).split(",")[0], str(audio["codec_name"])
    duration = description.duration if exact or seekable else None
    # A header of uncompressed audio is no promise. Other codecs may have a damaged first packet, or
    # an encrypted one.
    stamps = [packet.get("pts") for packet in packets if packet.get("codec_type") == "audio"]
    lacks_audio = "packets" in output and len(packets) < _PACKETS and not stamps
    no_packets = seekable and codec.startswith("pcm_") and lacks_audio
    if no_packets and not (name == "wav" and duration):
        raise NothingDecoded
    if not exact and not (seekable and _has_constant_rate(name, codec, audio.get("bit_rate"))):
        description = replace(description, duration=None, bitrate=None)
    rate = description.sample_rate or _FALLBACK_RATE
    channels = description.channels or _FALLBACK_CHANNELS
    if rate > _HIGHEST_RATE or channels > _MOST_CHANNELS:
        raise UndecodableSource(
            f"The source states {channels} channels at {rate} Hz, which is not supported."
        )
    start = _read_start(audio.get("start_time"))
    return Probe(
        container=name,
        codec=codec,
        duration=duration,
        exact=duration is not None and exact,
        sample_rate=rate,
        channels=channels,
        bit_depth=_bit_depth(codec, audio.get("sample_fmt"), description.bit_depth),
        decoded_bits=_decoded_bits(audio.get("sample_fmt"), description.bit_depth),
        layout=str(audio.get("channel_layout") or "") or None,
        decoder="libspeex" if codec == "speex" and rate > _HIGHEST_SPEEX_RATE else None,
        may_be_padded=name in _MAY_PAD and _may_be_padded(codec, audio),
        may_be_encrypted=name == "mov",
        # The start of mp3 is the delay that an encoder states.
        may_count_padding=name == "mp3" and start > 0 and seekable,
        saw_end=seekable,
        ignore_length=no_packets,
        start=start,
        seek_offset=start - _read_start(container.get("start_time")),
        first_time_stamp=stamps[0] if stamps and isinstance(stamps[0], int) else 0,
        stream_bitrate=parse_count(audio.get("bit_rate")),
        gapless=str(container_tags.get(_GAPLESS_TAG, "")),
        description=description,
    )


def _may_be_padded(codec: str, audio: dict[str, Any]) -> bool:
    """Return whether a header states more bits a second than samples of its codec have.

    ffmpeg takes 24 bits in containers of 32 bits for a codec of floats that few files have.
    """
    fields = ("bit_rate", "sample_rate", "channels", "bits_per_sample")
    stated, rate, channels, bits = (parse_count(audio.get(field)) or 0 for field in fields)
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


def _parse(stdout: bytes, *, cut_off: bool) -> Any:
    text = stdout.decode("utf-8", "replace")
    return json.loads(_close_brackets(text) if cut_off else text)


def _tags(section: dict[str, Any] | None) -> dict[str, Any]:
    """Return the tags of a stream or of the container, where there are any."""
    return dict((section or {}).get("tags") or {})


def _first_audio(streams: list[dict[str, Any]]) -> dict[str, Any] | None:
    return next((s for s in streams if s.get("codec_type") == "audio"), None)


def _has_constant_rate(container: str, codec: str, bit_rate: object) -> bool:
    """Return whether an estimate from the bit rate is right."""
    return bool(_CONSTANT_RATE.match(f"{container} {codec}")) and (
        container != "mp3" or (parse_count(bit_rate) or 1) % 1000 == 0
    )


def _read_start(text: object) -> Decimal:
    """Parse a time stamp in seconds, which may be negative; ffprobe's ``N/A`` is 0."""
    spelled = str(text)
    seconds = parse_seconds(spelled.removeprefix("-")) or Decimal(0)
    return -seconds if spelled.startswith("-") else seconds


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
