"""The streams of a source, as ffprobe reports them: the one that is rendered, and the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from audioproxy.media.info_document import parse_count, parse_seconds

#: A stream or a packet, as an object of ffprobe. Each stream has its ``disposition``.
Section: TypeAlias = Mapping[str, Any]

#: Seconds at the start of a source in which pictures are counted, if the container does not state
#: their number.
COUNTED_SECONDS = 10

#: In Matroska, the header states the end of the longest track. In this tag, most programs state the
#: end of each track, or its length.
DURATION_TAG = "DURATION"
_CLOCK = re.compile(r"([0-9]{2,6}):([0-9]{2}):([0-9]{2}(?:\.[0-9]{1,9})?)")

# Codecs of images, as ffprobe names them. Some cameras record films in them (D72).
_IMAGES = ("mjpeg", "png", "gif", "bmp", "webp", "tiff")
_NO_FILM = ("attached_pic", "timed_thumbnails")

# FFmpeg 5.1 reports the sample entry of IAMF, and 7.1 and 9.0 its substreams. In MPEG-TS, a
# dependent stream is a description of pictures; the first one is whole without it.
_IAMF_ENTRY = "iamf"
_IAMF_CONTAINER = "mov"


def audio_streams(streams: Sequence[Section]) -> list[Section]:
    """Return the audio streams, of which the first one is rendered (D71)."""
    return [stream for stream in streams if stream.get("codec_type") == "audio"]


def marked_audio(streams: Sequence[Section]) -> int | None:
    """Return the number, from 1 on, of the stream that is marked as default in place of the first.

    Some containers mark several streams, or all.
    """
    marks = [bool(stream["disposition"].get("default")) for stream in audio_streams(streams)]
    return None if True not in marks or marks[0] else marks.index(True) + 1


def is_film(stream: Section, packets: Sequence[Section]) -> bool:
    """Return whether a stream is a genuine video, not pictures, by the first packets (D72)."""
    if _is_of_images(stream):
        count, seconds = _stated_pictures(stream) or _count_pictures(stream, packets)
        return count - 1 > seconds
    return _is_video(stream)


def has_uncounted_pictures(streams: Sequence[Section]) -> bool:
    """Return whether only packets tell whether a stream is a film."""
    return any(_is_of_images(stream) and not _stated_pictures(stream) for stream in streams)


def is_divided_iamf(container: str, streams: Sequence[Section]) -> bool:
    """Return whether the first audio stream is a part of IAMF audio, or all of it unread (D71).

    The parts follow the first one. No command of ffmpeg mixes them as their presentation says.
    """
    first, *others = audio_streams(streams)
    is_divided = any(stream["disposition"].get("dependent") for stream in others[:1])
    is_unread = first.get("codec_tag_string") == _IAMF_ENTRY
    return is_unread or (is_divided and container == _IAMF_CONTAINER)


def audio_duration(
    container: str, streams: Sequence[Section], tags: Mapping[str, object], stated: Decimal | None
) -> Decimal | None:
    """Return the duration of the first audio stream in seconds, or None where it is unknown.

    :param tags: of the first audio stream.
    :param stated: that of the container, which is the end of its longest stream.
    """
    audio = audio_streams(streams)[0]
    is_alone = all(stream is audio or _is_attached(stream) for stream in streams)
    if container != "matroska":
        return stated if is_alone else parse_seconds(audio.get("duration")) or stated
    end = stated if is_alone else _read_clock(tags.get(DURATION_TAG))
    if end is None or stated is None:
        return None
    start = max(parse_time_stamp(audio.get("start_time")), Decimal(0))
    # A tag that was copied from a longer file is wrong.
    duration = min(end, stated) - start
    return duration if duration > 0 else None


def parse_time_stamp(text: object) -> Decimal:
    """Parse a time stamp in seconds, which may be negative; ffprobe's ``N/A`` is 0."""
    spelled = str(text)
    seconds = parse_seconds(spelled.removeprefix("-")) or Decimal(0)
    return -seconds if spelled.startswith("-") else seconds


def _is_attached(stream: Section) -> bool:
    is_picture = stream["disposition"].get("attached_pic")
    return stream.get("codec_type") == "attachment" or bool(is_picture)


def _is_video(stream: Section) -> bool:
    is_picture = any(stream["disposition"].get(name) for name in _NO_FILM)
    return stream.get("codec_type") == "video" and not is_picture


def _is_of_images(stream: Section) -> bool:
    return _is_video(stream) and stream.get("codec_name") in _IMAGES


def _stated_pictures(stream: Section) -> tuple[int, Decimal] | None:
    """Return the number of pictures that a container states, and the seconds that they last."""
    count, seconds = parse_count(stream.get("nb_frames")), parse_seconds(stream.get("duration"))
    return (count, seconds) if count and seconds else None


def _count_pictures(stream: Section, packets: Sequence[Section]) -> tuple[int, Decimal]:
    """Return the number of pictures at the start, and the seconds from the first to the last."""
    times = [
        parse_time_stamp(packet.get("pts_time"))
        for packet in packets
        if packet.get("stream_index") == stream.get("index")
    ]
    return len(times), max(times, default=Decimal(0)) - min(times, default=Decimal(0))


def _read_clock(text: object) -> Decimal | None:
    """Parse a time such as ``00:00:04.200000000``."""
    found = _CLOCK.fullmatch(str(text))
    if found is None:
        return None
    hours, minutes, seconds = map(Decimal, found.groups())
    return 3600 * hours + 60 * minutes + seconds
