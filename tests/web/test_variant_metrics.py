"""Metrics of cache lookups; `tests.web.test_exchange` counts requests."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UpstreamUnavailable
from tests.observe.test_metrics import FORMATS, Counts
from tests.support.http import NOW, ResourceHarness

PATH = b"/f:mp3/plain/local://a.mp3"


class LookupTests(SynchronousTestCase):
    """Cache lookups (Metrics, 1)."""

    def setUp(self) -> None:
        self.make()

    def make(self, **settings: Any) -> None:
        """Replace the service with a new one."""
        self.harness = ResourceHarness(**settings)
        self.counts = Counts(self.harness.metrics)

    def assert_lookups(self, expected: dict[str, int]) -> None:
        """Assert the counts of cache lookups by format and result."""
        self.assertEqual(
            {f"cache_lookups_total {name}": count for name, count in expected.items()},
            self.counts.of("cache_lookups_total"),
        )

    def send(self, *rests: bytes) -> None:
        """Send requests whose renders have no output yet."""
        for rest in rests:
            self.harness.connect().send(self.harness.path(rest))

    def test_each_state(self) -> None:
        """A GET counts once as miss, coalesced or hit, with its format."""
        expected: dict[str, int] = {}
        for form in FORMATS:
            rest = f"/f:{form}/plain/local://a.mp3".encode()
            self.send(rest)
            expected[f"{form} miss"] = 1
            self.assert_lookups(expected)
            self.send(rest, rest)
            expected[f"{form} coalesced"] = 2
            self.assert_lookups(expected)
            self.harness.store_variant(rest, b"abc")
            self.harness.fetch_signed(rest)
            expected[f"{form} hit"] = 1
            self.assert_lookups(expected)

    def test_default_format(self) -> None:
        """A request without ``f`` counts as mp3, whatever its other options are."""
        self.send(b"/plain/local://a", b"/br:96/plain/local://a", b"/exp:%d/plain/s3://b/k" % NOW)
        self.assert_lookups({"mp3 miss": 3})

    def test_without_a_store(self) -> None:
        """Without a store, requests count as miss or coalesced."""
        self.make(has_store=False)
        self.send(PATH, PATH)
        self.assert_lookups({"mp3 miss": 1, "mp3 coalesced": 1})

    def test_ranges(self) -> None:
        """A HIT with Range counts as one hit, satisfiable or not."""
        self.harness.store_variant(PATH, b"0123456789")
        for value, status in ((b"bytes=0-1", 206), (b"bytes=99-", 416), (b"bytes=x", 200)):
            self.assertEqual(status, self.harness.fetch_signed(PATH, range=value).status)
        self.assert_lookups({"mp3 hit": 3})

    def test_client_leaves(self) -> None:
        """A lookup is counted even if the client leaves before it has the response."""
        self.harness.store_variant(b"/f:wav/plain/local://a", b"x" * 1_000_000)
        for rest in (PATH, b"/f:wav/plain/local://a"):
            connection = self.harness.connect(window=1)
            connection.send(self.harness.path(rest))
            connection.leave()
        self.assert_lookups({"mp3 miss": 1, "wav hit": 1})

    def test_not_counted(self) -> None:
        """HEAD, other endpoints and requests that end before the lookup are not counted.

        HEAD on signed endpoints, 7. A lookup that fails is neither hit nor miss (Errors, 8).
        """
        harness = self.harness
        miss = harness.fetch_signed(PATH, b"HEAD")
        harness.store_variant(PATH, b"abc")
        for status, response in (
            (200, miss),
            (200, harness.fetch_signed(PATH, b"HEAD")),
            (304, harness.fetch_signed(PATH, if_none_match=miss["etag"])),
            (401, harness.fetch(b"/x" + PATH)),
            (404, harness.fetch_signed(b"/f:mp3/plain/http://refused")),
            (404, harness.fetch(harness.path(PATH), b"POST")),
            (410, harness.fetch_signed(b"/exp:1" + PATH)),
            (422, harness.fetch_signed(b"/q:99" + PATH)),
            (200, harness.fetch(b"/health")),
            (200, harness.fetch(b"/ready")),
            (404, harness.fetch_signed(b"/info/plain/http://refused")),
        ):
            self.assertEqual(status, response.status)
        harness.store.lookup_error = UpstreamUnavailable()
        self.assertEqual(502, harness.fetch_signed(PATH).status)
        self.assert_lookups({})
