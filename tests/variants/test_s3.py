"""Variants in a bucket: found complete or not at all; a truncated body is an error."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

# The reactor opens descriptors when it is first imported, so import it before counting them.
from twisted.internet import reactor  # noqa: F401
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError

from audioproxy.config import S3Config
from audioproxy.errors import NotConfigured, UpstreamUnavailable
from audioproxy.files.scratch_files import AnonymousSpace, ScratchFile
from audioproxy.files.streams import ConsumerGone
from audioproxy.grammar.cache_tag import CacheTagHeader
from audioproxy.s3.errors import Busy, Denied, Missing, StoreError, WrongEndpoint
from audioproxy.s3.objects import ObjectStore
from audioproxy.s3.signing import MAX_PRESIGN_SECONDS
from audioproxy.testing import FakeThreads
from audioproxy.variants.interfaces import VariantChanged
from audioproxy.variants.record import METADATA_PREFIX, VariantRecord
from audioproxy.variants.response_headers import VariantHeaders
from audioproxy.variants.s3 import S3VariantStore, StoredObject
from tests.support.consumers import FakeConsumer
from tests.support.http import Log
from tests.support.processes import open_descriptors
from tests.support.stores import RECORD
from tests.support.variants import StoredVariant
from tests.support.wire import (
    Peer,
    RetryCase,
    Script,
    attempts,
    chunk,
    error,
    is_presigned,
    is_signed,
    reply,
    reply_without_length,
)

SECRET, TOKEN = "a-secret-that-nobody-may-see", "a-token-that-nobody-may-see"
HEADERS = VariantHeaders("audio/mpeg", "public, max-age=31536000, immutable")
HEADERS_WITH_DISPOSITION = VariantHeaders("audio/flac", "public", 'attachment; filename="a b.flac"')
KEY = "k" * 43

#: Responses that begin a multipart upload, accept a part, and complete the upload.
BEGUN = reply(200, b"<UploadId>upload</UploadId>")
TAGGED = reply(200, headers={"ETag": '"tag"'})
COMPLETED = reply(200, b"<CompleteMultipartUploadResult/>")

#: Headers of a range response with all of five bytes.
FIVE_BYTE_RANGE = {"Content-Range": "bytes 0-4/5", "ETag": '"abc"'}


def part(
    body: bytes = b"", length: int = -1, first: int = 0, total: str = "5", tag: str | None = '"abc"'
) -> bytes:
    """Return a 206 response with five bytes from ``first`` on, or with another body or length."""
    headers = {"Content-Range": f"bytes {first}-4/{total}"} | ({"ETag": tag} if tag else {})
    return reply(206, body, headers, length)


def first_byte(
    total: object = 5, headers: Mapping[str, str] | None = None, status: int = 206
) -> bytes:
    """Return the response to a look-up of an object with ``total`` bytes."""
    return reply(status, b"x", {"Content-Range": f"bytes 0-0/{total}", **(headers or {})})


class VariantCase(RetryCase):
    """A variant store in a bucket."""

    def setUp(self) -> None:
        super().setUp()
        self.before = open_descriptors()
        self.threads = FakeThreads()
        self.log = Log(self)
        settings = S3Config("http://s3.test", "path", None, "AKIA", SECRET, TOKEN, "us-east-1")
        self.store = ObjectStore(settings, self.client)
        self.variants = self.make()

    def tearDown(self) -> None:
        super().tearDown()
        self.assertEqual((self.threads.waiting, open_descriptors()), (0, self.before))
        for text in (*self.log.texts, repr(self.log.events)):
            self.assertNotRegex(text, f"{SECRET}|{TOKEN}|Signature=")
        self.assertEqual(self.log.errors, [])

    def make(self, **settings: Any) -> S3VariantStore:
        """Return the store, with these settings in place of the usual ones."""
        usual = {"store": self.store, "bucket": "bucket", "space": AnonymousSpace()}
        usual |= {"clock": self.network, "run_in_thread": self.threads.in_thread}
        return S3VariantStore(**{**usual, **settings})

    def looked_up(self, response: bytes) -> StoredObject | None:
        """Look up the variant with this response of the store."""
        self.network.scripts.append(response)
        return self.result_of(self.variants.lookup(KEY))

    def found(self, response: bytes) -> StoredObject:
        """Return the variant that is found with this response of the store."""
        found = self.looked_up(response)
        assert found is not None
        return found

    def stored(self, tag: str | None = '"abc"') -> StoredObject:
        """Return a stored variant."""
        return self.found(first_byte(5, {"ETag": tag} if tag else {}))


class PlaceTests(VariantCase):
    """`S3VariantStore.place`"""

    def test_place(self) -> None:
        """`place` names the bucket and the endpoint."""
        self.assertEqual("s3://bucket at http://s3.test", self.variants.place)
        settings = S3Config("http://s3.test", "virtual", None, "A", SECRET, None, "us-east-1")
        store = ObjectStore(settings, self.client)
        self.assertRaises(Missing, self.make, store=store, bucket="my_bucket")


class LookupTests(VariantCase):
    """`S3VariantStore.lookup`"""

    def test_found(self) -> None:
        """A lookup returns the size and the ETag of a variant, from its first byte (D41)."""
        for status in (206, 200):
            found = self.found(first_byte(1234, {"ETag": '"abc"'}, status))
            self.assertEqual((found.size, found.etag), (1234, '"abc"'))
            found.close()
        asked = self.network.requests[-1]
        self.assertEqual((asked.target, asked.headers["range"]), (f"/bucket/{KEY}", "bytes=0-0"))

    def test_stored(self) -> None:
        """The time in the metadata is that of the variant, not the time of its object (D58)."""
        modified = {"Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}
        record = StoredVariant.of().headers
        for headers, stored in (
            (modified, None),
            ({**modified, **record}, 1_800_000_000),
            ({**modified, **record, METADATA_PREFIX + "stored": "soon"}, None),
        ):
            found = self.found(first_byte(headers=headers))
            self.assertEqual(stored, found.stored)

    def test_missing(self) -> None:
        """A missing, denied, empty or foreign object is a miss, and is not logged."""
        for response in (
            reply(404),
            reply(403),
            *(reply(400, error(code)) for code in ("InvalidArgument", "InvalidURI", "XAmzKey")),
            reply(416),
            reply(200, length=0),
            reply(200, b"<html>We are back soon.</html>", {"Content-Type": "text/html"}),
            reply(200, b"x", {"Content-Range": "bytes 1-1/5"}),
            reply_without_length(200),
            first_byte("*"),
            first_byte(headers={"Content-Encoding": "gzip"}),
        ):
            self.assertIsNone(self.looked_up(response), response)
        self.assertEqual(self.log.texts, [])

    def test_broken(self) -> None:
        """A lookup in a failing store raises an error and is logged; it is not a miss."""
        self.network.refusal = ConnectionRefusedError()
        self.error_of(self.variants.lookup(KEY), UpstreamUnavailable)
        self.network.refusal = None
        self.network.scripts.append(reply(206, b"x", {"Content-Range": "bytes 1-1/5"}))
        self.error_of(self.variants.lookup(KEY), UpstreamUnavailable)
        for status in (500, 503, 429, 301):
            self.log.events.clear()
            self.network.scripts += attempts(status)
            refusal = NotConfigured if status == 301 else UpstreamUnavailable
            self.error_of(self.variants.lookup(KEY), refusal)
            self.assertEqual(
                self.log.texts, [f"a lookup in the variant store failed: status {status}"]
            )


class OpenRangeTests(VariantCase):
    """`StoredObject.open_range`"""

    def send(
        self, *packets: bytes, start: int = 0, stop: int = 5, tag: str | None = '"abc"'
    ) -> Deferred[None]:
        """Start to send a range of a variant to a consumer."""
        found = self.stored(tag=tag)
        self.network.scripts.append(packets)
        flow = self.result_of(found.open_range(start, stop))
        self.consumer = FakeConsumer()
        sending = flow.send(self.consumer)
        self.network.run()
        return sending

    def test_bytes(self) -> None:
        """The requested range of the object that was found is fetched with If-Match and sent."""
        self.successResultOf(self.send(part(length=4, first=1), b"ello", start=1, stop=5))
        self.assertEqual(bytes(self.consumer.data), b"ello")
        asked = self.network.requests[-1]
        self.assertEqual((asked.method, asked.target), ("GET", f"/bucket/{KEY}"))
        self.assertEqual(asked.headers["range"], "bytes=1-4")
        self.assertEqual(asked.headers["if-match"], '"abc"')
        self.assertTrue(is_signed(asked, SECRET))
        for tag in (None, 'W/"abc"'):
            self.successResultOf(self.send(part(b"hello", tag=tag), tag=tag))

    def test_another_version(self) -> None:
        """A response of another object than was looked up is refused before its first byte."""
        for tag, response in (
            ('"abc"', reply(412)),
            ('"abc"', part(b"hello", tag='"abd"')),
            ('W/"abc"', part(b"hello", tag='W/"abd"')),
            (None, part(b"hello", tag='"abc"')),
            ('"abc"', part(b"hello", total="6")),
            ('"abc"', reply(206, b"hel", {**FIVE_BYTE_RANGE, "Content-Range": "bytes 0-2/5"})),
            ('"abc"', reply(206, b"hello", {**FIVE_BYTE_RANGE, "Content-Encoding": "gzip"})),
            ('"abc"', reply(404)),
        ):
            found = self.stored(tag=tag)
            self.network.scripts.append(response)
            self.error_of(found.open_range(0, 5), VariantChanged)
        self.assertEqual(self.log.texts, [])

    def test_refused(self) -> None:
        """If a variant that was found cannot be read, it is a 502 or 500, and is logged."""
        for status in (503, 200, 301):
            found = self.stored()
            self.log.events.clear()
            self.network.scripts += attempts(status)
            refusal = NotConfigured if status == 301 else UpstreamUnavailable
            self.error_of(found.open_range(0, 5), refusal)
            (line,) = self.log.texts
            self.assertRegex(line, rf"\Aa stored variant cannot be read: .*\bstatus {status}\b")

    def test_breaks_off(self) -> None:
        """A body that breaks off or stalls for 30 s is a 502, is logged, and is not complete."""
        short = (reply_without_length(206, b"", FIVE_BYTE_RANGE), b"hell")
        head = reply_without_length(206, b"", FIVE_BYTE_RANGE | {"Transfer-Encoding": "chunked"})
        rows: tuple[tuple[tuple[bytes, ...], Callable[[Peer], object]], ...] = (
            ((part(length=5), b"hell"), Peer.reset),
            ((part(length=5), b"hell"), lambda peer: self.network.advance(30)),
            (short, Peer.close),
            ((head, chunk(b"hello, "), chunk(b"")), id),
        )
        for packets, end in rows:
            self.log.events.clear()
            sending = self.send(*packets)
            end(self.network.peers[-1])
            self.network.run()
            self.exactly(sending, UpstreamUnavailable)
            (line,) = self.log.texts
            self.assertTrue(line.startswith("the transfer of a stored variant failed: "), line)
            self.assertEqual(self.consumer.calls[-1], "unregistered")

    def test_gone(self) -> None:
        """If the client leaves, the request to the store is aborted, and nothing is logged."""
        for cancel in (False, True):
            sending = self.send(part(length=5), b"hell")
            if cancel:
                sending.cancel()
            else:
                self.consumer.disconnect()
            self.network.run()
            self.exactly(sending, ConsumerGone)
            self.assertEqual(self.log.texts, [])
            self.assertTrue(self.network.peers[-1].aborted)
        found = self.stored()
        self.network.scripts.append((part(length=5), b"hello"))
        self.result_of(found.open_range(0, 5)).discard()
        self.network.run()
        self.assertTrue(self.network.peers[-1].closed)

    def test_presigned(self) -> None:
        """A presigned URL is valid for the given seconds, and for seven days at most."""
        for seconds in (300, MAX_PRESIGN_SECONDS, MAX_PRESIGN_SECONDS + 1):
            url = self.variants.presign(KEY, seconds, HEADERS)
            query = parse_qs(urlsplit(url).query)
            self.assertEqual(query["X-Amz-Expires"], [str(min(seconds, MAX_PRESIGN_SECONDS))])
            self.assertEqual(query["X-Amz-Security-Token"], [TOKEN])
            # Whether the store takes headers from URLs is not known yet.
            self.assertNotIn("response-content-type", query)
            self.assertTrue(url.startswith(f"http://s3.test/bucket/{KEY}?"))
            self.assertTrue(is_presigned("GET", url, SECRET))


def read_metadata(headers: Mapping[str, str]) -> VariantRecord | None:
    """Return the record in an object's metadata."""
    parts = [(name.partition(METADATA_PREFIX), text) for name, text in headers.items()]
    return VariantRecord.read({name: text for (_, prefix, name), text in parts if prefix})


