"""The headers and the Cues of Matroska and WebM (RFC 9559)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from audioproxy.media.lengths.ebml import SEGMENT, Element, parse_elements, read_element
from audioproxy.media.lengths.ogg import PRESKIP
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, read_range
from audioproxy.media.seeking.matroska_blocks import CLUSTER, UNKNOWN_SIZE

_SEEK_HEAD, _SEEK = b"\x11\x4d\x9b\x74", b"\x4d\xbb"
_SEEK_ID, _SEEK_POSITION = b"\x53\xab", b"\x53\xac"
_INFO, _TIMESTAMP_SCALE = b"\x15\x49\xa9\x66", b"\x2a\xd7\xb1"
_TRACKS, _TRACK, _TRACK_NUMBER, _TRACK_TYPE = b"\x16\x54\xae\x6b", b"\xae", b"\xd7", b"\x83"
_PRIVATE, _DELAY, _ENCODINGS, _TRACK_SCALE = b"\x63\xa2", b"\x56\xaa", b"\x6d\x80", b"\x23\x31\x4f"
_CUES, _CUE_POINT, _CUE_TIME, _CUE_POSITIONS = b"\x1c\x53\xbb\x6b", b"\xbb", b"\xb3", b"\xb7"
_CUE_TRACK, _CUE_CLUSTER = b"\xf7", b"\xf1"

#: Nanoseconds of a second.
NANOSECONDS = 10**9
_AUDIO, _LARGEST_NUMBER = 2, 126
# The scale of time stamps, in nanoseconds, where the file states none; gaps are rounded to it.
_MILLISECOND = 10**6
# The factor 1, as a float of 4 and 8 bytes.
_ONE = (b"\x3f\x80\0\0", b"\x3f\xf0\0\0\0\0\0\0")
_OPUS = b"OpusHead"

# Bytes that are read at once. Pictures are skipped.
_WINDOW, _MOST_WINDOWS = 32 * 1024, 8
# Bytes of a header, and of all Cues.
_LARGEST_HEADER, _LARGEST_CUES = 1 << 20, 2 << 20


@dataclass(frozen=True, slots=True)
class Track:
    """The first audio track; blocks and Cues refer to it with its number.

    :ivar unit: nanoseconds of a time stamp.
    :ivar delay: number of samples that the decoder leaves out at the start.
    :ivar head: bytes ahead of a cluster, for a decoder that leaves out none.
    """

    number: int
    unit: int
    private: bytes
    delay: int
    head: bytes


class Cues:
    def __init__(self, data: bytes, start: int, track: int) -> None:
        self._data = data
        self._start = start
        self._track = track
        self._points = [point for point in parse_elements(data) if point.name == _CUE_POINT]

    def __len__(self) -> int:
        return len(self._points)

    def find(self, stamp: Fraction | int) -> int:
        """Return the index after the last point up to a time stamp."""
        return bisect_right(range(len(self)), floor(stamp), key=self.stamp)

    def last_before(self, index: int) -> tuple[int, int]:
        """Return the last point of the track ahead of an index, as `of_track` yields it."""
        for point in self.of_track(range(index - 1, -1, -1)):
            return point
        raise Malformed

    def of_track(self, indexes: range) -> Iterator[tuple[int, int]]:
        """Yield the time stamps of the points of the track, and the offsets of their clusters."""
        for index in indexes:
            for positions in self._fields(self._points[index], _CUE_POSITIONS):
                if self._number(positions, _CUE_TRACK) == self._track:
                    cluster = self._number(positions, _CUE_CLUSTER)
                    yield self.stamp(index), self._start + cluster

    def stamp(self, index: int) -> int:
        """Return the time stamp of a point, of any track."""
        return self._number(self._points[index], _CUE_TIME)

    def _number(self, element: Element, name: bytes) -> int:
        for field in self._fields(element, name):
            return field.number(self._data)
        raise Malformed

    def _fields(self, element: Element, name: bytes) -> Iterator[Element]:
        fields = parse_elements(self._data, element.start, element.end)
        return (field for field in fields if field.name == name)


def read_headers(segment: Element, probe: Probe) -> Reader[tuple[Track, Cues, int]]:
    found = yield from _find_headers(segment)
    if not found.keys() >= {_INFO, _TRACKS, _CUES, CLUSTER}:
        raise Malformed
    track = yield from _read_track(segment, found, probe)
    data = yield from _read_content(found[_CUES], _LARGEST_CUES)
    return track, Cues(data, segment.start, track.number), found[CLUSTER].offset


def _find_headers(segment: Element) -> Reader[Mapping[bytes, Element]]:
    """Return the elements up to the first cluster, and the Cues, by their names."""
    found: dict[bytes, Element] = {}
    offset = segment.start
    for _ in range(_MOST_WINDOWS):
        data = yield from read_range(offset, min(_WINDOW, segment.end - offset))
        for element in parse_elements(data):
            found.setdefault(element.name, element.moved(offset))
            end = offset + element.end
        if not found or CLUSTER in found:
            break
        offset = end
    if _CUES not in found and _SEEK_HEAD in found:
        data = yield from _read_content(found[_SEEK_HEAD])
        for entry in parse_elements(data):
            fields = _children(data, entry) if entry.name == _SEEK else {}
            if _SEEK_ID in fields and fields[_SEEK_ID].content(data) == _CUES:
                place = segment.start + _number(data, fields, _SEEK_POSITION)
                found[_CUES] = yield from read_element(place, _CUES)
    return found


def _read_track(segment: Element, found: Mapping[bytes, Element], probe: Probe) -> Reader[Track]:
    begin = yield from read_range(0, segment.offset)
    info = yield from _read_content(found[_INFO])
    tracks = yield from _read_content(found[_TRACKS])
    unit = _number(info, _children(info), _TIMESTAMP_SCALE, _MILLISECOND)
    listed = (entry for entry in parse_elements(tracks) if entry.name == _TRACK)
    entries = (_children(tracks, entry) for entry in listed)
    entry = next((e for e in entries if _number(tracks, e, _TRACK_TYPE) == _AUDIO), {})
    number = _number(tracks, entry, _TRACK_NUMBER)
    has_scale = _TRACK_SCALE in entry and entry[_TRACK_SCALE].content(tracks) not in _ONE
    if has_scale or _ENCODINGS in entry or not 0 < number <= _LARGEST_NUMBER:
        raise Malformed
    if not 0 < unit <= _MILLISECOND:
        raise Malformed
    private = entry[_PRIVATE].content(tracks) if _PRIVATE in entry else b""
    delay = _delay(probe, unit, _number(tracks, entry, _DELAY), private)
    edited = bytearray(tracks)
    if _DELAY in entry:
        edited[entry[_DELAY].start : entry[_DELAY].end] = bytes(len(entry[_DELAY].content(tracks)))
    if private.startswith(_OPUS):
        place = entry[_PRIVATE].start
        edited[place + PRESKIP.start : place + PRESKIP.stop] = bytes(PRESKIP.stop - PRESKIP.start)
    head = begin + SEGMENT + UNKNOWN_SIZE + _element(_INFO, info) + _element(_TRACKS, edited)
    return Track(number, unit, private, delay, head)


def _delay(probe: Probe, unit: int, nanoseconds: int, private: bytes) -> int:
    """Return the number of samples that the decoder leaves out at the start of a file.

    That of Opus leaves out what its header states. FFmpeg 9 leaves out the delays of other codecs,
    too, as the start of the stream tells. Earlier versions do not.
    """
    delay = round(Fraction(nanoseconds * probe.sample_rate, NANOSECONDS))
    if private.startswith(_OPUS):
        if len(private) < PRESKIP.stop or delay != int.from_bytes(private[PRESKIP], "little"):
            raise Malformed
        return delay
    left_out = probe.audio.start * NANOSECONDS - probe.audio.first_time_stamp * unit
    return delay if 2 * left_out > nanoseconds else 0


def _read_content(element: Element, most: int = _LARGEST_HEADER) -> Reader[bytes]:
    size = element.end - element.start
    if size > most:
        raise Malformed
    return (yield from read_range(element.start, size))


def _children(data: bytes, parent: Element | None = None) -> dict[bytes, Element]:
    """Return the elements in another one, or in all of the data, by their names."""
    start, end = (0, len(data)) if parent is None else (parent.start, parent.end)
    return {child.name: child for child in parse_elements(data, start, end)}


def _number(data: bytes, fields: Mapping[bytes, Element], name: bytes, default: int = 0) -> int:
    return fields[name].number(data) if name in fields else default


def _element(name: bytes, content: bytes | bytearray) -> bytes:
    return name + (1 << 56 | len(content)).to_bytes(8, "big") + content
