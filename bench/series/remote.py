"""Previews of remote sources, near the source and far from it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import median

from bench.bare import UNVERIFIED, first_byte, whole
from bench.client import fetch
from bench.figures import Figure
from bench.places import ROUND_TRIP, Place, bucket, origin
from bench.programs import FFMPEG, Service, service, settled
from bench.settings import Bench

# The sources, and the targets at a distance.
_TARGETS = {"wav": 0.27, "flac": 0.4, "mp3": 0.4, "m4a": 0.24, "ogg": 0.27}
# The targets on the loopback, of another variant at a distance, and of a late start.
_NEAR, _AGAIN, _LATE = 0.25, 0.15, 1.15
# Requests for a preview, and for another variant of the same source.
_REQUESTS = (3, 1)
# Seconds at which a late preview starts, and the seconds of every preview.
_START, _PREVIEW = 150, 30

_PLAIN = (
    "each round begins without a connection to the server; the peer is run with `-i` and the URL"
)
_KNOWN = "after the preview of the same source at 0"
_FFPROBE = str(Path(FFMPEG).with_name("ffprobe"))
_OVER_PAIR = "first byte over the bare pair"
# The format on the page, at an origin.
_SHOWN = "flac"
_LOOPBACK = "on the loopback, the programs' own work is most of the time of both sides"


def remote(bench: Bench) -> list[Figure]:
    """Measure previews of sources at an https origin and in a bucket."""
    figures: list[Figure] = []
    folder = bench.folder("remote")
    names = [f"{n}/three.{kind}" for n, kind in product(range(bench.few + 1), _TARGETS)]
    places = product((origin, bucket), (0, ROUND_TRIP))
    # A far origin and a near bucket, on a smaller scale.
    for make, delay in bench.some(places, slice(1, 3)):
        with make(bench, folder / f"{make.__name__}{delay}", delay, names) as place:
            own = folder / f"service-{make.__name__}{delay}"
            own.mkdir()
            with service(own, place.settings) as ours:
                figures += (_measure_far if delay else _measure_near)(bench, ours, place)
    return figures


def _measure_near(bench: Bench, ours: Service, place: Place) -> Iterator[Figure]:
    for name in bench.some(_TARGETS):
        yield (figure := _preview(name, place.name, _NEAR, _LOOPBACK))
        for took, _, pair in _rounds(bench, ours, place, name, [0]):
            figure.add(took[0], pair)


def _measure_far(bench: Bench, ours: Service, place: Place) -> Iterator[Figure]:
    where = f"{place.name}, {ROUND_TRIP} ms"
    counts = [
        Figure(
            f"{what}, {where}",
            "most requests of any container",
            "",
            target=most,
            on_page=_is_shown(_SHOWN, where),
        )
        for what, most in zip(("a preview", f"another, {_KNOWN}"), _REQUESTS, strict=True)
    ]
    asked = []
    for name in bench.some(_TARGETS):
        figure = _preview(name, where, _TARGETS[name])
        again = Figure(
            f"another preview of a remote {name}, {where}",
            _OVER_PAIR,
            "ms",
            target=_AGAIN,
            remark=_KNOWN,
            on_page=_is_shown(name, where),
        )
        late = Figure(
            f"preview at 150 seconds into a remote {name}, {where}",
            "first byte over that at 0",
            "ms",
            target=_LATE,
            remark=_KNOWN,
            on_page=_is_shown(name, where),
        )
        rounds = list(_rounds(bench, ours, place, name, [0, 0, _START]))
        for took, _, pair in rounds:
            figure.add(took[0], pair)
            again.add(took[1], pair)
            late.add(took[2], took[0])
        asked.append([requests for _, requests, _ in rounds])
        yield from (figure, again, late)
    for number, figure in enumerate(counts):
        of_each = [[requests[number] for requests in rounds] for rounds in asked]
        for of_round in zip(*of_each, strict=True):
            figure.add(max(of_round))
        words = (f"{name} {median(n):g}" for name, n in zip(_TARGETS, of_each, strict=False))
        figure.remark = f"until the end of the preview: {', '.join(words)}"
        yield figure


def _preview(name: str, where: str, target: float, reason: str = "") -> Figure:
    return Figure(
        f"preview of a remote {name}, {where}",
        _OVER_PAIR,
        "ms",
        target=target,
        remark=_PLAIN,
        reason=reason,
        on_page=_is_shown(name, where),
    )


def _is_shown(name: str, where: str) -> bool:
    return name == _SHOWN and where.startswith("https")


def _rounds(
    bench: Bench, ours: Service, place: Place, name: str, starts: Sequence[float]
) -> Iterator[tuple[list[float], list[int], float]]:
    """Yield the results of each round, which has a source of its own.

    :param starts: seconds at which the variants of the source start, in turn.
    :returns: milliseconds to the first byte of each variant, requests for each, and milliseconds of
        the peer for a preview at 0.
    """
    for number in bench.numbers(bench.few):
        source = f"{number}/three.{name}"
        took, times = [], [time.time()]
        with place.line.open():
            for variant, start in enumerate(starts):
                options = f"f:mp3/{bench.part(start, _PREVIEW)}/cb:{variant}"
                path = ours.path(options, place.source(source))
                took.append(1000 * fetch(ours.port, path).first)
                settled(ours)
                times.append(time.time())
            url = place.url(source)
            pair = 1000 * (whole(_probe(url)) + first_byte(_encode(url, bench.seconds(_PREVIEW))))
            requests = [place.line.requests(*ends) for ends in pairwise(times)]
        if number:
            yield took, requests, pair


def _probe(url: str) -> list[str]:
    words = [_FFPROBE, "-v", "error", "-show_format", "-show_streams", "-of", "json"]
    return [*words, *UNVERIFIED, "-i", url]


def _encode(url: str, length: float) -> list[str]:
    words = [FFMPEG, "-nostdin", "-v", "error", "-t", str(length), *UNVERIFIED, "-i", url]
    words += ["-map", "0:a:0", "-vn", "-c:a", "libmp3lame", "-b:a", "192k"]
    return [*words, "-write_xing", "0", "-id3v2_version", "0", "-f", "mp3", "-"]
