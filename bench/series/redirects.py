"""Redirect mode, with lookups in a bucket and signatures; and supysonic, which also transcodes."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from audioproxy.s3.signing import RequestSigner
from bench.client import fetch, read
from bench.figures import Results
from bench.peers import Missing, gateway, nginx, supysonic
from bench.programs import Program, Service, service, settled
from bench.series.hits import SMALL, ask, small_service
from bench.settings import CLIENT, SERVER, Bench
from bench.stock import names

_SIGNATURES = 500
_URLS = 1000
_SHARED_CORE = "the store shares a core with the load generator; the service has its own core"

# Responds to every request like a bucket that has the object.
_STUB = """
    location / {
        add_header ETag '"00112233445566778899aabbccddeeff"';
        add_header Cache-Control 'public, max-age=31536000, immutable';
        return 200 'variant';
    }
"""


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket with its credentials.

    :ivar name: name of the store in the report.
    """

    name: str
    store: Program
    bucket: str
    key: str
    secret: str
    region: str = "us-east-1"

    @property
    def signer(self) -> RequestSigner:
        return RequestSigner(self.key, self.secret, None, self.region)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "AP_VARIANT_STORE": f"s3://{self.bucket}",
            "AP_SERVE_MODE": "redirect",
            "AP_S3_ENDPOINT": self.store.base,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
        }

    def object(self, key: str) -> str:
        return f"{self.store.base}/{self.bucket}/{key}"


def redirects(bench: Bench) -> Results:
    """Measure redirects to a bucket, with the shares of the store and of signing."""
    results = Results()
    folder = bench.folder("redirects")
    with gateway(folder / "gateway", core=CLIENT) as (store, program):
        name = store.make_bucket()
        keys = store.access_key, store.secret_key, store.region
        _redirect(bench, results, _Bucket("an S3 gateway", program, name, *keys), folder)
    with nginx(folder, _STUB, core=CLIENT) as stub:
        bucket = _Bucket("a stub of nginx", stub, "stub", "stub", "s" * 40)
        _redirect(bench, results, bucket, folder, target=5000)
        _redirect_many(bench, results, bucket, folder)
    return results


def _redirect(
    bench: Bench,
    results: Results,
    bucket: _Bucket,
    folder: Path,
    target: float | None = None,
) -> None:
    work = f"HIT in redirect mode, one URL, {bucket.name}"
    speed = results.figure(
        work,
        "requests/s",
        "requests/s",
        target=target,
        at_least=True,
        remark=_SHARED_CORE,
        reason="two thirds of the time is Python code that parses requests and writes responses",
    )
    whole = results.figure(work, "service's CPU for each request", "µs")
    signing = results.figure(work, "signatures of a HEAD request and a URL, once each", "µs")
    lookup = results.figure(work, "the store's own CPU for each request", "µs")
    with _serving(bench, bucket, folder) as ours:
        path = ours.path(SMALL, "short.wav")
        _store(ours, path)
        for _ in range(bench.rounds):
            before = bucket.store.cpu_seconds()
            done = ask(bench, ours, [path], folder)
            store = bucket.store.cpu_seconds() - before
            speed.add(done.requests)
            whole.add(1e6 * done.cpu_per_request)
            signing.add(_sign(bucket))
            lookup.add(1e6 * store / done.requests / bench.seconds)


def _redirect_many(bench: Bench, results: Results, bucket: _Bucket, folder: Path) -> None:
    """Measure redirects to many variants, which a stub has without a render."""
    work = f"HIT in redirect mode, {_URLS} URLs in turn, {bucket.name}"
    speed = results.figure(work, "requests/s", "requests/s", remark=_SHARED_CORE)
    whole = results.figure(
        work,
        "service's CPU for each request",
        "µs",
        target=350,
        reason="botocore signs in a fifth of this time, and Twisted handles an HTTP request and a"
        " response on both sides of the service, all in Python",
    )
    with _serving(bench, bucket, folder) as ours:
        paths = [ours.path(SMALL, name) for name in names(_URLS)]
        for number in range(bench.rounds + 1):
            done = ask(bench, ours, paths, folder)
            # The first round does not count, since it parses and verifies each URL.
            if number:
                speed.add(done.requests)
                whole.add(1e6 * done.cpu_per_request)


def _serving(bench: Bench, bucket: _Bucket, folder: Path) -> AbstractContextManager[Service]:
    """Return the service in redirect mode, on a core of its own."""
    return service(folder, {"AP_LOCAL_ROOT": str(bench.sounds), **bucket.settings}, core=SERVER)


def _store(ours: Service, path: str) -> None:
    """Request a variant until the response is a redirect."""
    connection = HTTPConnection("127.0.0.1", ours.port, timeout=20)
    deadline = time.monotonic() + 20
    while True:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 302:
            connection.close()
            return
        if answer.status != 200 or time.monotonic() > deadline:
            raise RuntimeError(
                f"the response for a variant is {answer.status}, and it is not stored"
            )


def _sign(bucket: _Bucket) -> float:
    """Return the microseconds for the signatures of one redirect."""
    signer = bucket.signer
    # The signer remembers the URLs of a second, so each object is signed once.
    urls = [bucket.object(f"{number:043}") for number in range(_SIGNATURES)]
    start = time.perf_counter()
    for url in urls:
        signer.sign("HEAD", url, {})
        signer.presign("GET", url, 300)
    return (time.perf_counter() - start) / _SIGNATURES * 1e6


def beside_supysonic(bench: Bench) -> Results:
    """Measure a render and a stored variant beside supysonic."""
    results = Results()
    folder = bench.folder("supysonic")
    music = folder / "music"
    music.mkdir()
    (music / "short.wav").hardlink_to(bench.sounds / "short.wav")
    for number in range(bench.rounds + 1):
        (music / f"{number}.flac").hardlink_to(bench.sounds / "three.flac")
    settings = small_service(bench, folder) | {"AP_LOCAL_ROOT": str(music)}
    try:
        with (
            service(folder, settings, core=SERVER) as ours,
            supysonic(folder / "peer", music, core=SERVER) as (peer, streams),
        ):
            _beside(bench, results, ours, peer, streams, folder)
    except Missing as missing:
        results.missing["supysonic"] = str(missing)
    return results


def _beside(
    bench: Bench,
    results: Results,
    ours: Service,
    peer: Program,
    streams: dict[str, str],
    folder: Path,
) -> None:
    cold = results.figure(
        "MISS, first body byte, 3-minute FLAC to mp3",
        "over supysonic",
        "ms",
        peer="supysonic, which has probed its library before",
        remark="both sides share one core",
    )
    stored = results.figure(
        "HIT, proxy mode",
        "requests/s over supysonic",
        "requests/s",
        peer="supysonic",
        remark="one second of mp3, 16 KB",
    )
    for number in range(bench.rounds + 1):
        path = ours.path("f:mp3/br:128", f"{number}.flac")
        mine = fetch(ours.port, path).first
        settled(ours)
        # Read to the end: supysonic handles no other request while it transcodes.
        other = fetch(peer.port, streams[f"{number}.flac"]).first
        if number:
            cold.add(1000 * mine, 1000 * other)
    path = ours.path("f:mp3/br:128", "short.wav")
    for program, address in ((ours, path), (peer, streams["short.wav"])):
        read(program.base, address)
    for _ in range(bench.rounds):
        hits = ask(bench, ours, [path], folder).requests
        stored.add(hits, ask(bench, peer, [streams["short.wav"]], folder).requests)
