"""Faulty origins: no truncated render, no long wait, no leftover resources."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from twisted.internet.task import LoopingCall
from twisted.logger import eventAsText

from audioproxy.http_client import bodies as bodies_module
from audioproxy.http_client import client as client_module
from audioproxy.media.command import inputs
from audioproxy.service import AudioProxy
from audioproxy.sources import https_states
from tests.sources.test_https_live import (
    CHUNKED,
    NO_RANGES,
    HttpsCase,
    is_state_request,
    is_test,
    is_whole,
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
from tests.support.wire import Request

OK = b"HTTP/1.1 200 OK\r\n"
_numbers = count()
Condition = Callable[[Request], bool]
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


def odd_after_first(usual: Behavior, *odd: Behavior, matches: Condition) -> BehaviorSequence:
    """Return a behavior that is odd for the requests that match, except for the first."""
    return BehaviorSequence(usual, *odd, matches=matches, others=usual)


def has_offset(request: Request) -> bool:
    """Return whether a request asks for everything after an offset, as ffprobe and ffmpeg do."""
    wanted = request.headers.get("range", "")
    return wanted.endswith("-") and wanted != "bytes=0-"


@dataclass(frozen=True, slots=True)
class UnreadableAfter:
    """File whose bytes after an offset can never be read.

    :ivar offset: offset of the first byte that is never sent.
    :ivar then: how the response ends at the offset, as in `File`.
    """

    file: File
    offset: int
    then: str

    def respond(self, pending: PendingResponse) -> None:
        start, _ = self.file.part(pending.request.headers) or (0, 0)
        replace(self.file, sent=max(0, self.offset - start), then=self.then).respond(pending)


class TroubleCase(HttpsCase):
    """Service with faulty origins."""

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

    def put_all(self, behaviors: Iterable[Behavior], status: int = 0) -> list[tuple[str, int]]:
        """Serve behaviors from the origin, and return each URL with its expected status."""
        return [(self.origin.put(f"/{next(_numbers)}", each), status) for each in behaviors]

    async def renders(self, service: AudioProxy, before: dict[str, float]) -> dict[str, float]:
        """Return the increases of the counters of renders."""
        counted = counter_increases(before, await scrape(service.metrics_port))
        return {name: n for name, n in counted.items() if name.startswith("renders_total")}


class StallTests(TroubleCase):
    """Timeouts of origins that stall"""

    async def test_probe(self) -> None:
        """An origin that stalls, or responds without end, gives 504 after AP_PROBE_TIMEOUT."""
        good = File(sound("a.wav", "20"))
        endless = EndlessResponse(OK, b"X-A: %b\r\n" % (b"a" * 500), 0.001)
        service = self.start(probe_timeout=0.5)
        behaviors = [
            BehaviorSequence(each, matches=matches, others=good)
            for each, matches in ((STALL, is_test), (STALL, is_whole), (endless, is_whole))
        ]
        rows = self.put_all(behaviors, 504)
        for options in ("f:wav", "info"):
            responses = await self.assert_refused(service, rows, options)
            self.assertEqual({"probe_timeout"}, {response.error for response in responses})

    async def test_body(self) -> None:
        """A body that stalls in every attempt gives 502 or a broken stream."""
        self.patch(inputs, "_STALL_TIMEOUT_US", 300_000)
        self.patch(bodies_module, "STALL_TIMEOUT", 0.3)
        good = File(sound("a.wav", "20"))
        unreadable, fetched = UnreadableAfter(good, 300_000, "hold"), replace(good, **NO_RANGES)
        behaviors = [
            odd_after_first(
                odd_after_first(good, unreadable, matches=has_offset), unreadable, matches=is_whole
            ),
            replace(fetched, sent=300_000, then="hold"),
        ]
        await self.assert_refused(self.start(), self.put_all(behaviors, 502))

    async def test_body_once(self) -> None:
        """A body that stalls once is requested again, and the render succeeds."""
        # Short for the test, and long for an origin that serves on a busy machine.
        self.patch(inputs, "_STALL_TIMEOUT_US", 2_000_000)
        good, service = File(sound("a.wav", "20")), self.start()
        stalls_once = odd_after_first(
            good, replace(good, sent=300_000, then="hold"), good, matches=has_offset
        )
        response = await fetch(service.port, self.path(self.origin.put("/a", stalls_once)))
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertGreater(stalls_once.match_count, 2)

    async def test_render(self) -> None:
        """A source that arrives too slowly, or stalls, gives 504 after AP_RENDER_TIMEOUT.

        If a download takes half of AP_PROBE_TIMEOUT, ffprobe reads the source's URL instead.
        """
        self.assertEqual(0.5, https_states.DOWNLOAD_SHARE)
        self.patch(https_states, "DOWNLOAD_SHARE", 0.5 / PATIENCE)
        good = sound("a.wav", "20")
        head = OK + b'Content-Length: %d\r\nETag: "1"\r\n\r\n' % len(good)
        slow = EndlessResponse(head + good[: len(good) // 2], b"a", 0.05)
        held = File(good, sent=len(good) // 2, then="hold", **CHUNKED)
        service = self.start(render_timeout=1)
        rows = self.put_all([slow, held], 504)
        before = await scrape(service.metrics_port)
        responses = await self.assert_refused(service, rows)
        self.assertEqual({"render_timeout"}, {response.error for response in responses})
        info = await fetch(service.port, self.path(rows[1][0], "info"))
        self.assertEqual((200, False), (info.status, "size" in info.document))
        # Clients get the 504 before the renders have ended.
        await until(lambda: not children(), "the renders to end")
        expected = {'renders_total{format="wav",outcome="render_timeout"}': 2}
        self.assertEqual(expected, await self.renders(service, before))
        self.assertEqual([], self.log.errors)


class BrokenTests(TroubleCase):
    """Bodies that end early, and range requests that fail"""

    def failed_ranges(self, data: bytes) -> list[Behavior]:
        """Return behaviors that send neither the requested range nor an error status."""
        wrong = f"HTTP/1.1 206 So\r\nContent-Range: bytes 9-99/{len(data)}\r\nContent-Length: 91"
        return [
            *(Raw(b""), Raw(b"", "abort"), Raw(b"HTTP/1.1 206 So\r\nContent-R")),
            *(Status(204, (), b""), File(data, **NO_RANGES), File(data, **CHUNKED)),
            Raw(f"{wrong}\r\n\r\n".encode() + data[:91]),
        ]

    async def test_once(self) -> None:
        """A range request that fails once, in any way, is repeated, and the render is complete."""
        data = sound("a.wav", "20")
        self.add("a.wav", data)
        service, good = self.start(max_concurrency=9), File(data)
        usual = await fetch(service.port, signed("/f:wav/plain/local://a.wav"))
        odd = [
            *((replace(good, sent=len(data) // 2, then=then), is_whole) for then in ENDS),
            *((bad, has_offset) for bad in self.failed_ranges(data)),
        ]
        behaviors = [odd_after_first(good, bad, good, matches=matches) for bad, matches in odd]
        paths = [self.path(url) for url, _ in self.put_all(behaviors)]
        responses = await self.fetch_all(service.port, paths)
        for response, behavior, (bad, _) in zip(responses, behaviors, odd, strict=True):
            self.assertEqual((200, True), (response.status, response.complete), bad)
            self.assertEqual(usual.body, response.body, bad)
            self.assertGreater(behavior.match_count, 1, bad)
        await until(lambda: len(self.stored()) > len(odd), "everything to be stored")

    async def test_render(self) -> None:
        """A range request that fails permanently gives 502 or a broken stream.

        The failed render is counted, and nothing is stored.
        """
        data = sound("a.wav", "20")
        good, half = File(data), len(data) // 2
        failed = (File(data, **NO_RANGES), Status(416), Status(503))
        behaviors = [
            *(
                odd_after_first(
                    odd_after_first(good, bad, matches=has_offset), bad, matches=is_whole
                )
                for bad in (UnreadableAfter(good, half, then) for then in ENDS)
            ),
            *(odd_after_first(good, bad, matches=has_offset) for bad in failed),
        ]
        rows = self.put_all(behaviors, 502)
        service = self.start(max_concurrency=9)
        before = await scrape(service.metrics_port)
        await self.assert_refused(service, rows)
        expected = {'renders_total{format="wav",outcome="upstream_unavailable"}': len(rows)}
        self.assertEqual(expected, await self.renders(service, before))
        # Peaks send nothing before the end of the source.
        responses = await self.assert_refused(service, rows[: len(ENDS)], "f:peaks")
        self.assertEqual({502}, {response.status for response in responses})
        expected |= {'renders_total{format="peaks",outcome="upstream_unavailable"}': len(ENDS)}
        self.assertEqual(expected, await self.renders(service, before))


class ReplacedTests(TroubleCase):
    """Sources that change between the first request and the last byte"""

    async def test_while_it_is_read(self) -> None:
        """A source that changes or disappears while it is read gives 500 or a broken stream.

        For peaks and /info, a change gives 500.
        """
        data, service = sound("a.wav", "20"), self.start()
        self.origin.put("/another", File(sound("a.flac"), etag='"3"', modified="another"))
        changes = (
            File(data, etag='"2"', modified="another"),
            File(data[:-2]),
            Status(404),
            Redirect("/another"),
        )
        for options, number in (("f:wav", 4), ("f:peaks", 1), ("info", 1)):
            behaviors = [
                BehaviorSequence(File(data), new, matches=is_state_request)
                for new in changes[:number]
            ]
            responses = await self.assert_refused(service, self.put_all(behaviors, 500), options)
            if options != "f:wav":
                self.assertEqual({500}, {response.status for response in responses})


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
            behaviors.append(BehaviorSequence(good, replace(good, sent=9**6), matches=is_whole))
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
        self.patch(client_module, "_HEADERS_TIMEOUT", 0.6)
        self.patch(bodies_module, "STALL_TIMEOUT", 0.3)
        self.patch(inputs, "_STALL_TIMEOUT_US", 300_000)
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
