"""Servers that have the sources of a remote series: an https origin and a bucket, near or far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from audioproxy.s3.signing import RequestSigner
from bench.peers import gateway, nginx
from bench.programs import free_port, started
from bench.settings import Bench
from tests.support.authority import Authority

#: Milliseconds of a round trip to a far source.
ROUND_TRIP = 50

_SERVER = """\
listen 127.0.0.1:{port} ssl;
ssl_protocols TLSv1.2 TLSv1.3;
ssl_certificate {chain};
ssl_certificate_key {key};
access_log {log} times;
{contents}
"""
# A signature covers the host.
_BUCKET = """\
location / {{
    proxy_pass http://127.0.0.1:{port};
    proxy_set_header Host $http_host;
    proxy_buffering off;
}}
"""


class Line:
    """nginx with TLS, and the way to it.

    :ivar base: URL that leads to the server.
    :ivar authorities: file with the authority of its certificate.
    """

    def __init__(self, folder: Path, contents: str, delay: int) -> None:
        """Create a certificate in a folder.

        :param contents: what nginx serves, in its configuration.
        :param delay: milliseconds of a round trip.
        """
        authority = Authority(folder / "authority")
        issued = authority.issue("127.0.0.1", folder=folder)
        port = free_port()
        reached = free_port() if delay else port
        self.base, self.authorities = f"https://127.0.0.1:{reached}", str(authority.bundle)
        self._folder, self._log, self._reached = folder, folder / "requests.log", reached
        self._server = _SERVER.format(
            port=port, chain=issued.chain, key=issued.key, log=self._log, contents=contents
        )
        words = [sys.executable, "-m", "bench.relay", str(reached), str(port), str(delay)]
        self._relay = words if delay else None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Run the server for the duration of a block, which begins without connections to it."""
        with ExitStack() as stack:
            stack.enter_context(nginx(self._folder, self._server))
            if self._relay:
                stack.enter_context(started(self._relay, self._folder, self._reached))
            yield

    def requests(self, start: float, end: float) -> int:
        """Return how many requests arrived in a time, between two Unix times."""
        rows = [map(float, row.split()) for row in self._log.read_text().splitlines()]
        return sum(start <= ended - took < end for ended, took in rows)


@dataclass(frozen=True, slots=True)
class Place:
    """A server that has the sources, each under any number of names.

    :ivar name: its name in the report.
    :ivar settings: the service's settings for this server.
    :ivar source: returns the source in a URL of the service, for a name such as ``3/three.wav``.
    :ivar url: returns the URL that a peer opens.
    """

    name: str
    settings: dict[str, str]
    source: Callable[[str], str]
    url: Callable[[str], str]
    line: Line


@contextmanager
def origin(bench: Bench, folder: Path, delay: int, _: Sequence[str] = ()) -> Iterator[Place]:
    """Serve the sources over https."""
    folder.mkdir()
    line = Line(folder, f"root {bench.sounds}; rewrite ^/\\d+(/.*)$ $1 break;", delay)

    def url(name: str) -> str:
        return f"{line.base}/{name}"

    settings = {"AP_SOURCE_ALLOWLIST": "127.0.0.1", "SSL_CERT_FILE": line.authorities}
    yield Place("https origin", settings, url, url, line)


@contextmanager
def bucket(bench: Bench, folder: Path, delay: int, names: Sequence[str]) -> Iterator[Place]:
    """Serve the sources from a bucket of the S3 gateway.

    :param names: all names that are used.
    """
    folder.mkdir()
    with gateway(folder / "gateway") as store:
        line = Line(folder, _BUCKET.format(port=store.port), delay)
        bucket = store.make_bucket()
        for name in names:
            store.put(bucket, name, (bench.sounds / Path(name).name).read_bytes())
        signer = RequestSigner(store.owner.access_key, store.owner.secret_key, None, store.region)
        settings = {
            "AP_S3_ENDPOINT": line.base,
            "AP_S3_CA_BUNDLE": line.authorities,
            "AWS_ACCESS_KEY_ID": store.owner.access_key,
            "AWS_SECRET_ACCESS_KEY": store.owner.secret_key,
            "AWS_REGION": store.region,
        }

        def url(name: str) -> str:
            return signer.presign("GET", f"{line.base}/{bucket}/{name}", 600)

        yield Place("S3 gateway", settings, lambda name: f"s3://{bucket}/{name}", url, line)
