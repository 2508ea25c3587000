"""Multipart uploads: completed in order, or aborted so that no billed part remains."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree

from twisted.internet.defer import CancelledError, Deferred

from audioproxy.config import S3Config
from audioproxy.s3.errors import Busy, Denied, StoreError, Unavailable, Unreachable
from audioproxy.s3.multipart_upload import put_multipart
from audioproxy.s3.objects import ObjectStore, UploadRange
from tests.support.http import Log
from tests.support.wire import ClientCase, error, is_signed, reply

SECRET = "secret"
DATA = bytes(range(256)) * 10
PART_SIZE = 1000
PARTS = [DATA[start : start + PART_SIZE] for start in range(0, len(DATA), PART_SIZE)]


def digest(data: bytes) -> str:
    """Return a SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def upload_started(upload: str = "upload-1") -> bytes:
    """Return the response that holds the upload id."""
    return reply(
        200,
        b"<?xml version='1.0'?><InitiateMultipartUploadResult xmlns='http://s3.amazonaws.com/doc/'>"
        b"<Bucket>bucket</Bucket><Key>key</Key><UploadId>%b</UploadId>"
        b"</InitiateMultipartUploadResult>" % upload.encode(),
    )


def part_accepted(number: int) -> bytes:
    """Return the response to the upload of a part."""
    return reply(200, headers={"ETag": f'"tag-{number}"'})


COMPLETE = reply(
    200,
    b"<CompleteMultipartUploadResult><ETag>&quot;x&quot;</ETag></CompleteMultipartUploadResult>",
)
STEPS = [upload_started(), part_accepted(1), part_accepted(2), part_accepted(3), COMPLETE]


class PartsCase(ClientCase):
    """Upload of an object of three parts."""

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self)
        settings = S3Config("http://s3.test", "path", None, "AKIA", SECRET, None, "us-east-1")
        self.target = ObjectStore(settings, self.client).object("bucket", b"key")

    def put(self, data: bytes = DATA) -> Deferred[None]:
        """Start to upload the object; the data may be shorter than announced."""
        source = UploadRange.of(data).source
        ranges = [
            UploadRange(source, start, min(start + PART_SIZE, len(DATA)), digest(part))
            for start, part in zip(range(0, len(DATA), PART_SIZE), PARTS, strict=True)
        ]
        return self.begin(put_multipart(self.target, {"content-type": "audio/flac"}, ranges))

    def put_up_to(self, step: int, *responses: Any) -> Deferred[None]:
        """Start an upload that succeeds up to a step, and then gets these responses."""
        self.network.scripts[:] = [*STEPS[:step], *responses]
        return self.put()

    def sent_requests(self) -> list[str]:
        """Return the method and query of all requests, in order."""
        return [f"{each.method} {each.target.partition('?')[2]}" for each in self.network.requests]


ABORT = "DELETE uploadId=upload-1"


class SuccessTests(PartsCase):
    """Successful uploads by `put_multipart`."""

    def test_success(self) -> None:
        """Numbered parts are sent in order, each with its SHA-256; then the upload is completed.

        The first request alone has the object's headers. The last one lists each part's number and
        ETag. All are signed, including query and body.
        """
        self.successResultOf(self.put_up_to(5))
        self.assertEqual(
            self.sent_requests(),
            [
                "POST uploads=",
                *(f"PUT partNumber={number}&uploadId=upload-1" for number in (1, 2, 3)),
                "POST uploadId=upload-1",
            ],
        )
        requests = self.network.requests
        self.assertEqual([request.body for request in requests[:4]], [b"", *PARTS])
        for request in requests:
            self.assertEqual(request.headers["x-amz-content-sha256"], digest(request.body))
            self.assertTrue(is_signed(request, SECRET), request)
        types = [request.headers.get("content-type") for request in requests]
        self.assertEqual(types, ["audio/flac", None, None, None, None])
        completion = ElementTree.fromstring(requests[-1].body)
        self.assertEqual(completion.tag, "CompleteMultipartUpload")
        self.assertEqual(
            [(part.findtext("PartNumber"), part.findtext("ETag")) for part in completion],
            [("1", '"tag-1"'), ("2", '"tag-2"'), ("3", '"tag-3"')],
        )
        self.assertEqual(self.log.texts, [])

    def test_upload_ids(self) -> None:
        """An upload id with special characters is sent unchanged in every later request."""
        for written, name in (
            ("a/b+c=d&amp;e", "a/b+c=d&e"),
            ("a%2Fb", "a%2Fb"),
            ("&lt;a&gt; &quot;b&quot;#?", '<a> "b"#?'),
            ("~a.b-c_d", "~a.b-c_d"),
        ):
            self.network.requests.clear()
            self.network.scripts[:] = [upload_started(written), *STEPS[1:]]
            self.successResultOf(self.put())
            for request in self.network.requests[1:]:
                query = request.target.partition("?")[2]
                self.assertEqual(unquote(query.rpartition("uploadId=")[2]), name)
                self.assertEqual(parse_qs(query.replace("+", "%2B"))["uploadId"], [name])
                self.assertTrue(is_signed(request, SECRET))


