"""`audioproxy warm`: prefetches variants and reports the results."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyClass

from audioproxy.cli import fetcher as fetcher_module
from audioproxy.cli import warm as warm_module
from audioproxy.cli.fetcher import NOT_A_VARIANT, RENDERED, STORED, Fetcher, FetchFailed, redact_url
from audioproxy.cli.warm import WarmProgress, fetch_all, read_urls
from tests.cli.command import SECRETS, command
from tests.support.authority import Authority
from tests.support.origins import STALL, File, Status, open_origin
from tests.support.remote import until_hit
from tests.support.service import (
    PROJECT,
    Process,
    ServiceCase,
    reactor,
    short_flac,
    signed,
    until,
)
from tests.support.wire import ClientCase, Peer, chunk, reply, reply_without_length

SIGNATURE = "k" * 43
URL = f"http://audio.test/{SIGNATURE}/f:mp3/plain/local://a.wav"

MISS, HIT = {"X-Audio-Proxy": "MISS"}, {"X-Audio-Proxy": "HIT"}
CHUNKED = {"Transfer-Encoding": "chunked"}


class FetchTests(ClientCase):
    """The method `Fetcher.fetch`."""

    def setUp(self) -> None:
        super().setUp()
        self.byte_counts: list[int] = []

    def fetch(self, *responses: Any, url: str = URL, tries: int = 3) -> Deferred[str]:
        """Start to fetch a URL, with these responses."""
        self.network.scripts += responses
        fetcher = Fetcher(self.client, self.network, 600, tries, self.byte_counts.append)
        return self.begin(fetcher.fetch(url))

    def failure_reason(self, fetching: Deferred[str]) -> str:
        """Return the reason of a failed fetch."""
        return str(self.exactly(fetching, FetchFailed))

    def test_states(self) -> None:
        """The result of a fetch follows X-Audio-Proxy, and all bytes are read and counted."""
        for state, result in (
            ("MISS", RENDERED),
            ("COALESCED", RENDERED),
            ("HIT", STORED),
            (None, NOT_A_VARIANT),
        ):
            headers = {"X-Audio-Proxy": state} if state else {}
            stream = (
                reply_without_length(200, headers=headers | CHUNKED),
                chunk(b"hello"),
                chunk(b""),
            )
            for response in (reply(200, b"hello", headers), stream):
                del self.byte_counts[:]
                self.assertEqual(result, self.successResultOf(self.fetch(response)))
                self.assertEqual(5, sum(self.byte_counts))

    def test_redirect(self) -> None:
        """A redirect of a HIT counts as stored and is not followed; other redirects fail."""
        location = {"Location": "http://store.test/a"}
        self.assertEqual(
            STORED, self.successResultOf(self.fetch(reply(302, headers=HIT | location)))
        )
        for status in (301, 302):
            reason = self.failure_reason(self.fetch(reply(status, headers=location)))
            self.assertRegex(reason, f"^{status}: a redirect .*; use its target URL")
        self.assertEqual(3, len(self.network.requests))

    def test_request_target(self) -> None:
        """`warm` drops a URL's fragment, percent-encodes as browsers do, and keeps the rest."""
        for url, target in (
            (URL, f"/{SIGNATURE}/f:mp3/plain/local://a.wav"),
            ("HTTP://audio.test/s/x;/plain/a%2F..//b?q=%20#there", "/s/x;/plain/a%2F..//b?q=%20"),
            ("http://audio.test/s/plain/local://été\x7f", "/s/plain/local://%C3%A9t%C3%A9%7F"),
            ("http://audio.test", "/"),
        ):
            self.successResultOf(self.fetch(reply(200), url=url))
            request = self.network.requests[-1]
            self.assertEqual(("GET", target), (request.method, request.target))
            self.assertEqual("audio.test", request.headers["host"])

    def test_no_url(self) -> None:
        """A line that is not an http or https URL fails, and no request is sent."""
        for url in ("/s/f:mp3/plain/local://a", "ftp://a/b", "http://", "http://a b/", "http://é/"):
            self.assertRegex(
                self.failure_reason(self.fetch(url=url)), "not an http or https URL; .*sign --base"
            )
        self.assertEqual([], self.network.requests)

    def test_refused(self) -> None:
        """`warm` reports a refusal with its status and message, and does not retry it."""
        document = b'{"error": "not_found", "message": "There is nothing."}'
        for response, words in (
            (reply(404, document), "404 not_found: There is nothing."),
            (reply(413, b"<html>"), "413 Request Entity Too Large"),
            (reply(422, b'["a"]'), "422 Unprocessable Entity"),
            (reply(500, b"{}" * 40_000), "500 Internal Server Error"),
            (reply(599), "599"),
        ):
            self.assertEqual(words, self.failure_reason(self.fetch(response)))

    def test_busy(self) -> None:
        """`warm` retries a 429 after Retry-After seconds, as often as --tries allows."""
        busy = reply(429, headers={"Retry-After": "7"})
        fetching = self.fetch(busy, busy, reply(200, headers=MISS))
        for request_count in (1, 2):
            self.network.advance(6.9)
            self.assertEqual(request_count, len(self.network.requests))
            self.network.advance(0.1)
        self.assertEqual(RENDERED, self.successResultOf(fetching))
        fetching = self.fetch(busy, busy, reply(429, b'{"error": "a", "message": "b"}'))
        self.network.advance(7)
        self.network.advance(7)
        self.assertEqual("429 a: b", self.failure_reason(fetching))

    def test_retry_delay(self) -> None:
        """A retry waits 60 seconds at most, and 2 seconds after an invalid Retry-After."""
        for text, seconds in (
            ("86400", 60.0),
            ("soon", 2.0),
            ("9" * 5000, 60.0),
            ("123456789x", 2.0),
        ):
            fetching = self.fetch(reply(429, headers={"Retry-After": text}), reply(200))
            self.network.advance(seconds - 0.1)
            self.assertNoResult(fetching)
            self.network.advance(0.1)
            self.successResultOf(fetching)

    def test_gateway_errors(self) -> None:
        """`warm` retries 502, 503 and 504 twice, whatever --tries says."""
        for status in (502, 503, 504):
            fetching = self.fetch(reply(status), reply(status), reply(200, headers=HIT), tries=1)
            self.network.advance(2)
            self.network.advance(2)
            self.assertEqual(STORED, self.successResultOf(fetching))
            fetching = self.fetch(*[reply(status)] * 3, tries=9)
            self.network.advance(2)
            self.network.advance(2)
            self.assertIn(str(status), self.failure_reason(fetching))

    def test_truncated_body(self) -> None:
        """`warm` treats a body that breaks off as a failure, even after a 200 (Errors, 10)."""
        head = reply_without_length(200, headers=MISS | CHUNKED)
        for packets in ((head, chunk(b"hello")), (reply(200, b"hello", MISS, 9),)):
            for end in (Peer.close, Peer.reset):
                fetching = self.fetch(packets)
                end(self.network.peers[-1])
                self.network.run()
                self.assertRegex(
                    self.failure_reason(fetching), r"^ended early after 5 bytes \(.+\)$"
                )

    def test_idle_timeout(self) -> None:
        """A fetch fails after 600 seconds without a byte, before or during the body."""
        fetching = self.fetch((reply(200, b"he", MISS, 5),))
        self.network.advance(599)
        self.network.peers[-1].send(b"l")
        self.network.advance(599)
        self.assertNoResult(fetching)
        self.network.advance(1)
        self.assertRegex(self.failure_reason(fetching), "ended early after 3 bytes .*600 seconds")
        fetching = self.fetch()
        self.network.advance(599.9)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.assertEqual("the request failed (no response in time)", self.failure_reason(fetching))

    def test_consumer(self) -> None:
        """The byte counter implements Twisted's IConsumer."""
        self.assertTrue(verifyClass(fetcher_module.IConsumer, fetcher_module._ByteCounter))


