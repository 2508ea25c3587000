"""The info document over HTTP: order of checks, headers and shared probes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from audioproxy.errors import (
    InvalidOptions,
    NotConfigured,
    NotFound,
    ProbeFailed,
    QueueFull,
    UpstreamUnavailable,
)
from audioproxy.grammar.cache_tag import CacheTagHeader
from tests.support.http import NOW, Response
from tests.support.processes import FakeChild
from tests.web.test_exchange import ExchangeCase

PATH = b"/info/plain/local://a.mp3"
#: The SHA-256 of the source, a newline and the validator of every source in these tests.
TAG = b'"' + hashlib.sha256(b"local://a.mp3\n1000").hexdigest().encode() + b'"'

AUDIO = {"codec_type": "audio", "codec_name": "mp3", "sample_rate": "44100", "channels": 2}
VIDEO = {"codec_type": "video", "codec_name": "h264"}
CONTAINER = {
    "format_name": "mp3",
    "duration": "10.5",
    "bit_rate": "128000",
    "size": "999",
    "tags": {"TITLE": "A song", "artist": "Ü"},
}
DOCUMENT = {
    "format": "mp3",
    "duration": 10.5,
    "sample_rate": 44100,
    "channels": 2,
    "bitrate": 128000,
    "size": 1000,
    "tags": {"title": "A song", "artist": "Ü"},
}


def probe_output(*streams: dict[str, Any], **container: Any) -> bytes:
    """Return output of ffprobe."""
    return json.dumps({"streams": streams, "format": container}).encode()


ANSWER = probe_output(AUDIO, **CONTAINER)


class InfoCase(ExchangeCase):
    """A service that must have closed every source and freed every slot at the end of a test."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.assert_settled)
        self.addCleanup(self.harness.spawner.kill_all)

    def assert_settled(self) -> None:
        """Assert that sources are closed, slots free and timers stopped, without errors."""
        self.assertEqual((0, 0), (self.harness.sources.held, self.harness.probe_slots.held))
        self.assertEqual(([], []), (self.harness.clock.getDelayedCalls(), self.log.errors))

    def assert_untouched(self) -> None:
        """Assert that no source was opened and no probe started."""
        self.assertEqual(([], []), (self.harness.calls, self.harness.spawner.children))

    def end_probe(self, says: bytes = ANSWER, child: FakeChild | None = None) -> None:
        """Let a probe, by default the most recent one, write its output and exit."""
        (child or self.harness.spawner.last).exit_and_end(stdout=says)

    def get(self, rest: bytes = PATH, says: bytes = ANSWER, **more: Any) -> Response:
        """Send a request, let the probe write its output, and return the response."""
        connection = self.send(rest, **more)
        self.end_probe(says)
        return connection.response

    def head(self, rest: bytes = PATH, **headers: Any) -> Response:
        """Return the response to HEAD."""
        return self.harness.fetch_signed(rest, b"HEAD", **headers)

    def assert_document(self, response: Response) -> None:
        """Assert that a response is the info document of these tests."""
        self.assertEqual((200, DOCUMENT), (response.status, response.document))


class OrderTests(InfoCase):
    """Order of the checks (Request handling order; Info endpoint)."""

    def test_options_second(self) -> None:
        """An option beside ``info`` is a 422, and the source is not opened (Info document, 5).

        After an option, ``info`` is an unknown option (D1).
        """
        rows = [(b"/f:mp3/info/plain/local://a.mp3", b"info")]
        for segments in (
            *(b"f:mp3", b"q:2", b"x", b"x:1", b"", b"info", b"dl:a", b"cb:1", b"f:peaks/pts:9"),
            *(b"exp:%d" % (NOW + 9), b"exp:1", b"exp:x"),
        ):
            for source in (b"/plain/local://a.mp3", b"/plain/http://refused/", b"/enc/!"):
                rows.append((b"/info/" + segments + source, segments.split(b"/")[0]))
        for rest, quoted in rows:
            response = self.harness.fetch_signed(rest, if_none_match=TAG)
            self.assert_error(response, InvalidOptions)
            self.assertTrue(response.document["message"].startswith(f'"{quoted.decode()}"'))
        self.assert_untouched()

    def test_stat_before_condition(self) -> None:
        """A missing source is a 404, even with If-None-Match (Request handling order, 6)."""
        for refusal in (NotFound, NotConfigured, UpstreamUnavailable):
            self.harness.sources.crash = refusal()
            self.assert_error(self.harness.fetch_signed(PATH, if_none_match=TAG), refusal)
        self.assertEqual(["open"] * 3, self.harness.called_methods())
        self.assertEqual([], self.harness.spawner.children)

    def test_condition_before_probe(self) -> None:
        """A matching If-None-Match is a 304 without a probe (Request handling order, 6)."""
        self.harness.probe_slots.capacity = 0
        for method in (b"GET", b"HEAD"):
            for value in (TAG, [b'"other"', b"W/" + TAG]):
                response = self.harness.fetch_signed(PATH, method, if_none_match=value)
                self.assertEqual((304, b""), (response.status, response.body))
                expected = {"etag": TAG, "cache-control": b"public, max-age=3600"}
                self.assertEqual(expected, response.fields)
        self.assertEqual([("open", b"local://a.mp3")] * 4, self.harness.calls)
        self.assertEqual([], self.harness.spawner.children)

    def test_neither_store_nor_slot(self) -> None:
        """An info request uses neither the variant store nor a render slot (Info endpoint, 5)."""
        self.harness.slots.capacity = 0
        self.harness.store.lookup_error = UpstreamUnavailable()
        self.assertEqual(200, self.get().status)
        self.assertEqual(["open"], self.harness.called_methods())


