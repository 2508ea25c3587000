"""Object stores: object URLs, requests, and the meaning of each error response."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import S3Config
from audioproxy.errors import NotConfigured, NotFound, UpstreamUnavailable
from audioproxy.http_client.client import Response
from audioproxy.http_client.ranges import ByteRange
from audioproxy.s3.errors import (
    Busy,
    Changed,
    Denied,
    InvalidName,
    Missing,
    NotAStore,
    StoreError,
    Unavailable,
    Unreachable,
    WrongEndpoint,
    read_document,
)
from audioproxy.s3.objects import ObjectStore, StoreObject, UploadRange
from tests.support.strategies import DETERMINISTIC
from tests.support.wire import (
    Peer,
    Request,
    RetryCase,
    chunk,
    error,
    is_presigned,
    is_signed,
    reply,
    reply_without_length,
)

ACCESS_KEY, SECRET = "AKIAEXAMPLE", "a/secret+of+forty+characters"

#: Start of a response whose body follows in chunks.
CHUNKED = reply_without_length(200, b"", {"Transfer-Encoding": "chunked"})


def settings(endpoint: str | None, addressing: str, region: str = "us-east-1") -> S3Config:
    """Return the settings of a store, with credentials."""
    return S3Config(
        endpoint=endpoint,
        addressing=addressing,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET,
        region=region,
    )


class StoreCase(RetryCase):
    """Store whose responses a test chooses."""

    def store(self, endpoint: str = "http://s3.test:9000", addressing: str = "path") -> ObjectStore:
        """Return a store."""
        return ObjectStore(settings(endpoint, addressing), self.client)

    @property
    def target(self) -> StoreObject:
        """Object in the store."""
        return self.store().object("bucket", b"key")

    @property
    def last(self) -> Request:
        """Last request that the store received."""
        return self.network.requests[-1]


class AddressTests(SynchronousTestCase):
    """The method `ObjectStore.object`."""

    def url(
        self, endpoint: str | None, addressing: str, bucket: str, key: bytes, **more: str
    ) -> str:
        """Return the URL of an object."""
        store = ObjectStore(settings(endpoint, addressing, **more), None)  # type: ignore[arg-type]
        url = store.object(bucket, key).url
        # A presigned URL has the same host and path.
        self.assertTrue(store.object(bucket, key).presign(60).startswith(f"{url}?X-Amz-"))
        return url

    def test_addressing(self) -> None:
        """The bucket precedes the key in the path, or the host name with virtual addressing."""
        for endpoint, addressing, url in (
            ("http://s3.test", "path", "http://s3.test/bucket/a/b"),
            ("https://s3.test:9000", "path", "https://s3.test:9000/bucket/a/b"),
            ("http://[::1]:9000", "path", "http://[::1]:9000/bucket/a/b"),
            ("http://s3.test", "virtual", "http://bucket.s3.test/a/b"),
            ("https://s3.test:9000", "virtual", "https://bucket.s3.test:9000/a/b"),
        ):
            self.assertEqual(self.url(endpoint, addressing, "bucket", b"a/b"), url)

    def test_default_provider(self) -> None:
        """Without an endpoint the host is AWS's for the region, in both addressing styles.

        The name of a store is its origin.
        """
        hosts = {
            "us-east-1": "s3.us-east-1.amazonaws.com",
            "eu-central-1": "s3.eu-central-1.amazonaws.com",
            "cn-north-1": "s3.cn-north-1.amazonaws.com.cn",
        }
        for addressing, url in (
            ("path", "https://{}/my-bucket/a"),
            ("virtual", "https://my-bucket.{}/a"),
        ):
            found = {
                region: self.url(None, addressing, "my-bucket", b"a", region=region)
                for region in hosts
            }
            self.assertEqual({region: url.format(host) for region, host in hosts.items()}, found)
        for endpoint in ("http://s3.test:9000", None):
            store = ObjectStore(settings(endpoint, "path"), None)  # type: ignore[arg-type]
            self.assertEqual(store.name, endpoint or "https://s3.us-east-1.amazonaws.com")

    def test_virtual(self) -> None:
        """Virtual addressing with an IP address as the endpoint raises ValueError.

        A bucket that cannot be part of a host name raises Missing.
        """
        for endpoint in ("http://127.0.0.1:9000", "https://[::1]", "http://[2001:db8::1]:9000"):
            self.assertRaises(ValueError, self.url, endpoint, "virtual", "bucket", b"a")
            self.url(endpoint, "path", "bucket", b"a")
        for bucket in ("Bucket", "my_bucket", "a..b", ".a", "a.", "-a", "a-", "a.-b", "a-.b"):
            self.assertRaises(Missing, self.url, "http://s3.test", "virtual", bucket, b"a")
            self.url("http://s3.test", "path", bucket, b"a")
        for bucket in ("bucket", "my.bucket.1", "a", "0", "a--b", "x" * 63):
            self.url("http://s3.test", "virtual", bucket, b"a")

    def test_keys(self) -> None:
        """A key is percent-encoded except for slashes and unreserved characters (RFC 3986).

        Dot segments and empty segments are kept.
        """
        paths = {
            b"/a//b/": "/a//b/",
            b"..": "..",
            b"../../etc/passwd": "../../etc/passwd",
            b"./a/./..": "./a/./..",
            b"a b+c": "a%20b%2Bc",
            b"100%/%2F": "100%25/%252F",
            b"?a=b#c": "%3Fa%3Db%23c",
            b"a;b|c:d@e": "a%3Bb%7Cc%3Ad%40e",
            b"-_.~": "-_.~",
            "é".encode(): "%C3%A9",
            b"\x00\r\n\xff": "%00%0D%0A%FF",
        }
        for addressing, prefix in (("path", "http://s3.test/b/"), ("virtual", "http://b.s3.test/")):
            found = {key: self.url("http://s3.test", addressing, "b", key) for key in paths}
            self.assertEqual({key: prefix + path for key, path in paths.items()}, found)
        every_byte = bytes(range(256))
        path = urlsplit(self.url("http://s3.test", "virtual", "b", every_byte)).path
        self.assertEqual(unquote_to_bytes(path), b"/" + every_byte)


class RequestTests(StoreCase):
    """Requests that the store receives."""

    def assert_signed(self, store: ObjectStore, key: bytes) -> None:
        """Require valid signatures for a request and for a presigned URL of an object."""
        self.network.scripts.append(reply(200, length=5))
        target = store.object("bucket", key)
        self.result_of(target.find())
        self.assertTrue(is_signed(self.last, SECRET), self.last)
        url = urlsplit(target.url)
        self.assertEqual((self.last.headers["host"], self.last.target), (url.netloc, url.path))
        self.assertTrue(is_presigned("GET", target.presign(60), SECRET))

    def test_session(self) -> None:
        """A session token is sent with every request."""
        given = S3Config("http://s3.test", "path", None, ACCESS_KEY, SECRET, "token", "us-east-1")
        self.assert_signed(ObjectStore(given, self.client), b"key")
        self.assertEqual(self.last.headers["x-amz-security-token"], "token")

    @DETERMINISTIC
    @given(
        st.binary(min_size=1, max_size=40),
        st.sampled_from(["path", "virtual"]),
        st.sampled_from(["http://s3.test", "http://s3.test:9000", "http://a-b.s3.test"]),
    )
    @example(bytes(range(256)), "path", "http://[2001:db8::1]:9000")
    @example(bytes(range(256)), "virtual", "http://s3.test:9000")
    @example(b"./a/../b//c", "virtual", "http://s3.test")
    def test_any_key(self, key: bytes, addressing: str, endpoint: str) -> None:
        """Signatures are valid for any key, and cover host and path as sent."""
        self.assert_signed(self.store(endpoint, addressing), key)

    def test_get(self) -> None:
        """GET of a range sends Range, and If-Match if the ETag is known and strong."""
        for tag, expected in (('"abc"', '"abc"'), ('W/"abc"', None), (None, None)):
            self.network.scripts.append(reply(206, b"hello", {"Content-Range": "bytes 5-9/20"}))
            response = self.result_of(self.target.get(5, 10, tag))
            self.assertEqual(self.last.headers["range"], "bytes=5-9")
            self.assertEqual(self.last.headers.get("if-match"), expected)
            self.assertTrue(is_signed(self.last, SECRET))
            self.assertEqual(self.result_of(response.read(5)), b"hello")

    def test_put(self) -> None:
        """PUT sends headers, body and the body's SHA-256, with a valid signature."""
        self.network.scripts.append(reply(200))
        data = bytes(range(256)) * 1000
        self.result_of(self.target.put({"content-type": "audio/mpeg"}, UploadRange.of(data)))
        self.assertEqual((self.last.method, self.last.body), ("PUT", data))
        self.assertEqual(self.last.headers["content-type"], "audio/mpeg")
        digest = hashlib.sha256(data).hexdigest()
        self.assertEqual(self.last.headers["x-amz-content-sha256"], digest)
        self.assertTrue(is_signed(self.last, SECRET))

    def test_delete_and_query(self) -> None:
        """DELETE and requests with a query go to the object's path, unchanged and signed."""
        part = "partNumber=1&uploadId=a%2Fb%3D"
        for operation, sent in (
            (self.target.delete(), "DELETE /bucket/key"),
            (self.target.send("POST", "uploads="), "POST /bucket/key?uploads="),
            (self.target.send("POST", part), f"POST /bucket/key?{part}"),
        ):
            self.network.scripts.append(reply(204))
            self.result_of(operation)
            self.assertEqual(f"{self.last.method} {self.last.target}", sent)
            self.assertTrue(is_signed(self.last, SECRET), sent)


