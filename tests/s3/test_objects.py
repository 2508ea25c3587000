"""Object stores: object URLs, requests, and the meaning of each error response."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from botocore import auth
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import S3Config
from audioproxy.errors import NotConfigured, NotFound, UpstreamUnavailable
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.s3.objects import (
    Denied,
    Missing,
    ObjectStore,
    StoreError,
    StoreObject,
    Unavailable,
    UploadRange,
    WrongEndpoint,
    read_document,
)
from tests.support.strategies import DETERMINISTIC
from tests.support.wire import (
    ClientCase,
    Network,
    Request,
    chunk,
    error,
    is_presigned,
    is_signed,
    reply,
    reply_without_length,
)

ACCESS_KEY, SECRET = "AKIAEXAMPLE", "a/secret+of+forty+characters"


def settings(endpoint: str | None, addressing: str, region: str = "us-east-1") -> S3Config:
    """Return the settings of a store, with credentials."""
    return S3Config(
        endpoint=endpoint,
        addressing=addressing,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET,
        region=region,
    )


class StoreCase(ClientCase):
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

    def test_path(self) -> None:
        """With path addressing the bucket precedes the key in the path."""
        for endpoint in ("http://s3.test", "https://s3.test:9000", "http://[::1]:9000"):
            url = self.url(endpoint, "path", "bucket", b"a/b.mp3")
            self.assertEqual(url, f"{endpoint}/bucket/a/b.mp3")

    def test_virtual(self) -> None:
        """With virtual addressing the bucket precedes the host name, with or without a port."""
        for endpoint, expected in (
            ("http://s3.test", "http://bucket.s3.test/a"),
            ("https://s3.test:9000", "https://bucket.s3.test:9000/a"),
        ):
            self.assertEqual(self.url(endpoint, "virtual", "bucket", b"a"), expected)

    def test_default_provider(self) -> None:
        """Without an endpoint the host is AWS's for the region, in both addressing styles."""
        for region, host in (
            ("us-east-1", "s3.us-east-1.amazonaws.com"),
            ("eu-central-1", "s3.eu-central-1.amazonaws.com"),
            ("us-gov-west-1", "s3.us-gov-west-1.amazonaws.com"),
            ("cn-north-1", "s3.cn-north-1.amazonaws.com.cn"),
            ("cn-northwest-1", "s3.cn-northwest-1.amazonaws.com.cn"),
        ):
            for addressing, url in (
                ("path", f"https://{host}/my-bucket/a"),
                ("virtual", f"https://my-bucket.{host}/a"),
            ):
                found = self.url(None, addressing, "my-bucket", b"a", region=region)
                self.assertEqual(found, url)

    def test_name(self) -> None:
        """The name of a store is its origin."""
        for endpoint in ("http://s3.test:9000", None):
            store = ObjectStore(settings(endpoint, "path"), None)  # type: ignore[arg-type]
            self.assertEqual(store.name, endpoint or "https://s3.us-east-1.amazonaws.com")

    def test_virtual_ip_address(self) -> None:
        """Virtual addressing with an IP address as the endpoint raises ValueError."""
        for endpoint in ("http://127.0.0.1:9000", "https://[::1]", "http://[2001:db8::1]:9000"):
            self.assertRaises(ValueError, self.url, endpoint, "virtual", "bucket", b"a")
            self.url(endpoint, "path", "bucket", b"a")

    def test_virtual_invalid_bucket(self) -> None:
        """A bucket that cannot be part of a host name raises Missing.

        This applies to virtual addressing only.
        """
        for bucket in ("Bucket", "my_bucket", "a..b", ".a", "a.", "-a", "a-", "a.-b", "a-.b"):
            self.assertRaises(Missing, self.url, "http://s3.test", "virtual", bucket, b"a")
            self.url("http://s3.test", "path", bucket, b"a")
        for bucket in ("bucket", "my.bucket.1", "a", "0", "a--b", "x" * 63):
            self.url("http://s3.test", "virtual", bucket, b"a")

    def test_keys(self) -> None:
        """A key is percent-encoded except for slashes and unreserved characters (RFC 3986).

        Dot segments and empty segments are kept.
        """
        for key, path in (
            (b"a//b", "a//b"),
            (b"/a/", "/a/"),
            (b"..", ".."),
            (b"../../etc/passwd", "../../etc/passwd"),
            (b"./a/./..", "./a/./.."),
            (b"a b+c", "a%20b%2Bc"),
            (b"100%/%2F", "100%25/%252F"),
            (b"?a=b#c", "%3Fa%3Db%23c"),
            (b"a;b|c:d@e", "a%3Bb%7Cc%3Ad%40e"),
            (b"-_.~", "-_.~"),
            ("é".encode(), "%C3%A9"),
            (b"\x00\r\n\xff", "%00%0D%0A%FF"),
        ):
            self.assertEqual(
                self.url("http://s3.test", "path", "b", key), f"http://s3.test/b/{path}"
            )
            self.assertEqual(
                self.url("http://s3.test", "virtual", "b", key), f"http://b.s3.test/{path}"
            )

    def test_all_bytes(self) -> None:
        """A key may contain any byte."""
        key = bytes(range(256))
        path = urlsplit(self.url("http://s3.test", "virtual", "b", key)).path
        self.assertEqual(unquote_to_bytes(path), b"/" + key)