class FailureTests(PartsCase):
    """Failed uploads by `put_multipart`."""

    def test_not_begun(self) -> None:
        """An upload that could not be started, or that has no id, is not aborted."""
        for response, kind in (
            (reply(403, error("AccessDenied")), Denied),
            (reply(503, error("SlowDown")), Busy),
            (reply(200, error("InternalError")), Unavailable),
            (reply(200), Unavailable),
            (reply(200, b"<UploadId></UploadId>"), Unavailable),
            (reply(200, b"<UploadId>broken"), Unavailable),
        ):
            self.network.requests.clear()
            self.exactly(self.put_up_to(0, response), kind)
            self.assertEqual(self.sent_requests(), ["POST uploads="], response)

    def test_short_file(self) -> None:
        """A file that is shorter than announced aborts the upload; its part is never complete."""
        self.network.scripts += [*STEPS[:2], reply(204)]
        self.exactly(self.put(DATA[:1500]), Unreachable)
        self.assertEqual(
            self.sent_requests(), ["POST uploads=", "PUT partNumber=1&uploadId=upload-1", ABORT]
        )

    def test_abort_that_fails(self) -> None:
        """If the abort fails too, the abort's error is logged and the first error is raised."""
        # Twisted repeats a request if the reused connection turns out to be closed.
        closing = [lambda peer, _: peer.close()] * 2
        for responses in ([reply(403, error("AccessDenied"))], [reply(503)], closing):
            self.log.events.clear()
            self.exactly(self.put_up_to(2, reply(500), *responses), Busy)
            (text,) = self.log.texts
            words = "a multipart upload was not aborted, so its parts remain in the store: "
            self.assertTrue(text.startswith(words), text)
            self.assertEqual(self.log.errors, [])


class CancelledTests(PartsCase):
    """Cancelled uploads by `put_multipart`."""

    def cancel(self, step: int) -> list[str]:
        """Cancel at a step, and return the requests sent from then on."""
        self.network.requests.clear()
        putting = self.put_up_to(step)
        self.assertNoResult(putting)
        sent_before = len(self.network.requests)
        putting.cancel()
        self.network.scripts.append(reply(204))
        self.network.run()
        self.exactly(putting, CancelledError)
        return self.sent_requests()[sent_before:]

    def test_each_step(self) -> None:
        """Cancellation at any step cancels the request, and aborts an upload that was begun."""
        self.assertEqual(self.cancel(0), [])
        self.network.scripts.clear()
        for step in (1, 2, 3, 4):
            self.assertEqual(self.cancel(step), [ABORT], step)
        self.assertEqual(self.log.texts, [])

    def test_while_aborting(self) -> None:
        """Cancellation during the abort of a failed upload does not wait for the abort."""
        putting = self.put_up_to(2, reply(500))
        self.assertEqual(self.sent_requests()[-1], ABORT)
        putting.cancel()
        self.network.run()
        failure = self.failureResultOf(putting)
        self.assertIsInstance(failure.value, CancelledError | StoreError)