#: Status, error code, and the exception that they raise.
REFUSALS: list[tuple[int, str, type[StoreError]]] = [
    (status, code, kind)
    for kind, status, codes in (
        (Missing, 404, ("NoSuchKey", "NoSuchBucket", "")),
        (InvalidName, 400, ("InvalidBucketName", "InvalidURI", "KeyTooLongError", "KeyTooLong")),
        (InvalidName, 400, ("InvalidObjectName", "XMinioInvalidObjectName", "InvalidArgument")),
        (InvalidName, 400, ("InvalidKey", "InvalidPath", "XAmzContentSHA256Mismatch")),
        (Busy, 400, ("BadDigest", "IncompleteBody", "RequestTimeout")),
        (Denied, 403, ("AccessDenied", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "")),
        (Denied, 401, ("",)),
        (Denied, 400, ("ExpiredToken", "InvalidToken", "InvalidAccessKeyId")),
        (WrongEndpoint, 400, ("AuthorizationHeaderMalformed", "SomethingNew", "")),
        (WrongEndpoint, 301, ("PermanentRedirect",)),
        (WrongEndpoint, 307, ("TemporaryRedirect",)),
        (WrongEndpoint, 302, ("",)),
        (WrongEndpoint, 405, ("MethodNotAllowed",)),
        (Unavailable, 409, ("OperationAborted",)),
        (Changed, 412, ("PreconditionFailed",)),
        (Changed, 416, ("InvalidRange",)),
        (Unavailable, 501, ("NotImplemented",)),
        (Busy, 500, ("InternalError",)),
        (Busy, 503, ("SlowDown",)),
        *((Busy, status, ("",)) for status in (408, 425, 429, 502, 503, 504)),
    )
    for code in codes
]