class RequestTests(StoreCase):
    """Requests that the store receives."""

    def assert_signed(self, store: ObjectStore, bucket: str, key: bytes) -> None:
        """Require valid signatures for a request and for a presigned URL of an object."""
        self.network.scripts.append(reply(200, length=5))
        target = store.object(bucket, key)
        self.result_of(target.head())
        self.assertTrue(is_signed(self.last, SECRET), self.last)
        url = urlsplit(target.url)
        self.assertEqual((self.last.headers["host"], self.last.target), (url.netloc, url.path))
        self.assertTrue(is_presigned("GET", target.presign(60), SECRET))

    def test_addressing_styles(self) -> None:
        """The signature covers host and path as sent, in both addressing styles."""
        for endpoint in ("http://s3.test", "http://s3.test:9000", "http://a-b.s3.test"):
            for addressing in ("path", "virtual"):
                self.assert_signed(self.store(endpoint, addressing), "bucket", b"a/b.mp3")
        for endpoint in ("http://127.0.0.1:9000", "http://[::1]:9000", "http://[2001:db8::1]"):
            self.assert_signed(self.store(endpoint), "bucket", b"a/b.mp3")

    def test_keys(self) -> None:
        """Signatures are valid for keys with special characters."""
        keys = (b"/a", b"a//b/", b"..", b"./a/../b", b"a b", b"%2F", b"a;b", b"?", b"~*'()!$&,=@")
        for key in (*keys, bytes(range(1, 256))):
            for addressing in ("path", "virtual"):
                self.assert_signed(self.store(addressing=addressing), "bucket", key)

    @DETERMINISTIC
    @given(st.binary(min_size=1, max_size=40), st.sampled_from(["path", "virtual"]))
    def test_any_key(self, key: bytes, addressing: str) -> None:
        """Signatures are valid for any key."""
        self.assert_signed(self.store(addressing=addressing), "bucket", key)

    def test_get(self) -> None:
        """GET of a range sends Range, and If-Match if the ETag is known."""
        for tag, expected in (('"abc"', '"abc"'), (None, None)):
            self.network.scripts.append(reply(206, b"hello", {"Content-Range": "bytes 5-9/20"}))
            response = self.result_of(self.target.get(5, 10, tag))
            self.assertEqual(self.last.headers["range"], "bytes=5-9")
            self.assertEqual(self.last.headers.get("if-match"), expected)
            self.assertTrue(is_signed(self.last, SECRET))
            self.assertEqual(self.result_of(response.read(5)), b"hello")

    def test_another_range(self) -> None:
        """A 206 with another range than requested raises Unavailable."""
        for headers in ({}, {"Content-Range": "bytes 0-4/20"}, {"Content-Range": "bytes 5-99/100"}):
            self.network.scripts.append(reply(206, b"hello", headers))
            self.error_of(self.target.get(5, 10, None), Unavailable)

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

    def test_delete(self) -> None:
        """DELETE is sent to the object's path and signed."""
        self.network.scripts.append(reply(204))
        self.result_of(self.target.delete())
        self.assertEqual((self.last.method, self.last.target), ("DELETE", "/bucket/key"))
        self.assertTrue(is_signed(self.last, SECRET))

    def test_query(self) -> None:
        """A query is sent unchanged and signed."""
        for query in ("uploads=", "partNumber=1&uploadId=a%2Fb%3D"):
            self.network.scripts.append(reply(200))
            self.result_of(self.result_of(self.target.send("POST", query)).discard())
            self.assertEqual(self.last.target, f"/bucket/key?{query}")
            self.assertTrue(is_signed(self.last, SECRET))

    def test_session(self) -> None:
        """A session token is sent with every request."""
        given = S3Config("http://s3.test", "path", None, ACCESS_KEY, SECRET, "token", "us-east-1")
        self.assert_signed(ObjectStore(given, self.client), "bucket", b"key")
        self.assertEqual(self.last.headers["x-amz-security-token"], "token")


