"""`audioproxy warm`: fetches, classifies and counts variants, with scripted responses."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from tqdm import tqdm
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.fetcher import NOT_A_VARIANT, RENDERED, STORED, Fetcher, FetchFailed, redact_url
from audioproxy.cli.output import Output
from audioproxy.cli.warm import WarmProgress, fetch_all, read_urls
from audioproxy.http_client.client import USER_AGENT
from tests.cli.command import command
from tests.support.wire import ClientCase, Peer, chunk, reply, reply_without_length

SIGNATURE = "k" * 43
URL = f"http://audio.test/{SIGNATURE}/f:mp3/plain/local://a.wav"

MISS, HIT = {"X-Audio-Proxy": "MISS"}, {"X-Audio-Proxy": "HIT"}
CHUNKED = {"Transfer-Encoding": "chunked"}


class FetchTests(ClientCase):
    """`Fetcher`."""

    def setUp(self) -> None:
        super().setUp()
        self.byte_counts: list[int] = []

    def new_fetcher(self, tries: int = 3) -> Fetcher:
        """Return a fetcher that counts bytes."""
        return Fetcher(self.client, 600, tries, self.byte_counts.append)

    def fetch(self, *responses: Any, url: str = URL, tries: int = 3) -> Deferred[str]:
        """Start to fetch a URL, with these responses; return the result."""
        self.network.scripts += responses
        fetching = self.begin(self.new_fetcher(tries).fetch(url))
        return fetching.addCallback(lambda fetched: fetched.result)

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
            head = reply_without_length(200, headers=headers | CHUNKED)
            for response in (reply(200, b"hello", headers), (head, chunk(b"hello"), chunk(b""))):
                del self.byte_counts[:]
                self.assertEqual(result, self.successResultOf(self.fetch(response)))
                self.assertEqual(5, sum(self.byte_counts))

    def test_redirect(self) -> None:
        """A redirect of a HIT counts as stored and is not followed; other redirects fail."""
        location = {"Location": "http://store.test/a"}
        hit = self.fetch(reply(302, headers=HIT | location))
        self.assertEqual(STORED, self.successResultOf(hit))
        for status in (301, 302):
            reason = self.failure_reason(self.fetch(reply(status, headers=location)))
            self.assertRegex(reason, f"^{status}: a redirect .*; use its target URL")
        self.assertEqual(3, len(self.network.requests))

    def test_cancelled(self) -> None:
        """A fetch that Ctrl-C cancels while it reads a body is no failure."""
        fetching = self.fetch(reply(200, b"hello", MISS, 9))
        self.assertEqual([5], self.byte_counts)
        fetching.cancel()
        self.failureResultOf(fetching, CancelledError)

    def test_request_target(self) -> None:
        """`warm` sends a URL without its fragment, a User-Agent, its lane (D65) and no cookies."""
        for url, target in (
            (URL, f"/{SIGNATURE}/f:mp3/plain/local://a.wav"),
            ("HTTP://audio.test/s/x;/plain/a%2F..//b?q=%20#there", "/s/x;/plain/a%2F..//b?q=%20"),
            ("http://audio.test/s/plain/local://été\x7f", "/s/plain/local://%C3%A9t%C3%A9%7F"),
            ("http://audio.test/s/a[1]|%2f;", "/s/a[1]|%2f;"),
            ("http://audio.test", "/"),
        ):
            self.successResultOf(self.fetch(reply(200, headers={"Set-Cookie": "a=b"}), url=url))
            request = self.network.requests[-1]
            self.assertEqual(("GET", target), (request.method, request.target))
            headers = {"host": "audio.test", "user-agent": USER_AGENT, "x-audio-proxy-lane": "low"}
            self.assertEqual(headers, request.headers)

    def test_no_url(self) -> None:
        """A line that is not an http or https URL of a known host fails without a request."""
        for url in ("/s/f:mp3/plain/local://a", "ftp://a/b", "http://", "http://a b/", "http://é/"):
            reason = self.failure_reason(self.fetch(url=url))
            self.assertRegex(reason, "not an http or https URL without blanks; .*sign --base")
        self.assertEqual([], self.network.requests)
        self.network.unknown.add("audio.test")
        self.assertRegex(self.failure_reason(self.fetch()), r"^the request failed \(.+\)$")

    def test_refused(self) -> None:
        """`warm` reports a refusal with its status and message, and does not retry it."""
        document = b'{"error": "not_found", "message": "There is nothing."}'
        for response, words in (
            (reply(404, document), "404 not_found: There is nothing."),
            (reply(400, b"<html>"), "400 Bad Request"),
            (reply(410, b'["a"]'), "410 Gone"),
            (reply(500, b"{}" * 40_000), "500 Internal Server Error"),
            (reply(599), "599"),
        ):
            self.assertEqual(words, self.failure_reason(self.fetch(response)))

    def test_busy(self) -> None:
        """`warm` retries a 429 as --tries allows, and 502 to 504 twice, after Retry-After."""
        good = reply(200, headers=HIT)
        for status, text, seconds, tries, allowed in (
            (429, "7", 7, 3, 3),
            (429, "86400", 60, 2, 2),
            (429, "9" * 5000, 60, 2, 2),
            (429, "soon", 2, 2, 2),
            *((status, "x", 2, tries, 3) for status in (502, 503, 504) for tries in (1, 9)),
        ):
            busy = reply(status, b'{"error": "a", "message": "b"}', {"Retry-After": text})
            for failures in (allowed - 1, allowed):
                before = len(self.network.requests)
                responses = [busy] * failures + [good] * (failures < allowed)
                fetching = self.fetch(*responses, tries=tries)
                for retried in range(1, allowed):
                    self.network.advance(seconds - 0.1)
                    self.assertEqual(retried, len(self.network.requests) - before)
                    self.assertNoResult(fetching)
                    self.network.advance(0.1)
                if failures < allowed:
                    self.assertEqual(STORED, self.successResultOf(fetching))
                else:
                    self.assertEqual(f"{status} a: b", self.failure_reason(fetching))

    def test_busy_with_our_own(self) -> None:
        """A URL does not fail while the service is busy with other URLs of the same run (D65)."""
        fetcher = self.new_fetcher(tries=2)
        self.network.scripts += [(reply(200, b"hel", MISS, 9),)]
        other = self.begin(fetcher.fetch(URL))
        other.addCallback(lambda fetched: fetched.result)
        busy = reply(429, b'{"error": "a", "message": "b"}', {"Retry-After": "1"})
        self.network.scripts += [busy] * 6
        fetching = self.begin(fetcher.fetch(URL))
        for _ in range(4):
            self.network.peers[0].send(b"l")
            self.network.advance(1)
            self.assertNoResult(fetching)
        self.network.advance(1)
        self.assertEqual("429 a: b", self.failure_reason(fetching))
        self.assertNoResult(other)
        self.network.peers[0].send(b"oo")
        self.network.run()
        self.assertEqual(RENDERED, self.successResultOf(other))

    def test_closed(self) -> None:
        """`warm` retries a connection that closes without a response, as in a stop, twice (D39)."""
        for failures in (2, 3):
            # On a connection that was used before, the client itself repeats a request at once.
            good = [reply(200, headers=HIT | {"Connection": "close"})] * (failures < 3)
            closed = [lambda peer, request: peer.close()] * failures
            before = len(self.network.requests)
            fetching = self.fetch(*closed, *good)
            for retried in (1, 2):
                self.network.advance(1.9)
                self.assertEqual(retried, len(self.network.requests) - before)
                self.network.advance(0.1)
            self.assertEqual(3, len(self.network.requests) - before)
            if good:
                self.assertEqual(STORED, self.successResultOf(fetching))
            else:
                reason = self.failure_reason(fetching)
                self.assertRegex(reason, r"^the request failed \(.+\)$")

    def test_truncated_body(self) -> None:
        """`warm` treats a body that breaks off as a failure, even after a 200 (Errors, 10)."""
        head = reply_without_length(200, headers=MISS | CHUNKED)
        for packets in ((head, chunk(b"hello")), (reply(200, b"hello", MISS, 9),)):
            for end in (Peer.close, Peer.reset):
                fetching = self.fetch(packets)
                end(self.network.peers[-1])
                self.network.run()
                reason = self.failure_reason(fetching)
                self.assertRegex(reason, r"^ended early after 5 bytes, see the node's log \(.+\)$")

    def test_idle_timeout(self) -> None:
        """A fetch fails after 600 seconds without a byte, before or during the body."""
        fetching = self.fetch((reply(200, b"he", MISS, 5),))
        self.network.advance(599)
        self.network.peers[-1].send(b"l")
        self.network.advance(599)
        self.assertNoResult(fetching)
        self.network.advance(1)
        self.assertRegex(self.failure_reason(fetching), "ended early after 3 bytes, .*600 seconds")
        fetching = self.fetch()
        self.network.advance(599.9)
        self.assertNoResult(fetching)
        self.network.advance(0.1)
        self.assertEqual("the request failed (no response in time)", self.failure_reason(fetching))

    def test_no_room(self) -> None:
        """A body that cannot be kept fails with the name of the setting, and is read to its end."""
        self.network.scripts.append(reply(200, b"hello", MISS))
        with open("/dev/full", "wb", buffering=0) as full:
            fetching = self.begin(self.new_fetcher().fetch(URL, full))
            self.assertRegex(self.failure_reason(fetching), "^TMPDIR has no room")
        self.assertEqual([5], self.byte_counts)

    def test_redacted(self) -> None:
        """`warm` shows no signature and no query, since they may grant access to the audio."""
        for url, shown in (
            (f"{URL}?token=x", "f:mp3/plain/local://a.wav"),
            (f"https://a.test/mounted/{SIGNATURE}=/info/plain/x", "info/plain/x"),
            (SIGNATURE, "a line without a signed URL"),
            ("http://a/insecure/plain/\x1b[2Jé", "plain/%1B[2J%C3%A9"),
        ):
            self.assertEqual(shown, redact_url(url))


class FetchAllTests(SynchronousTestCase):
    """The function `fetch_all`."""

    def setUp(self) -> None:
        self.waiting: list[Deferred[str]] = []
        self.printed = io.StringIO()
        printing = contextlib.redirect_stderr(self.printed)
        printing.__enter__()
        self.addCleanup(printing.__exit__, None, None, None)
        self.progress = WarmProgress(Output(bar=tqdm(disable=True)), lambda: 0.0)
        self.read = 0

    def fetch_one(self, url: str) -> Deferred[str]:
        """Return a Deferred for the test to fire."""
        self.waiting.append(Deferred(self.waiting.remove))
        return self.waiting[-1]

    async def numbers(self, count: int) -> AsyncIterator[str]:
        """Yield numbers as URLs, and count those that were read."""
        for number in range(count):
            self.read += 1
            yield str(number)

    def begin(self, count: int, concurrency: int = 3) -> Deferred[None]:
        """Start to fetch a number of URLs."""
        urls = self.numbers(count)
        fetching = fetch_all(urls, self.fetch_one, self.progress, concurrency)
        return Deferred.fromCoroutine(fetching)

    def test_bounded(self) -> None:
        """`fetch_all` runs ``concurrency`` fetches at a time, and reads no URL in advance."""
        fetching = self.begin(10**9)
        for done in range(20):
            self.assertEqual((3, done + 3), (len(self.waiting), self.read))
            self.waiting.pop(done % 3).callback(STORED)
        fetching.addErrback(lambda _: None)
        fetching.cancel()

    def test_all(self) -> None:
        """`fetch_all` ends when all URLs are fetched, even if fewer than ``concurrency``."""
        self.assertEqual("0 URLs in 0.0 s", self.progress.summary())
        for count in (0, 1, 3, 7):
            fetching = self.begin(count)
            for _ in range(count):
                self.assertNoResult(fetching)
                self.waiting.pop().callback(RENDERED)
            self.successResultOf(fetching)
        self.assertEqual("11 URLs in 0.0 s: 11 rendered; 0 B", self.progress.summary())

    def test_failures(self) -> None:
        """A URL that fails, even unexpectedly, is reported in one line; the others go on."""
        fetching = self.begin(5, concurrency=5)
        full = OSError(errno.ENOSPC, "No space left on device", "/tmp/x")
        for result in (FetchFailed("404"), RuntimeError("oh"), full):
            self.waiting.pop().errback(result)
        for state in (RENDERED, NOT_A_VARIANT):
            self.waiting.pop().callback(state)
        self.successResultOf(fetching)
        refused, *traceback, crashed, unwritable = self.printed.getvalue().splitlines()
        nothing = "audioproxy: a line without a signed URL"
        self.assertEqual(f"{nothing}: 404", refused)
        self.assertIn("audioproxy itself failed", crashed)
        self.assertIn("RuntimeError: oh", traceback)
        self.assertEqual(f"{nothing}: No space left on device: /tmp/x", unwritable)
        self.assertEqual(3, self.progress.failed)
        parts = "1 rendered, 1 not a variant, 3 failed"
        self.assertEqual(f"5 URLs in 0.0 s: {parts}; 0 B", self.progress.summary())

    def test_cancelled(self) -> None:
        """Cancellation cancels all running fetches, and reports no failures."""
        fetching = self.begin(9)
        fetching.addErrback(lambda _: None)
        fetching.cancel()
        self.assertEqual(([], "", 3), (self.waiting, self.printed.getvalue(), self.read))


class ReadUrlsTests(SynchronousTestCase):
    """The arguments of `warm`, and the function `read_urls`."""

    def test_misuse(self) -> None:
        """`warm` exits with 2 on missing or invalid arguments."""
        for words in (
            *((), ("-c", "0", URL), ("-t", "x", URL), ("--tries", "9999999999", URL)),
            ("--json", "--enclosure", URL),
        ):
            self.assertEqual(2, command("warm", *words).status)

    def read(self, *words: str, stdin: Iterable[bytes] = (), remembered: int = 9) -> list[str]:
        """Return all URLs of a list; each read finds one piece of the standard input."""
        readable, writable = os.pipe()
        pieces = iter(stdin)

        def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
            if (piece := next(pieces, None)) is not None:
                os.write(writable, piece)
            else:
                os.close(writable)
            return succeed(work())

        async def read() -> list[str]:
            with open(readable, "rb") as file:
                urls = read_urls(words, in_thread, file.fileno, remembered)
                return [url async for url in urls]

        return self.successResultOf(Deferred.fromCoroutine(read()))

    def test_lines(self) -> None:
        """``-`` stands for the lines of standard input, however they are divided into reads."""
        text = b"# why\n\n  b \r\nc\n#d\nefghijk\xff"
        for size in (len(text), 3):
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            urls = self.read("a", "-", "f", stdin=pieces)
            self.assertEqual(["a", "b", "c", "efghijk\ufffd", "f"], urls, size)

    def test_duplicates(self) -> None:
        """`read_urls` skips a URL that is among the last ``remembered`` different URLs."""
        self.assertEqual(["a", "b"], self.read("a", "-", "a", stdin=[b"a\nb\na\nb\n"]))
        urls = self.read("-", stdin=[b"a\nb\na\nc\nc\na\n"], remembered=2)
        self.assertEqual(["a", "b", "c", "a"], urls)