#: Bytes, and sequences of parts of error documents.
DOCUMENTS = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"<Error>", b"<Code>", b"</Code>", b"\xff", b"a", b"&amp;", b"\n"])
).map(b"".join)


class ClockTests(StoreCase):
    """The property `ObjectStore.clock_ahead`."""

    def test_unknown(self) -> None:
        """`clock_ahead` is None before a response, and for a missing or invalid Date."""
        store = self.store()
        self.assertIsNone(store.clock_ahead)
        for date in ({}, {"Date": "yesterday"}, {"Date": "Sat, 21 Nov 2026 12:00:00 -0000"}):
            self.network.scripts.append(reply(204, headers=date))
            self.result_of(store.object("bucket", b"key").delete())
            self.assertIsNone(store.clock_ahead, date)

    def test_known(self) -> None:
        """`clock_ahead` follows the last response, whether it is a success or an error."""
        store, now = self.store(), datetime.now(UTC)
        for status, ahead in ((204, 600), (403, -1200)):
            date = {"Date": format_datetime(now - timedelta(seconds=ahead), usegmt=True)}
            self.network.scripts.append(reply(status, headers=date))
            self.begin(store.object("bucket", b"key").delete()).addErrback(lambda _: None)
            assert store.clock_ahead is not None
            self.assertAlmostEqual(ahead, store.clock_ahead, delta=60)


