"""Redirect mode, with lookups in a bucket and signatures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from audioproxy.variants.proof import HEADERS, LARGE_RECORD, PROOF_PREFIX
from bench.figures import Figure
from bench.load import Load, load
from bench.peers import nginx
from bench.programs import service
from bench.settings import CLIENT, SERVER, Bench
from bench.stock import SMALL, names

_URLS = 1000
_SETTINGS = {
    "AP_VARIANT_STORE": "s3://stub",
    "AP_SERVE_MODE": "redirect",
    "AWS_ACCESS_KEY_ID": "stub",
    "AWS_SECRET_ACCESS_KEY": "s" * 40,
    "AWS_REGION": "us-east-1",
}
# Responds to every request like a bucket that has the object, and keeps that of the proof at boot.
_STUB = """
    location / {{
        add_header ETag '"00112233445566778899aabbccddeeff"';
        add_header Content-Range 'bytes 0-0/7';
        return 206 'v';
    }}
    location /stub/{prefix} {{
        root {folder};
        dav_methods PUT DELETE;
        create_full_put_path on;
        types {{}}
        default_type {headers.content_type};
        {lines}
    }}
"""


def _stub(folder: Path) -> str:
    lines = {**HEADERS.lines(), **LARGE_RECORD.metadata()}
    del lines["content-type"]
    added = [f"add_header {name} {json.dumps(value)};" for name, value in lines.items()]
    return _STUB.format(prefix=PROOF_PREFIX, folder=folder, headers=HEADERS, lines="".join(added))


def redirects(bench: Bench) -> list[Figure]:
    """Measure redirects to one variant and to many."""
    folder = bench.folder("redirects")
    one, many = (f"HIT in redirect mode, {urls}" for urls in ("one URL", f"{_URLS} URLs in turn"))
    speed = Figure(
        one,
        "requests/s",
        "requests/s",
        target=5000,
        at_least=True,
        remark="the bucket is a stub of nginx, which shares a core with the load generator; the"
        " service has its own core",
        reason="most of the time is Python code that parses requests and writes responses",
    )
    used = Figure(
        many,
        "service's CPU for each request",
        "µs",
        target=350,
        reason="besides signing by botocore, Twisted handles an HTTP request and a response on both"
        " sides of the service, all in Python",
    )
    with nginx(folder, _stub(folder), core=CLIENT) as stub:
        settings = {"AP_LOCAL_ROOT": str(bench.sounds), "AP_S3_ENDPOINT": stub.base, **_SETTINGS}
        with service(folder, settings, core=SERVER) as ours:
            paths = [ours.path(SMALL, name) for name in names(bench.count(_URLS))]

            def ask(paths: Sequence[str]) -> Load:
                return load(ours, paths, connections=64, core=CLIENT, folder=folder)

            for number in bench.numbers(bench.rounds):
                first, all_of_them = ask(paths[:1]), ask(paths)
                # The first round does not count, since it parses and verifies each URL.
                if number:
                    speed.add(first.requests)
                    used.add(1e6 * all_of_them.cpu_per_request)
    return [speed, used]
