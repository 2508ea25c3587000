"""Faulty origins: no truncated render, no long wait, no leftover resources."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.logger import eventAsText
from zope.interface import implementer

from audioproxy.http_client import bodies as bodies_module
from audioproxy.http_client import client as client_module
from audioproxy.media import inputs
from audioproxy.service import ProxyService
from tests.sources.test_https_hosts_live import FakeResolver
from tests.sources.test_https_live import (
    CHUNKED,
    NO_RANGES,
    UNTIL_CLOSE,
    ChangesOnSecond,
    HttpsCase,
    is_head,
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
    Methods,
    PendingResponse,
    Raw,
    ReceivedRequest,
    Redirect,
    Status,
    open_origin,
)
from tests.support.processes import open_descriptors
from tests.support.servers import free_port
from tests.support.service import (
    children,
    counter_increases,
    fetch,
    reactor,
    scrape,
    send,
    short_flac,
    signed,
    until,
)

OK = b"HTTP/1.1 200 OK\r\n"
#: Ways in which a connection may end too early.
ENDS = ("close", "close_without_notify", "abort")


@implementer(IPushProducer)
class _RepeatingProducer:
    """Push producer that writes the same bytes again and again."""

    def __init__(self, pending: PendingResponse, endless: EndlessResponse) -> None:
        self._pending, self._endless = pending, endless
        self._next: Any = None

    def resumeProducing(self) -> None:
        if self._next is None:
            self._next = reactor.callLater(self._endless.every, self._write)

    def pauseProducing(self) -> None:
        later, self._next = self._next, None
        if later is not None:
            later.cancel()

    stopProducing = pauseProducing

    def _write(self) -> None:
        self._next = None
        self.resumeProducing()
        self._endless.sent += len(self._endless.more)
        self._pending.write(self._endless.more)


@dataclass(slots=True)
class EndlessResponse:
    """Response that never ends.

    :ivar every: seconds between two pieces.
    :ivar sent: bytes sent so far.
    """

    head: bytes
    more: bytes
    every: float = 0
    sent: int = 0

    def respond(self, pending: PendingResponse) -> None:
        producer = _RepeatingProducer(pending, self)
        pending.write(self.head)
        pending._protocol.transport.registerProducer(producer, True)  # type: ignore[union-attr]
        producer.resumeProducing()


class ChangingETag:
    """File whose ETag differs on every request."""

    def respond(self, pending: PendingResponse) -> None:
        File(short_flac().read_bytes(), etag=f'"{pending.earlier_requests}"').respond(pending)


@dataclass(slots=True)
class OddAfterFirst:
    """Behavior that is odd for some of the requests that meet a condition.

    The first such request gets the usual response, and the next ones get the odd response. ffprobe
    usually sends the first one, and ffmpeg the second.

    :ivar matches: the condition.
    :ivar times: number of requests with the odd response.
    :ivar match_count: number of requests so far that met the condition.
    """

    usual: Behavior
    odd: Behavior
    matches: Callable[[ReceivedRequest], bool]
    times: int = 99
    match_count: int = 0

    def respond(self, pending: PendingResponse) -> None:
        self.match_count += self.matches(pending.request)
        is_odd = self.matches(pending.request) and 1 < self.match_count <= 1 + self.times
        (self.odd if is_odd else self.usual).respond(pending)


def has_offset(request: ReceivedRequest) -> bool:
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
        start, _ = self.file._part(pending.request.headers) or (0, 0)
        replace(self.file, sent=max(0, self.offset - start), then=self.then).respond(pending)


class TroubleCase(HttpsCase):
    """Service with faulty origins."""

    async def assert_refused(
        self, service: ProxyService, rows: Sequence[tuple[str, int]], options: str = "f:wav"
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

    def put_all(self, rows: Sequence[tuple[Behavior, int]]) -> list[tuple[str, int]]:
        """Serve behaviors from the origin, and return each URL with its expected status."""
        first = len(self.origin._behaviors)
        return [
            (self.origin.put(f"/{number}", behavior), status)
            for number, (behavior, status) in enumerate(rows, first)
        ]


class StatusTests(TroubleCase):
    """Statuses of an origin, and the statuses that clients get for them"""

    async def test_every_request(self) -> None:
        """Permanent errors give 404, temporary ones 502, other statuses without audio 415 (D48)."""
        service = self.start()
        for status, codes in (
            (404, (400, 401, 402, 403, 404, 405, 406, 410, 412, 418, 451)),
            (502, (408, 425, 429, 500, 501, 502, 503, 504, 520)),
            (415, (202, 204, 205, 300, 304, 305, 416)),
        ):
            rows = self.put_all([(Status(code, body=b""), status) for code in codes])
            for options in ("f:wav", "info"):
                for response in await self.assert_refused(service, rows, options):
                    cached = b"no-store" if status == 502 else b"max-age=10"
                    self.assertEqual(cached, response["cache-control"])
                for url, _ in rows:
                    head = await fetch(service.port, self.path(url, options), b"HEAD")
                    # HEAD does not read the source, so it cannot detect a 415.
                    self.assertEqual(200 if status == 415 else status, head.status, url)

    async def test_later_request(self) -> None:
        """After a good HEAD, 403 and 404 give 404; 410 and 503 give 502; 302 gives 415.

        If ffprobe reads the source and only ffmpeg gets a 403, 410 or 302, the status is the same.
        """
        good = File(short_flac().read_bytes())
        service, table = self.start(), ((403, 404), (404, 404), (410, 502), (503, 502), (302, 415))
        rows = self.put_all([(Methods(good, Status(code)), status) for code, status in table])
        rows += self.put_all(
            [(OddAfterFirst(good, Status(c), is_whole), status) for c, status in table[::2]]
        )
        # ffprobe's GET of the whole file succeeds. Then ffmpeg's GET and all later requests get a
        # redirect, so the check after the render finds a changed source.
        rows += self.put_all([(ChangesOnSecond(good, Status(302), is_whole), 500)])
        await self.assert_refused(service, rows)

    async def test_unreachable(self) -> None:
        """Unknown hosts, closed ports and servers that do not speak HTTP give 502."""
        FakeResolver("nowhere.test").install(self)
        service = self.start(source_allowlist=("localhost", "nowhere.test"))
        rows = self.put_all([(Raw(b""), 502), (Raw(b"", "abort"), 502), (Raw(b"SSH-2.0\r\n"), 502)])
        rows += [("https://nowhere.test/a", 502)]
        rows += [(f"https://localhost:{free_port()}/a", 502)]
        for options in ("f:wav", "info"):
            for response in await self.assert_refused(service, rows, options):
                self.assertEqual("upstream_unavailable", response.error)


class StallTests(TroubleCase):
    """Timeouts of origins that stall"""

    async def test_headers(self) -> None:
        """An origin that stalls in the TLS handshake, or never ends its headers, gives 502."""
        self.patch(client_module, "_HEADERS_TIMEOUT", 0.5)
        silent = open_origin(self)
        slow_headers, endless_headers = (
            EndlessResponse(OK, b"X-A: a\r\n", 0.02),
            EndlessResponse(OK, b"X-A: %b\r\n" % (b"a" * 8000)),
        )
        rows = self.put_all(
            [(STALL, 502), (Raw(OK, "hold"), 502), (slow_headers, 502), (endless_headers, 502)]
        )
        rows.append((silent.url("/a").replace("http:", "https:"), 502))
        service = self.start()
        for options in ("f:wav", "info"):
            await self.assert_refused(service, rows, options)
        # Socket buffers hold some megabytes for each of the two requests.
        self.assertLess(endless_headers.sent, 24_000_000)

    async def test_ranges(self) -> None:
        """An origin that stalls in the test for ranges gives 504 after AP_PROBE_TIMEOUT."""
        self.patch(client_module, "_HEADERS_TIMEOUT", 3)
        service = self.start(probe_timeout=0.5)
        url = self.origin.put("/a", Methods(File(short_flac().read_bytes()), STALL))
        for options in ("f:wav", "info"):
            began = reactor.seconds()
            response = await fetch(service.port, self.path(url, options))
            self.assertEqual((504, "probe_timeout"), (response.status, response.error))
            self.assertLess(reactor.seconds() - began, 2.5)

    async def test_probe(self) -> None:
        """A probe that stalls, or does not end, gives 504 after AP_PROBE_TIMEOUT."""
        data = File(short_flac().read_bytes(), **NO_RANGES)
        endless = EndlessResponse(OK, b"X-A: %b\r\n" % (b"a" * 500), 0.001)
        stalling = (STALL, endless, File(data.data, sent=9, then="hold"))
        # The origin answers the first HEAD and the test for ranges.
        rows = self.put_all([(BehaviorSequence(data, data, each), 504) for each in stalling])
        responses = await self.assert_refused(self.start(probe_timeout=0.5), rows)
        self.assertEqual({"probe_timeout"}, {response.error for response in responses})

    async def test_body(self) -> None:
        """A body that stalls in every attempt gives 502 or a broken stream."""
        self.patch(inputs, "_STALL_TIMEOUT_US", 300_000)
        self.patch(bodies_module, "STALL_TIMEOUT", 0.3)
        good = File(sound("a.wav", "20"))
        unreadable, fetched = UnreadableAfter(good, 300_000, "hold"), replace(good, **NO_RANGES)
        rows: list[tuple[Behavior, int]] = [
            (OddAfterFirst(OddAfterFirst(good, unreadable, has_offset), unreadable, is_whole), 502),
            (ChangesOnSecond(fetched, replace(fetched, sent=300_000, then="hold"), is_whole), 502),
        ]
        await self.assert_refused(self.start(), self.put_all(rows))

    async def test_body_once(self) -> None:
        """A body that stalls once is requested again, and the render succeeds."""
        self.patch(inputs, "_STALL_TIMEOUT_US", 800_000)
        good, service = File(sound("a.wav", "20")), self.start()
        stalls_once = OddAfterFirst(
            good, replace(good, sent=300_000, then="hold"), has_offset, times=1
        )
        response = await fetch(service.port, self.path(self.origin.put("/a", stalls_once)))
        self.assertEqual((200, True), (response.status, response.complete))
        self.assertGreater(stalls_once.match_count, 2)

    async def test_render(self) -> None:
        """A source that arrives too slowly, or stalls, gives 504 after AP_RENDER_TIMEOUT."""
        data = sound("a.wav", "20")
        good = File(data, **NO_RANGES)
        head = OK + b'Content-Length: %d\r\nETag: "1"\r\n\r\n' % len(data)
        slow = EndlessResponse(head, b"a", 0.05)
        held = File(data, sent=9, then="hold", **NO_RANGES)
        service = self.start(render_timeout=1)
        rows = self.put_all([(ChangesOnSecond(good, bad, is_whole), 504) for bad in (slow, held)])
        before = await scrape(service.metrics_port)
        responses = await self.assert_refused(service, rows)
        self.assertEqual({"render_timeout"}, {response.error for response in responses})
        # Clients get the 504 before the renders have ended.
        outcome = 'renders_total{format="wav",outcome="render_timeout"}'
        while counter_increases(before, await scrape(service.metrics_port)).get(outcome) != 2:
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
        cuts = [replace(good, sent=len(data) // 2, then=then) for then in ENDS]
        odd = [
            *((bad, is_whole) for bad in cuts),
            *((bad, has_offset) for bad in self.failed_ranges(data)),
        ]
        behaviors = [OddAfterFirst(good, bad, matches, times=1) for bad, matches in odd]
        rows = self.put_all([(behavior, 200) for behavior in behaviors])
        responses = await self.fetch_all(service.port, [self.path(url) for url, _ in rows])
        for response, behavior in zip(responses, behaviors, strict=True):
            self.assertEqual((200, True), (response.status, response.complete), behavior.odd)
            self.assertEqual(usual.body, response.body, behavior.odd)
            self.assertGreater(behavior.match_count, 1, behavior.odd)
        await until(lambda: len(self.stored()) > len(rows), "everything to be stored")

    async def test_render(self) -> None:
        """A range request that fails permanently gives 502 or a broken stream.

        The failed render is counted, and nothing is stored.
        """
        data = sound("a.wav", "20")
        good, half = File(data), len(data) // 2
        cuts = [File(data, sent=half, then=then, **NO_RANGES) for then in ENDS]
        unreadable = [UnreadableAfter(good, half, then) for then in ENDS]
        behaviors = [
            *(ChangesOnSecond(replace(cut, sent=None), cut, is_whole) for cut in cuts),
            *(
                OddAfterFirst(OddAfterFirst(good, bad, has_offset), bad, is_whole)
                for bad in unreadable
            ),
            *(
                OddAfterFirst(good, bad, has_offset)
                for bad in (*self.failed_ranges(data)[::2], Status(416), Status(503))
            ),
        ]
        rows = self.put_all([(behavior, 502) for behavior in behaviors])
        service = self.start(max_concurrency=9)
        before = await scrape(service.metrics_port)
        await self.assert_refused(service, rows)
        counted = counter_increases(before, await scrape(service.metrics_port))
        counted = {series: n for series, n in counted.items() if series.startswith("renders_total")}
        expected = {'renders_total{format="wav",outcome="upstream_unavailable"}': len(rows)}
        self.assertEqual(expected, counted)

    async def test_chunks(self) -> None:
        """A chunked body is downloaded before the probe; a truncated one starts no render (D48)."""
        data = sound("a.wav", "20")
        cuts = [File(data, sent=at, then="close", **CHUNKED) for at in (1, 9000, -9000)]
        # This body ends with a clean close, but is shorter than the length in HEAD.
        cuts.append(File(data, sent=9000, head_length=f"{len(data)}", **UNTIL_CLOSE))
        rows = self.put_all([(cut, 502) for cut in cuts])
        service = self.start()
        before = await scrape(service.metrics_port)
        for options in ("f:wav", "info"):
            await self.assert_refused(service, rows, options)
        counted = counter_increases(before, await scrape(service.metrics_port))
        self.assertEqual([], [series for series in counted if series.startswith("renders_total")])

    async def test_slow_chunks(self) -> None:
        """If a download takes half of AP_PROBE_TIMEOUT, ffprobe reads the source's URL instead."""
        data = sound("a.wav", "20")
        slow = File(data, sent=len(data) - 99, then="hold", **CHUNKED)
        url = self.origin.put("/a.wav", slow)
        service = self.start(probe_timeout=2)
        info = await fetch(service.port, self.path(url, "info"))
        self.assertEqual((200, False), (info.status, "size" in info.document))
        self.origin.release()

    async def test_info(self) -> None:
        """If range requests to the origin fail, /info gives 502 and no document."""
        good, service = File(sound("last.m4a", "60")), self.start()
        odd = [
            *self.failed_ranges(good.data)[::2],
            Status(503),
            UnreadableAfter(good, len(good.data) - 99, "close"),
        ]
        rows = self.put_all(
            [(OddAfterFirst(good, bad, has_offset, match_count=1), 502) for bad in odd]
        )
        await self.assert_refused(service, rows, "info")

    async def test_too_long(self) -> None:
        """A body longer than HEAD's Content-Length gives 502, if the service can detect it."""
        data = sound("a.wav")
        long = Methods(File(data[:-100]), File(data, **CHUNKED))
        await self.assert_refused(self.start(), self.put_all([(long, 502)]))


