"""https sources: the same results as for local files, however the origin serves them."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

from audioproxy.config import Config
from tests.support.authority import Authority, Certificate
from tests.support.http import Log, Response
from tests.support.origins import (
    Behavior,
    BehaviorSequence,
    File,
    PendingResponse,
    ReceivedRequest,
    Status,
    open_origin,
)
from tests.support.servers import Server
from tests.support.service import (
    ServiceCase,
    counter_increases,
    fetch,
    generate_audio,
    scrape,
    send,
    short_flac,
    signed,
    until,
)

SINE = "sine=frequency=330:sample_rate=16000:duration="
NO_RANGES: dict[str, Any] = {"ranges": False}
CHUNKED: dict[str, Any] = {"ranges": False, "framing": "chunked"}
UNTIL_CLOSE: dict[str, Any] = {"ranges": False, "framing": "close", "version": "1.0"}


@cache
def sound(name: str, seconds: str = "1") -> bytes:
    """Return a tone in the format of a file name, made once for all tests.

    first.m4a has its index before the audio, last.m4a after it.
    """
    how = ("-movflags", "+faststart") if name == "first.m4a" else ()
    words = ("-f", "lavfi", "-i", SINE + seconds, *how)
    return generate_audio(Path("sounds/https", f"{seconds}-{name}").resolve(), *words).read_bytes()


def large_sound(name: str) -> bytes:
    """Return a tone that is too large to be read with the first request."""
    data = sound(name, "120" if name.endswith((".ogg", ".mp3")) else "20")
    assert len(data) > 100_000, name
    return data


@cache
def authority() -> Authority:
    """Return the authority that services in these tests trust."""
    return Authority(Path("authority").resolve())


@cache
def certificate(*names: str) -> Certificate:
    """Return a certificate for names."""
    return authority().issue(*names)


@dataclass(frozen=True, slots=True)
class WithoutTotal:
    """File whose range responses omit the total size."""

    data: bytes

    def respond(self, pending: PendingResponse) -> None:
        file = File(self.data)
        part = file.part(pending.request.headers)
        if part is None or not pending.wants_body:
            file.respond(pending)
            return
        body = self.data[slice(*part)]
        line = f"Content-Range: bytes {part[0]}-{part[1] - 1}/*"
        pending.send_head(206, ['ETag: "1"', line, f"Content-Length: {len(body)}"])
        pending.write(body)
        pending.finish()


@dataclass(frozen=True, slots=True)
class PartialRanges:
    """File whose ranges are at most so many bytes long."""

    data: bytes
    limit: int = 10_000

    def respond(self, pending: PendingResponse) -> None:
        file = File(self.data)
        start, end = file.part(pending.request.headers) or (0, 0)
        if end - start > self.limit:
            piece = {
                **pending.request.headers,
                "range": f"bytes={start}-{start + self.limit - 1}",
            }
            pending = replace(pending, request=replace(pending.request, headers=piece))
        file.respond(pending)


def is_state_request(request: ReceivedRequest) -> bool:
    """Return whether a request asks for the state of a source: before the probe, and at the end."""
    return request.headers.get("range") in ("bytes=0-65535", "bytes=0-0")


def is_test(request: ReceivedRequest) -> bool:
    """Return whether a request tests the origin, as ffmpeg would ask it."""
    return request.headers.get("range") == "bytes=0-" and "accept-encoding" in request.headers


def is_whole(request: ReceivedRequest) -> bool:
    """Return whether a request is ffmpeg's for the whole file.

    ffprobe and then the render send such a request first.
    """
    return request.headers.get("range") == "bytes=0-" and "accept-encoding" not in request.headers


class HttpsCase(ServiceCase):
    """An https origin, and services that trust and allow it.

    :ivar log: the log of this process.
    """

    def setUp(self) -> None:
        super().setUp()
        self.log = Log()
        self.addCleanup(self.log.start())
        self.trust(authority().bundle)
        self.origin = open_origin(self, certificate("localhost"))

    def trust(self, bundle: Path) -> None:
        """Set SSL_CERT_FILE for the services in this process."""
        self.patch(os, "environ", {**os.environ, "SSL_CERT_FILE": str(bundle)})

    def config(self, **settings: Any) -> Config:
        """Return a configuration with the origin on its allowlist."""
        high_limits = {"queue_size": 99, "max_probe_concurrency": 99, "probe_timeout": 30}
        return super().config(**{"source_allowlist": ("localhost",), **high_limits, **settings})

    def path(self, url: str, options: str = "f:wav") -> bytes:
        """Return the signed path of a variant, or of the info document (``info``)."""
        return signed(f"/{options}/plain/{quote(url, safe='')}")

    async def fetch_all(self, port: int, paths: Sequence[bytes]) -> list[Response]:
        """Send all requests at once, and return their responses."""
        clients = [await send(port, path) for path in paths]
        return [await client.end() for client in clients]

    def methods(self) -> Counter[str]:
        """Return how many requests of each method the origin got."""
        return Counter(request.method for request in self.origin.requests)

    def stored(self) -> list[str]:
        """Return the names of the files in the store."""
        files = (path for path in self.store.rglob("*") if path.is_file())
        return [path.name for path in files if ".scratch" not in path.parts]


@dataclass(frozen=True, slots=True)
class RefusedRanges:
    """File of a server that responds to a range with an error."""

    data: bytes
    status: int

    def respond(self, pending: PendingResponse) -> None:
        served: Behavior = File(self.data, **NO_RANGES)
        if "range" in pending.request.headers:
            served = Status(self.status)
        served.respond(pending)


class Variations:
    """File whose validators are others in each response.

    :param tags: the entity tags of successive responses; the last one is followed by the first.
    :param dated: the file is as old as the response, and has no tag.
    """

    def __init__(self, data: bytes, tags: Sequence[str | None] = (), *, dated: bool = False):
        self._file = File(data, etag=None, modified=None)
        self._tags = cycle(tags or [f'"{number}"' for number in range(999)])
        self._dated = dated

    def respond(self, pending: PendingResponse) -> None:
        etag = None if self._dated else next(self._tags)
        modified = formatdate(usegmt=True) if self._dated else None
        headers = ("Date: " + formatdate(usegmt=True),)
        replace(self._file, etag=etag, modified=modified, headers=headers).respond(pending)


@dataclass(frozen=True, slots=True)
class Preceded:
    """File whose responses follow another response."""

    data: bytes
    interim: bytes

    def respond(self, pending: PendingResponse) -> None:
        pending.write(self.interim)
        File(self.data).respond(pending)


EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
AWS_CHUNKED = ("Content-Encoding: aws-chunked",)
FORMS = ('"a"', 'W/"a"', '"a-gzip"', 'W/"a-gzip"', '"a"-gzip', '"a;br"')
ODD_TAGS = ('"a"', None, '"a"')

#: Behaviors of origins: a name, the source file that is most affected, the behavior, and whether
#: ffprobe can determine the size of the source. Without the size, ffprobe reports fewer fields.
BEHAVIORS: tuple[tuple[str, str, Callable[[bytes], Behavior], bool], ...] = (
    ("index first", "first.m4a", File, True),
    ("flac", "a.flac", File, True),
    ("index last", "last.m4a", File, True),
    ("no ranges", "last.m4a", lambda data: File(data, **NO_RANGES), True),
    (
        "false Accept-Ranges",
        "a.wav",
        lambda data: File(data, headers=("Accept-Ranges: bytes",), **NO_RANGES),
        True,
    ),
    ("ranges that are refused", "a.wav", lambda data: RefusedRanges(data, 416), True),
    ("ranges that are an error", "a.ogg", lambda data: RefusedRanges(data, 400), True),
    ("no validator", "a.mp3", lambda data: File(data, etag=None, modified=None), True),
    ("other tag in each response", "a.wav", lambda data: Variations(data), True),
    ("modified now", "a.flac", lambda data: Variations(data, dated=True), True),
    ("tags of weak and compressed forms", "last.m4a", lambda data: Variations(data, FORMS), True),
    ("tags that are missing now and then", "a.wav", lambda data: Variations(data, ODD_TAGS), True),
    ("103", "a.wav", lambda data: Preceded(data, EARLY_HINTS), True),
    ("100", "a.ogg", lambda data: Preceded(data, b"HTTP/1.1 100 Continue\r\n\r\n"), True),
    ("encoded by nothing", "a.mp3", lambda data: File(data, headers=AWS_CHUNKED), True),
    ("chunked", "last.m4a", lambda data: File(data, **CHUNKED), True),
    ("ranges in chunks", "a.ogg", lambda data: File(data, framing="chunked"), True),
    ("HTTP/1.0", "a.mp3", lambda data: File(data, **UNTIL_CLOSE), True),
    ("wav until close", "a.wav", lambda data: File(data, **UNTIL_CLOSE), True),
    ("m4a until close", "last.m4a", lambda data: File(data, **UNTIL_CLOSE), True),
    ("no total", "a.wav", WithoutTotal, True),
    ("short ranges", "a.wav", PartialRanges, True),
    ("limited ranges", "a.wav", lambda data: PartialRanges(data, 100_000), True),
    ("limited ranges of m4a", "last.m4a", lambda data: PartialRanges(data, 70_000), True),
    (
        "no close_notify",
        "last.m4a",
        lambda data: File(data, sent=len(data), then="close_without_notify"),
        True,
    ),
    (
        "no ranges, no close_notify",
        "a.mp3",
        lambda data: File(data, sent=len(data), then="close_without_notify", **NO_RANGES),
        True,
    ),
)


class SameAudioTests(HttpsCase):
    """https sources compared with local files"""

    async def test_same_as_a_file(self) -> None:
        """Renders and info documents equal those of a local file, however the origin serves it.

        A body that ends with a clean TLS close is complete, even without a length (D48).
        """
        service = self.start(variant_store=None)
        expected = {}
        for form in {form for _, form, _, _ in BEHAVIORS}:
            self.add(form, large_sound(form))
            paths = [signed(f"/{options}/plain/local://{form}") for options in ("f:wav", "info")]
            expected[form] = await self.fetch_all(service.port, paths)
        urls = [
            self.origin.put(f"/{number}-{form}", make(large_sound(form)))
            for number, (_, form, make, _) in enumerate(BEHAVIORS)
        ]
        renders = await self.fetch_all(service.port, [self.path(url) for url in urls])
        infos = await self.fetch_all(service.port, [self.path(url, "info") for url in urls])
        for (name, form, _, has_size), render, info in zip(BEHAVIORS, renders, infos, strict=True):
            good, good_info = expected[form]
            self.assertEqual((200, True), (render.status, render.complete), (name, render.body))
            self.assertEqual(good.body, render.body, name)
            self.assertEqual(200, info.status, (name, info.body))
            document = info.document
            if has_size:
                self.assertEqual(good_info.document, document, name)
            # Without the size of the source, the document has the bit rate of the stream.
            document["bitrate"] = good_info.document["bitrate"]
            self.assertLessEqual(document.items(), good_info.document.items(), name)

    async def test_headers(self) -> None:
        """GET and HEAD return the headers of a local file's responses, except for the ETag."""
        service = self.start(variant_store=None)
        self.add("a.flac", short_flac())
        url = self.origin.put("/a.flac", short_flac().read_bytes())
        # The ETag depends on the canonical source, which differs.
        different = {b"etag", b"x-request-id", b"content-length", b"transfer-encoding"}
        for options in ("info", "f:wav"):
            paths = signed(f"/{options}/plain/local://a.flac"), self.path(url, options)
            get = await fetch(service.port, paths[1])
            heads = [await fetch(service.port, path, b"HEAD") for path in paths]
            kept = [
                [header for header in response.headers_without_date if header[0] not in different]
                for response in (get, *heads)
            ]
            self.assertEqual([kept[0]] * 2, kept[1:], options)
            self.assertEqual(get["etag"], heads[1]["etag"])
            self.assertNotEqual(get["etag"], heads[0]["etag"])

    async def test_info_without_ranges(self) -> None:
        """A duration that ffprobe cannot determine is omitted, never wrong."""
        service = self.start()
        for number, more in enumerate((NO_RANGES, CHUNKED)):
            url = self.origin.put(f"/{number}.ogg", File(sound("long.ogg", "8"), **more))
            document = (await fetch(service.port, self.path(url, "info"))).document
            self.assertIn(document.get("duration"), (8, None), document)

    async def test_compressed(self) -> None:
        """A source that is compressed although Accept-Encoding forbids it gives 415 (D48)."""
        url = self.origin.put("/a.wav", File(sound("a.wav"), zipped="always"))
        service = self.start()
        for options in ("f:wav", "info"):
            for method, status in ((b"GET", 415), (b"HEAD", 200)):
                response = await fetch(service.port, self.path(url, options), method)
                self.assertEqual(status, response.status, (options, method))
        url = self.origin.put("/a.flac", File(short_flac().read_bytes(), zipped="accepted"))
        self.assertEqual(200, (await fetch(service.port, self.path(url))).status)
        encodings = {
            request.headers.get("accept-encoding", "identity") for request in self.origin.requests
        }
        self.assertEqual({"identity"}, encodings)

    async def test_requests(self) -> None:
        """Ten concurrent requests share one render, and few requests to the origin.

        A small source is read with its first request.
        """
        service = self.start()
        start, test, probe, render, end = "0-65535", "0-", "0-", "0-", "0-0"
        for name, length, ranges in (
            ("small.wav", "1", [start]),
            ("large.flac", "60", [start, test, probe, render, end]),
        ):
            url = self.origin.put(f"/{name}", sound(name, length))
            before = await scrape(service.metrics_port)
            responses = await self.fetch_all(service.port, [self.path(url, "f:opus")] * 10)
            self.assertEqual(1, len({response.body for response in responses}))
            self.assertEqual({(200, True)}, {(each.status, each.complete) for each in responses})
            counted = counter_increases(before, await scrape(service.metrics_port))
            self.assertEqual(1, counted['renders_total{format="opus",outcome="success"}'])
            requests = self.origin.requests_for(f"/{name}")
            expected = sorted(f"bytes={each}" for each in ranges)
            self.assertEqual(expected, sorted(each.headers["range"] for each in requests))
        # The next variant needs neither the probe nor the test.
        await fetch(service.port, self.path(url, "f:opus/br:64"))
        requests = self.origin.requests_for("/large.flac")
        counted_ranges = Counter(each.headers["range"].removeprefix("bytes=") for each in requests)
        self.assertEqual(Counter([start, render, end]), counted_ranges - Counter(ranges))
        self.assertEqual({"GET"}, {each.method for each in self.origin.requests})

    async def test_contradictions(self) -> None:
        """An origin that contradicts itself after a render is not read in place the next time."""
        data, service = sound("a.wav", "20"), self.start(variant_store=None)
        other = File(data, etag='"2"', modified="another")
        at_the_end = BehaviorSequence(
            File(data), other, other, File(data), matches=is_state_request
        )
        for kind in ("f:wav", "info"):
            url = self.origin.put(f"/{kind[0]}", at_the_end)
            at_the_end.match_count = 0
            first = await fetch(service.port, self.path(url, kind))
            self.assertFalse(first.status == 200 and first.complete)
            at_the_end.match_count = 1
            again = await fetch(service.port, self.path(url, kind))
            self.assertEqual((200, True), (again.status, again.complete))