class RedactUrlTests(SynchronousTestCase):
    """The function `redact_url`."""

    def test_no_secret(self) -> None:
        """`warm` shows no signature and no query, since they may grant access to the audio."""
        for url, shown in (
            (f"{URL}?token=x", "f:mp3/plain/local://a.wav"),
            (f"https://a.test/mounted/{SIGNATURE}=/info/plain/x", "info/plain/x"),
            (f"https://a.test/{SIGNATURE}", "a line without a signed URL"),
            (SIGNATURE, "a line without a signed URL"),
            ("http://a/insecure/plain/\x1b[2Jé", "plain/%1B[2J%C3%A9"),
        ):
            self.assertEqual(shown, redact_url(url))


class FakeProgressBar:
    """Progress bar that shows nothing."""

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        """Keep the text that would be shown."""
        self.text = text

    def update(self) -> None:
        """Do nothing."""

    @staticmethod
    def external_write_mode(file: Any) -> nullcontext[None]:
        """Return a context in which other output to the terminal is allowed."""
        return nullcontext()


class BlockedFetcher:
    """Fetcher whose fetches wait for the test."""

    def __init__(self) -> None:
        self.waiting: list[Deferred[str]] = []
        self.urls: list[str] = []

    async def fetch(self, url: str) -> str:
        """Wait until the test fires the Deferred."""
        self.urls.append(url)
        self.waiting.append(Deferred(self.waiting.remove))
        return await self.waiting[-1]