class DocumentTests(InfoCase):
    """The document and its headers."""

    def test_answer(self) -> None:
        """The document is JSON in documented order, cacheable for an hour (Info endpoint, 2).

        Range is ignored. HEAD has these headers except Content-Length, which only a probe can
        determine (Info endpoint, 3). A source without a validator is cached for a minute, without
        ETag.
        """
        etag = {"etag": TAG, "cache-control": b"public, max-age=3600"}
        unvalidated = {"cache-control": b"public, max-age=60"}
        empty = b'"' + hashlib.sha256(b"local://a.mp3\n").hexdigest().encode() + b'"'
        for validator, headers, expected in (
            (None, {}, etag),
            (None, {"range": b"bytes=0-1", "if_range": TAG}, etag),
            (None, {"range": b"bytes=99999-"}, etag),
            (b"", {}, unvalidated),
            (b"", {"if_none_match": empty}, unvalidated),
            (b"", {"if_none_match": b"*"}, unvalidated),
        ):
            self.harness.sources.validator = validator
            children = len(self.harness.spawner.children)
            head = self.head(**headers)
            self.assertEqual(children, len(self.harness.spawner.children))
            expected = {"content-type": b"application/json", **expected}
            self.assertEqual((200, b"", expected), (head.status, head.body, head.fields))
            response = self.get(**headers)
            self.assert_document(response)
            self.assertEqual(list(DOCUMENT), list(response.document))
            self.assertTrue(response.complete and response.body.isascii())
            length = {"content-length": b"%d" % len(response.body)}
            self.assertEqual(expected | length, response.fields)

    def test_cache_tag(self) -> None:
        """The document, its HEAD and its 304 have the tag of the source for caches (D59)."""
        header = CacheTagHeader("xkey", b"salt")
        _, tag = header.line(b"local://a.mp3")
        self.make(cache_tag=header)
        for validator in (None, b""):
            self.harness.sources.validator = validator
            for response in (self.head(), self.head(if_none_match=TAG), self.get()):
                self.assertEqual([tag.encode()], response.all("xkey"))

    def test_tag_by_state(self) -> None:
        """A source that has changed has another ETag (Info endpoint, 1)."""
        tags = {TAG}
        for validator in (b"1000-1", b"1000-2", b"999-2", b'"etag"', b'W/"etag"'):
            self.harness.sources.validator = validator
            response = self.head(if_none_match=b", ".join(tags))
            self.assertEqual(200, response.status)
            tags.add(response["etag"] or b"")
        self.assertEqual(6, len(tags))

    def test_tag_by_source(self) -> None:
        """All spellings of a source have one ETag; other sources have others (Info endpoint, 1)."""
        for rest, same in (
            (b"/info/plain/local://%61.mp3", True),
            (b"/info/plain/local%3A%2F%2Fa.mp3", True),
            (b"/info/enc/bG9jYWw6Ly9hLm1wMw", True),
            (b"/info/enc/bG9jYWw6Ly9hLm1wMw==", True),
            (b"/info/plain/local://b.mp3", False),
            (b"/info/plain/local://./a.mp3", False),
        ):
            response = self.head(rest, if_none_match=TAG)
            self.assertEqual(304 if same else 200, response.status, rest)
            self.assertEqual(same, response["etag"] == TAG, rest)
        # A query is not signed, and not a part of the source (D17).
        target = self.harness.path(PATH) + b"?a=b"
        self.assertEqual(304, self.harness.fetch(target, if_none_match=TAG).status)

    def test_no_limit_of_size(self) -> None:
        """AP_MAX_SRC_BYTES does not apply; the size is that of the storage (Info endpoint, 4)."""
        self.harness.sources.default_size = 10**12
        self.assertEqual(413, self.head(b"/plain/local://a.mp3").status)
        self.assertEqual(200, self.head().status)
        self.assertEqual(10**12, self.get().document["size"])


