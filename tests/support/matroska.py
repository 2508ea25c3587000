"""Bytes of Matroska files, as elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

MS = 10**6
EBML, SEGMENT, VOID, CHECKSUM = "1a45dfa3", "18538067", "ec", "bf"
SEEK_HEAD, SEEK, SEEK_ID, SEEK_POSITION = "114d9b74", "4dbb", "53ab", "53ac"
INFO, SCALE, TRACKS, TRACK = "1549a966", "2ad7b1", "1654ae6b", "ae"
NUMBER, TYPE, PRIVATE, DELAY, ENCODINGS, FACTOR = "d7", "83", "63a2", "56aa", "6d80", "23314f"
CUES, CUE, CUE_TIME, CUE_POSITIONS = "1c53bb6b", "bb", "b3", "b7"
CUE_TRACK, CUE_CLUSTER = "f7", "f1"
CLUSTER, TIMESTAMP, SIMPLE_BLOCK, GROUP, BLOCK = "1f43b675", "e7", "a3", "a0", "a1"
DURATION = "9b"


def element(name: str, *contents: bytes) -> bytes:
    """Return an element, with a size of four bytes."""
    content = b"".join(contents)
    return bytes.fromhex(name) + (1 << 28 | len(content)).to_bytes(4, "big") + content


def number(name: str, value: int) -> bytes:
    return element(name, value.to_bytes(8, "big"))


def block(late: int, data: bytes = bytes(20), track: int = 1, flags: int = 0) -> bytes:
    head = bytes((0x80 | track,)) + late.to_bytes(2, "big", signed=True) + bytes((flags,))
    return element(SIMPLE_BLOCK, head, data)


def cluster(stamp: int, *blocks: bytes) -> bytes:
    return element(CLUSTER, number(TIMESTAMP, stamp), *blocks)


def cue(stamp: int, position: int, track: int = 1) -> bytes:
    positions = element(CUE_POSITIONS, number(CUE_TRACK, track), number(CUE_CLUSTER, position))
    return element(CUE, number(CUE_TIME, stamp), positions)


def track(*fields: bytes, kind: int = 2, at: int = 1) -> bytes:
    return element(TRACK, number(NUMBER, at), number(TYPE, kind), *fields)


@dataclass(frozen=True)
class File:
    """A file, as its parts.

    :ivar clusters: each with the time stamp of its first block.
    :ivar points: the clusters that Cues point to, by their numbers, with other time stamps than
        those of the clusters, or None; all clusters where it is empty.
    :ivar cues: elements in place of Cues.
    """

    clusters: Sequence[tuple[int, bytes]]
    tracks: bytes = field(default_factory=track)
    info: bytes = b""
    before: bytes = b""
    points: Sequence[tuple[int, int | None]] = ()
    cue_track: int = 1
    cues: bytes | None = None
    in_front: bool = False
    seek_id: str = CUES

    def __bytes__(self) -> bytes:
        front = element(INFO, self.info) + element(TRACKS, self.tracks) + self.before
        length = len(self._front(0, front)) + (len(self._cues(0)) if self.in_front else 0)
        cues = self._cues(length)
        clusters = b"".join(data for _, data in self.clusters)
        if self.in_front:
            return head(self._front(0, front) + cues + clusters)
        return head(self._front(length + len(clusters), front) + clusters + cues)

    def _front(self, cues: int, front: bytes) -> bytes:
        seek = element(
            SEEK, element(SEEK_ID, bytes.fromhex(self.seek_id)), number(SEEK_POSITION, cues)
        )
        return element(SEEK_HEAD, element("bf", bytes(4)), seek) + front

    def _cues(self, start: int) -> bytes:
        if self.cues is not None:
            return self.cues
        places = [
            start + sum(len(c) for _, c in self.clusters[:n]) for n in range(len(self.clusters))
        ]
        points = self.points or [(n, None) for n in range(len(self.clusters))]
        listed = [
            cue(self.clusters[n][0] if stamp is None else stamp, places[n], self.cue_track)
            for n, stamp in points
        ]
        return element(CUES, *listed)

    def offset(self, n: int) -> int:
        """Return the offset of a cluster."""
        return bytes(self).index(self.clusters[n][1])

    def block(self, n: int, at: int, count: int = 25) -> int:
        """Return the offset of a block in a cluster, which has as many of the same size."""
        ahead = len(cluster(0))
        size = (len(self.clusters[n][1]) - ahead) // count
        return self.offset(n) + ahead + at * size


def cluster_start(stamp: int) -> bytes:
    """Return the start of a cluster without a size, as ahead of an excerpt."""
    return bytes.fromhex(CLUSTER) + b"\1" + b"\xff" * 7 + number(TIMESTAMP, stamp)


def head(content: bytes) -> bytes:
    return element(EBML, number("4286", 1)) + element(SEGMENT, content)


def stamps(count: int, samples: int = 1536, rate: int = 48000, unit: int = MS) -> list[int]:
    return [round(Fraction(n * samples * 10**9, rate * unit)) for n in range(count)]


def clusters(
    times: Sequence[int], count: int = 25, data: bytes | Sequence[bytes] = bytes(20)
) -> list[tuple[int, bytes]]:
    """Return clusters of as many blocks each, with the same frame or with others."""
    frames = [data] * len(times) if isinstance(data, bytes) else data
    starts = range(0, len(times), count)
    return [cluster_of(times[at:][:count], frames[at:][:count]) for at in starts]


def cluster_of(times: Sequence[int], frames: Sequence[bytes]) -> tuple[int, bytes]:
    """Return a cluster of blocks at some times."""
    inner = (block(time - times[0], data) for time, data in zip(times, frames, strict=False))
    return times[0], cluster(times[0], *inner)