class FetchAllTests(SynchronousTestCase):
    """The function `fetch_all`."""

    def setUp(self) -> None:
        self.fetcher = BlockedFetcher()
        self.printed: list[str] = []
        self.patch(warm_module, "print_errors", self.printed.append)
        self.progress = WarmProgress(FakeProgressBar(), lambda: 0.0)
        self.read = 0

    async def numbers(self, count: int) -> AsyncIterator[str]:
        """Yield numbers as URLs, and count those that were read."""
        for number in range(count):
            self.read += 1
            yield str(number)

    def begin(self, count: int, concurrency: int = 3) -> Deferred[None]:
        """Start to fetch a number of URLs."""
        urls = self.numbers(count)
        fetching = fetch_all(urls, self.fetcher, self.progress, concurrency)  # type: ignore[arg-type]
        return Deferred.fromCoroutine(fetching)

    def test_bounded(self) -> None:
        """`fetch_all` runs ``concurrency`` fetches at a time, and reads no URL in advance."""
        fetching = self.begin(10**9)
        for done in range(20):
            self.assertEqual((3, done + 3), (len(self.fetcher.waiting), self.read))
            self.fetcher.waiting.pop(done % 3).callback(STORED)
        fetching.addErrback(lambda _: None)
        fetching.cancel()

    def test_all(self) -> None:
        """`fetch_all` ends when all URLs are fetched, even if fewer than ``concurrency``."""
        for count in (0, 1, 3, 7):
            fetching = self.begin(count)
            for _ in range(count):
                self.assertNoResult(fetching)
                self.fetcher.waiting.pop().callback(RENDERED)
            self.successResultOf(fetching)
        self.assertEqual("11 URLs in 0.0 s: 11 rendered; 0 B", self.progress.summary())

    def test_failures(self) -> None:
        """A failed URL is reported in one line and does not stop the others."""
        fetching = self.begin(3)
        self.fetcher.waiting.pop().errback(FetchFailed("404"))
        self.fetcher.waiting.pop().callback(RENDERED)
        self.fetcher.waiting.pop().callback(NOT_A_VARIANT)
        self.successResultOf(fetching)
        self.assertEqual(["a line without a signed URL: 404"], self.printed)
        self.assertEqual(1, self.progress.failed)
        parts = "1 rendered, 1 not a variant, 1 failed"
        self.assertEqual(f"3 URLs in 0.0 s: {parts}; 0 B", self.progress.summary())

    def test_cancelled(self) -> None:
        """Cancellation cancels all running fetches, and reports no failures."""
        fetching = self.begin(9)
        fetching.addErrback(lambda _: None)
        fetching.cancel()
        self.assertEqual(([], [], 3), (self.fetcher.waiting, self.printed, self.read))

    def test_crash(self) -> None:
        """An unexpected exception counts as one failure and does not stop the others."""
        fetching = self.begin(2)
        self.fetcher.waiting.pop().errback(RuntimeError("oh"))
        self.fetcher.waiting.pop().callback(RENDERED)
        self.successResultOf(fetching)
        self.assertEqual(1, self.progress.failed)
        (line,) = self.printed
        self.assertIn("RuntimeError('oh')", line)