#: Status, error code, and the exception that they raise.
REFUSALS: list[tuple[int, str, type[StoreError]]] = [
    (404, "NoSuchKey", Missing),
    (404, "NoSuchBucket", Missing),
    (404, "", Missing),
    (400, "InvalidBucketName", Missing),
    (400, "InvalidURI", Missing),
    (400, "KeyTooLongError", Missing),
    (400, "XMinioInvalidObjectName", Missing),
    (403, "AccessDenied", Denied),
    (403, "SignatureDoesNotMatch", Denied),
    (403, "RequestTimeTooSkewed", Denied),
    (403, "", Denied),
    (401, "", Denied),
    (400, "ExpiredToken", Denied),
    (400, "InvalidToken", Denied),
    (400, "AuthorizationHeaderMalformed", WrongEndpoint),
    (400, "IllegalLocationConstraintException", WrongEndpoint),
    (400, "", WrongEndpoint),
    (400, "SomethingNew", WrongEndpoint),
    (301, "PermanentRedirect", WrongEndpoint),
    (307, "TemporaryRedirect", WrongEndpoint),
    (302, "", WrongEndpoint),
    (405, "MethodNotAllowed", WrongEndpoint),
    (408, "", Unavailable),
    (409, "OperationAborted", Unavailable),
    (412, "PreconditionFailed", Unavailable),
    (416, "InvalidRange", Unavailable),
    (425, "", Unavailable),
    (429, "TooManyRequests", Unavailable),
    (500, "InternalError", Unavailable),
    (501, "NotImplemented", Unavailable),
    (502, "", Unavailable),
    (503, "SlowDown", Unavailable),
    (504, "", Unavailable),
]


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
        store = self.store()
        self.patch(auth, "get_current_datetime", lambda: datetime(2026, 11, 21, 12, 0, 0))
        for status, time, ahead in ((204, "11:59:58", 2), (403, "12:20:00", -1200)):
            date = {"Date": f"Sat, 21 Nov 2026 {time} GMT"}
            self.network.scripts.append(reply(status, headers=date))
            self.begin(store.object("bucket", b"key").delete()).addErrback(lambda _: None)
            self.assertEqual(store.clock_ahead, ahead)


