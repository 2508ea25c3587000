"""The dispatcher that chooses the backend of a source."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotConfigured, NotFound
from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source, Source
from audioproxy.sources.allowlist import Allowlist
from audioproxy.sources.dispatcher import SourceDispatcher
from tests.support.http import Log
from tests.support.stores import FakeSources

HTTPS = HttpsSource("https://a.example/x", "a.example")


class SourcesTests(SynchronousTestCase):
    """`SourceDispatcher`"""

    def setUp(self) -> None:
        self.local = FakeSources({b"a.mp3": 3})

    def assert_refused(
        self, sources: SourceDispatcher, source: Source, error: type[Exception]
    ) -> None:
        """Assert that a source is refused."""
        refusal = self.failureResultOf(Deferred.fromCoroutine(sources.open(source))).value
        self.assertIs(type(refusal), error)

    def test_backend(self) -> None:
        """A source is opened by the backend for its type."""
        sources = SourceDispatcher(Allowlist(), {LocalSource: self.local})
        opened = self.successResultOf(Deferred.fromCoroutine(sources.open(LocalSource(b"a.mp3"))))
        self.assertEqual(opened.size, 3)
        opened.close()
        self.assert_refused(sources, LocalSource(b"b.mp3"), NotFound)

    def test_unset_setting(self) -> None:
        """Without its setting, a source is a 404; this is logged once, with the setting's name."""
        log = Log()
        self.addCleanup(log.start())
        sources = SourceDispatcher(Allowlist(), {})
        for source, name in ((LocalSource(b"a"), "AP_LOCAL_ROOT"), (HTTPS, "AP_SOURCE_ALLOWLIST")):
            for _ in range(2):
                self.assert_refused(sources, source, NotFound)
            (told,) = [event for event in log.events if name in str(event.get("text"))]
            self.assertEqual(LogLevel.warn, told["log_level"])

    def test_remote(self) -> None:
        """An allowed remote source without a backend is a 500 not_configured.

        If it is not on the allowlist, it is a 404, with or without a backend (D20).
        """
        for source in (S3Source("b", b"k"), HTTPS):
            allowing = SourceDispatcher(Allowlist(("*",)), {LocalSource: self.local})
            self.assert_refused(allowing, source, NotConfigured)
            for backends in ({}, {S3Source: self.local, HttpsSource: self.local}):
                refusing = SourceDispatcher(Allowlist(("other",)), backends)
                self.assert_refused(refusing, source, NotFound)