class RefusalTests(StoreCase):
    """Error responses of a store."""

    def operations(self, status: int) -> list[Coroutine[Any, Any, Any]]:
        """Return one call of each operation that refuses a status."""
        put = self.target.put({}, UploadRange.of(b"hello"))
        found = [] if status == 416 else [self.target.find()]
        return [self.target.get(0, 5, None), put, self.target.delete(), *found]

    def test_refusals(self) -> None:
        """Each status and code raises one exception in all operations, which names both.

        Each exception maps to one refusal; missing and forbidden objects map to the same. Redirects
        are not followed, since the signature is not valid for another host.
        """
        for status, code, kind in REFUSALS:
            for operation in self.operations(status):
                document = error(code) if code else b""
                self.network.scripts[:] = [reply(status, document)] * (2 if kind is Busy else 1)
                refused = self.error_of(operation, kind)
                self.assertEqual(str(refused), f"status {status}{f', {code}' if code else ''}")
        self.assertEqual(
            [kind.refusal for kind in (Missing, Denied, WrongEndpoint, Unavailable, Busy)],
            [NotFound, NotFound, NotConfigured, UpstreamUnavailable, UpstreamUnavailable],
        )

    def test_refused_connection(self) -> None:
        """An unreachable store raises Unavailable with the store's origin and the cause."""
        self.network.refusal = ConnectionRefusedError()
        refused = self.error_of(self.target.find(), Unreachable)
        self.assertIn("http://s3.test:9000 is unreachable", str(refused))
        self.assertIn("refused", str(refused))

    def test_cancelled(self) -> None:
        """A cancelled request raises CancelledError and not a store error."""
        fetching = self.begin(self.target.find())
        fetching.cancel()
        self.network.run()
        self.exactly(fetching, CancelledError)

    def test_another_range(self) -> None:
        """A 200 raises Unavailable, and a 206 with another range Changed; no body is read.

        A 200 with another range than the requested one has the whole object.
        """
        another = "not have the range that was requested"
        for status, stated, message in (
            (200, "bytes 5-8/20", "status 200"),
            (206, "", another),
            (206, "bytes 0-4/20", another),
            (206, "bytes 5-99/100", another),
        ):
            headers = {"Content-Range": stated}
            self.network.scripts.append((reply(status, b"", headers, 10**9), b"x" * 1000))
            kind = Unavailable if status == 200 else Changed
            refused = self.error_of(self.target.get(5, 10, None), kind)
            self.assertIn(message, str(refused))
            self.network.run()
            self.assertTrue(self.peer.aborted, (status, stated))

    def test_broken_error_document(self) -> None:
        """An error document that breaks off does not change the meaning of the status.

        A huge one is not read to its end.
        """
        for packets in (
            (reply(404, length=100), b"<Error><Code>NoSu"),
            (reply_without_length(404), error("NoSuchKey")),
            (reply_without_length(404, b"", {"Transfer-Encoding": "chunked"}), b"zz\r\n"),
        ):
            self.network.scripts.append(packets)
            fetching = self.begin(self.target.get(0, 5, None))
            self.peer.close()
            self.network.run()
            self.exactly(fetching, Missing)
        body = error("NoSuchKey") + b" " * 10**6
        self.network.scripts.append((reply(404, length=len(body)), body))
        self.error_of(self.target.get(0, 5, None), Missing)
        self.network.run()
        self.assertGreater(self.peer.unread, 10**5)

    @DETERMINISTIC
    @given(st.sampled_from(REFUSALS), DOCUMENTS)
    def test_any_error_document(
        self, refusal: tuple[int, str, type[StoreError]], document: bytes
    ) -> None:
        """Any error document results in an exception that fits the status."""
        status = refusal[0]
        self.network.scripts[:] = [reply(status, document)]
        refused = self.begin(self.target.delete())
        kinds = {kind for number, _, kind in REFUSALS if number == status}
        self.assertIn(type(self.failureResultOf(refused).value), kinds)