class InfoTests(HttpsCase):
    """Validators, lifetime and size limit of info documents"""

    async def test_validators(self) -> None:
        """An info document is valid until the origin's ETag, date or size changes.

        If the origin sends no validator, the document has no ETag and max-age=60.
        """
        service, good = self.start(), File(short_flac().read_bytes())
        for number, (first, second) in enumerate(
            (
                (replace(good, etag='"a"'), replace(good, etag='W/"b"')),
                (replace(good, etag=None), replace(good, etag=None, modified="another")),
                (good, replace(good, data=good.data + b"more")),
            )
        ):
            path = self.path(self.origin.put(f"/{number}", first), "info")
            full = await fetch(service.port, path)
            self.assertEqual(b"public, max-age=3600", full["cache-control"])
            self.assertEqual(len(good.data), full.document["size"])
            before = self.methods()
            same = await fetch(service.port, path, if_none_match=full["etag"] or b"")
            self.assertEqual((304, full["etag"], b""), (same.status, same["etag"], same.body))
            self.assertEqual(["GET"], [*(self.methods() - before).elements()])
            self.origin.put(f"/{number}", second)
            head = await fetch(service.port, path, b"HEAD", if_none_match=full["etag"] or b"")
            self.assertEqual(200, head.status, number)
            self.assertNotEqual(full["etag"], head["etag"])
        path = self.path(self.origin.put("/a", replace(good, etag=None, modified=None)), "info")
        for method in (b"GET", b"HEAD"):
            response = await fetch(service.port, path, method, if_none_match=b"*")
            self.assertEqual((200, None), (response.status, response["etag"]))
            self.assertEqual(b"public, max-age=60", response["cache-control"])

    async def test_too_large(self) -> None:
        """A render of a source above AP_MAX_SRC_BYTES gives 413, but /info gives 200.

        This also applies to a source without a length (Info endpoint, 4).
        """
        data = sound("a.wav")
        service = self.start(max_src_bytes=len(data) - 1)
        # The output has a longer header than the source.
        fits = self.start(
            max_src_bytes=len(data), max_variant_bytes=2 * len(data), variant_store=None
        )
        for number, (more, known) in enumerate(
            ((NO_RANGES, True), (CHUNKED, False), (UNTIL_CLOSE, False))
        ):
            url = self.origin.put(f"/{number}", File(data, **more))
            response = await fetch(service.port, self.path(url))
            self.assertEqual((413, "source_too_large"), (response.status, response.error))
            self.assertEqual([b"max-age=10"], response.all("cache-control"))
            # HEAD and /info do not download the source, so they may not know the size.
            head = await fetch(service.port, self.path(url), b"HEAD")
            self.assertEqual(413 if known else 200, head.status)
            info = await fetch(service.port, self.path(url, "info"))
            self.assertEqual((200, known), (info.status, "size" in info.document))
            self.assertEqual(200, (await fetch(fits.port, self.path(url))).status)
        self.assertEqual([], self.stored())


