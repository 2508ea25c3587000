"""Variants in a bucket: found complete or not at all; a truncated body is an error."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore import auth

# The reactor opens descriptors when it is first imported, so import it before counting them.
from twisted.internet import reactor  # noqa: F401
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.logger import formatEvent

from audioproxy.config import S3Config
from audioproxy.errors import NotConfigured, UpstreamUnavailable
from audioproxy.s3.objects import (
    Denied,
    Missing,
    ObjectStore,
    StoreError,
    StoreObject,
    Unavailable,
    WrongEndpoint,
)
from audioproxy.s3.signing import EMPTY_SHA256, MAX_PRESIGN_SECONDS
from audioproxy.scratch_files import AnonymousFile, AnonymousSpace
from audioproxy.streams import ConsumerGone
from audioproxy.variants import s3 as s3_module
from audioproxy.variants.hashing_scratch_file import HashingScratchFile
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import Unwritable
from audioproxy.variants.s3 import PART_SIZE, S3VariantStore, StoredObject
from tests.support.consumers import FakeConsumer
from tests.support.http import Log
from tests.support.processes import open_descriptors
from tests.support.threads import FakeThreads
from tests.support.wire import (
    ClientCase,
    Peer,
    Request,
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


#: Headers of a range response with all of five bytes.
FIVE_BYTE_RANGE = {"Content-Range": "bytes 0-4/5"}


def part(body: bytes = b"", length: int = -1, first: int = 0) -> bytes:
    """Return a 206 response with five bytes from ``first`` on, or with another body or length."""
    return reply(206, body, {"Content-Range": f"bytes {first}-4/5"}, length)


class VariantCase(ClientCase):
    """A variant store in a bucket."""

    def setUp(self) -> None:
        super().setUp()
        self.before = open_descriptors()
        self.threads = FakeThreads()
        self.log = Log()
        self.addCleanup(self.log.start())
        settings = S3Config("http://s3.test", "path", None, "AKIA", SECRET, TOKEN, "us-east-1")
        self.store = ObjectStore(settings, self.client)
        self.variants = self.make()

    def tearDown(self) -> None:
        super().tearDown()
        self.assertEqual((self.threads.waiting, open_descriptors()), (0, self.before))

    def make(self, part_size: int = PART_SIZE) -> S3VariantStore:
        """Return the store, which uploads in parts of this size."""
        return S3VariantStore(
            self.store, "bucket", AnonymousSpace(), self.network, self.threads.in_thread, part_size
        )

    def lines(self) -> list[str]:
        """Return the logged texts."""
        return [str(formatEvent(event)) for event in self.log.events]

    def looked_up(self, response: bytes) -> StoredObject | None:
        """Look up the variant with this response of the store."""
        self.network.scripts.append(response)
        return self.result_of(self.variants.lookup(KEY))

    def stored(self, size: int = 5, tag: str | None = '"abc"') -> StoredObject:
        """Return a stored variant."""
        headers = {"Content-Type": "audio/mpeg", "Cache-Control": "public"}
        found = self.looked_up(
            reply(200, length=size, headers=headers | ({"ETag": tag} if tag else {}))
        )
        assert found is not None
        return found


class OpenTests(VariantCase):
    """`S3VariantStore.open`"""

    def test_store_check(self) -> None:
        """At boot, the service writes, finds and removes one empty object in the bucket."""
        self.network.scripts += [reply(200), reply(200), reply(204)]
        self.result_of(self.variants.open())
        put, head, delete = self.network.requests
        self.assertEqual((put.method, head.method, delete.method), ("PUT", "HEAD", "DELETE"))
        self.assertRegex(put.target, r"^/bucket/\.audioproxy-proof-[0-9a-f]{32}$")
        self.assertEqual((head.target, delete.target), (put.target, put.target))
        self.assertEqual((put.body, put.headers["content-length"]), (b"", "0"))
        self.assertEqual(put.headers["x-amz-content-sha256"], EMPTY_SHA256)
        self.assertTrue(is_signed(put, SECRET) and is_signed(delete, SECRET))

    def test_another_name_each_time(self) -> None:
        """Each boot uses another object name, so that nodes do not remove each other's objects."""
        self.network.scripts += [reply(200), reply(200), reply(204)] * 2
        for _ in range(2):
            self.result_of(self.variants.open())
        self.assertEqual(len({request.target for request in self.network.requests}), 2)

    def test_refusals(self) -> None:
        """The boot error names the failed step, the store's response and what is required."""
        for status, code, said, wanted in (
            (404, "NoSuchBucket", "status 404, NoSuchBucket", "a bucket that exists"),
            (
                403,
                "AccessDenied",
                "status 403, AccessDenied",
                "credentials that may write",
            ),
            (301, "", "status 301", "the endpoint, the region and the addressing"),
            (503, "SlowDown", "status 503, SlowDown", "a store that can be reached"),
        ):
            refusal = reply(status, error(code) if code else b"")
            for responses, step in (
                ([refusal], "writing an object"),
                ([reply(200), reply(200), refusal], "removing the object that was written"),
            ):
                self.network.scripts[:] = responses
                text = str(self.error_of(self.variants.open(), Unwritable))
                self.assertTrue(text.startswith(f"{step} in s3://bucket failed ({said}); "), text)
                self.assertIn(wanted, text)

    def test_write_only(self) -> None:
        """Credentials that may write but not read are refused at boot."""
        for removed in (204, 403):
            self.network.scripts += [reply(200), reply(403), reply(removed)]
            text = str(self.error_of(self.variants.open(), Unwritable))
            self.assertTrue(text.startswith("finding the object that was written in s3://b"), text)
            self.assertIn("credentials that may write, read and delete", text)
            self.assertEqual(self.network.requests[-1].method, "DELETE")

    def test_error_hints(self) -> None:
        """If the store's error code says more than its status, the boot error has a hint."""
        self.network.scripts += [reply(403, error("RequestTimeTooSkewed"))]
        text = str(self.error_of(self.variants.open(), Unwritable))
        self.assertTrue(text.endswith("a correct clock is required, here and in the store"), text)

    def test_clock(self) -> None:
        """If the clock is wrong, the boot error states the difference from the store's Date."""
        self.patch(auth, "get_current_datetime", lambda: datetime(2026, 11, 21, 12, 20, 3))
        for time, words in (
            ("12:00:00", "1203 s ahead of the store's"),
            ("13:20:04", "3601 s behind the store's"),
        ):
            headers = {"Date": f"Sat, 21 Nov 2026 {time} GMT"}
            self.network.scripts += [reply(403, error("RequestTimeTooSkewed"), headers)]
            text = str(self.error_of(self.variants.open(), Unwritable))
            self.assertTrue(text.endswith(f"is required: this machine's is {words}"), text)

    def test_unreachable(self) -> None:
        """If the store cannot be reached, the boot error names its endpoint."""
        self.network.refusal = ConnectionRefusedError()
        opening = self.begin(self.variants.open())
        self.network.advance(1)
        text = str(self.exactly(opening, Unwritable))
        self.assertIn("http://s3.test is unreachable", text)

    def test_silent(self) -> None:
        """A store that does not respond is refused at boot after thirty seconds."""
        opening = self.begin(self.variants.open())
        self.network.advance(30)
        self.exactly(opening, Unwritable)

    def test_bucket_that_is_no_label(self) -> None:
        """With virtual addressing, a bucket that is no valid host label is refused at once."""
        settings = S3Config("http://s3.test", "virtual", None, "A", SECRET, None, "us-east-1")
        store = ObjectStore(settings, self.client)
        self.assertRaises(
            Missing, S3VariantStore, store, "my_bucket", AnonymousSpace(), self.network, None
        )

    def test_close(self) -> None:
        """Closing the store sends no request."""
        self.result_of(self.variants.close(5))
        self.variants.close_now()
        self.assertEqual(self.network.requests, [])