class RefusalTests(StoreCase):
    """Error responses of a store."""

    def operations(self) -> list[Coroutine[Any, Any, object]]:
        """Return one call of each operation except `StoreObject.head`."""
        put = self.target.put({}, UploadRange.of(b"hello"))
        return [self.target.get(0, 5, None), put, self.target.delete()]

    def test_refusals(self) -> None:
        """Each status and code raises the same exception in all operations.

        The text of the exception contains the status and the code.
        """
        for status, code, kind in REFUSALS:
            for operation in self.operations():
                self.network.scripts.append(reply(status, error(code) if code else b""))
                refused = self.error_of(operation, kind)
                self.assertEqual(str(refused), f"status {status}{f', {code}' if code else ''}")

    def test_refusals_for_clients(self) -> None:
        """Each store error maps to one refusal for clients.

        A missing object and a forbidden object map to the same refusal.
        """
        for kind, refusal in (
            (Missing, NotFound),
            (Denied, NotFound),
            (WrongEndpoint, NotConfigured),
            (Unavailable, UpstreamUnavailable),
        ):
            self.assertIs(kind.refusal, refusal)

    def test_redirects(self) -> None:
        """Redirects are not followed, since the signature is not valid for another host."""
        for status in (301, 302, 303, 307, 308):
            for headers in ({}, {"Location": "http://elsewhere.test/bucket/key"}):
                self.network.scripts.append(reply(status, b"", headers))
                self.error_of(self.target.get(0, 5, None), WrongEndpoint)
                self.network.scripts.append(reply(status, b"", headers))
                self.error_of(self.target.head(), WrongEndpoint)
        self.assertEqual(set(self.network.names), {"s3.test"})

    def test_refused_connection(self) -> None:
        """An unreachable store raises Unavailable with the store's origin and the cause."""
        self.network.refusal = ConnectionRefusedError()
        fetching = self.begin(self.target.head())
        self.network.advance(1)
        refused = self.exactly(fetching, Unavailable)
        self.assertIn("http://s3.test:9000 is unreachable", str(refused))
        self.assertIn("refused", str(refused))

    def test_no_response(self) -> None:
        """A store that sends no response raises Unavailable after a timeout."""
        fetching = self.begin(self.target.head())
        self.network.advance(15)
        self.exactly(fetching, Unavailable)

    def test_cancelled(self) -> None:
        """A cancelled request raises CancelledError and not a store error."""
        fetching = self.begin(self.target.head())
        fetching.cancel()
        self.network.run()
        self.exactly(fetching, CancelledError)

    def test_range_ignored(self) -> None:
        """A 200 in place of a 206 raises Unavailable, and its body is not read."""
        self.network.scripts.append((reply(200, length=10**9), b"x" * 1000))
        refused = self.error_of(self.target.get(0, 5, None), Unavailable)
        self.assertEqual(str(refused), "status 200")
        self.network.run()
        self.assertTrue(self.network.peers[0].aborted)

    def test_truncated_error_document(self) -> None:
        """An error document that breaks off does not change the meaning of the status."""
        for packets in (
            (reply(404, length=100), b"<Error><Code>NoSu"),
            (reply_without_length(404), error("NoSuchKey")),
            (reply_without_length(404, b"", {"Transfer-Encoding": "chunked"}), b"zz\r\n"),
        ):
            self.network.scripts.append(packets)
            fetching = self.begin(self.target.get(0, 5, None))
            self.network.peers[-1].close()
            self.network.run()
            self.exactly(fetching, Missing)

    def test_missing_error_document(self) -> None:
        """A request whose error document never arrives fails after a timeout."""
        self.network.scripts.append(reply(503, length=100))
        fetching = self.begin(self.target.get(0, 5, None))
        self.network.advance(15)
        self.exactly(fetching, Unavailable)

    def test_huge_error_document(self) -> None:
        """A huge error document is not read to its end."""
        body = error("NoSuchKey") + b" " * 10**6
        self.network.scripts.append((reply(404, length=len(body)), body))
        self.error_of(self.target.get(0, 5, None), Missing)
        self.network.run()
        self.assertGreater(self.network.peers[0].unread, 10**5)

    @DETERMINISTIC
    @given(
        st.sampled_from(REFUSALS),
        st.one_of(
            st.binary(max_size=200),
            st.lists(
                st.sampled_from([b"<Error>", b"<Code>", b"</Code>", b"\xff", b"a", b"&amp;", b"\n"])
            ).map(b"".join),
        ),
    )
    def test_any_error_document(
        self, refusal: tuple[int, str, type[StoreError]], document: bytes
    ) -> None:
        """Any error document results in an exception that fits the status."""
        status = refusal[0]
        self.network.scripts[:] = [reply(status, document)]
        refused = self.begin(self.target.delete())
        kinds = {kind for number, _, kind in REFUSALS if number == status}
        self.assertIn(type(self.failureResultOf(refused).value), kinds)


