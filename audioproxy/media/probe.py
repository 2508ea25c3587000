"""What is known about a source: its container, its audio stream, its tags, its length."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import Enum, auto
from typing import Any

from audioproxy.errors import NothingDecoded, UndecodableSource
from audioproxy.media.info_document import SourceInfo
from audioproxy.media.inputs import Input, RawSamples
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.tags import carried_tags

#: Bits of decoded floating-point samples: more than those of any integer output.
FLOAT_BITS = 64

# Limits of channels and of the sample rate. ffmpeg mixes no more channels than this. It does not
# resample rates far above the limit, which is the rate of DSD1024. Only a broken header states
# more.
_MOST_CHANNELS = 64
_HIGHEST_RATE = 6_144_000

# Lossless codecs that may store floating-point samples.
_FLOAT_CODECS = ("wavpack", "mp4als")


class Check(Enum):
    """What ffprobe does not tell, or tells wrongly, and reading the source does."""

    #: Samples may have wider containers than the codec tells ffmpeg.
    PADDED_SAMPLES = auto()
    #: The samples may not be what ffprobe takes them for.
    SAMPLES = auto()
    #: The audio may be encrypted.
    ENCRYPTION = auto()
    #: The decoder may refuse all of the audio that ffprobe describes.
    DECODER = auto()
    #: The file may be several, of which ffmpeg plays the first one alone.
    JOINED_FILES = auto()
    #: The duration of the description may be wrong. In mp3 it may include the encoder's delay and
    #: padding, which ffprobe before FFmpeg 8.0 counts.
    DURATION = auto()


@dataclass(frozen=True, slots=True)
class Container:
    """The container, and how ffmpeg and ffprobe open it.

    :ivar name: ffprobe's first name for it, such as ``mov``.
    :ivar demuxer: as that of `Input`, like the next four.
    :ivar saw_end: ffprobe could read the end of the source, where some containers have their tags.
    :ivar seek_offset: seconds from the time from which ffmpeg counts a seek to the first sample.
    :ivar gapless: the value of the tag ``iTunSMPB``, or an empty string.
    """

    name: str
    demuxer: str | None = None
    skipped: int = 0
    is_pcm: bool = False
    ignore_length: bool = False
    raw: RawSamples | None = None
    saw_end: bool = True
    seek_offset: Decimal = Decimal(0)
    gapless: str = ""


@dataclass(frozen=True, slots=True)
class AudioStream:
    """The first audio stream, which is the one that is rendered (D71).

    :ivar sample_rate: Hz.
    :ivar bit_depth: bits of a sample as stored; 24 for one-bit audio.
    :ivar decoded_bits: bits of a decoded sample.
    :ivar layout: the channel layout, such as ``5.1``; None where unknown.
    :ivar decoder: the decoder that reads the samples; None for the one that ffmpeg chooses.
    :ivar bitrate: bits per second, as the header of the stream states them.
    :ivar first_byte: the offset of the first packet.
    :ivar first_time_stamp: of the first packet, in the unit of the container.
    :ivar start: seconds from the zero of the container's time to the first sample.
    :ivar streams: the number of audio streams.
    :ivar marked: the number, from 1 on, of the stream that is marked as default; None for the first
        one, and without a mark.
    """

    codec: str
    sample_rate: int
    channels: int
    bit_depth: int
    decoded_bits: int
    layout: str | None = None
    decoder: str | None = None
    bitrate: int | None = None
    first_byte: int | None = None
    first_time_stamp: int = 0
    start: Decimal = Decimal(0)
    streams: int = 1
    marked: int | None = None

    @property
    def decodes_to_floats(self) -> bool:
        return self.decoded_bits == FLOAT_BITS

    @property
    def stores_floats(self) -> bool:
        """Whether the source stores floating-point samples, which may be NaN or infinite."""
        may_store = self.codec in _FLOAT_CODECS and self.decodes_to_floats
        return may_store or self.codec.startswith("pcm_f")

    @property
    def choice(self) -> str | None:
        """Which of several audio streams is rendered; None where there is one."""
        if self.streams == 1:
            return None
        marks = f"; the source marks number {self.marked} as the default" if self.marked else ""
        return f"the first of {self.streams} audio streams{marks}"


@dataclass(frozen=True, slots=True)
class TimeStamps:
    """What the search for the length has told about time stamps, as `SourceLength` has it.

    :ivar seekable: False where no search has found it.
    :ivar has_gaps: None where no search has told.
    """

    frame_samples: int = 0
    seekable: bool = False
    has_gaps: bool | None = None
    first_stamp: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known about a source.

    :ivar duration: seconds of the audio. The description has that of the longest stream.
    :ivar exact: the duration is stated by the container, not estimated from its size.
    :ivar pending: the checks that were not made yet.
    :ivar length: the number of samples, where the end of the source confirms it or a full decode
        has counted them.
    :ivar measured: a full decode has counted them.
    :ivar stored: the length that a check of the samples has found.
    :ivar irregular: a render has found that the source needs a decoder of its own
        (`audioproxy.media.command.decoding`).
    :ivar seek_point: where decoding starts for a render, if the service has found a place for that.
    :ivar in_parts: the source is decoded in parts, side by side: each in one thread, and with fewer
        samples than it should have if the decoder has lost some.
    """

    file: Container
    audio: AudioStream
    duration: Decimal | None
    exact: bool
    description: SourceInfo = field(default_factory=SourceInfo)
    pending: frozenset[Check] = frozenset()
    length: SourceLength | None = None
    measured: bool = False
    stored: SourceLength | None = None
    stamps: TimeStamps = TimeStamps()
    irregular: bool = False
    seek_point: SeekPoint | None = None
    in_parts: bool = False

    @property
    def container(self) -> str:
        return self.file.name

    @property
    def codec(self) -> str:
        return self.audio.codec

    @property
    def kind(self) -> tuple[str, str]:
        """The container and the codec, by which tables list sources."""
        return self.file.name, self.audio.codec

    @property
    def sample_rate(self) -> int:
        return self.audio.sample_rate

    @property
    def channels(self) -> int:
        return self.audio.channels

    @property
    def skipped(self) -> int:
        return self.file.skipped

    @property
    def carried_tags(self) -> dict[str, str]:
        """The tags that outputs carry (D61)."""
        return carried_tags(self.description.tags)

    def open_with(self, source: Input) -> Input:
        """Return the input with what ffmpeg does not find out about the source by itself."""
        file, point = self.file, self.seek_point
        demuxer, skipped = file.demuxer, file.skipped
        if point is not None:
            demuxer, skipped = point.demuxer, 0 if point.head else skipped + point.offset
        return replace(
            source,
            demuxer=demuxer,
            skipped=skipped,
            starts_at_place=point is not None,
            is_pcm=file.is_pcm,
            decoder=self.audio.decoder,
            ignore_length=file.ignore_length,
            raw=file.raw,
        )

    def with_file(self, **changes: Any) -> Probe:
        return replace(self, file=replace(self.file, **changes))

    def with_audio(self, **changes: Any) -> Probe:
        return replace(self, audio=replace(self.audio, **changes))

    def described(self, **changes: Any) -> Probe:
        return replace(self, description=replace(self.description, **changes))

    def checked(self, *checks: Check) -> Probe:
        return replace(self, pending=self.pending.difference(checks))

    def with_decoded_samples(self, samples: int) -> Probe:
        """Return a copy with the number of samples that a full decode has counted."""
        if not samples:
            raise NothingDecoded
        stated, length, stamps = self.length, SourceLength(samples), self.stamps
        if stated is not None and stated.exact:
            if abs(samples - stated.samples) <= stated.block:
                length = replace(stated, is_stated_only=False)
            else:
                stamps = replace(stamps, seekable=False)
        counted = replace(self, measured=True, stamps=stamps, length=length)
        return counted.with_duration(length.samples)

    def with_length(self, length: SourceLength | None) -> Probe:
        """Return a copy with a length that the end of the source confirms."""
        probe = replace(self.with_time_stamps(length), length=length)
        return probe.with_duration(length.samples) if length and length.exact else probe

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
        stamps = replace(self.stamps, seekable=False)
        return replace(self, length=None, stored=None, stamps=stamps, measured=False)

    def with_time_stamps(self, length: SourceLength | None) -> Probe:
        """Return a copy with what decoding depends on, but without the length itself."""
        if length is None:
            return self
        stamps = TimeStamps(
            length.frame_samples, length.seekable, length.has_gaps, length.first_stamp
        )
        return replace(self, stamps=stamps)

    def with_duration(self, samples: int) -> Probe:
        return replace(self, duration=Decimal(samples) / self.sample_rate, exact=True)


def check_limits(rate: int, channels: int) -> None:
    """Refuse a rate, or a number of channels, of which ffmpeg converts no more."""
    if rate > _HIGHEST_RATE or channels > _MOST_CHANNELS:
        raise UndecodableSource(
            f"The source states {channels} channels at {rate} Hz, which is not supported."
        )