class CheckWritableTests(VariantCase):
    """`S3VariantStore.check_writable`"""

    def test_inspect(self) -> None:
        """The object has the given content, and exists until ``inspect`` has returned."""
        inspected: list[tuple[str, list[str]]] = []

        async def inspect(proof: StoreObject) -> None:
            inspected.append((proof.url, [request.method for request in self.network.requests]))

        self.network.scripts += [reply(200), reply(200), reply(204)]
        self.result_of(self.variants.check_writable(b"content", inspect))
        put, head, delete = self.network.requests
        self.assertEqual((put.method, put.body), ("PUT", b"content"))
        self.assertTrue(is_signed(put, SECRET))
        self.assertEqual(put.headers["x-amz-content-sha256"], hashlib.sha256(put.body).hexdigest())
        self.assertEqual((head.method, head.target), ("HEAD", put.target))
        self.assertEqual((delete.method, delete.target), ("DELETE", put.target))
        self.assertEqual([(f"http://s3.test{put.target}", ["PUT", "HEAD"])], inspected)

    def test_inspect_fails(self) -> None:
        """If ``inspect`` is denied, the store is unusable and the object is removed."""

        async def inspect(proof: StoreObject) -> None:
            raise Denied("status 403, AccessDenied")

        self.network.scripts += [reply(200), reply(200), reply(204)]
        text = str(self.error_of(self.variants.check_writable(b"", inspect), Unwritable))
        self.assertIn("finding the object that was written in s3://bucket failed", text)
        self.assertEqual("DELETE", self.network.requests[-1].method)

    def test_place(self) -> None:
        """`place` names the bucket and the endpoint."""
        self.assertEqual("s3://bucket at http://s3.test", self.variants.place)


