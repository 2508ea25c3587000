"""Metrics of requests: cache lookups, and requests by endpoint and status family."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import (
    NotFound,
    QueueFull,
    RenderFailed,
    RenderTimeout,
    UndecodableSource,
    UpstreamUnavailable,
)
from tests.support.http import NOW, FakeSource, Log, ResourceHarness
from tests.test_metrics import FORMATS, Counts

PATH = b"/f:mp3/plain/local://a.mp3"
AUDIO = {
    "format": {"format_name": "wav", "duration": "1"},
    "streams": [
        {
            "codec_type": "audio",
            "codec_name": "pcm_s16le",
            "sample_rate": "44100",
            "channels": 2,
        }
    ],
}


class MetricsCase(SynchronousTestCase):
    """A service, its metrics and its log."""

    def setUp(self) -> None:
        self.log = Log()
        self.addCleanup(self.log.start())
        self.make()

    def make(self, **settings: Any) -> None:
        """Replace the service with a new one."""
        self.harness = ResourceHarness(**settings)
        self.counts = Counts(self.harness.metrics)

    def assert_ended(self, endpoint: str, family: str) -> None:
        """Assert that one request was counted and logged since the last call."""
        name = f"http_requests_total {endpoint} {family}"
        self.assertEqual({name: 1}, self.counts.of("http_requests_total"))
        (record,) = self.log.requests
        self.assertEqual((endpoint, family[0]), (record.endpoint, str(record.status)[0]))
        self.log.events.clear()
        self.counts = Counts(self.harness.metrics)


class LookupTests(MetricsCase):
    """Cache lookups (Metrics, 1)."""

    def lookups(self) -> dict[str, float]:
        """Return the counted cache lookups."""
        return {
            name.removeprefix("cache_lookups_total "): value
            for name, value in self.counts.of("cache_lookups_total").items()
        }

    def test_each_state(self) -> None:
        """A GET counts once as miss, coalesced or hit, with its format."""
        for form in FORMATS:
            self.make()
            rest = f"/f:{form}/plain/local://a.mp3".encode()
            miss = self.harness.connect()
            miss.send(self.harness.path(rest))
            self.assertEqual({f"{form} miss": 1}, self.lookups())
            for count in (1, 2):
                self.harness.connect().send(self.harness.path(rest))
                self.assertEqual({f"{form} miss": 1, f"{form} coalesced": count}, self.lookups())
            self.harness.render(rest).write_output(b"abc")
            self.harness.render(rest).end()
            self.harness.store_variant(rest, b"abc")
            self.harness.fetch_signed(rest)
            expected = {f"{form} miss": 1, f"{form} coalesced": 2, f"{form} hit": 1}
            self.assertEqual(expected, self.lookups())

    def test_default_format(self) -> None:
        """A request without ``f`` counts as mp3, whatever its other options are."""
        for rest in (
            b"/plain/local://a",
            b"/br:96/plain/local://a",
            b"/exp:%d/plain/s3://b/k" % NOW,
        ):
            self.harness.connect().send(self.harness.path(rest))
        self.assertEqual({"mp3 miss": 3}, self.lookups())

    def test_without_a_store(self) -> None:
        """Without a store, requests count as miss or coalesced."""
        self.make(with_store=False)
        for _ in range(2):
            self.harness.connect().send(self.harness.path(PATH))
        self.assertEqual({"mp3 miss": 1, "mp3 coalesced": 1}, self.lookups())

    def test_ranges(self) -> None:
        """A HIT with Range counts as one hit, satisfiable or not."""
        self.harness.store_variant(PATH, b"0123456789")
        for value, status in ((b"bytes=0-1", 206), (b"bytes=99-", 416), (b"bytes=x", 200)):
            self.assertEqual(status, self.harness.fetch_signed(PATH, range=value).status)
        self.assertEqual({"mp3 hit": 3}, self.lookups())

    def test_client_leaves(self) -> None:
        """A lookup is counted even if the client leaves before it has the response."""
        self.harness.store_variant(b"/f:wav/plain/local://a", b"x" * 1_000_000)
        for rest in (PATH, b"/f:wav/plain/local://a"):
            connection = self.harness.connect(window=1)
            connection.send(self.harness.path(rest))
            connection.leave()
        self.assertEqual({"mp3 miss": 1, "wav hit": 1}, self.lookups())

    def test_head(self) -> None:
        """HEAD is not counted as a lookup (HEAD on signed endpoints, 7)."""
        self.harness.fetch_signed(PATH, b"HEAD")
        self.harness.store_variant(PATH, b"abc")
        self.assertEqual(b"HIT", self.harness.fetch_signed(PATH, b"HEAD")["x-audio-proxy"])
        self.assertEqual({}, self.lookups())

    def test_answered_before_the_lookup(self) -> None:
        """Requests that end before the lookup (304, 401, 404, 410, 422) are not counted."""
        self.harness.store_variant(PATH, b"abc")
        tag = self.harness.fetch_signed(PATH, b"HEAD")["etag"]
        for status, response in (
            (304, self.harness.fetch_signed(PATH, if_none_match=tag)),
            (401, self.harness.fetch(b"/x" + PATH)),
            (404, self.harness.fetch_signed(b"/f:mp3/plain/http://refused")),
            (404, self.harness.fetch(self.harness.path(PATH), b"POST")),
            (410, self.harness.fetch_signed(b"/exp:1" + PATH)),
            (422, self.harness.fetch_signed(b"/q:99" + PATH)),
        ):
            self.assertEqual(status, response.status)
        self.assertEqual({}, self.lookups())

    def test_lookup_fails(self) -> None:
        """A lookup that fails counts as neither hit nor miss (Errors, 8)."""
        self.harness.stored = UpstreamUnavailable()
        self.assertEqual(502, self.harness.fetch_signed(PATH).status)
        self.assertEqual({}, self.lookups())

    def test_other_endpoints(self) -> None:
        """Requests to other endpoints are not counted as lookups."""
        for target in (b"/health", b"/ready", self.harness.path(b"/info/plain/http://refused")):
            self.harness.fetch(target)
        self.assertEqual({}, self.lookups())


class RequestTests(MetricsCase):
    """Requests by endpoint and status family (Metrics, 2)."""

    def test_variants(self) -> None:
        """A variant request is counted with the status that the client received."""
        stored = b"/f:wav/plain/local://a.mp3"
        self.harness.store_variant(stored, b"0123456789")
        tag = self.harness.fetch_signed(stored, b"HEAD")["etag"]
        self.assert_ended("render", "2xx")
        for method, rest, headers, family in (
            (b"GET", stored, {}, "2xx"),
            (b"GET", stored, {"range": b"bytes=0-1"}, "2xx"),
            (b"GET", stored, {"range": b"bytes=99-"}, "4xx"),
            (b"HEAD", PATH, {}, "2xx"),
            (b"GET", stored, {"if_none_match": tag}, "3xx"),
            (b"GET", b"/q:99" + PATH, {}, "4xx"),
            (b"GET", b"/exp:1" + PATH, {}, "4xx"),
            (b"GET", b"/x", {}, "4xx"),
        ):
            self.harness.fetch_signed(rest, method, **headers)
            self.assert_ended("render", family)
        self.harness.fetch(b"/x" + PATH)
        self.assert_ended("render", "4xx")

    def test_refused_renders(self) -> None:
        """A refused render is counted with the status of the refusal."""
        for refusal, family in (
            (NotFound(), "4xx"),
            (UndecodableSource(), "4xx"),
            (QueueFull(1), "4xx"),
            (RenderFailed(), "5xx"),
            (UpstreamUnavailable(), "5xx"),
            (RenderTimeout(), "5xx"),
        ):
            self.make()
            self.harness.render_error = refusal
            self.harness.fetch_signed(PATH)
            self.assert_ended("render", family)

    def test_crash(self) -> None:
        """An unexpected exception is counted as 5xx."""
        self.harness.stored = ZeroDivisionError("unforeseen")
        self.harness.fetch_signed(PATH)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assert_ended("render", "5xx")

    def test_info(self) -> None:
        """Info requests have the endpoint class ``info``."""
        info = self.harness.path(b"/info/plain/local://a.mp3")
        head = self.harness.fetch(info, b"HEAD")
        self.assert_ended("info", "2xx")
        self.harness.fetch(info, if_none_match=head["etag"])
        self.assert_ended("info", "3xx")
        self.harness.fetch(b"/x/info/plain/local://a.mp3")
        self.assert_ended("info", "4xx")
        connection = self.harness.connect()
        connection.send(info)
        self.harness.spawner.last.write_stdout(json.dumps(AUDIO).encode())
        self.harness.spawner.last.exit_and_end()
        self.assertEqual(200, connection.response.status)
        self.assert_ended("info", "2xx")
        self.harness.connect().send(info)
        self.harness.spawner.last.exit_and_end(1)
        self.assert_ended("info", "5xx")

    def test_busy_probes(self) -> None:
        """A 429 because no probe slot is free counts only as a 4xx request."""
        for name in (b"a", b"b"):
            self.harness.source = FakeSource(1000, validator=name)
            self.harness.connect().send(self.harness.path(b"/info/plain/local://" + name))
        self.harness.source = FakeSource(1000, validator=b"c")
        response = self.harness.fetch_signed(b"/info/plain/local://c")
        self.assertEqual((429, "queue_full"), (response.status, response.error))
        self.assertEqual({"http_requests_total info 4xx": 1}, self.counts.changes)
        self.harness.spawner.kill_all()

    def test_unsigned(self) -> None:
        """Health, readiness and preflights have endpoint classes; others are ``unknown``."""
        self.make(origin="*")
        for method, target, endpoint, family in (
            (b"GET", b"/health", "health", "2xx"),
            (b"HEAD", b"/health", "health", "2xx"),
            (b"GET", b"/ready", "ready", "2xx"),
            (b"OPTIONS", b"/anything", "preflight", "2xx"),
            (b"GET", b"/metrics", "unknown", "4xx"),
            (b"POST", b"/health", "unknown", "4xx"),
            (b"GET", b"/hls/x/y", "unknown", "4xx"),
            (b"GET", b"/", "unknown", "4xx"),
        ):
            self.harness.fetch(target, method)
            self.assert_ended(endpoint, family)
        self.harness.readiness.depth_changed(2)
        self.assertEqual(503, self.harness.fetch(b"/ready").status)
        self.assert_ended("ready", "5xx")

    def test_no_http(self) -> None:
        """Bytes that are not HTTP are counted as ``unknown`` 4xx."""
        connection = self.harness.connect()
        connection.send_raw(b"\x16\x03\x01\r\n\r\n")
        self.assertEqual(400, connection.response.status)
        self.assert_ended("unknown", "4xx")

    def test_left_before_any_answer(self) -> None:
        """A client that leaves before any response header is counted as 4xx."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.assertEqual({}, self.counts.of("http_requests_total"))
        connection.leave()
        self.assertEqual([499], [record.status for record in self.log.requests])
        self.assert_ended("render", "4xx")
        self.harness.render(PATH).write_output(b"late")
        self.harness.render(PATH).end()
        self.assertEqual({}, self.counts.changes)

    def test_left_before_a_refusal(self) -> None:
        """If a client leaves before a refusal, the refusal is not counted."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        connection.leave()
        self.harness.render(PATH).end(RenderFailed())
        self.assert_ended("render", "4xx")

    def test_left_half_way(self) -> None:
        """A client that leaves midway is counted as 2xx."""
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.harness.render(PATH).write_output(b"half")
        connection.leave()
        self.assert_ended("render", "2xx")

    def test_broken_off(self) -> None:
        """A response that fails midway is counted once, with the status that was sent."""
        for version in (b"HTTP/1.1", b"HTTP/1.0"):
            self.make()
            connection = self.harness.connect()
            connection.send(self.harness.path(PATH), version=version)
            self.harness.render(PATH).write_output(b"some")
            self.assertEqual({}, self.counts.of("http_requests_total"))
            self.harness.render(PATH).end(RenderTimeout())
            self.assertTrue(connection.aborted)
            self.assert_ended("render", "2xx")

    def test_broken_hit(self) -> None:
        """A HIT whose stored variant is too short is counted with the status that was sent."""
        stored = self.harness.store_variant(PATH, b"0123456789")
        stored.size = 20
        connection = self.harness.connect()
        connection.send(self.harness.path(PATH))
        self.assertTrue(connection.aborted)
        self.assertEqual(1, len(self.flushLoggedErrors(EOFError)))
        self.assert_ended("render", "2xx")

    def test_several_on_a_connection(self) -> None:
        """Each request on a connection is counted separately."""
        connection = self.harness.connect()
        for target in (b"/health", b"/nowhere", b"/ready"):
            connection.send(target)
        expected = {"health 2xx": 1, "unknown 4xx": 1, "ready 2xx": 1}
        self.assertEqual(
            {f"http_requests_total {name}": count for name, count in expected.items()},
            self.counts.changes,
        )