class ReadUrlsTests(SynchronousTestCase):
    """The function `read_urls`."""

    def read(self, *words: str, stdin: bytes = b"") -> list[str]:
        """Return all URLs of a list."""
        path = Path(self.mktemp())
        path.write_bytes(stdin)

        async def read() -> list[str]:
            with path.open("rb") as file:
                urls = read_urls(words, lambda work: succeed(work()), file.fileno)
                return [url async for url in urls]

        return self.successResultOf(Deferred.fromCoroutine(read()))

    def test_lines(self) -> None:
        """``-`` stands for the lines of standard input, without blank lines and comments."""
        text = b"# why\n\n  b \r\nc\n#d\ne\xff"
        self.assertEqual(["a", "b", "c", "e\ufffd", "f"], self.read("a", "-", "f", stdin=text))

    def test_input_in_pieces(self) -> None:
        """A line may be split across several reads of the input."""
        self.patch(warm_module, "_READ_SIZE", 3)
        self.assertEqual(["abcd", "efghijk", "l"], self.read("-", stdin=b"abcd\nefghijk\n\nl"))

    def test_duplicates(self) -> None:
        """`read_urls` skips a URL that is among the last ``_REMEMBERED`` different URLs."""
        self.assertEqual(["a", "b"], self.read("a", "-", "a", stdin=b"a\nb\na\nb\n"))
        self.patch(warm_module, "_REMEMBERED", 2)
        self.assertEqual(["a", "b", "c", "a"], self.read("-", stdin=b"a\nb\na\nc\nc\na\n"))


class ServiceTests(ServiceCase):
    """`warm` against the real service."""

    async def warm(self, port: int, *paths: bytes) -> WarmProgress:
        """Fetch these paths."""
        client = warm_module.ClientsByBundle(reactor, None).client()
        self.printed: list[str] = []
        self.patch(warm_module, "print_errors", self.printed.append)
        progress = WarmProgress(FakeProgressBar(), reactor.seconds)
        fetcher = Fetcher(client, reactor, 30, 3, progress.add_bytes)
        urls = [f"http://127.0.0.1:{port}{path.decode()}" for path in paths]
        try:
            await fetch_all(read_urls(urls, None, None), fetcher, progress, 2)  # type: ignore[arg-type]
        finally:
            await client.close()
        return progress

    async def test_rendered_and_stored(self) -> None:
        """`warm` renders and stores missing variants, and does not render stored ones again."""
        self.add("a.flac", short_flac())
        port = self.start().port
        path, info = signed("/f:mp3/plain/local://a.flac"), signed("/info/plain/local://a.flac")
        first = await self.warm(port, path, info)
        hit = await until_hit(port, path)
        self.assertRegex(first.summary(), r"\A2 URLs in .+: 1 rendered, 1 not a variant; \S+ kB\Z")
        self.assertLess(len(hit.body), first.received)
        second = await self.warm(port, path)
        self.assertIn("1 stored already;", second.summary())
        self.assertEqual((len(hit.body), []), (second.received, self.printed))

    async def test_refusals(self) -> None:
        """`warm` prints the service's message for each refusal, without the URL's signature."""
        paths = [signed("/f:mp3/plain/local://nothing"), signed("/f:mp9/plain/local://a.flac")]
        progress = await self.warm(self.start().port, *paths)
        self.assertEqual(2, progress.failed)
        missing, options = sorted(self.printed)
        self.assertTrue(missing.startswith("f:mp3/plain/local://nothing: 404 not_found: "), missing)
        self.assertTrue(options.startswith("f:mp9/plain/local://a.flac: 422 invalid_"), options)