class HeadTests(StoreCase):
    """The method `StoreObject.head`."""

    def test_headers(self) -> None:
        """HEAD returns the headers of an object."""
        self.network.scripts.append(reply(200, length=5, headers={"ETag": '"abc"'}))
        response = self.result_of(self.target.head())
        self.assertEqual((response.length, response.header("etag")), (5, '"abc"'))

    def test_head_errors(self) -> None:
        """HEAD has no error document, so its status alone selects the exception."""
        for status, kind in (
            (404, Missing),
            (403, Denied),
            (301, WrongEndpoint),
            (503, Unavailable),
        ):
            self.network.scripts.append(reply(status, length=200))
            self.error_of(self.target.head(), kind)
            self.assertEqual(self.last.method, "HEAD")

    def test_bad_request(self) -> None:
        """After a 400 to HEAD, a GET of one byte is sent to read the error code."""
        for code, kind in (
            ("InvalidBucketName", Missing),
            ("ExpiredToken", Denied),
            ("AuthorizationHeaderMalformed", WrongEndpoint),
            ("", WrongEndpoint),
        ):
            before = len(self.network.requests)
            self.network.scripts += [reply(400, length=200), reply(400, error(code))]
            self.error_of(self.target.head(), kind)
            self.assertEqual(
                [each.method for each in self.network.requests[before:]], ["HEAD", "GET"]
            )
            self.assertEqual(self.last.headers["range"], "bytes=0-0")
            self.assertTrue(is_signed(self.last, SECRET))

    def test_bad_request_that_passes(self) -> None:
        """If the GET after a 400 to HEAD succeeds, Unavailable is raised and no body is read."""
        for packets in ((reply(206, b"x"),), (reply(200, length=10**9), b"x" * 1000)):
            self.network.scripts += [reply(400), packets]
            self.error_of(self.target.head(), Unavailable)

    def test_other_success_statuses(self) -> None:
        """A HEAD with any 2xx status other than 200 raises Unavailable."""
        for status in (201, 202, 204, 206):
            self.network.scripts.append(reply(status))
            self.error_of(self.target.head(), Unavailable)

    def test_nul(self) -> None:
        """A 400 to HEAD for a key with a NUL byte means missing, without a second request."""
        self.network.scripts.append(reply(400))
        self.error_of(self.store().object("bucket", b"a\0b").head(), Missing)
        self.assertEqual(len(self.network.requests), 1)


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
        """The document of a successful response is returned, even an empty one."""
        self.assertEqual(
            self.successResultOf(self.read(reply(200, b"<A>\xc3\xa9</A>"))), b"<A>\xc3\xa9</A>"
        )
        self.assertEqual(self.successResultOf(self.read(reply(200))), b"")
        self.assertEqual(self.successResultOf(self.read(reply(204))), b"")

    def test_error_behind_a_success(self) -> None:
        """An error document in a 200 response raises Unavailable.

        Stores send 200 before they finish slow operations, and then report errors in the body.
        """
        head = reply_without_length(200, b"", {"Transfer-Encoding": "chunked"})
        for packets in (
            (reply(200, error("InternalError")),),
            (head, chunk(b" "), chunk(b"\n"), chunk(error("InternalError")), chunk(b"")),
        ):
            self.assertEqual(str(self.exactly(self.read(*packets), Unavailable)), "InternalError")

    def test_error_without_a_code(self) -> None:
        """An error document raises Unavailable even without a code or in a namespace."""
        for document in (
            b"<Error></Error>",
            b"<Error><Message>We encountered an internal error</Message></Error>",
            b'<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Code>A</Code></Error>',
        ):
            self.exactly(self.read(reply(200, document)), Unavailable)

    def test_error_in_any_spelling(self) -> None:
        """Errors are found despite prefixes, CDATA sections, encodings and wrapper elements."""
        for document, code in (
            (b'<s3:Error xmlns:s3="urn:s3"><s3:Code>SlowDown</s3:Code></s3:Error>', "SlowDown"),
            (b"<Error><Code><![CDATA[SlowDown]]></Code></Error>", "SlowDown"),
            ('<?xml version="1.0" encoding="utf-16"?><Error><Code>A</Code></Error>', "A"),
            (b"\xef\xbb\xbf<Error><Code>A</Code></Error>", "A"),
            (b" \r\n<?xml version='1.0'?>  <Error><Code>A</Code></Error>\n", "A"),
            (b"<ErrorResponse><Error><Type/><Code>A</Code></Error></ErrorResponse>", "A"),
            (b"<Error><Message>a</Message><Code>A</Code><Resource>/b</Resource></Error>", "A"),
            (b"<Error><Code>A</Code><HostId>" + b"x" * 30_000 + b"</HostId></Error>", "A"),
        ):
            data = document.encode("utf-16") if isinstance(document, str) else document
            self.assertEqual(str(self.exactly(self.read(reply(200, data)), Unavailable)), code)

    def test_document_that_is_broken(self) -> None:
        """Errors are found in documents that are truncated, malformed or malicious."""
        external_entity = (
            b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><Error>&b;</Error>'
        )
        for document, code in (
            (b"<Error><Code>SlowDown</Code><Mess", "SlowDown"),
            (b"<Error><Code>Slow", "an error without a code"),
            (b"<?xml version='1.0' encoding='none'?><Error/>", "an error without a code"),
            (b"<a>" * 10_000 + b"<Error>", "an error without a code"),
            (b"<a/><s3:Error>", "an error without a code"),
            (external_entity, "an error without a code"),
        ):
            raised = self.exactly(self.read(reply(200, document)), Unavailable)
            self.assertEqual(code, str(raised), document[:60])

    def test_no_document(self) -> None:
        """A body without an error is returned, whether it is well-formed XML or not."""
        bomb = b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
        cut = b"<CompleteMultipartUploadResult><ETag>"
        page = b"<html><br><p>No Errors here"
        for text in (b"OK", b"\xff\xfe", b'{"Error": 1}', b"Error & Code", bomb, cut, page):
            self.assertEqual(text, self.successResultOf(self.read(reply(200, text))))

    @DETERMINISTIC
    @given(
        st.one_of(
            st.binary(max_size=200),
            st.lists(
                st.sampled_from([b"<Error>", b"</Error>", b"<a>", b"</a>", b"<!", b"&", b"\xff"])
            ).map(b"".join),
        )
    )
    def test_any_document(self, document: bytes) -> None:
        """Any 200 body is returned or raises Unavailable; one with an error is never returned."""
        self.network.scripts.clear()
        reading = self.read(reply(200, document))
        if isinstance(reading.result, Failure):
            self.failureResultOf(reading, Unavailable)
        else:
            self.assertNotIn(b"<Error>", self.successResultOf(reading))

    def test_truncated_document(self) -> None:
        """A 200 whose document breaks off raises Unavailable."""
        head = reply_without_length(200, b"", {"Transfer-Encoding": "chunked"})
        for packets in (
            (head, chunk(b"<?xml version='1.0'?>\n"), chunk(b" ")),
            (reply(200, length=500), b"<?xml version='1.0'?>\n"),
        ):
            reading = self.read(*packets)
            self.network.peers[-1].reset()
            self.network.run()
            self.assertIsInstance(reading.result, Failure, "a truncated document was returned")
            self.exactly(reading, Unavailable)

    def test_slow_document(self) -> None:
        """A store may take minutes for a document if it sends a byte every ten seconds."""
        head = reply_without_length(200, b"", {"Transfer-Encoding": "chunked"})
        reading = self.read(head)
        for _ in range(30):
            self.network.advance(10)
            self.network.peers[-1].send(chunk(b" "))
        self.network.run()
        self.assertNoResult(reading)
        self.network.peers[-1].send(chunk(b"<Done/>"), chunk(b""))
        self.network.run()
        self.assertEqual(self.successResultOf(reading).strip(), b"<Done/>")


class CleanupTests(SynchronousTestCase):
    """Connections and timers left by requests."""

    def test_no_connection_is_left(self) -> None:
        """After any response to any operation, no connection and no timer is left."""
        for status in (200, 204, 206, 301, 400, 404, 503):
            for method in ("head", "get", "put", "delete"):
                network = Network()
                client = HttpClient(network, None)
                target = ObjectStore(settings("http://s3.test", "path"), client).object("b", b"k")
                body = error("A") if method != "head" and status != 204 else b""
                network.scripts += [reply(status, body)] * 2
                arguments: dict[str, tuple[Any, ...]] = {
                    "get": (0, 5, None),
                    "put": ({}, UploadRange.of(b"hello")),
                }
                fetching = Deferred.fromCoroutine(
                    getattr(target, method)(*arguments.get(method, ()))
                )
                network.run()
                if isinstance(fetching.result, Failure):
                    self.failureResultOf(fetching, StoreError)
                else:
                    response = self.successResultOf(fetching)
                    if response is not None:
                        Deferred.fromCoroutine(response.discard())
                Deferred.fromCoroutine(client.close())
                network.run()
                self.assertTrue(all(peer.closed for peer in network.peers), (status, method))
                self.assertEqual(network.getDelayedCalls(), [])
