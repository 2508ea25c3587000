"""Faulty origins: no truncated render, no long wait, no leftover resources."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product
from pathlib import Path

from twisted.logger import eventAsText

from audioproxy.service import AudioProxy
from tests.sources.test_https_live import NO_RANGES, START, HttpsCase, sound
from tests.support.authority import Authority
from tests.support.http import Response
from tests.support.origins import (
    STALL,
    Behavior,
    File,
    PendingResponse,
    Raw,
    Redirect,
    Status,
    open_origin,
)
from tests.support.processes import open_descriptors
from tests.support.service import (
    children,
    counter_increases,
    fetch,
    scrape,
    send,
    short_flac,
    signed,
    until,
)

_numbers = count()


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

    async def assert_refused(
        self, service: AudioProxy, urls: Sequence[str], status: int, options: str = "f:wav"
    ) -> list[Response]:
        """Send all requests at once; require this 5xx, and that nothing is stored.

        A 200 that breaks off is accepted, too.
        """
        responses = await self.fetch_all(service.port, [self.path(url, options) for url in urls])
        for url, response in zip(urls, responses, strict=True):
            if response.status == 200:
                self.assertFalse(response.complete, url)
            else:
                self.assertEqual(status, response.status, (url, response.body[:200]))
        self.assertEqual([], self.stored())
        return responses

    def put(self, behavior: Behavior) -> str:
        """Serve a behavior from the origin at a new path, and return its URL."""
        return self.origin.put(f"/{next(_numbers)}", behavior)

    async def renders(self, service: AudioProxy, before: dict[str, float]) -> dict[str, float]:
        """Return the increases of the counters of renders."""
        counted = counter_increases(before, await scrape(service.metrics_port))
        return {name: n for name, n in counted.items() if name.startswith("renders_total")}


class StallTests(TroubleCase):
    """Timeouts of origins that stall"""

    async def test_probe(self) -> None:
        """An origin that stalls in a probe gives 504 after AP_PROBE_TIMEOUT."""
        good = File(sound("last.m4a", "180"))
        service = self.start(probe_timeout=0.5)
        for options in ("f:wav", "info"):
            stalling = (STALL, replace(good, sent=9, then="hold"))
            urls = [self.put(FailingAt(2, good, each)) for each in stalling]
            responses = await self.assert_refused(service, urls, 504, options)
            self.assertEqual({"probe_timeout"}, {response.error for response in responses})

    async def test_render(self) -> None:
        """A source that stalls in a render gives 504 after AP_RENDER_TIMEOUT, and is counted."""
        service = self.start(render_timeout=1)
        url = self.put(FailingAt(3, File(self.long), STALL))
        before = await scrape(service.metrics_port)
        (response,) = await self.assert_refused(service, [url], 504, "f:peaks")
        self.assertEqual("render_timeout", response.error)
        expected = {'renders_total{format="peaks",outcome="render_timeout"}': 1}

        async def is_counted() -> bool:
            return await self.renders(service, before) == expected

        # Clients get the 504 before the render has ended.
        await until(is_counted, "the render to end")
        self.assertEqual([], self.log.errors)


class BrokenTests(TroubleCase):
    """Bodies that end early, and requests that fail; `tests.test_faults` has all ways to fail"""

    async def test_once(self) -> None:
        """A request that fails once is repeated, and the render is complete.

        It may be any of the render's requests: an origin or a network fails at each of them.
        """
        good = File(self.long)
        self.add("long.wav", self.long)
        service = self.start(max_concurrency=9)
        usual = await fetch(service.port, signed("/f:wav/plain/local://long.wav"))
        rows = [
            (number, failure)
            for number in range(1, self.REQUESTS + 1)
            for failure in (Status(503), Raw(b"", "abort"), replace(good, sent=20_000))
        ]
        urls = [self.put(FailingAt(number, good, failure, good)) for number, failure in rows]
        responses = await self.fetch_all(service.port, [self.path(url) for url in urls])
        for response, row in zip(responses, rows, strict=True):
            found = response.status, response.complete, response.body == usual.body
            self.assertEqual((200, True, True), found, (row, response.body[:200]))


class ReplacedTests(TroubleCase):
    """Sources that change between the first request and the last byte"""

    def changes(self) -> list[tuple[Behavior, bool]]:
        """Return what may become of a source, and whether there is a source then."""
        return [
            (File(self.other, etag='"2"', modified="another"), True),
            (Status(404), False),
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
        good = File(sound("last.m4a", "180"))
        for options, (new, exists) in product(("f:peaks", "info"), self.changes()):
            url, new_url = self.put(FailingAt(2, good, new)), self.put(new)
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
        behaviors: list[Behavior] = [flac, File(b"No sound, but words.\n" * 500)]
        behaviors += [Status(503), Raw(b"", "abort"), Redirect("/none")]
        for framing in ({}, NO_RANGES):
            good = File(sound("a.wav", "20"), **framing)
            behaviors += [replace(good, sent=9, then=it) for it in ("close_without_notify", "hold")]
            behaviors += [FailingAt(2, good, each) for each in (STALL, replace(good, sent=9**6))]
        untrusted_certificate = Authority(Path(self.mktemp()).resolve()).issue("localhost")
        urls = [self.put(each) for each in behaviors]
        return [*urls, open_origin(self, untrusted_certificate).url("/a"), self.origin.url("/none")]

    async def test_nothing_is_left(self) -> None:
        """Failures leave no connection, descriptor, child process or thread behind.

        No part of a URL's query appears in a log line or a response, whatever its parameters are
        (D47).
        """
        query = "?X-Amz-Signature=s3cret&x-oss-signature=s3cret&hmac=s3cret&pwd=s3cret&s3cret"
        urls = [url + query for url in self.serve_faults()]
        # The reactor opens a pipe with its first child process, and keeps it. This service has
        # ample time for a response with each of the statuses.
        first = self.start()
        alone = [await fetch(first.port, self.path(url, "info")) for url in urls[:2] + urls[-2:]]
        self.assertEqual([200, 415, 502, 404], [each.status for each in alone])
        await first.stopService()
        target = self.origin.put("/secret", File(sound("a.wav"), sent=500))
        urls.append(self.origin.put("/open", Redirect(target + query)))
        before = open_descriptors()
        service = self.start(max_src_bytes=2_000_000, probe_timeout=1, render_timeout=3)
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
        self.assertEqual(set(), open_descriptors() - before)
        self.assertEqual([], self.log.errors)
        self.assertTrue(any("s3cret" in request.target for request in self.origin.requests))
        lines = [eventAsText(event) for event in self.log.events]
        self.assertLess(len(urls), len(lines))
        self.assertEqual([], [line for line in lines if "s3cret" in line])
        for response in alone + responses:
            self.assertNotIn(b"s3cret", response.body + repr(response).encode())