class CommitCase(VariantCase):
    """Commits of variants to the bucket."""

    def create(self, data: bytes) -> ScratchFile:
        """Return a scratch file with this rendered output."""
        scratch = self.result_of(self.variants.create(10))
        os.write(scratch.descriptor, data)
        return scratch

    def commit(
        self,
        data: bytes = b"hello",
        headers: VariantHeaders = HEADERS,
        size: int | None = None,
        record: VariantRecord = RECORD,
    ) -> Deferred[None]:
        """Start to commit a variant, then run the threads and the network."""
        size = len(data) if size is None else size
        scratch = self.create(data)
        committing = self.begin(self.variants.commit(KEY, scratch, size, headers, record))
        self.threads.run()
        self.network.run()

        def close_file(outcome: Any) -> Any:
            scratch.close()
            return outcome

        return committing.addBoth(close_file)


class CommitTests(CommitCase):
    """`S3VariantStore.commit`"""

    def test_written(self) -> None:
        """The object has the variant's bytes and headers, and its record as metadata (D58)."""
        data = os.urandom(200_000)
        digest = hashlib.sha256(data).hexdigest()
        for kept in (HEADERS, HEADERS_WITH_DISPOSITION):
            self.network.scripts.append(reply(200))
            self.successResultOf(self.commit(data + b", and more", kept, size=len(data)))
            put = self.network.requests[-1]
            self.assertEqual((put.method, put.target), ("PUT", f"/bucket/{KEY}"))
            self.assertEqual(put.body, data)
            self.assertEqual(put.headers["content-type"], kept.content_type)
            self.assertEqual(put.headers["cache-control"], kept.cache_control)
            self.assertEqual(put.headers.get("content-disposition"), kept.content_disposition)
            self.assertEqual(put.headers["x-amz-content-sha256"], digest)
            self.assertEqual(replace(RECORD, sha256=digest), read_metadata(put.headers))
            self.assertTrue(is_signed(put, SECRET))

    def test_cache_tag(self) -> None:
        """The tag of the source is metadata with the name of its header, in lower case (D59).

        The name of metadata stays as it is: CloudFront reads the tag in such a header.
        """
        for name in ("cache-tag", "x-amz-meta-cache-tag"):
            line = CacheTagHeader(name, b"salt").line(b"local://a")
            self.network.scripts.append(reply(200))
            self.successResultOf(self.commit(record=replace(RECORD, cache_tag=line)))
            put = self.network.requests[-1]
            self.assertEqual(line[1], put.headers["x-amz-meta-cache-tag"])
            self.assertIsNotNone(read_metadata(put.headers))
            self.assertTrue(is_signed(put, SECRET))

    def test_too_many(self) -> None:
        """If too many uploads are in progress, a commit fails, to save disk space (D35)."""
        slow = [self.commit() for _ in range(32)]
        self.assertIn("32 uploads", str(self.failureResultOf(self.commit(), OSError).value))
        for peer in self.network.peers:
            peer.send(reply(200))
        self.network.run()
        for committing in slow:
            self.successResultOf(committing)
        self.network.scripts.append(reply(200))
        self.successResultOf(self.commit())

    def test_parts(self) -> None:
        """A variant that is larger than one part is uploaded in several parts."""
        # More than is read at a time for a digest.
        most = 300_000
        self.variants = self.make(part_size=most)
        rows = {most - 1: 0, most: 0, most + 1: 2, 2 * most: 2, 2 * most + 1: 3}
        for size, parts in rows.items():
            self.network.requests.clear()
            self.network.scripts[:] = (
                [BEGUN, *[TAGGED] * parts, COMPLETED] if parts else [reply(200)]
            )
            data = os.urandom(size)
            self.successResultOf(self.commit(data))
            puts = [each for each in self.network.requests if each.method == "PUT"]
            self.assertEqual(b"".join(put.body for put in puts), data)
            record = read_metadata(self.network.requests[0].headers)
            self.assertEqual(replace(RECORD, sha256=hashlib.sha256(data).hexdigest()), record)
            self.assertEqual(len(puts), parts or 1)
            for put in puts:
                digest = hashlib.sha256(put.body).hexdigest()
                self.assertEqual(put.headers["x-amz-content-sha256"], digest)

    def test_not_read(self) -> None:
        """A file that is shorter than the given size is not stored, and no request is sent."""

        def fail(*_: object) -> Any:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.create(b"hello").close()
        self.threads.run()
        self.failureResultOf(self.commit(b"hell", size=5), OSError)
        self.failureResultOf(self.commit(b""), ValueError)
        full = self.make(space=SimpleNamespace(create=lambda seconds: fail()))
        self.assertEqual(errno.EIO, self.error_of(full.create(10), OSError).errno)
        self.variants = self.make(run_in_thread=fail)
        self.assertEqual(errno.EIO, self.failureResultOf(self.commit(), OSError).value.errno)
        self.variants = self.make()
        unreadable = SimpleNamespace(descriptor=-1, close=lambda: None)
        committing = self.begin(self.variants.commit(KEY, unreadable, 5, HEADERS, RECORD))
        self.threads.run()
        self.assertEqual(errno.EBADF, self.failureResultOf(committing, OSError).value.errno)
        self.assertEqual(self.network.requests, [])

    def test_cancelled(self) -> None:
        """A cancelled commit waits for the thread that reads the file, and sends no request."""
        scratch = self.create(b"hello")
        committing = self.begin(self.variants.commit(KEY, scratch, 5, HEADERS, RECORD))
        committing.cancel()
        self.assertNoResult(committing)
        self.threads.run()
        self.exactly(committing, CancelledError)
        self.assertEqual([], self.network.requests)
        scratch.close()
        committing = self.commit()
        self.assertNoResult(committing)
        committing.cancel()
        self.network.run()
        self.exactly(committing, CancelledError)
        self.assertTrue(self.network.peers[-1].aborted)
        self.network.requests.clear()
        self.network.scripts.append(reply(503))
        committing = self.commit()
        committing.cancel()
        self.exactly(committing, CancelledError)
        self.network.advance(60)
        self.assertEqual(len(self.network.requests), 1)