class LookupTests(VariantCase):
    """`S3VariantStore.lookup`"""

    def test_found(self) -> None:
        """A lookup returns the size, headers and ETag of a variant."""
        for kept in (HEADERS, HEADERS_WITH_DISPOSITION):
            headers = {"Content-Type": kept.content_type, "Cache-Control": kept.cache_control}
            if kept.content_disposition is not None:
                headers["Content-Disposition"] = kept.content_disposition
            found = self.looked_up(reply(200, length=1234, headers=headers | {"ETag": '"abc"'}))
            assert found is not None
            self.assertEqual((found.size, found.headers, found.etag), (1234, kept, '"abc"'))
            found.close()
        self.assertEqual(self.network.requests[-1].target, f"/bucket/{KEY}")

    def test_found_without_headers(self) -> None:
        """A variant without stored headers is served as octet-stream with ``no-store``."""
        found = self.looked_up(reply(200, length=5))
        assert found is not None
        self.assertEqual(found.headers, VariantHeaders("application/octet-stream", "no-store"))

    def test_missing(self) -> None:
        """A missing and a denied object are a miss, and are not logged."""
        for status in (404, 403):
            self.assertIsNone(self.looked_up(reply(status)))
        self.assertEqual(self.lines(), [])

    def test_of_no_length(self) -> None:
        """An object without a length, or with length 0, is a miss."""
        for response in (reply(200, length=0), reply_without_length(200)):
            self.assertIsNone(self.looked_up(response))

    def test_broken(self) -> None:
        """A lookup in a failing store raises an error and is logged; it is not a miss."""
        for status, refusal in (
            (500, UpstreamUnavailable),
            (503, UpstreamUnavailable),
            (429, UpstreamUnavailable),
            (301, NotConfigured),
        ):
            self.log.events.clear()
            self.network.scripts.append(reply(status))
            self.error_of(self.variants.lookup(KEY), refusal)
            self.assertEqual(
                self.lines(), [f"a lookup in the variant store failed: status {status}"]
            )

    def test_unreachable(self) -> None:
        """A lookup in a store that cannot be reached is a 502."""
        self.network.refusal = ConnectionRefusedError()
        looking = self.begin(self.variants.lookup(KEY))
        self.network.advance(1)
        self.exactly(looking, UpstreamUnavailable)


