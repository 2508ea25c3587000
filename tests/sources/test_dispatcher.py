"""The dispatcher that chooses the opener of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import Config
from audioproxy.engine import Engine, build
from audioproxy.errors import NoSuchSource, NotConfigured, NotFound, UpstreamUnavailable
from audioproxy.grammar.sources import (
    SCHEMES,
    HttpsSource,
    LocalSource,
    S3Source,
    Source,
    parse_https,
    parse_source,
)
from audioproxy.sources.dispatcher import SourceDispatcher
from audioproxy.sources.interfaces import OpenSource
from tests.support.http import Log
from tests.support.stores import FakeSource, FakeSources

HTTPS = HttpsSource("https://a.example/x", "a.example")
S3 = S3Source("b", b"k")


class SourcesTests(SynchronousTestCase):
    """`SourceDispatcher`, as an engine makes it"""

    def setUp(self) -> None:
        self.local = FakeSources({b"a.mp3": 3})
        self.log = Log(self)

    def unset(self, allowlist: Sequence[str] | None = None) -> SourceDispatcher:
        """Return the dispatcher of an engine without settings, but for the allowlist."""
        sources = Engine(build(Config(allow_insecure=True), Clock())).sources
        return replace(sources, allowlist=allowlist)

    def assert_refused(
        self, sources: SourceDispatcher, source: Source, error: type[Exception]
    ) -> None:
        """Assert that a source is refused."""
        refusal = self.failureResultOf(Deferred.fromCoroutine(sources.open(source))).value
        self.assertIs(type(refusal), error)

    def warnings(self, name: str) -> int:
        """Return how many warnings name a setting."""
        return sum(
            name in str(event.get("text")) and event["log_level"] is LogLevel.warn
            for event in self.log.events
        )

    def test_opener(self) -> None:
        """A source is opened by the opener of its scheme."""
        sources = SourceDispatcher(None, {"local": self.local.open})
        opened = self.successResultOf(Deferred.fromCoroutine(sources.open(LocalSource(b"a.mp3"))))
        self.assertEqual(opened.size, 3)
        opened.close()
        self.assert_refused(sources, LocalSource(b"b.mp3"), NoSuchSource)

    def test_unicode_forms(self) -> None:
        """If a remote name that is missing has another Unicode form, the reason names that form."""

        async def open_source(source: Source, *, reads: bool = True) -> NoReturn:
            raise NoSuchSource("gone")

        sources = SourceDispatcher(None, dict.fromkeys(("s3", "https"), open_source))
        note = "gone; it may be there in the Unicode form "
        for spelling, reason in (
            ("s3://b/u\u0308", f"{note}NFC"),
            ("s3://b/\u00fc", f"{note}NFD"),
            ("s3://b/u\u0308\u00fc", f"{note}NFC or NFD"),
            ("https://a.example/u%CC%88?x=%C3%BC", f"{note}NFC"),
            ("https://a.example/a?x=%C3%BC", "gone"),
            ("s3://b/k", "gone"),
        ):
            opening = Deferred.fromCoroutine(sources.open(parse_source(spelling.encode())))
            refusal = self.failureResultOf(opening).value
            self.assertEqual((NoSuchSource, reason), (type(refusal), str(refusal)), spelling)

    def test_slow_opening(self) -> None:
        """An opening of two seconds is logged with the origin or bucket, however it ends."""
        for source, place in (
            (LocalSource(b"a"), "the disk of AP_LOCAL_ROOT"),
            (S3, "the bucket b"),
            (HTTPS, "the origin a.example"),
        ):
            for seconds, failure in ((1.9, None), (2.1, None), (2.1, UpstreamUnavailable())):
                clock, pending = Clock(), Deferred[OpenSource]()
                self.log.events.clear()

                async def open_source(
                    source: Source, *, reads: bool = True, pending: Deferred[OpenSource] = pending
                ) -> OpenSource:
                    return await pending

                sources = SourceDispatcher(None, {source.scheme: open_source}, now=clock.seconds)
                opening = Deferred.fromCoroutine(sources.open(source))
                clock.advance(seconds)
                if failure is None:
                    pending.callback(FakeSource(3))
                    self.successResultOf(opening).close()
                else:
                    pending.errback(failure)
                    self.failureResultOf(opening, UpstreamUnavailable)
                slow = [f"a source took {seconds} s to open: {place} is slow"]
                self.assertEqual(slow if seconds >= 2 else [], self.log.texts)

    def test_unset_setting(self) -> None:
        """Without its setting, a source is a 404; this is logged once, with the setting's name."""
        sources = self.unset()
        for source, name in ((LocalSource(b"a"), "AP_LOCAL_ROOT"), (HTTPS, "AP_SOURCE_ALLOWLIST")):
            for _ in range(2):
                self.assert_refused(sources, source, NotFound)
            self.assertEqual(1, self.warnings(name))

    def test_unset_credentials(self) -> None:
        """An allowed bucket source without credentials is a 500 not_configured, logged each time.

        If it is not on the allowlist, it is a 404, with or without credentials (D20).
        """
        for allowlist in (None, ("*",)):
            sources = self.unset(allowlist)
            for _ in range(2):
                self.assert_refused(sources, S3, NotConfigured)
        self.assertEqual(4, self.warnings("AWS_ACCESS_KEY_ID"))
        self.assert_refused(self.unset(("other",)), S3, NotFound)
        self.assertEqual(4, self.warnings("AWS_ACCESS_KEY_ID"))

    def test_allowlist(self) -> None:
        """Only a source that an entry matches is opened; any other one is a 404, unopened.

        tests.grammar.test_allowlist has all forms of entries.
        """
        self.local.crash = UpstreamUnavailable()
        sources = SourceDispatcher(("nobody.test", "ORIGIN.Test"), {"https": self.local.open})
        for host, error in (
            ("Origin.test.", UpstreamUnavailable),
            ("a.origin.test", NotFound),
            ("xorigin.test", NotFound),
        ):
            self.assert_refused(sources, parse_https(f"https://{host}/a".encode()), error)
        self.assertEqual(1, len(self.local.calls))
        self.assert_refused(SourceDispatcher(("other",), {}), S3, NotFound)

    def test_imitations(self) -> None:
        """A URL that imitates one of an allowed host is no source, or is a 404, unopened."""
        hosts = [
            *"127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 [::1] [::ffff:7f00:1] 0".split(),
            *"localhost.test notlocalhost x.localhost *.localhost localhost\\@127.0.0.1".split(),
            *"localhost@127.0.0.1 a:b@localhost localhost%00.test localhost%2f@127.0.0.1".split(),
            *("localhost\t", " localhost", "localhost\0", "l\u00f6calhost", "", "."),
            *("127.0.0.1#@localhost", "127.0.0.1?@localhost", "127.0.0.1/@localhost"),
        ]
        schemes = "http tcp HTTP httpproxy".split()
        opened: list[str] = []
        for url in (
            *(f"https://{host}:444/secret.wav" for host in hosts),
            *(f"{scheme}://localhost:444/" for scheme in schemes),
            *(f"https:{slashes}localhost:444/" for slashes in ("", "/", "\\\\", "///")),
            *(f"{it}https://localhost:444/" for it in ("concat:", "subfile,,:", "async:")),
            *(f"https://localhost:444/{end}" for end in ("a\r\nX-Injected: 1", "a HTTP/1.1")),
            *(f"https://localhost:{port}/" for port in ("0", "65536", "-1", "+443", "4 3", "x")),
            "https://localhost:444/",
        ):
            try:
                source = parse_source(url.encode())
            except ValueError:
                continue
            opening = Deferred.fromCoroutine(SourceDispatcher(("localhost",), {}).open(source))
            if not isinstance(self.failureResultOf(opening).value, NotFound):
                opened.append(url)
        self.assertEqual(["https://localhost:444/"], opened)

    def test_every_scheme(self) -> None:
        """Each scheme that a URL can have is opened or refused, whatever is set."""
        self.assertEqual(SCHEMES.keys(), self.unset().openers.keys())