class RefusalTests(InfoCase):
    """Probes that refuse the source or fail."""

    def test_written_to(self) -> None:
        """A source that changes during its probe is a 500, as no ETag fits the document.

        The next request probes it again.
        """
        self.harness.sources.certain = True
        connection = self.send(PATH)
        self.harness.sources.opened[0].written_to = True
        self.end_probe()
        self.assert_error(connection.response, ProbeFailed)
        self.assertIn("changed", connection.response.document["message"])
        self.assert_document(self.get())
        self.assertEqual(2, len(self.harness.spawner.children))


class AnewTests(InfoCase):
    """Sources that fail during their probe"""

    def lose(self) -> None:
        """Let the probed source fail, which ffprobe takes for its end."""
        self.harness.sources.opened[-1].failure = UpstreamUnavailable("The connection was lost.")
        self.end_probe()

    def test_opened_anew(self) -> None:
        """A source that fails once is opened and probed anew; a second failure is the response."""
        connection = self.send(PATH)
        self.lose()
        self.end_probe()
        self.assert_document(connection.response)
        connection = self.send(PATH)
        self.lose()
        self.lose()
        self.assert_error(connection.response, UpstreamUnavailable)
        self.assertEqual(4, len(self.harness.sources.opened))

    def test_reads(self) -> None:
        """The bytes of a source are requested only where the response needs them."""
        self.head()
        self.harness.fetch_signed(PATH, if_none_match=TAG)
        self.get()
        self.assertEqual([False, False, True], self.harness.sources.reads)


class PoolTests(InfoCase):
    """The pool of probe slots, and shared probes (Info endpoint, 5 and 6).

    `tests.process.test_prober` tests which requests share a probe, and when its slot is free.
    """

    def test_full(self) -> None:
        """Without a free probe slot the response is 429 with ``Retry-After: 1`` (D21).

        Requests that start no probe are served while the pool is full (Info endpoint, 6).
        """
        paths = [b"/info/plain/local://%d.mp3" % number for number in (0, 1, 0)]
        running = [self.send(path) for path in paths]
        refused = self.harness.fetch_signed(PATH)
        self.assert_error(refused, QueueFull)
        self.assertEqual(b"1", refused["retry-after"])
        self.assertEqual(304, self.harness.fetch_signed(PATH, if_none_match=TAG).status)
        self.assertEqual(200, self.head().status)
        self.harness.store_variant(b"/plain/local://2.mp3", b"stored")
        self.assertEqual(200, self.harness.fetch_signed(b"/plain/local://2.mp3").status)
        self.assertEqual({b""}, {connection.received for connection in running})
        first, second = self.harness.spawner.children
        self.end_probe(child=first)
        # The refused request has no effect on later ones: a new request for its source gets a slot.
        running.append(self.send(PATH))
        for child in (second, self.harness.spawner.last):
            self.end_probe(child=child)
        for connection in running:
            self.assert_document(connection.response)


class LogTests(InfoCase):
    """Access log lines and counts of info requests (Request log; Metrics, 2)."""

    def assert_line(self, words: str, response: Response) -> None:
        """Assert the only access log line since the last call."""
        line = self.line(errors=int(words.startswith("500")))
        self.assertEqual(f"info {words} {len(response.body)} bytes in 0ms", line)

    def test_lines(self) -> None:
        """The line has the source but no options; on 401 and 422 neither (Request log, 2).

        A refusal of a probe is not cached. Cover art is not a video stream (Info document, 4).
        """
        cover = {**VIDEO, "disposition": {"attached_pic": 1}}
        for says, words in (
            (probe_output(AUDIO, VIDEO, **CONTAINER), "415 video_source"),
            (probe_output(), "415 undecodable_source"),
            (b"{", "500 probe_failed"),
            (b"", "500 probe_failed"),
            (probe_output(cover, AUDIO, cover, **CONTAINER), "200"),
            (ANSWER, "200"),
        ):
            self.assert_line(f"{words} src=local://a.mp3", self.get(says=says))
        self.assert_line("304 src=local://a.mp3", self.head(if_none_match=TAG))
        self.assert_line("200 src=local://a.mp3", self.head())
        for target, words in (
            (self.harness.path(b"/info/q:2/plain/local://a.mp3"), "422 invalid_options"),
            (self.harness.path(b"/info/plain/http://refused/"), "404 not_found"),
            (self.harness.path(b"/info/no-source"), "404 not_found"),
            (b"/" + b"A" * 43 + PATH, "401 invalid_signature"),
        ):
            self.assert_line(words, self.harness.fetch(target))

    def test_tags_stay_out(self) -> None:
        """The tags of a source do not appear in the log (D28)."""
        self.get(says=probe_output(AUDIO, **{**CONTAINER, "tags": {"title": "x\n[error] forged"}}))
        for event in self.log.events:
            self.assertNotIn("forged", str(event.get("log_format", "")).format(**event))