class FindTests(StoreCase):
    """The methods `StoreObject.find` and `StoreObject.get_start`."""

    def test_start(self) -> None:
        """The first bytes are requested, and returned unread with the size of the object.

        A store without ranges sends the whole object. An empty object has no range.
        """
        start, empty = ByteRange(0, 4, 20), error("InvalidRange")
        for response, size, found, body in (
            (reply(206, b"hello", {"Content-Range": "bytes 0-4/20"}), 20, start, b"hello"),
            (reply(200, b"hello", {"Content-Range": "bytes 0-4/20"}), 20, start, b"hello"),
            (reply(206, b"hello", {"Content-Range": "bytes 0-4/*"}), None, start, b"hello"),
            (reply(200, b"hello, world"), 12, None, b"hello, world"),
            (reply(200), 0, None, b""),
            (reply(416, empty), 0, None, empty),
        ):
            self.network.scripts.append(response)
            stated, received = self.result_of(self.target.get_start(5))
            expected = found and replace(found, total=size)
            self.assertEqual((size, expected), (stated, received.range))
            self.assertEqual(body, self.result_of(received.read(1000)))
            self.assertEqual((self.last.method, self.last.headers["range"]), ("GET", "bytes=0-4"))
            self.assertTrue(is_signed(self.last, SECRET))

    def test_found(self) -> None:
        """`find` requests the first byte, and reads no whole object that a store sends instead."""
        part = {"ETag": '"abc"', "Content-Range": "bytes 0-0/5"}
        for response, size, closed in (
            (reply(206, b"x", part), 5, False),
            (reply(200, length=10**9, headers=part), 10**9, True),
        ):
            self.network.scripts.append(response)
            found, received = self.result_of(self.target.find())
            self.network.run()
            self.assertEqual((found, received.header("etag")), (size, '"abc"'))
            self.assertEqual("bytes=0-0", self.last.headers["range"])
            self.assertIs(closed, self.peer.closed)

    def test_errors(self) -> None:
        """Another success than those of a read is an error.

        A 400 for a key with NUL means missing, whatever its code.
        """
        for status in (201, 202, 204):
            self.network.scripts.append(reply(status))
            refused = self.error_of(self.target.find(), Unavailable)
            self.assertNotRegex(str(refused), "^status 2")
        self.network.scripts.append(reply(400))
        self.error_of(self.store().object("bucket", b"a\0b").find(), Missing)
        self.assertEqual(len(self.network.requests), 4)


class RetryTests(StoreCase):
    """Lookups and reads of a store that is busy"""

    def test_busy(self) -> None:
        """A store that is busy, or closes the connection, is asked again after a second."""
        found = reply(206, b"x", {"ETag": '"abc"', "Content-Range": "bytes 0-0/1"})
        slow_down = reply(503, error("SlowDown"))

        def reset(peer: Peer, _: object) -> None:
            peer.reset()

        get = partial(self.target.get, 0, 1, '"abc"')
        for attempt in (self.target.find, partial(self.target.get_start, 1), get):
            for busy in (slow_down, reply(429), reply(500), reset):
                self.result_of(self.client.close())
                self.client.open()
                self.network.requests.clear()
                self.network.scripts[:] = [busy, found]
                begun = self.begin(attempt())
                self.network.advance(0.9)
                self.assertNoResult(begun)
                self.network.advance(0.1)
                self.successResultOf(begun)
                self.assertEqual(len(self.network.requests), 2)

    def test_retry_after(self) -> None:
        """The second attempt follows after Retry-After, and within five seconds.

        An error has the seconds that the store states.
        """
        for text, seconds in (("0", 1), ("1", 1), ("3", 3), ("600", 5), ("soon", 1)):
            busy = reply(503, error("SlowDown"), {"Retry-After": text})
            self.network.scripts[:] = [busy, busy]
            begun = self.begin(self.target.find())
            self.network.advance(seconds - 0.1)
            self.assertNoResult(begun)
            self.network.advance(0.1)
            stated = float(text) if text.isdigit() else None
            self.assertEqual(stated, self.exactly(begun, Busy).retry_after)

    def test_busy_for_long(self) -> None:
        """There is one more attempt; it counts whether it fails or not.

        Other errors are not followed by another attempt.
        """
        for last, kind in ((reply(503), Busy), (reply(404), Missing)):
            self.network.scripts[:] = [reply(503), last]
            self.error_of(self.target.find(), kind)
            self.assertEqual([], self.network.scripts)
        for status, kind in {404: Missing, 403: Denied, 412: Changed, 301: WrongEndpoint}.items():
            self.network.scripts.append(reply(status))
            self.exactly(self.begin(self.target.find()), kind)

    def test_slow(self) -> None:
        """A store that takes more than five seconds to fail is not asked again."""
        for seconds, again in ((5, True), (5.1, False)):
            begun = self.begin(self.target.find())
            self.network.advance(seconds)
            self.network.peers[-1].send(reply(503))
            self.network.run()
            self.assertIs(again, not begun.called)
            self.network.scripts.append(reply(404))
            self.network.advance(1)
            self.exactly(begun, Missing if again else Busy)
            self.network.scripts.clear()