class SharedLookupTests(CommitCase):
    """Lookups of one key that are in flight at the same time."""

    def look_up(self, key: str = KEY) -> Deferred[StoredObject | None]:
        """Start a lookup."""
        return self.begin(self.variants.lookup(key))

    def answer_request(self, number: int, response: bytes) -> None:
        """Answer the open request of a connection; each test has one request on each."""
        self.network.peers[number].send(response)
        self.network.run()

    def test_shared(self) -> None:
        """Lookups of one key share one request to the bucket; other keys have their own."""
        lookups = [self.look_up(), self.look_up()]
        other, broken = self.look_up("o" * 43), [self.look_up("b" * 43) for _ in range(2)]
        self.assertEqual(len(self.network.requests), 3)
        self.answer_request(0, first_byte())
        for looking in lookups:
            found = self.successResultOf(looking)
            assert found is not None
            self.assertEqual(found.size, 5)
        self.answer_request(1, reply(404))
        self.assertIsNone(self.successResultOf(other))
        self.network.scripts.append(reply(503))
        self.answer_request(2, reply(503))
        self.network.advance(1)
        for looking in broken:
            self.exactly(looking, UpstreamUnavailable)
        self.assertEqual(self.log.texts, ["a lookup in the variant store failed: status 503"])
        self.assertIsNone(self.looked_up(reply(404)))

    def test_commit(self) -> None:
        """A lookup that began before a commit is not shared with requests after the commit."""
        for status in (200, 403):
            first = len(self.network.peers)
            self.network.requests.clear()
            early = self.look_up()
            committing = self.commit()
            during = self.look_up()
            self.assertEqual([each.method for each in self.network.requests], ["GET", "PUT"])
            self.answer_request(first + 1, reply(status))
            # On the connection of the PUT.
            self.network.scripts.append(first_byte())
            self.assertIsNotNone(self.successResultOf(self.look_up()))
            self.answer_request(first, reply(404))
            self.assertIsNone(self.successResultOf(early))
            self.assertIsNone(self.successResultOf(during))
            if status == 200:
                self.successResultOf(committing)
            else:
                self.exactly(committing, Denied)
            self.tearDown()
            self.setUp()

    def test_cancelled(self) -> None:
        """The request to the bucket is aborted when the last of its lookups is cancelled."""
        first, last = self.look_up(), self.look_up()
        first.cancel()
        self.exactly(first, CancelledError)
        self.network.run()
        self.assertFalse(self.network.peers[0].aborted)
        last.cancel()
        self.exactly(last, CancelledError)
        self.network.run()
        self.assertTrue(self.network.peers[0].aborted)