class OpenRangeTests(VariantCase):
    """`StoredObject.open_range`"""

    def send(self, *packets: bytes, start: int = 0, stop: int = 5) -> Deferred[None]:
        """Start to send a range of a variant to a consumer."""
        found = self.stored(9)
        self.network.scripts.append(packets)
        flow = self.result_of(found.open_range(start, stop))
        self.consumer = FakeConsumer()
        sending = flow.send(self.consumer)
        self.network.run()
        return sending

    def test_bytes(self) -> None:
        """The requested range of the object that was found is fetched with If-Match and sent."""
        sending = self.send(part(length=4, first=1), b"ello", start=1, stop=5)
        self.successResultOf(sending)
        self.assertEqual(bytes(self.consumer.data), b"ello")
        asked = self.network.requests[-1]
        self.assertEqual((asked.method, asked.target), ("GET", f"/bucket/{KEY}"))
        self.assertEqual(asked.headers["range"], "bytes=1-4")
        self.assertEqual(asked.headers["if-match"], '"abc"')
        self.assertTrue(is_signed(asked, SECRET))

    def test_without_a_tag(self) -> None:
        """Without an ETag, the range is requested without If-Match."""
        found = self.stored(tag=None)
        self.network.scripts.append(part(b"hello"))
        flow = self.result_of(found.open_range(0, 5))
        self.assertNotIn("if-match", self.network.requests[-1].headers)
        flow.send(FakeConsumer())
        self.network.run()

    def test_refused(self) -> None:
        """If a variant that was found cannot be read, it is a 502 or 500, and is logged."""
        for status, refusal in (
            (404, UpstreamUnavailable),
            (403, UpstreamUnavailable),
            (412, UpstreamUnavailable),
            (416, UpstreamUnavailable),
            (503, UpstreamUnavailable),
            (200, UpstreamUnavailable),
            (301, NotConfigured),
        ):
            found = self.stored()
            self.log.events.clear()
            self.network.scripts.append(reply(status))
            self.error_of(found.open_range(0, 5), refusal)
            self.assertEqual(self.lines(), [f"a stored variant cannot be read: status {status}"])

    def test_breaks_off(self) -> None:
        """A body that breaks off is a 502 and is logged; it does not count as complete."""
        for packets in (
            (part(length=5), b"hell"),
            (reply_without_length(206, b"", FIVE_BYTE_RANGE), b"hell"),
        ):
            for end in (Peer.close, Peer.reset):
                self.log.events.clear()
                sending = self.send(*packets)
                end(self.network.peers[-1])
                self.network.run()
                self.exactly(sending, UpstreamUnavailable)
                self.assertTrue(
                    self.lines()[0].startswith("the transfer of a stored variant failed: ")
                )
                self.assertEqual(self.consumer.calls[-1], "unregistered")

    def test_another_length(self) -> None:
        """A body of another length than requested is a 502."""
        for packets in ((part(b"hell"),), (part(length=6), b"hello, ")):
            self.exactly(self.send(*packets), UpstreamUnavailable)

    def test_stalls(self) -> None:
        """A body without progress for thirty seconds is a 502."""
        sending = self.send(part(length=5), b"hell")
        self.network.advance(30)
        self.exactly(sending, UpstreamUnavailable)

    def test_gone(self) -> None:
        """If the client leaves, the request to the store is aborted, and nothing is logged."""
        sending = self.send(part(length=5), b"hell")
        self.consumer.disconnect()
        self.network.run()
        self.exactly(sending, ConsumerGone)
        self.assertEqual(self.lines(), [])
        self.assertTrue(self.network.peers[-1].aborted)

    def test_cancelled(self) -> None:
        """Cancelling a body aborts the request to the store."""
        sending = self.send(part(length=5), b"hell")
        sending.cancel()
        self.network.run()
        self.failureResultOf(sending, ConsumerGone, CancelledError)
        self.assertTrue(self.network.peers[-1].aborted)

    def test_never_sent(self) -> None:
        """Discarding a body that was never sent closes its connection."""
        found = self.stored()
        self.network.scripts.append((part(length=5), b"hello"))
        self.result_of(found.open_range(0, 5)).discard()
        self.network.run()
        self.assertTrue(self.network.peers[-1].closed)

    def test_presigned(self) -> None:
        """A presigned URL is valid for the given seconds, and for seven days at most."""
        found = self.stored()
        for seconds, lifetime in (
            (1, 1),
            (300, 300),
            (MAX_PRESIGN_SECONDS, MAX_PRESIGN_SECONDS),
            (MAX_PRESIGN_SECONDS + 1, MAX_PRESIGN_SECONDS),
        ):
            url = found.presign(seconds)
            query = parse_qs(urlsplit(url).query)
            self.assertEqual(query["X-Amz-Expires"], [str(lifetime)])
            self.assertEqual(query["X-Amz-Security-Token"], [TOKEN])
            self.assertTrue(url.startswith(f"http://s3.test/bucket/{KEY}?"))
            self.assertTrue(is_presigned("GET", url, SECRET))


