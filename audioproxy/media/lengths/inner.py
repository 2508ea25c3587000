"""Places inside a source, at which a few reads tell whether it is one stream.

The frames of some formats have numbers. In a joined file they begin anew, so at one of two places
of which one is twice as far from the start as the other, the number is too low.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from audioproxy.media.reading import Malformed, Reader, read_range

_MOST_PLACES = 8
# The later places divide the rest into these powers of 2.
_LATER = (2, 3)
# Bytes from a place on that are searched: mostly the first part is enough, and near the start it
# has been read already.
_PARTS = (16 * 1024, 128 * 1024)


def doubling_places(begin: int, end: int, count: int = _MOST_PLACES) -> Iterator[int]:
    """Yield places, each of them twice as far from ``begin`` as the one before, and some later."""
    length = end - begin
    for shift in range(count, 0, -1):
        yield begin + (length >> shift)
    for shift in _LATER:
        yield end - (length >> shift)


def find_each(
    begin: int, places: Iterable[int], end: int, find: Callable[[bytes], int]
) -> Reader[list[int]]:
    """Return ``begin``, and the offsets of the first frames at or after each of some places.

    A place that precedes the frame found for another one is left out. The last frame's header ends
    at ``end``; ``find`` returns the offset of the first frame in some bytes, or -1.
    """
    offsets = [begin]
    for place in places:
        if place <= offsets[-1]:
            continue
        for part in _PARTS:
            at = find((yield from read_range(place, min(part, end - place))))
            if at >= 0:
                offsets.append(place + at)
                break
        else:
            raise Malformed
    return offsets