class ProgramTests(ServiceCase):
    """`warm` in a process of its own."""

    def warm(self, *words: str, terminal: bool = False, **variables: str) -> Process:
        """Start the command; a cleanup kills it."""
        process = Process()
        command_line = [sys.executable, "-m", "audioproxy.cli.main", "warm", *words]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), **variables}
        if terminal:
            # On a terminal without a size no progress bar is shown.
            command_line = [
                "/bin/sh",
                "-c",
                'stty rows 24 cols 80 && exec "$@"',
                "sh",
                *command_line,
            ]
        reactor.spawnProcess(
            process, command_line[0], command_line, env=environment, usePTY=terminal
        )

        async def kill() -> None:
            process.signal(9)
            await process.end()

        self.addCleanup(lambda: Deferred.fromCoroutine(kill()))
        return process

    async def test_list(self) -> None:
        """`warm -` fetches a list over TLS, and prints a line per failure and a summary."""
        authority = Authority(Path(self.mktemp()).resolve())
        origin = open_origin(self, authority.issue("localhost"))
        good = origin.put("/s/plain/a", File(b"x" * 5000, headers=("X-Audio-Proxy: MISS",)))
        truncated = origin.put("/s/plain/b", File(b"x" * 5000, framing="chunked", sent=1000))
        process = self.warm("--quiet", "-", SSL_CERT_FILE=str(authority.bundle))
        process.transport.write(f"# a list\n\n{good}\n{truncated}\n".encode())
        process.transport.closeStdin()
        self.assertEqual(1, await process.end(), process.stderr)
        self.assertRegex(process.stdout, r"\A2 URLs in [0-9.]+ s: 1 rendered, 1 failed; 6 kB\n\Z")
        self.assertRegex(
            process.stderr, r"\Aaudioproxy: plain/b: ended early after 1000 bytes \(.+\)\n\Z"
        )

    async def test_interrupted(self) -> None:
        """Ctrl-C ends `warm` at once with a summary of what was done, and status 130."""
        origin = open_origin(self)
        done = origin.put("/s/plain/a", Status(302, ("X-Audio-Proxy: HIT",), b""))
        process = self.warm("-c", "1", done, origin.put("/s/plain/b", STALL))
        await until(lambda: origin.requests_for("/s/plain/b"), "both requests")
        process.signal(2)
        self.assertEqual((130, ""), (await process.end(), process.stderr))
        self.assertRegex(process.stdout, r"\Astopped: 1 URL in .+ s: 1 stored already; 0 B\n\Z")
        # The second process also waits for further lines of standard input.
        process = self.warm("-")
        process.transport.write(f"{origin.put('/s/plain/c', STALL)}\n".encode())
        await until(lambda: origin.requests_for("/s/plain/c"), "the request")
        process.signal(2)
        self.assertEqual((130, ""), (await process.end(), process.stderr))
        self.assertRegex(process.stdout, r"\Astopped: 0 URLs in [0-9.]+ s\n\Z")

    async def test_progress(self) -> None:
        """`warm` shows a progress bar on a terminal, but not with --quiet."""
        origin = open_origin(self)
        url = origin.put("/s/plain/a", Status(302, ("X-Audio-Proxy: HIT",), b""))
        for words, shown in (((), True), (("--quiet",), False)):
            process = self.warm(*words, url, terminal=True)
            self.assertEqual(0, await process.end(), process.stdout)
            self.assertEqual(shown, "0/1" in process.stdout, process.stdout)
            self.assertIn("1 URL in ", process.stdout)

    def test_misuse(self) -> None:
        """`warm` exits with 2 on missing or invalid arguments."""
        for words in ((), ("-c", "0", URL), ("-t", "x", URL), ("--tries", "9999999999", URL)):
            self.assertEqual(2, command("warm", *words, environment=SECRETS).status)
