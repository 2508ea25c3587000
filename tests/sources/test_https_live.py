"""https sources: the same results as for local files, however the origin serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from audioproxy.config import Config
from tests.support.authority import Authority, Certificate
from tests.support.http import Log, Response
from tests.support.origins import File, Status, open_origin
from tests.support.processes import set_environment
from tests.support.service import ServiceCase, fetch, generate_audio, send, short_flac, signed
from tests.support.wire import Request

#: The range that is requested first where a render or a probe follows.
START = "0-262143"
#: The range of the end that is requested beside it, while there is no connection.
END = "-131072"
SINE = "sine=frequency=330:sample_rate=16000:duration="
NO_RANGES: dict[str, Any] = {"ranges": False}
CHUNKED: dict[str, Any] = {"ranges": False, "framing": "chunked"}
UNTIL_CLOSE: dict[str, Any] = {"ranges": False, "framing": "close", "version": "1.0"}


@cache
def sound(name: str, seconds: str = "1") -> bytes:
    """Return a tone in the format of a file name, made once for all tests.

    An m4a has its index after the audio.
    """
    words = ("-f", "lavfi", "-i", SINE + seconds)
    return generate_audio(Path("sounds/https", f"{seconds}-{name}").resolve(), *words).read_bytes()


@cache
def noise(name: str) -> bytes:
    """Return a minute of noise, which no format makes small."""
    words = ("-f", "lavfi", "-i", "anoisesrc=amplitude=0.1:sample_rate=44100:duration=60:seed=1")
    return generate_audio(Path("sounds/https", f"noise-{name}").resolve(), *words).read_bytes()


@cache
def authority() -> Authority:
    """Return the authority that services in these tests trust."""
    return Authority(Path("authority").resolve())


@cache
def certificate(*names: str) -> Certificate:
    """Return a certificate for names."""
    return authority().issue(*names)


def ranges_of(requests: Iterable[Request], before: Iterable[str] = ()) -> list[str]:
    """Return the ranges that requests ask for, in order; empty for the whole.

    :param before: those that are left out.
    """
    found = Counter(each.headers.get("range", "").removeprefix("bytes=") for each in requests)
    return sorted((found - Counter(before)).elements())


class HttpsCase(ServiceCase):
    """An https origin, and services that trust and allow it.

    :ivar log: the log of this process.
    """

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self)
        self.trust(authority().bundle)
        self.origin = open_origin(self, certificate("localhost"))

    def trust(self, bundle: Path) -> None:
        """Set SSL_CERT_FILE for the services in this process."""
        set_environment(self, SSL_CERT_FILE=str(bundle))

    def config(self, **settings: Any) -> Config:
        """Return a configuration with the origin on its allowlist."""
        high_limits = {"queue_size": 99, "max_probe_concurrency": 99}
        return super().config(**{"source_allowlist": ("localhost",), **high_limits, **settings})

    def path(self, url: str, options: str = "f:wav") -> bytes:
        """Return the signed path of a variant, or of the info document (``info``)."""
        return signed(f"/{options}/plain/{quote(url, safe='')}")

    async def fetch_all(self, port: int, paths: Sequence[bytes]) -> list[Response]:
        """Send all requests at once, and return their responses."""
        clients = [await send(port, path) for path in paths]
        return [await client.end() for client in clients]


#: Behaviors of origins: the source file that is most affected, and how it is served.
#: tests.sources.test_https has the first responses after which a source is downloaded.
BEHAVIORS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((form, {}) for form in ("a.flac", "last.m4a", "a.ogg")),
    ("a.ogg", {"framing": "chunked"}),
    ("last.m4a", NO_RANGES),
    ("a.flac", CHUNKED),
    ("last.m4a", UNTIL_CLOSE),
    ("last.m4a", {"then": "close_without_notify", **NO_RANGES}),
)


class SameAudioTests(HttpsCase):
    """https sources compared with local files"""

    async def test_same_as_a_file(self) -> None:
        """Renders and info documents equal those of a local file, however the origin serves it.

        A body that ends with a clean TLS close is complete, even without a length (D48).
        """
        service = self.start(variant_store=None)
        expected, paths = {}, []
        for number, (form, more) in enumerate(BEHAVIORS):
            # Too large to be read with the first request.
            data = sound(form, "120" if form == "a.ogg" else "20")
            self.assertGreater(len(data), 100_000)
            if form not in expected:
                self.add(form, data)
                local = [signed(f"/{it}/plain/local://{form}") for it in ("f:wav", "info")]
                expected[form] = await self.fetch_all(service.port, local)
            sent = len(data) if "then" in more else None
            url = self.origin.put(f"/{number}-{form}", File(data, **more, sent=sent))
            paths += [self.path(url), self.path(url, "info")]
        responses = await self.fetch_all(service.port, paths)
        for row, *found in zip(BEHAVIORS, responses[::2], responses[1::2], strict=True):
            for local, remote in zip(expected[row[0]], found, strict=True):
                self.assertEqual((200, True), (remote.status, remote.complete), row)
                self.assertEqual(local.body, remote.body, row)


class RequestTests(HttpsCase):
    """Requests to an origin, by container"""

    async def test_preview(self) -> None:
        """A preview needs at most three requests, and another one of the source a small one (D74).

        All use kept connections.
        """
        service = self.start()
        for name in ("a.flac", "last.m4a", "a.ogg"):
            data = noise(name)
            # More than the start and the end.
            self.assertGreater(len(data), 262_144 + 65_536)
            origin = open_origin(self, certificate("localhost"))
            url = origin.put(f"/{name}", data)
            for options, most in (("f:mp3/t:0:30", 3), ("f:opus/t:0:30", 1), ("info", 1)):
                before = ranges_of(origin.requests)
                response = await fetch(service.port, self.path(url, options))
                self.assertEqual((200, True), (response.status, response.complete), name)
                ranges = ranges_of(origin.requests, before)
                self.assertLessEqual(len(ranges), most, (name, ranges))
                self.assertIn(START if most > 1 else "0-0", ranges, name)
            self.assertEqual({"GET"}, {each.method for each in origin.requests})
            self.assertLessEqual(len(origin.connections), 2, name)

    async def test_place(self) -> None:
        """A preview from a place in the middle does not read all that is ahead of it.

        It needs few requests more than one at the start: two for constant bit rates, four for Ogg.
        Its bytes are those of the local source (D78).
        """
        service, options = self.start(), "f:mp3/t:150:5"
        for name, more in (("a.mp3", 2), ("a.ogg", 4)):
            data = sound(name, "180")
            self.add(name, data)
            local = await fetch(service.port, self.path(f"local://{name}", options))
            url = self.origin.put(f"/{name}", data)
            response = await fetch(service.port, self.path(url, options))
            self.assertEqual((200, True), (response.status, response.complete))
            self.assertEqual(local.body, response.body, name)
            ranges = ranges_of(self.origin.requests_for(f"/{name}"))
            self.assertLessEqual(len(ranges), 3 + more, (name, ranges))
            place = len(data) * 150 // 180
            read = [tuple(map(int, each.split("-"))) for each in ranges if each != END]
            between = [each for each in read if 300_000 < each[0] < place - 300_000]
            self.assertEqual([], between, (name, ranges))


class RefusalTests(HttpsCase):
    """Refusals of sources"""

    async def test_one_404(self) -> None:
        """Refused and missing sources get equal responses; refused hosts get no connection."""
        elsewhere = open_origin(self, certificate("127.0.0.1"))
        refused = elsewhere.put("/a", short_flac().read_bytes(), "127.0.0.1")
        statuses = [self.origin.put(f"/{status}", Status(status)) for status in (401, 403, 410)]
        urls = [refused, self.origin.url("/none"), "https://user@localhost/", "http://a", *statuses]
        port, closed = self.start().port, self.start(source_allowlist=None).port
        seen = set()
        for number, url, options, method in (
            *((port, *row) for row in product(urls, ("f:wav", "info"), (b"GET", b"HEAD"))),
            (closed, self.origin.url("/a"), "f:wav", b"GET"),
        ):
            path = self.path(url, options)
            response = await fetch(number, path, method, x_request_id=b"same")
            self.assertEqual(404, response.status, url)
            seen.add((method, response.body, tuple(response.headers_without_date)))
        self.assertEqual(2, len(seen), seen)
        self.assertEqual([], elsewhere.connections)