_STARTED = re.compile(r"starting on (\d+)")

#: Python's http.server over TLS: HTTP/1.0, without ranges.
HTTP_SERVER = """
import http.server, ssl, sys
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:])
server.socket = context.wrap_socket(server.socket, server_side=True)
print("starting on", server.server_port, flush=True)
server.serve_forever()
"""


class RealServerTests(HttpsCase):
    """File servers of other projects, each in a separate process"""

    async def check(self, *command: str) -> None:
        """Start a file server, and compare its sources with local files."""
        environ = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
        # Run the server in the folder that it serves.
        words = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.root), sys.executable, *command]
        server = Server(words, environ, self.store.parent / "server.log")
        self.addCleanup(server.kill)
        name = "a b%20c;d.m4a"
        self.add(name, sound("last.m4a", "20"))
        # A date that is as recent as the response is no validator.
        os.utime(self.root / name, (10**9, 10**9))
        self.add("text.mp3", b"No sound, but words." * 500)
        service = self.start(variant_store=None)
        found = await until(lambda: _STARTED.findall(server.output_tail), "the server to start")
        base = f"https://localhost:{found[0]}"
        for options in ("f:wav", "info"):
            path = self.path(f"{base}/{quote(name)}", options)
            paths = signed(f"/{options}/plain/local://{quote(name)}"), path
            local, remote = await self.fetch_all(service.port, paths)
            self.assertEqual((200, True), (remote.status, remote.complete), remote.body)
            self.assertEqual(local.body, remote.body, options)
        same = await fetch(service.port, path, if_none_match=remote["etag"] or b"")
        self.assertEqual(304, same.status)
        for missing, status in (("/none", 404), ("/", 415), ("/text.mp3", 415)):
            response = await fetch(service.port, self.path(base + missing))
            self.assertEqual(status, response.status, missing)

    async def test_twisted(self) -> None:
        """Sources on Twisted's static file server (ranges, no ETag) work like local files."""
        keys = certificate("localhost")
        listen = f"ssl:0:interface=127.0.0.1:privateKey={keys.key}:certKey={keys.chain}"
        await self.check("-m", "twisted", "web", "--path", ".", "--listen", listen)

    async def test_python(self) -> None:
        """Sources on Python's http.server (HTTP/1.0, no ranges, no ETag) work like local files."""
        keys = certificate("localhost")
        await self.check("-c", HTTP_SERVER, str(keys.chain), str(keys.key))