class ReplacedTests(TroubleCase):
    """Sources that change between the first request and the last byte"""

    async def test_before_it_is_read(self) -> None:
        """A source that changes before it is read gives 500 or a broken stream.

        Nothing is stored.
        """
        data, other = sound("a.wav"), sound("a.wav")[:-1000]
        old, new = File(data), File(data, etag='"2"', modified="another")
        rows: list[tuple[Behavior, int]] = [
            (
                BehaviorSequence(
                    replace(old, ranges=ranges), replace(new, data=text, ranges=ranges)
                ),
                500,
            )
            for text in (data, other)
            for ranges in (True, False)
        ]
        await self.assert_refused(self.start(), self.put_all(rows))

    async def test_while_it_is_read(self) -> None:
        """A source that changes or disappears while it is read gives 500 or a broken stream.

        For peaks and /info, a change gives 500.
        """
        data, service = sound("a.wav"), self.start()
        new_behaviors = (
            File(data, etag='"2"', modified=None),
            File(data, etag='"2"', modified="another"),
            File(data[:-2]),
            Status(404),
            Redirect("/another"),
        )
        self.origin.put("/another", File(sound("a.flac"), etag='"3"', modified="another"))
        for options, count in (("f:wav", 5), ("f:peaks", 2), ("info", 2)):
            rows = [
                (ChangesOnSecond(File(data), new, is_head), 500) for new in new_behaviors[:count]
            ]
            responses = await self.assert_refused(service, self.put_all(rows), options)
            if options != "f:wav":
                self.assertEqual({500}, {response.status for response in responses})

    async def test_entity_tags_of_many_servers(self) -> None:
        """If several servers send different ETags for a file, its date and size are compared."""
        service = self.start()
        for options in ("f:wav", "info"):
            url = self.origin.put("/a", ChangingETag())
            response = await fetch(service.port, self.path(url, options))
            self.assertEqual((200, True), (response.status, response.complete))


