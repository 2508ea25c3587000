"""Faulty origins: no truncated render, no long wait, no leftover resources."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from twisted.internet.task import LoopingCall
from twisted.logger import eventAsText

from audioproxy.http_client import client as client_module
from audioproxy.service import AudioProxy
from audioproxy.sources import far_source
from audioproxy.sources import fetch as fetch_module
from tests.sources.test_https_live import (
    CHUNKED,
    NO_RANGES,
    START,
    HttpsCase,
    sound,
)
from tests.support.authority import Authority
from tests.support.http import Response
from tests.support.origins import (
    STALL,
    Behavior,
    BehaviorSequence,
    File,
    PendingResponse,
    Raw,
    Redirect,
    Status,
    open_origin,
)
from tests.support.processes import open_descriptors
from tests.support.service import (
    PATIENCE,
    children,
    counter_increases,
    fetch,
    scrape,
    send,
    short_flac,
    signed,
    until,
)

OK = b"HTTP/1.1 200 OK\r\n"
_numbers = count()
#: Ways in which a connection may end too early.
ENDS = ("close", "close_without_notify", "abort")


@dataclass(frozen=True, slots=True)
class EndlessResponse:
    """Response that never ends.

    :ivar every: seconds between two pieces.
    """

    head: bytes
    more: bytes
    every: float = 0

    def respond(self, pending: PendingResponse) -> None:
        pending.write(self.head)
        writing = LoopingCall(pending.write, self.more)
        writing.start(self.every, now=False)
        pending.protocol.closed.addCallback(lambda _: writing.stop())


@dataclass(slots=True)
class SignedForSeconds:
    """File behind redirects to URLs each of which is valid for one request, and is cut then.

    :ivar valid: the queries of the URLs that are valid.
    """

    file: File
    path: str
    valid: set[str] = field(default_factory=set)

    def respond(self, pending: PendingResponse) -> None:
        path, _, query = pending.request.target.partition("?")
        if path != self.path:
            query = f"token={next(_numbers)}"
            self.valid.add(query)
            Redirect(f"{self.path}?{query}").respond(pending)
        elif query in self.valid:
            self.valid.remove(query)
            replace(self.file, sent=200_000).respond(pending)
        else:
            Status(403).respond(pending)


class FailingAt:
    """Behavior that is odd from a source's n-th request on.

    The first one is the look-up, also where the request for the end is ahead of it.
    """

    def __init__(self, number: int, usual: Behavior, *odd: Behavior) -> None:
        self._behaviors = [*[usual] * (number - 1), *odd]
        self._is_looked_up = False
        self._later = 1

    def respond(self, pending: PendingResponse) -> None:
        is_look_up = pending.request.headers.get("range") == f"bytes={START}"
        if is_look_up and not self._is_looked_up:
            self._is_looked_up, number = True, 1
        else:
            self._later += 1
            number = self._later
        self._behaviors[min(number, len(self._behaviors)) - 1].respond(pending)


class TroubleCase(HttpsCase):
    """Service with faulty origins.

    :cvar REQUESTS: the requests of a render of ``long``: its start, its end and what is between.
    """

    REQUESTS = 3

    def setUp(self) -> None:
        super().setUp()
        self.long = sound("a.wav", "20")

    def hurry(self) -> None:
        """Let requests that fail be repeated at once."""
        self.patch(fetch_module, "_DELAYS", (0.0,) * 4)

    async def assert_refused(
        self, service: AudioProxy, rows: Sequence[tuple[str, int]], options: str = "f:wav"
    ) -> list[Response]:
        """Send all requests at once; require the given statuses, and that nothing is stored.

        Where a 5xx is expected, a 200 that breaks off is accepted, too.
        """
        responses = await self.fetch_all(service.port, [self.path(url, options) for url, _ in rows])
        for (url, status), response in zip(rows, responses, strict=True):
            if status < 500 or response.status != 200:
                self.assertEqual(status, response.status, (url, response.body[:200]))
                self.assertEqual({"error", "message"}, {*response.document})
            else:
                self.assertFalse(response.complete, url)
        self.assertEqual([], self.stored())
        return responses

    async def assert_same(self, service: AudioProxy, behaviors: Iterable[Behavior]) -> None:
        """Send requests for all sources at once; require the variant of ``long``."""
        self.add("long.wav", self.long)
        usual = await fetch(service.port, signed("/f:wav/plain/local://long.wav"))
        rows = [(self.put(each), each) for each in behaviors]
        responses = await self.fetch_all(service.port, [self.path(url) for url, _ in rows])
        for response, (_, behavior) in zip(responses, rows, strict=True):
            found = response.status, response.complete, response.body == usual.body
            self.assertEqual((200, True, True), found, (behavior, response.body[:200]))

    def put(self, behavior: Behavior) -> str:
        """Serve a behavior from the origin at a new path, and return its URL."""
        return self.origin.put(f"/{next(_numbers)}", behavior)

    def put_all(self, behaviors: Iterable[Behavior], status: int = 0) -> list[tuple[str, int]]:
        """Serve behaviors from the origin, and return each URL with its expected status."""
        return [(self.put(each), status) for each in behaviors]

    async def renders(self, service: AudioProxy, before: dict[str, float]) -> dict[str, float]:
        """Return the increases of the counters of renders."""
        counted = counter_increases(before, await scrape(service.metrics_port))
        return {name: n for name, n in counted.items() if name.startswith("renders_total")}


class StallTests(TroubleCase):
    """Timeouts of origins that stall"""

    async def test_probe(self) -> None:
        """An origin that stalls, or responds without end, gives 504 after AP_PROBE_TIMEOUT."""
        good = File(sound("last.m4a", "180"))
        endless = EndlessResponse(OK, b"X-A: %b\r\n" % (b"a" * 500), 0.001)
        held = replace(good, sent=9, then="hold")
        service = self.start(probe_timeout=0.5)
        for options in ("f:wav", "info"):
            behaviors = [FailingAt(2, good, each) for each in (STALL, endless, held)]
            rows = self.put_all(behaviors, 504)
            responses = await self.assert_refused(service, rows, options)
            self.assertEqual({"probe_timeout"}, {response.error for response in responses})

    async def test_body(self) -> None:
        """A body that stalls in every attempt gives 502 or a broken stream."""
        self.hurry()
        self.patch(fetch_module, "STALL_TIMEOUT", 0.2)
        good = File(self.long)
        unreadable = replace(good, sent=0, then="hold")
        behaviors = [
            *(FailingAt(number, good, unreadable) for number in (2, 3)),
            replace(good, sent=300_000, then="hold", **NO_RANGES),
        ]
        await self.assert_refused(self.start(), self.put_all(behaviors, 502))

    async def test_body_once(self) -> None:
        """A body that stalls once is requested again, and the render succeeds."""
        # Short for the test, and long for an origin that serves on a busy machine.
        self.patch(fetch_module, "STALL_TIMEOUT", 2)
        good = File(self.long)
        held = replace(good, sent=30_000, then="hold")
        once = [FailingAt(number, good, held, good) for number in range(1, self.REQUESTS + 1)]
        await self.assert_same(self.start(max_concurrency=9), once)

    async def test_render(self) -> None:
        """A source that arrives too slowly, or stalls, gives 504 after AP_RENDER_TIMEOUT.

        If its end does not arrive in half of AP_PROBE_TIMEOUT, ffprobe reads its start alone.
        """
        self.assertEqual(0.5, far_source._SHARE)
        self.patch(far_source, "_SHARE", 0.5 / PATIENCE)
        head = OK + b'Content-Length: %d\r\nETag: "1"\r\n\r\n' % len(self.long)
        slow = EndlessResponse(head + self.long[: len(self.long) // 2], b"a", 0.05)
        held = File(self.long, sent=len(self.long) // 2, then="hold", **CHUNKED)
        service = self.start(render_timeout=1)
        rows = self.put_all([slow, held], 504)
        before = await scrape(service.metrics_port)
        responses = await self.assert_refused(service, rows)
        # One that states its size is rendered while it arrives.
        self.assertIn(responses[0].status, (200, 504))
        self.assertEqual((504, "render_timeout"), (responses[1].status, responses[1].error))
        info = await fetch(service.port, self.path(rows[1][0], "info"))
        # Neither the size nor the mean bit rate is known.
        self.assertEqual((200, 256_000), (info.status, info.document["bitrate"]))
        self.assertNotIn("size", info.document)
        # Clients get the 504 before the renders have ended.
        await until(lambda: not children(), "the renders to end")
        expected = {'renders_total{format="wav",outcome="render_timeout"}': 2}
        self.assertEqual(expected, await self.renders(service, before))
        self.assertEqual([], self.log.errors)


class BrokenTests(TroubleCase):
    """Bodies that end early, and requests that fail"""

    async def test_once(self) -> None:
        """A request that fails once, in any way, is repeated, and the render is complete.

        It may be any of the render's requests: an origin or a network fails at each of them.
        """
        good = File(self.long)
        once: list[Behavior] = [
            *(Status(503), Status(503, ("Retry-After: 0",)), Status(429, ("Retry-After: 1",))),
            *(Raw(b"", then) for then in ENDS),
            *(replace(good, sent=20_000, then=then) for then in ENDS),
            *(Raw(b"HTTP/1.1 206 So\r\nContent-R", then) for then in ENDS[:1]),
        ]
        await self.assert_same(
            self.start(max_concurrency=9),
            [
                FailingAt(number, good, each, good)
                for number in range(1, self.REQUESTS + 1)
                for each in once
                # Bytes that are not HTTP are no reason to ask for the state of a source again.
                if number > 1 or each != once[-1]
            ],
        )

    async def test_whole_once(self) -> None:
        """A source without ranges that is cut once is requested again."""
        for framing in ({}, {"framing": "chunked"}):
            good = File(self.long, ranges=False, **framing)
            cut = [replace(good, sent=300_000, then=then) for then in ENDS]
            await self.assert_same(
                self.start(max_concurrency=9), [BehaviorSequence(each, good) for each in cut]
            )

    async def test_signed_for_seconds(self) -> None:
        """Redirects are followed again when the URLs that they lead to have expired.

        So it is with an origin that cuts every connection besides.
        """
        behavior = SignedForSeconds(File(self.long), "/signed")
        self.origin.put("/signed", behavior)
        await self.assert_same(self.start(), [behavior])
        self.assertGreater(len(self.origin.requests_for("/signed")), self.REQUESTS)

    async def test_for_good(self) -> None:
        """A request that fails permanently gives 502 or a broken stream.

        The failed render is counted, and nothing is stored.
        """
        self.hurry()
        good = File(self.long)
        failed = (
            Status(503),
            Raw(b"", "abort"),
            replace(good, sent=0),
            Status(429, ("Retry-After: 99",)),
        )
        rows = self.put_all(
            [FailingAt(number, good, each) for each in failed for number in (2, 3)], 502
        )
        service = self.start(max_concurrency=9)
        before = await scrape(service.metrics_port)
        await self.assert_refused(service, rows)
        expected = {'renders_total{format="wav",outcome="upstream_unavailable"}': len(rows)}
        self.assertEqual(expected, await self.renders(service, before))
        # Peaks send nothing before the end of the source.
        responses = await self.assert_refused(service, rows, "f:peaks")
        self.assertEqual({502}, {response.status for response in responses})


class ReplacedTests(TroubleCase):
    """Sources that change between the first request and the last byte"""

    def changes(self) -> list[tuple[Behavior, bool]]:
        """Return what may become of a source, and whether there is a source then."""
        other = File(sound("a.flac"), etag='"3"', modified="another")
        return [
            (File(self.other, etag='"2"', modified="another"), True),
            (File(self.long[:-1000], etag='"1"'), True),
            (other, True),
            (Status(404), False),
            (Status(416), False),
            (Redirect(self.origin.put("/another", other)), True),
            (replace(File(self.other), etag='"2"', **NO_RANGES), True),
        ]

    @property
    def other(self) -> bytes:
        """Another source of the length of ``long``."""
        return self.long[:50_000] + bytes(len(self.long) - 50_000)

    async def test_before_the_first_byte(self) -> None:
        """A source that changes before the first byte is opened anew, once.

        The response is the one of the new version, or the refusal of a source that is gone.
        """
        service = self.start(max_concurrency=9)
        for options in ("f:peaks", "info"):
            rows = []
            for new, exists in self.changes():
                good = File(sound("last.m4a", "180"))
                behavior = FailingAt(2, good, new)
                rows.append((self.put(behavior), self.put(new), exists))
            for url, new_url, exists in rows:
                expected = await fetch(service.port, self.path(new_url, options))
                response = await fetch(service.port, self.path(url, options))
                self.assertEqual(expected.status, response.status, (url, response.body[:200]))
                if exists:
                    self.assertEqual((200, expected.body), (response.status, response.body))

    async def test_after_the_first_byte(self) -> None:
        """A source that changes after the first byte breaks the stream; nothing is stored."""
        service = self.start()
        for new, exists in self.changes():
            self.origin.held.clear()
            good = File(self.long)
            url = self.put(FailingAt(3, good, STALL, new))
            client = await send(service.port, self.path(url))
            await until(
                lambda client=client: client.response and self.origin.held, "the first byte"
            )
            new.respond(self.origin.held.pop())
            response = await client.end()
            self.assertEqual((200, False), (response.status, response.complete), new)
            await until(lambda: not children(), "the render to end")
            self.assertEqual([], self.stored(), new)
            again = await fetch(service.port, self.path(url, "info"))
            self.assertEqual(exists, again.status == 200, (new, again.body[:200]))


class LeftoverTests(TroubleCase):
    """Leftover resources after failures, and secrets in logs and responses"""

    def serve_faults(self) -> list[str]:
        """Serve every kind of fault, and return the URLs."""
        flac = File(short_flac().read_bytes())
        behaviors: list[Behavior] = [
            *(flac, File(b"No sound, but words.\n" * 500)),
            *(STALL, Status(503), Raw(b"", "abort"), Redirect("/none")),
            EndlessResponse(OK, b"X-A: %b\r\n" % (b"a" * 8000)),
        ]
        for framing in ({}, NO_RANGES):
            good = File(sound("a.wav", "20"), **framing)
            behaviors += [replace(good, sent=9, then=it) for it in ("close_without_notify", "hold")]
            behaviors.append(FailingAt(2, good, replace(good, sent=9**6)))
        untrusted_certificate = Authority(Path(self.mktemp()).resolve()).issue("localhost")
        urls = [url for url, _ in self.put_all(behaviors)]
        return [*urls, open_origin(self, untrusted_certificate).url("/a"), self.origin.url("/none")]

    async def test_nothing_is_left(self) -> None:
        """Failures leave no connection, descriptor, child process, thread or file behind.

        No part of a URL's query appears in a log line or a response, whatever its parameters are
        (D47).
        """
        folder = Path(self.mktemp())
        folder.mkdir()
        self.patch(tempfile, "tempdir", str(folder))
        query = "?X-Amz-Signature=s3cret&x-oss-signature=s3cret&hmac=s3cret&pwd=s3cret&s3cret"
        urls = [url + query for url in self.serve_faults()]
        # The reactor opens a pipe with its first child process, and keeps it. This service has
        # ample time for a response with each of the statuses.
        first = self.start()
        alone = [await fetch(first.port, self.path(url, "info")) for url in urls[:2] + urls[-2:]]
        self.assertEqual([200, 415, 502, 404], [each.status for each in alone])
        await first.stopService()
        self.hurry()
        self.patch(client_module, "_HEADERS_TIMEOUT", 0.6)
        self.patch(fetch_module, "STALL_TIMEOUT", 0.3)
        target = self.origin.put("/secret", File(sound("a.wav"), sent=500))
        urls.append(self.origin.put("/open", Redirect(target + query)))
        before = open_descriptors()
        service = self.start(max_src_bytes=2_000_000, probe_timeout=2, render_timeout=5)
        paths = [self.path(url, options) for url in urls for options in ("info", "f:wav")]
        responses = await self.fetch_all(service.port, paths)
        # On a busy machine, some exceed a time limit before they fail.
        self.assertLessEqual({each.status for each in responses}, {200, 404, 415, 502, 504})
        # The client of this download disconnects while the download stalls.
        fetched = File(sound("a.wav"), **NO_RANGES)
        url = self.origin.put("/left", replace(fetched, sent=9, then="hold"))
        self.origin.held.clear()
        client = await send(service.port, self.path(url))
        await until(lambda: self.origin.held, "the download to stall")
        await client.leave()
        await service.stopService()
        await until(lambda: not self.origin.protocols, "the connections to close")
        await until(
            lambda: "audioproxy" not in {each.name for each in threading.enumerate()},
            "the threads to end",
        )
        self.assertEqual([], children())
        self.assertEqual([], [*folder.iterdir()])
        self.assertEqual(set(), open_descriptors() - before)
        self.assertEqual([], self.log.errors)
        self.assertTrue(any("s3cret" in request.target for request in self.origin.requests))
        lines = [eventAsText(event) for event in self.log.events]
        self.assertLess(len(urls), len(lines))
        self.assertEqual([], [line for line in lines if "s3cret" in line])
        for response in alone + responses:
            self.assertNotIn(b"s3cret", response.body + repr(response).encode())