class CommitCase(VariantCase):
    """Commits of variants to the bucket."""

    def create(self, data: bytes) -> HashingScratchFile:
        """Return a scratch file with this rendered output."""
        scratch = self.result_of(self.variants.create(10))
        os.write(scratch.descriptor, data)
        scratch.grown(len(data))
        return scratch

    def commit(
        self,
        data: bytes = b"hello",
        headers: VariantHeaders = HEADERS,
        size: int | None = None,
    ) -> Deferred[None]:
        """Start to commit a variant, then run the threads and the network."""
        scratch = self.create(data)
        size = len(data) if size is None else size
        committing = self.begin(self.variants.commit(KEY, scratch, size, headers))
        self.threads.run()
        self.network.run()
        committing.addBoth(self.close_file, scratch)
        return committing

    def close_file(self, outcome: Any, scratch: HashingScratchFile) -> Any:
        """Close the scratch file after a commit, as a render does."""
        scratch.close()
        return outcome


class CommitTests(CommitCase):
    """`S3VariantStore.commit`"""

    def test_written(self) -> None:
        """The object has the variant's bytes and headers.

        The signature covers the SHA-256 of the bytes.
        """
        data = os.urandom(200_000)
        for kept in (HEADERS, HEADERS_WITH_DISPOSITION):
            self.network.scripts.append(reply(200))
            self.successResultOf(self.commit(data, kept))
            put = self.network.requests[-1]
            self.assertEqual((put.method, put.target), ("PUT", f"/bucket/{KEY}"))
            self.assertEqual(put.body, data)
            self.assertEqual(put.headers["content-type"], kept.content_type)
            self.assertEqual(put.headers["cache-control"], kept.cache_control)
            self.assertEqual(put.headers.get("content-disposition"), kept.content_disposition)
            digest = hashlib.sha256(data).hexdigest()
            self.assertEqual(put.headers["x-amz-content-sha256"], digest)
            self.assertTrue(is_signed(put, SECRET))

    def test_too_many(self) -> None:
        """If too many uploads are in progress, a commit fails, to save disk space (D35)."""
        self.patch(s3_module, "_MAX_UPLOADS", 1)
        slow = self.commit()
        scratch = self.create(b"hello")
        self.failureResultOf(self.begin(self.variants.commit(KEY, scratch, 5, HEADERS)), OSError)
        scratch.close()
        self.threads.run()
        self.network.peers[-1].send(reply(200))
        self.network.run()
        self.successResultOf(slow)
        self.network.scripts.append(reply(200))
        self.successResultOf(self.commit())

    def test_only_what_was_rendered(self) -> None:
        """Bytes after the given size are not stored."""
        self.network.scripts.append(reply(200))
        scratch = self.result_of(self.variants.create(10))
        os.write(scratch.descriptor, b"hello, and more")
        committing = self.begin(self.variants.commit(KEY, scratch, 5, HEADERS))
        self.threads.run()
        self.network.run()
        self.successResultOf(committing)
        scratch.close()
        self.assertEqual(self.network.requests[-1].body, b"hello")

    def test_parts(self) -> None:
        """A variant that is larger than one part is uploaded in several parts."""
        self.variants = self.make(part_size=1000)
        for size, parts in ((999, 0), (1000, 0), (1001, 2), (2000, 2), (2001, 3)):
            self.network.requests.clear()
            tagged = reply(200, headers={"ETag": '"tag"'})
            begun = reply(200, b"<UploadId>upload</UploadId>")
            complete = reply(200, b"<CompleteMultipartUploadResult/>")
            self.network.scripts[:] = (
                [begun, *[tagged] * parts, complete] if parts else [reply(200)]
            )
            data = os.urandom(size)
            self.successResultOf(self.commit(data))
            puts = [each for each in self.network.requests if each.method == "PUT"]
            self.assertEqual(b"".join(put.body for put in puts), data)
            self.assertEqual(len(puts), parts or 1)
            for put in puts:
                digest = hashlib.sha256(put.body).hexdigest()
                self.assertEqual(put.headers["x-amz-content-sha256"], digest)

    def test_foreign_scratch(self) -> None:
        """Committing a scratch file of another store raises TypeError."""
        scratch = AnonymousFile()
        self.error_of(self.variants.commit(KEY, scratch, 0, HEADERS), TypeError)
        scratch.close()

    def test_short_file(self) -> None:
        """A file that is shorter than the given size is not stored."""
        failure = self.failureResultOf(self.commit(b"hell", size=5))
        self.assertIsInstance(failure.value, EOFError | OSError)
        self.assertEqual(self.network.requests, [])

    def test_nothing(self) -> None:
        """An empty file is not stored, since a lookup would treat the object as a miss."""
        self.failureResultOf(self.commit(b""))
        self.assertEqual(self.network.requests, [])

    def test_cancelled(self) -> None:
        """A cancelled commit aborts its request, so that no object is created."""
        committing = self.commit()
        self.assertNoResult(committing)
        committing.cancel()
        self.network.run()
        self.exactly(committing, CancelledError)
        self.assertTrue(self.network.peers[-1].aborted)