class RetryTests(CommitCase):
    """`S3VariantStore.commit`: one retry after a temporary failure."""

    def test_retried_once(self) -> None:
        """A commit is retried after a second if the store was busy or closed the connection."""
        self.network.refusal = ConnectionRefusedError()
        committing = self.commit()
        self.network.advance(0.5)
        self.network.refusal = None
        self.network.scripts.append(reply(200))
        self.network.advance(1)
        self.successResultOf(committing)
        responses: list[Script] = [reply(status) for status in (503, 500, 429, 409)]
        for response in (*responses, lambda peer, request: peer.close()):
            self.network.requests.clear()
            self.network.scripts[:] = [response, reply(200)]
            committing = self.commit()
            self.network.advance(0.9)
            self.assertNoResult(committing)
            self.assertEqual(len(self.network.requests), 1)
            self.network.advance(0.1)
            self.successResultOf(committing)
            self.assertEqual([each.body for each in self.network.requests], [b"hello"] * 2)

    def test_less_metadata(self) -> None:
        """A store that refuses the metadata of a variant gets the least record of it."""
        for code, options, *refusals in (
            *((code, "f:mp3", (400, code)) for code in ("MetadataTooLarge", "InvalidArgument")),
            ("too many bytes", "f:mp3", (413, "EntityTooLarge")),
            ("long headers", "f:mp3", (431, "RequestHeaderSectionTooLarge")),
            ("busy", "f:mp3", (503, "SlowDown"), (400, "MetadataTooLarge")),
            ("damaged", "dl:a/f:mp3", (400, "XAmzContentSHA256Mismatch")),
        ):
            refused = [reply(status, error(text)) for status, text in refusals]
            self.network.scripts[:] = [*refused, reply(200)]
            committing = self.commit(record=replace(RECORD, options="dl:a/f:mp3"))
            self.network.advance(1)
            self.successResultOf(committing)
            record = read_metadata(self.network.requests[-1].headers)
            assert record is not None
            self.assertEqual((options, RECORD.stored), (record.options, record.stored), code)

    def test_not_twice(self) -> None:
        """A commit is retried only once, and not at all after a permanent error."""
        rows: list[tuple[list[int], type[StoreError]]] = [
            ([503, 500], Busy),
            ([503, 403], Denied),
            ([403], Denied),
            ([404], Missing),
            ([301], WrongEndpoint),
        ]
        for statuses, kind in rows:
            self.network.requests.clear()
            self.network.scripts += [reply(status) for status in statuses]
            committing = self.commit()
            self.network.advance(len(statuses) - 1)
            self.assertEqual(str(self.exactly(committing, kind)), f"status {statuses[-1]}")
            self.network.advance(60)
            self.assertEqual(len(self.network.requests), len(statuses), statuses)