class LeftoverTests(TroubleCase):
    """Leftover resources after failures, and secrets in logs and responses"""

    def serve_faults(self) -> list[str]:
        """Serve every kind of fault, and return the URLs."""
        self.patch(client_module, "_HEADERS_TIMEOUT", 1)
        self.patch(bodies_module, "STALL_TIMEOUT", 0.5)
        self.patch(inputs, "_STALL_TIMEOUT_US", 500_000)
        data, flac = sound("a.wav", "20"), short_flac().read_bytes()
        framings: tuple[dict[str, Any], ...] = ({}, NO_RANGES, CHUNKED)
        behaviors: list[Behavior] = [
            *(File(data, sent=9, then="close_without_notify", **framing) for framing in framings),
            *(File(data, sent=9, then="hold", **framing) for framing in framings),
            *(
                ChangesOnSecond(File(data, **framing), File(data, sent=9**6, **framing), is_whole)
                for framing in framings
            ),
            ChangesOnSecond(File(flac), File(flac, etag='"2"', modified=None), is_head),
            *(STALL, Status(503), Raw(b"", "abort"), Redirect("/none"), Redirect(None)),
            File(b"No sound, but words.\n" * 500),
            File(flac, zipped="always"),
            EndlessResponse(OK, b"X-A: %b\r\n" % (b"a" * 8000)),
            File(flac),
        ]
        untrusted_certificate = Authority(Path(self.mktemp()).resolve()).issue("localhost")
        urls = [url for url, _ in self.put_all([(behavior, 0) for behavior in behaviors])]
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
        target = self.origin.put("/secret", File(sound("a.wav"), sent=500))
        urls.append(self.origin.put("/open", Redirect(target + query)))
        # The reactor opens a pipe with its first child process, and keeps it.
        first = self.start()
        await fetch(first.port, self.path(urls[-3], "info"))
        await first.stopService()
        before = open_descriptors()
        service = self.start(max_src_bytes=2_000_000, probe_timeout=3, render_timeout=5)
        paths = [self.path(url, options) for url in urls for options in ("info", "f:wav")]
        responses = await self.fetch_all(service.port, paths)
        self.assertLessEqual({200, 404, 415, 502}, {each.status for each in responses})
        # The client of this download disconnects while the download stalls.
        fetched = File(sound("a.wav"), sent=9, then="hold", **NO_RANGES)
        url = self.origin.put(
            "/left", ChangesOnSecond(File(fetched.data, **NO_RANGES), fetched, is_whole)
        )
        self.origin.release()
        client = await send(service.port, self.path(url))
        await until(lambda: self.origin.held, "the download to stall")
        await client.leave()
        await service.stopService()
        self.origin.release()
        await until(lambda: not self.origin.protocols, "the connections to close")

        def threads() -> list[str]:
            return [each.name for each in threading.enumerate() if each.name == "audioproxy"]

        await until(lambda: not threads(), "the threads to end")
        self.assertEqual([], children())
        self.assertEqual([], [*folder.iterdir()])
        self.assertEqual(set(), open_descriptors() - before)
        self.assertEqual([], self.log.errors)
        self.assertTrue(any("s3cret" in request.target for request in self.origin.requests))
        lines = [eventAsText(event) for event in self.log.events]
        self.assertLess(len(urls), len(lines))
        self.assertEqual([], [line for line in lines if "s3cret" in line])
        leaking = [
            response
            for response in responses
            if b"s3cret" in response.body + repr(response).encode()
        ]
        self.assertEqual([], leaking)
