"""Previews of remote sources: the time to the first byte, near the source and far from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from audioproxy.s3.signing import RequestSigner
from bench.bare import first_byte, whole
from bench.client import fetch
from bench.figures import Figure
from bench.peers import gateway, nginx
from bench.programs import FFMPEG, Service, free_port, service, settled, started
from bench.settings import Bench
from tests.support.authority import Authority

# The sources, and the targets beside them, on the loopback.
_TARGETS = {"wav": 0.8, "flac": 0.9, "mp3": 0.85, "m4a": 0.55, "ogg": 0.5}
_FAR_TARGET, _DEEP_TARGET = 1.05, 1.1
# Milliseconds of a round trip to a far source.
_ROUND_TRIP = 50
# Seconds at which a deep preview starts, and the seconds of every preview.
_DEEP, _PREVIEW = 150, 30

_ROUND_TRIPS = "before the probe, the service looks the source up, which the peer does not"
_PLAIN = (
    "each source is new to the service; the peer is run with `-i` and the URL, and otherwise with"
    " its defaults"
)
_FFPROBE = str(Path(FFMPEG).with_name("ffprobe"))


@dataclass(frozen=True, slots=True)
class _Place:
    """A server that has the sources.

    :ivar name: its name in the report.
    :ivar settings: the service's settings for this server.
    :ivar source: returns the source in a URL of the service, for a file name.
    :ivar url: returns the URL that a peer opens.
    """

    name: str
    settings: dict[str, str]
    source: Callable[[str], str]
    url: Callable[[str], str]


def remote(bench: Bench) -> list[Figure]:
    """Measure previews of sources at an https origin and in a bucket."""
    figures: list[Figure] = []
    folder = bench.folder("remote")
    with ExitStack() as stack:
        places = product((_origin, _bucket), (0, _ROUND_TRIP))
        # A far origin and a near bucket, on a smaller scale.
        for make, delay in bench.some(places, slice(1, 3)):
            place = stack.enter_context(make(bench, folder / f"{make.__name__}{delay}", delay))
            figures += _measure(bench, place, folder, delay)
    return figures


def _measure(bench: Bench, place: _Place, folder: Path, delay: int) -> Iterator[Figure]:
    where = f"{place.name}, {delay} ms of round trip" if delay else place.name
    own = folder / f"service-{place.name}{delay}"
    own.mkdir(exist_ok=True)
    with service(own, place.settings) as ours:
        for name, near in bench.some(_TARGETS.items()):
            figure = Figure(
                f"a 30-second preview of a remote {name}, {where}",
                "first byte over bare `ffprobe` then `ffmpeg`",
                "ms",
                target=_FAR_TARGET if delay else near,
                peer="ffprobe and ffmpeg",
                remark=_PLAIN,
                reason=_ROUND_TRIPS if delay else "",
                in_short=name == "flac",
            )
            _compare(bench, figure, ours, place, f"three.{name}", 0)
            yield figure
        if delay:
            figure = Figure(
                f"a 30-second preview at 150 seconds into a remote flac, {where}",
                "first byte over bare `ffmpeg -ss 150`",
                "ms",
                target=_DEEP_TARGET,
                peer="ffmpeg",
                remark=_PLAIN,
            )
            _compare(bench, figure, ours, place, "three.flac", _DEEP)
            yield figure


def _compare(
    bench: Bench, figure: Figure, ours: Service, place: _Place, name: str, start: int
) -> None:
    """Add the rounds of one figure, each with another source.

    A deep preview is of a source that was probed before, so its peer does not probe it.
    """
    for number in bench.numbers(bench.few):
        path = ours.path(f"f:mp3/{bench.part(start, _PREVIEW)}", place.source(f"{number}/{name}"))
        took = fetch(ours.port, path, whole=False).first
        settled(ours)
        url = place.url(f"{number}/{name}")
        probed = 0.0 if start else whole(_probe(url))
        alone = first_byte(_encode(url, bench.seconds(start), bench.seconds(_PREVIEW)))
        if number:
            figure.add(1000 * took, 1000 * (probed + alone))


def _probe(url: str) -> list[str]:
    return [_FFPROBE, "-v", "error", "-show_format", "-show_streams", "-of", "json", "-i", url]


def _encode(url: str, start: float, length: float) -> list[str]:
    words = [FFMPEG, "-nostdin", "-v", "error", *(["-ss", str(start)] if start else [])]
    words += ["-t", str(length), "-i", url, "-map", "0:a:0", "-vn", "-c:a", "libmp3lame"]
    return [*words, "-b:a", "192k", "-write_xing", "0", "-id3v2_version", "0", "-f", "mp3", "-"]


@contextmanager
def _origin(bench: Bench, folder: Path, delay: int) -> Iterator[_Place]:
    """Serve the sources over https."""
    folder.mkdir()
    authority = Authority(folder / "authority")
    issued = authority.issue("127.0.0.1", folder=folder)
    port = free_port()
    # Each number is a folder with all sources.
    listens = f"listen 127.0.0.1:{port} ssl; root {bench.sounds}; rewrite ^/\\d+(/.*)$ $1 break;"
    listens += "ssl_protocols TLSv1.2 TLSv1.3;"
    listens += f"ssl_certificate {issued.chain}; ssl_certificate_key {issued.key};"
    with nginx(folder, listens), _far(folder, port, delay) as reached:
        base = f"https://127.0.0.1:{reached}"
        settings = {
            "AP_SOURCE_ALLOWLIST": "127.0.0.1",
            "SSL_CERT_FILE": str(authority.bundle),
        }
        yield _Place("https origin", settings, lambda n: f"{base}/{n}", lambda n: f"{base}/{n}")


@contextmanager
def _bucket(bench: Bench, folder: Path, delay: int) -> Iterator[_Place]:
    """Serve the sources from a bucket of the S3 gateway."""
    with gateway(folder) as store:
        name = store.make_bucket()
        for extension in _TARGETS:
            for number in range(bench.few + 1):
                source = bench.sounds / f"three.{extension}"
                store.put(name, f"{number}/{source.name}", source.read_bytes())
        with _far(folder, store.port, delay) as reached:
            signer = RequestSigner(store.access_key, store.secret_key, None, store.region)
            settings = {
                "AP_S3_ENDPOINT": f"https://127.0.0.1:{reached}",
                "AP_S3_CA_BUNDLE": str(store.ca_bundle),
                "AWS_ACCESS_KEY_ID": store.access_key,
                "AWS_SECRET_ACCESS_KEY": store.secret_key,
                "AWS_REGION": store.region,
            }

            def url(key: str) -> str:
                return signer.presign("GET", f"https://127.0.0.1:{reached}/{name}/{key}", 600)

            yield _Place("S3 gateway", settings, lambda key: f"s3://{name}/{key}", url)


@contextmanager
def _far(folder: Path, port: int, delay: int) -> Iterator[int]:
    """Yield the port that leads to a server, at a distance where there is one."""
    if not delay:
        yield port
        return
    near = free_port()
    words = [sys.executable, "-m", "bench.relay", str(near), str(port), str(delay)]
    with started(words, folder, near):
        yield near
