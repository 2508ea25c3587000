"""The command line of ffprobe, and the meaning of its output for a render."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from audioproxy.errors import EncryptedSource, NothingDecoded, UndecodableSource, VideoSource
from audioproxy.media.diagnostics import decoder_complained
from audioproxy.media.ffprobe import FORM_ERRORS, parse_output, read_streams
from audioproxy.media.info_document import (
    SourceInfo,
    parse_count,
    parse_source_info,
)
from audioproxy.media.inputs import Input, RawSamples
from audioproxy.media.messages import Meaning, messages
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.streams import (
    DURATION_TAG,
    Section,
    audio_duration,
    audio_streams,
    is_divided_iamf,
    is_film,
    marked_audio,
    parse_time_stamp,
)
from audioproxy.media.tags import CARRIED_TAGS, carried_tags

# Containers of bare frames or samples, and codecs whose bit rate does not change in them, so that
# the quotient is right. ffprobe knows no right bit rate of ADPCM. The bit rate of MPEG audio that
# does change is an average, and no multiple of 1000.
_CONSTANT_RATE = re.compile(r"(?:(?:wav|w64|caf|au|aiff) pcm_|(?:e?ac3|dts) |mp3 mp[123]$)")

# Containers of one run of samples.
_SAMPLES_ALONE = ("wav", "w64", "aiff", "caf")

# Bits per second of which no codec needs fewer.
_LEAST_BITRATE = 100

# The tag of an encrypted stream in matroska.
_ENCRYPTION_TAG = "enc_key_id"

#: ffprobe's messages that count even if many others follow.
NOTICES = messages(Meaning.ESTIMATED_DURATION, Meaning.ENCRYPTED)

# Packets at the start of a source, among which one of audio is looked for: those of cover art come
# first.
_PACKETS = 8

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

# Containers with uncompressed samples in one piece, which may be something else.
_EXAMINED = ("w64", "aiff", "caf", "au", "mov")

# Containers without a mark at the end of the file.
_MAY_BE_JOINED = ("wv", "tta", "ape", "tak")

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
    :ivar duration: seconds, or None where unknown. The description has that of the container, which
        may be that of another stream.
    :ivar exact: the duration is stated by the container, not estimated from its size.
    :ivar measured: the duration was measured by a full decode.
    :ivar length: the number of samples, where the end of the source confirms it or a full decode
        has counted them.
    :ivar frame_samples: as that of `SourceLength`.
    :ivar seekable: as that of `SourceLength`; False where no search for the length has found it.
    :ivar has_gaps: as that of `SourceLength`; None where no search for the length has told.
    :ivar first_stamp: as that of `SourceLength`.
    :ivar seek_point: where decoding starts for a render, if the service has found a place for that.
    :ivar irregular: a render has found that the source needs a decoder of its own
        (`audioproxy.media.command.decoding`).
    :ivar in_parts: the source is decoded in parts, side by side: each in one thread, and with fewer
        samples than it should have if the decoder has lost some.
    :ivar sample_rate: Hz.
    :ivar channels: their number; 2 where unknown.
    :ivar bit_depth: bits of a sample as stored; 24 for one-bit audio.
    :ivar decoded_bits: bits of a decoded sample.
    :ivar layout: the channel layout, such as ``5.1``; None where unknown.
    :ivar may_be_padded: samples may have wider containers than the codec tells ffmpeg.
    :ivar demuxer: the demuxer that the first bytes prove; None for the one that ffmpeg detects.
    :ivar skipped: as that of `Input`.
    :ivar is_pcm: as that of `Input`.
    :ivar decoder: the decoder that reads the samples; None for the one that ffmpeg chooses.
    :ivar may_be_encrypted: the audio may be encrypted, which ffprobe does not report.
    :ivar may_be_undecodable: ffprobe describes the audio, but the decoder may refuse all of it.
    :ivar audio_streams: their number.
    :ivar marked_stream: the number, from 1 on, of the audio stream that is marked as default in
        place of the first one; None where there is none.
    :ivar may_be_joined: the file may be several, of which ffmpeg plays the first one alone.
    :ivar may_count_padding: the duration of the description may include the encoder's delay and
        padding, which ffprobe before FFmpeg 8.0 counts.
    :ivar is_described: the source was read for the duration of the description.
    :ivar unchecked: the samples may not be what ffprobe takes them for.
    :ivar raw: where the samples are, if ffmpeg does not find them in the container.
    :ivar stored: the length that a check of the samples has found.
    :ivar first_byte: the offset of the first packet of audio; None where unknown.
    :ivar saw_end: ffprobe could read the end of the source, where some containers have their tags.
    :ivar ignore_length: the header of a wav file states no samples, or too few.
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
    skipped: int = 0
    is_pcm: bool = False
    decoder: str | None = None
    measured: bool = False
    length: SourceLength | None = None
    frame_samples: int = 0
    may_be_encrypted: bool = False
    may_be_undecodable: bool = False
    audio_streams: int = 1
    marked_stream: int | None = None
    may_be_joined: bool = False
    may_count_padding: bool = False
    is_described: bool = False
    unchecked: bool = False
    raw: RawSamples | None = None
    stored: SourceLength | None = None
    first_byte: int | None = None
    saw_end: bool = True
    ignore_length: bool = False
    seekable: bool = False
    has_gaps: bool | None = None
    first_stamp: int | None = None
    seek_point: SeekPoint | None = None
    irregular: bool = False
    in_parts: bool = False
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
        demuxer, skipped, point = self.demuxer, self.skipped, self.seek_point
        if point is not None:
            demuxer, skipped = point.demuxer, 0 if point.head else skipped + point.offset
        return replace(
            source,
            demuxer=demuxer,
            skipped=skipped,
            starts_at_place=point is not None,
            is_pcm=self.is_pcm,
            decoder=self.decoder,
            ignore_length=self.ignore_length,
            raw=self.raw,
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

    def with_least_length(self, samples: int) -> Probe:
        """Return a copy for a source that has at least so many samples, whatever it states."""
        least = Decimal(samples) / self.sample_rate
        return replace(
            self,
            length=SourceLength(samples, exact=False),
            duration=None if self.duration is None else max(self.duration, least),
        )

    def without_length(self) -> Probe:
        """Return a copy for a source that has another length than it states."""
        return replace(self, length=None, stored=None, seekable=False, measured=False)

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


def describe_choice(probe: Probe) -> str | None:
    """Return which of several audio streams is rendered (D71); None where there is one."""
    if probe.audio_streams == 1:
        return None
    marked = probe.marked_stream
    default = "" if marked is None else f"; the source marks number {marked} as the default"
    return f"the first of {probe.audio_streams} audio streams{default}"


#: The tags that ffprobe is asked for: all of them; those with a use of their own; these without
#: those of streams. Tags may be of any size. Those of streams precede what is known about the
#: container, and its own tags are the end of the output.
ALL_TAGS = "format_tags:stream_tags"
_NAMES = ",".join((*CARRIED_TAGS, _ENCRYPTION_TAG, _GAPLESS_TAG, DURATION_TAG))
NAMED_TAGS = f"format_tags={_NAMES}:stream_tags={_NAMES}"
CONTAINER_TAGS = f"format_tags={_NAMES}"


def probe_arguments(
    ffprobe: str, source: Input, *, tags: str = ALL_TAGS, seconds: int | None = None
) -> list[str]:
    """Return ffprobe's command line.

    All streams are requested, so that a video stream is found at any position. The first packets
    tell whether there is any audio.

    :param seconds: of the source, whose packets are read; None for the first few packets.
    """
    return [
        *(ffprobe, "-hide_banner", "-v", "warning", "-of", "json"),
        *("-read_intervals", f"%+#{_PACKETS}" if seconds is None else f"%+{seconds}"),
        "-show_entries",
        "packet=codec_type,stream_index,pts,pts_time,pos"
        ":format=format_name,start_time,duration,bit_rate,size,probe_score"
        ":stream=index,codec_type,codec_name,codec_tag_string,sample_fmt,sample_rate,channels"
        ",channel_layout,bits_per_sample,bits_per_raw_sample,start_time,duration,bit_rate,nb_frames"
        f":stream_disposition=default,dependent,attached_pic,timed_thumbnails:{tags}",
        *source.probe_arguments(),
    ]


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
        output = parse_output(stdout, cut_off=cut_off)
        container = dict(output.get("format", {}))
        streams = read_streams(output)
        audio = _first_audio(streams)
        tagged_output = parse_output(tagged, cut_off=True) if tagged else {}
        tags = _tags(_first_audio(tagged_output.get("streams", []))) | _tags(audio)
        packets = [dict(packet) for packet in output.get("packets", [])]
        container_tags = _tags(tagged_output.get("format")) | _tags(container)
    except FORM_ERRORS as error:
        raise ValueError("the output does not have the form of ffprobe's") from error
    if cut_off and not container:
        raise UndecodableSource("The source has more streams than can be examined.")
    if any(is_film(stream, packets) for stream in streams):
        raise VideoSource
    if audio is None:
        raise UndecodableSource("The source has no audio stream.")
    if messages(Meaning.ENCRYPTED).search(stderr) or _ENCRYPTION_TAG in tags:
        raise EncryptedSource
    name = str(container.get("format_name", "")).split(",")[0]
    if is_divided_iamf(name, streams):
        raise UndecodableSource("The source is IAMF, whose parts cannot be mixed.")
    if (audio.get("codec_name") or "unknown") == "unknown":
        raise UndecodableSource("The source's audio is in a codec that cannot be decoded.")
    description = parse_source_info({**container, "tags": container_tags}, {**audio, "tags": tags})
    exact = messages(Meaning.ESTIMATED_DURATION).search(stderr) is None
    codec = str(audio["codec_name"])
    duration = None
    if exact or seekable:
        duration = audio_duration(name, streams, tags, description.duration)
    # A header of uncompressed audio is no promise. Other codecs may have a damaged first packet, or
    # an encrypted one.
    audio_packets = [packet for packet in packets if packet.get("codec_type") == "audio"]
    stamps = [packet.get("pts") for packet in audio_packets]
    lacks_audio = "packets" in output and len(packets) < _PACKETS and not stamps
    no_packets = seekable and codec.startswith("pcm_") and lacks_audio
    if no_packets and not (name == "wav" and duration):
        raise NothingDecoded
    if duration is not None and _exceeds_size(name, description, audio):
        duration, description = None, replace(description, duration=None, bitrate=None)
    if not exact and not (seekable and _has_constant_rate(name, codec, audio.get("bit_rate"))):
        description = replace(description, duration=None, bitrate=None)
    rate = description.sample_rate or _FALLBACK_RATE
    channels = description.channels or _FALLBACK_CHANNELS
    check_limits(rate, channels)
    start = parse_time_stamp(audio.get("start_time"))
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
        may_be_undecodable=lacks_audio or decoder_complained(stderr, codec, audio.get("index")),
        audio_streams=len(audio_streams(streams)),
        marked_stream=marked_audio(streams),
        may_be_joined=name in _MAY_BE_JOINED,
        unchecked=name in ("wav", "flac") or (name in _EXAMINED and codec.startswith("pcm_")),
        first_byte=parse_count(audio_packets[0].get("pos")) if audio_packets else None,
        # The start of mp3 is the delay that an encoder states.
        may_count_padding=name == "mp3" and start > 0 and seekable,
        saw_end=seekable,
        ignore_length=no_packets,
        start=start,
        seek_offset=start - parse_time_stamp(container.get("start_time")),
        first_time_stamp=stamps[0] if stamps and isinstance(stamps[0], int) else 0,
        stream_bitrate=parse_count(audio.get("bit_rate")),
        gapless=str(container_tags.get(_GAPLESS_TAG, "")),
        description=description,
    )


def check_limits(rate: int, channels: int) -> None:
    """Refuse a rate, or a number of channels, that no source has.

    :raises UndecodableSource: for more than ffmpeg converts.
    """
    if rate > _HIGHEST_RATE or channels > _MOST_CHANNELS:
        raise UndecodableSource(
            f"The source states {channels} channels at {rate} Hz, which is not supported."
        )


def _may_be_padded(codec: str, audio: Section) -> bool:
    """Return whether a header states more bits a second than samples of its codec have.

    ffmpeg takes 24 bits in containers of 32 bits for a codec of floats that few files have.
    """
    fields = ("bit_rate", "sample_rate", "channels", "bits_per_sample")
    stated, rate, channels, bits = (parse_count(audio.get(field)) or 0 for field in fields)
    return codec == "pcm_f24le" or (codec in _PADDED and stated > rate * channels * bits)


def _exceeds_size(container: str, description: SourceInfo, audio: Mapping[str, Any]) -> bool:
    """Return whether a file is too small for the duration that its header states.

    A header that was written to a pipe may state the largest size. Pages of Ogg that were cut out
    of an endless stream count from its start.
    """
    duration, size = description.duration, description.size
    if duration is None or size is None:
        return False
    fields = ("sample_rate", "channels", "bits_per_sample")
    rate, channels, bits = (parse_count(audio.get(field)) or 0 for field in fields)
    least = _LEAST_BITRATE if container == "ogg" else 0
    # Other containers may have gaps.
    if container in _SAMPLES_ALONE and str(audio["codec_name"]).startswith("pcm_"):
        least = rate * channels * bits
    return duration * least > 8 * size


def _bit_depth(codec: str, sample_format: object, stated: int | None) -> int:
    """Return the bits of a sample, from which the default depth of an output follows.

    Samples of one bit, at megahertz, hold more than 16 bits in the range of hearing (D69). DSD and
    DST are such. ffprobe states 8 bits for a byte of them, also in WavPack; the samples of all
    other codecs with 8 bits are decoded to integers.
    """
    if codec == "dst" or (stated == 8 and str(sample_format).startswith("flt")):
        return _ONE_BIT_DEPTH
    return stated or _FALLBACK_DEPTH


def _tags(section: Section | None) -> dict[str, Any]:
    """Return the tags of a stream or of the container, where there are any."""
    return dict((section or {}).get("tags") or {})


def _first_audio(streams: Sequence[Section]) -> Section | None:
    return next(iter(audio_streams(streams)), None)


def _has_constant_rate(container: str, codec: str, bit_rate: object) -> bool:
    """Return whether an estimate from the bit rate is right."""
    return bool(_CONSTANT_RATE.match(f"{container} {codec}")) and (
        container != "mp3" or (parse_count(bit_rate) or 1) % 1000 == 0
    )


def _decoded_bits(sample_format: object, stated: int | None) -> int:
    """Return the bits of the samples that a decoder outputs.

    Decoders output 20 and 24 bits as 32. Floating point has more bits than any integer output.
    """
    bits = _DECODED_BITS.get(str(sample_format).removesuffix("p"), _FLOAT_BITS)
    return stated if bits == 32 and stated in (20, 24) else bits
