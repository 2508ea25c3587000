"""The command line of ffprobe, and the meaning of its output, which may be cut off."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from audioproxy.errors import EncryptedSource, NothingDecoded, UndecodableSource, VideoSource
from audioproxy.media.diagnostics import decoder_complained
from audioproxy.media.info_document import SourceInfo, parse_count, parse_source_info
from audioproxy.media.inputs import Input
from audioproxy.media.messages import Meaning, messages
from audioproxy.media.probe import FLOAT_BITS, AudioStream, Check, Container, Probe, check_limits
from audioproxy.media.streams import (
    DURATION_TAG,
    Section,
    audio_duration,
    audio_streams,
    has_uncounted_pictures,
    is_divided_iamf,
    is_film,
    marked_audio,
    parse_time_stamp,
)
from audioproxy.media.tags import CARRIED_TAGS

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

# What is raised for a document that does not have the form of ffprobe's.
_FORM_ERRORS = (AttributeError, RecursionError, TypeError)

# The start of the last object in ffprobe's output. Strings in the output have no line ends.
_FORMAT_START = b'\n    "format": {'
_VIDEO = b'"codec_type": "video"'

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
    :raises ValueError: for output that does not have the form of ffprobe's.
    """
    container, streams, audio, packets = _read_sections(stdout, tagged, cut_off=cut_off)
    if any(is_film(stream, packets or ()) for stream in streams):
        raise VideoSource
    if audio is None:
        raise UndecodableSource("The source has no audio stream.")
    if messages(Meaning.ENCRYPTED).search(stderr) or _ENCRYPTION_TAG in audio["tags"]:
        raise EncryptedSource
    name = str(container.get("format_name", "")).split(",")[0]
    if is_divided_iamf(name, streams):
        raise UndecodableSource("The source is IAMF, whose parts cannot be mixed.")
    if (audio.get("codec_name") or "unknown") == "unknown":
        raise UndecodableSource("The source's audio is in a codec that cannot be decoded.")
    codec = str(audio["codec_name"])
    description = parse_source_info(container, audio)
    exact = messages(Meaning.ESTIMATED_DURATION).search(stderr) is None
    duration = None
    if exact or seekable:
        duration = audio_duration(name, streams, audio["tags"], description.duration)
    # A header of uncompressed audio is no promise. Other codecs may have a damaged first packet, or
    # an encrypted one.
    audio_packets = [packet for packet in packets or () if packet.get("codec_type") == "audio"]
    lacks_audio = packets is not None and len(packets) < _PACKETS and not audio_packets
    no_packets = seekable and codec.startswith("pcm_") and lacks_audio
    if no_packets and not (name == "wav" and duration):
        raise NothingDecoded
    if duration is not None and _exceeds_size(name, description, audio):
        duration, description = None, replace(description, duration=None, bitrate=None)
    if not exact and not (seekable and _has_constant_rate(name, codec, audio.get("bit_rate"))):
        description = replace(description, duration=None, bitrate=None)
    stream = _audio_stream(codec, audio, audio_packets, streams, description)
    check_limits(stream.sample_rate, stream.channels)
    checks = {
        Check.PADDED_SAMPLES: name in _MAY_PAD and _may_be_padded(codec, audio),
        Check.SAMPLES: name in ("wav", "flac") or (name in _EXAMINED and codec.startswith("pcm_")),
        Check.ENCRYPTION: name == "mov",
        Check.DECODER: lacks_audio or decoder_complained(stderr, codec, audio.get("index")),
        Check.JOINED_FILES: name in _MAY_BE_JOINED,
        # The start of mp3 is the delay that an encoder states.
        Check.DURATION: name != "mp3" or (stream.start > 0 and seekable),
    }
    file = Container(
        name,
        ignore_length=no_packets,
        saw_end=seekable,
        seek_offset=stream.start - parse_time_stamp(container.get("start_time")),
        gapless=str(container["tags"].get(_GAPLESS_TAG, "")),
    )
    pending = frozenset(check for check, is_due in checks.items() if is_due)
    is_exact = duration is not None and exact
    return Probe(file, stream, duration, is_exact, description, pending)