class RetryTests(CommitCase):
    """`S3VariantStore.commit`: one retry after a temporary failure."""

    def close_connection(self, peer: Peer, _: Request) -> None:
        """Close the connection without a response."""
        peer.close()

    def test_retried_once(self) -> None:
        """A commit is retried after a second if the store was busy or closed the connection."""
        for response in (reply(503), reply(500), reply(429), reply(409), self.close_connection):
            self.network.requests.clear()
            self.network.scripts[:] = [response, reply(200)]
            committing = self.commit()
            self.network.advance(0.9)
            self.assertNoResult(committing)
            self.assertEqual(len(self.network.requests), 1)
            self.network.advance(0.1)
            self.successResultOf(committing)
            self.assertEqual([each.body for each in self.network.requests], [b"hello"] * 2)

    def test_unreachable(self) -> None:
        """A commit is retried after a second if the store refused the connection."""
        self.network.refusal = ConnectionRefusedError()
        committing = self.commit()
        self.network.advance(0.5)
        self.network.refusal = None
        self.network.scripts.append(reply(200))
        self.network.advance(1)
        self.successResultOf(committing)

    def test_not_twice(self) -> None:
        """A commit is retried only once."""
        self.network.scripts += [reply(503), reply(500)]
        committing = self.commit()
        self.network.advance(1)
        self.assertEqual(str(self.exactly(committing, Unavailable)), "status 500")
        self.network.advance(60)
        self.assertEqual(len(self.network.requests), 2)

    def test_permanent_error_not_retried(self) -> None:
        """A commit is not retried after a permanent error."""
        kinds: list[tuple[int, type[StoreError]]] = [
            (403, Denied),
            (404, Missing),
            (301, WrongEndpoint),
        ]
        for status, kind in kinds:
            self.network.requests.clear()
            self.network.scripts.append(reply(status))
            self.exactly(self.commit(), kind)
            self.network.advance(60)
            self.assertEqual(len(self.network.requests), 1)

    def test_retry_fails(self) -> None:
        """If the retry fails, the commit fails with the second error."""
        self.network.scripts += [reply(503), reply(403, error("AccessDenied"))]
        committing = self.commit()
        self.network.advance(1)
        self.exactly(committing, Denied)

    def test_parts(self) -> None:
        """A retry of an upload in parts aborts the upload and starts again."""
        self.variants = self.make(part_size=3)
        begun = reply(200, b"<UploadId>upload</UploadId>")
        tagged = reply(200, headers={"ETag": '"tag"'})
        complete = reply(200, b"<CompleteMultipartUploadResult/>")
        self.network.scripts += [begun, reply(503), reply(204), begun, tagged, tagged, complete]
        committing = self.commit()
        self.network.advance(1)
        self.successResultOf(committing)
        methods = [each.method for each in self.network.requests]
        self.assertEqual(methods, ["POST", "PUT", "DELETE", "POST", "PUT", "PUT", "POST"])

    def test_cancelled_in_between(self) -> None:
        """A commit that is cancelled before its retry ends at once."""
        self.network.scripts.append(reply(503))
        committing = self.commit()
        committing.cancel()
        self.exactly(committing, CancelledError)
        self.network.advance(60)
        self.assertEqual(len(self.network.requests), 1)


