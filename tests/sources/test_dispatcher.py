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

    def refusal(self, sources: SourceDispatcher, source: Source) -> type[Exception]:
        """Return the type of the refusal of a source."""
        return type(self.failureResultOf(Deferred.fromCoroutine(sources.open(source))).value)

    def test_backend(self) -> None:
        """A source is opened by the backend for its type."""
        sources = SourceDispatcher(Allowlist(), {LocalSource: self.local})
        opened = self.successResultOf(Deferred.fromCoroutine(sources.open(LocalSource(b"a.mp3"))))
        self.assertEqual(opened.size, 3)
        opened.close()
        self.assertIs(self.refusal(sources, LocalSource(b"b.mp3")), NotFound)

    def test_no_root(self) -> None:
        """Without AP_LOCAL_ROOT, a local source is a 404 like a missing file."""
        self.assertIs(
            self.refusal(SourceDispatcher(Allowlist(), {}), LocalSource(b"a.mp3")), NotFound
        )

    def test_unset_setting_logged_once(self) -> None:
        """A refusal that is due to an unset setting is logged once, with the setting's name."""
        log = Log()
        self.addCleanup(log.start())
        sources = SourceDispatcher(Allowlist(), {})
        for source, name in ((LocalSource(b"a"), "AP_LOCAL_ROOT"), (HTTPS, "AP_SOURCE_ALLOWLIST")):
            for _ in range(2):
                self.assertIs(self.refusal(sources, source), NotFound)
            (told,) = [event for event in log.events if name in str(event.get("text"))]
            self.assertEqual(LogLevel.warn, told["log_level"])

    def test_no_backend(self) -> None:
        """An allowed remote source without a backend is a 500 not_configured (D20)."""
        sources = SourceDispatcher(Allowlist(("*",)), {LocalSource: self.local})
        for source in (S3Source("b", b"k"), HTTPS):
            self.assertIs(self.refusal(sources, source), NotConfigured)

    def test_not_allowed(self) -> None:
        """A source that is not on the allowlist is a 404, with or without a backend (D20)."""
        for backends in ({}, {S3Source: self.local, HttpsSource: self.local}):
            sources = SourceDispatcher(Allowlist(("other",)), backends)
            for source in (S3Source("b", b"k"), HTTPS):
                self.assertIs(self.refusal(sources, source), NotFound)