class _Sections(NamedTuple):
    """The sections of the output; the container and the first audio stream have all ``tags``."""

    container: Section
    streams: Sequence[Section]
    audio: Section | None
    packets: Sequence[Section] | None


def _read_sections(stdout: bytes, tagged: bytes, *, cut_off: bool) -> _Sections:
    try:
        output = parse_output(stdout, cut_off=cut_off)
        container = dict(output.get("format", {}))
        streams = read_streams(output)
        audio = _first_audio(streams)
        others = parse_output(tagged, cut_off=True) if tagged else {}
        tags = _tags(_first_audio(others.get("streams", []))) | _tags(audio)
        packets = [dict(packet) for packet in output["packets"]] if "packets" in output else None
        container_tags = _tags(others.get("format")) | _tags(container)
    except _FORM_ERRORS as error:
        raise ValueError("the output does not have the form of ffprobe's") from error
    if cut_off and not container:
        raise UndecodableSource("The source has more streams than can be examined.")
    audio = None if audio is None else {**audio, "tags": tags}
    return _Sections({**container, "tags": container_tags}, streams, audio, packets)


def _audio_stream(
    codec: str,
    audio: Section,
    packets: Sequence[Section],
    streams: Sequence[Section],
    description: SourceInfo,
) -> AudioStream:
    form, stamp = audio.get("sample_fmt"), packets[0].get("pts") if packets else None
    rate = description.sample_rate or _FALLBACK_RATE
    return AudioStream(
        codec,
        rate,
        description.channels or _FALLBACK_CHANNELS,
        bit_depth=_bit_depth(codec, form, description.bit_depth),
        decoded_bits=_decoded_bits(form, description.bit_depth),
        layout=str(audio.get("channel_layout") or "") or None,
        decoder="libspeex" if codec == "speex" and rate > _HIGHEST_SPEEX_RATE else None,
        bitrate=parse_count(audio.get("bit_rate")),
        first_byte=parse_count(packets[0].get("pos")) if packets else None,
        first_time_stamp=stamp if isinstance(stamp, int) else 0,
        start=parse_time_stamp(audio.get("start_time")),
        streams=len(audio_streams(streams)),
        marked=marked_audio(streams),
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
    return dict((section or {}).get("tags") or {})


def _first_audio(streams: Sequence[Section]) -> Section | None:
    return next(iter(audio_streams(streams)), None)


def _has_constant_rate(container: str, codec: str, bit_rate: object) -> bool:
    """Return whether an estimate from the bit rate is right."""
    return bool(_CONSTANT_RATE.match(f"{container} {codec}")) and (
        container != "mp3" or (parse_count(bit_rate) or 1) % 1000 == 0
    )


def _decoded_bits(sample_format: object, stated: int | None) -> int:
    """Return the bits that a decoder outputs, which has 20 and 24 bits as 32."""
    bits = _DECODED_BITS.get(str(sample_format).removesuffix("p"), FLOAT_BITS)
    return stated if bits == 32 and stated in (20, 24) else bits


def parse_output(stdout: bytes, *, cut_off: bool = False) -> Any:
    """Parse the output of ffprobe, or the beginning of output that was longer than its limit.

    :raises ValueError, RecursionError: for output that is not JSON.
    """
    text = stdout.decode("utf-8", "replace")
    return json.loads(_close_brackets(text) if cut_off else text)


def read_streams(output: Any) -> list[dict[str, Any]]:
    """Return the streams, each with its ``disposition``."""
    streams = output.get("streams", [])
    return [{**stream, "disposition": {**stream.get("disposition", {})}} for stream in streams]


def has_container(stdout: bytes) -> bool:
    """Return whether output that was cut off has the fields of the container."""
    return _FORMAT_START in stdout


def lacks_pictures(stdout: bytes) -> bool:
    """Return whether more packets are needed to tell a film from pictures (D72)."""
    # Most sources have no video stream, not even a cover.
    if _VIDEO not in stdout:
        return False
    try:
        return has_uncounted_pictures(read_streams(parse_output(stdout)))
    except (*_FORM_ERRORS, ValueError):
        return False


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