class CreateTests(CommitCase):
    """`S3VariantStore.create`"""

    def test_closed(self) -> None:
        """A scratch file that is closed without a commit sends no request."""
        self.create(b"hello").close()
        self.threads.run()
        self.assertEqual(self.network.requests, [])

    def test_no_room(self) -> None:
        """If no disk space is left, `create` raises OSError."""

        class Full:
            async def create(self, seconds: float) -> AnonymousFile:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        self.variants = S3VariantStore(
            self.store, "bucket", Full(), self.network, self.threads.in_thread
        )
        failure = self.error_of(self.variants.create(10), OSError)
        self.assertEqual(failure.errno, errno.ENOSPC)

    def test_no_thread(self) -> None:
        """If no thread can be started, `create` raises OSError and leaves no file open."""

        def no_thread(work: Callable[[], Any]) -> Deferred[Any]:
            raise OSError(errno.EAGAIN, "can't start new thread")

        self.variants = S3VariantStore(
            self.store, "bucket", AnonymousSpace(), self.network, no_thread
        )
        failure = self.failureResultOf(self.begin(self.variants.create(10)), OSError)
        self.assertEqual(failure.value.errno, errno.EAGAIN)


class LogTests(CommitCase):
    """Log events, and secrets that no event may contain."""

    def test_secrets(self) -> None:
        """No log event contains a secret or a signature."""
        self.stored().presign(60)
        for status in (403, 503, 301):
            self.network.scripts[:] = [reply(status)] * 3
            looking = self.begin(self.variants.lookup(KEY))
            looking.addErrback(lambda failure: None)
            committing = self.commit()
            self.network.advance(1)
            committing.addErrback(lambda failure: None)
            self.network.scripts.clear()
            found = self.stored()
            self.network.scripts.append(reply(status))
            self.begin(found.open_range(0, 5)).addErrback(lambda failure: None)
        self.assertTrue(self.log.events)
        for event in self.log.events:
            for text in (repr(event), str(formatEvent(event))):
                for secret in (SECRET, TOKEN, "Signature="):
                    self.assertNotIn(secret, text)
        self.assertEqual(self.log.errors, [])