class ReadDocumentTests(StoreCase):
    """The function `read_document`."""

    def read(self, *packets: bytes) -> Deferred[bytes]:
        """Start to read a response."""
        self.network.scripts.append(packets)

        async def read() -> bytes:
            response: Response = await self.target.send("POST", "uploadId=a")
            return await read_document(response)

        return self.begin(read())

    def test_document(self) -> None:
        """The document of a success is returned if it has no error, even if it is not XML."""
        for status, document in (
            (204, b""),
            *((200, text) for text in (b"<A>\xc3\xa9</A>", b"", b"OK", b"\xff\xfe")),
            *((200, text) for text in (b'{"Error": 1}', b"Error & Code")),
            (200, b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
            (200, b"<CompleteMultipartUploadResult><ETag>"),
        ):
            reading = self.read(reply(status, document))
            self.assertEqual(self.successResultOf(reading), document)

    def test_error_behind_a_success(self) -> None:
        """An error document in a 200 response raises Unavailable with the code.

        Stores send 200 before they finish slow operations, and then report errors in the body.
        Errors are found in any spelling, and in truncated, malformed or malicious documents.
        """
        utf16 = '<?xml version="1.0" encoding="utf-16"?><Error><Code>A</Code></Error>'
        entity = b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><Error>&b;</Error>'
        no_code = "an error without a code"
        for document, code in (
            (error("InternalError"), "InternalError"),
            (b'<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Code>A</Code></Error>', "A"),
            (b'<s3:Error xmlns:s3="urn:s3"><s3:Code>SlowDown</s3:Code></s3:Error>', "SlowDown"),
            (b"<Error><Code><![CDATA[SlowDown]]></Code></Error>", "SlowDown"),
            (utf16.encode("utf-16"), "A"),
            (b"\xef\xbb\xbf<Error><Code>A</Code></Error>", "A"),
            (b"<Error><Code>A</Code><HostId>" + b"x" * 30_000 + b"</HostId></Error>", "A"),
            (b"<Error><Code>SlowDown</Code><Mess", "SlowDown"),
            (b"<?xml version='1.0' encoding='none'?><Error/>", no_code),
            (b"<a>" * 10_000 + b"<Error>", no_code),
            (entity, no_code),
        ):
            for packets in (
                [reply(200, document)],
                [CHUNKED, chunk(b" "), chunk(b"\n"), chunk(document), chunk(b"")],
            ):
                raised = self.exactly(self.read(*packets), Unavailable)
                self.assertEqual(code, str(raised), document[:60])

    def test_page(self) -> None:
        """A page in HTML is from another program than a store, whatever its status."""
        for page in (
            b"<!doctype html><title>We are back soon",
            b"\n<!-- a --><HTML lang=en><br><p>No Errors here",
            b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body/></html>',
        ):
            raised = self.exactly(self.read(reply(200, page)), NotAStore)
            self.assertEqual("the response is a page in HTML", str(raised))

    def test_slow_document(self) -> None:
        """A store may take minutes for a document if it sends a byte every ten seconds."""
        reading = self.read(CHUNKED)
        for _ in range(30):
            self.network.advance(10)
            self.network.peers[-1].send(chunk(b" "))
        self.network.run()
        self.assertNoResult(reading)
        self.network.peers[-1].send(chunk(b"<Done/>"), chunk(b""))
        self.network.run()
        self.assertEqual(self.successResultOf(reading).strip(), b"<Done/>")
