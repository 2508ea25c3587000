"""Sources in an object store: requests, interpretation of responses, refusals and logs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.logger import LogLevel, formatEvent

from audioproxy.config import S3Config
from audioproxy.errors import (
    NoSuchSource,
    NotConfigured,
    NotFound,
    RenderFailed,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import S3Source
from audioproxy.s3.errors import Denied
from audioproxy.s3.objects import ObjectStore
from audioproxy.sources.far_source import FarSource
from audioproxy.sources.s3 import S3Sources
from tests.support import far_versions
from tests.support.far_versions import (
    END,
    LONG,
    MIDDLE,
    START,
    TAGGED,
    FarClientCase,
    busy,
    ranged,
    serve,
)
from tests.support.http import Log
from tests.support.wire import attempts, error, is_signed, reply

SECRET, TOKEN = "a-secret-that-nobody-may-see", "a-token-that-nobody-may-see"
#: A source that is read to its end with one response.
WHOLE = reply(206, b"0123456789", {**TAGGED, "Content-Range": "bytes 0-9/10"})


class SourceCase(FarClientCase):
    """Sources in a fake object store."""

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self)
        settings = S3Config("http://s3.test", "path", None, "AKIA", SECRET, TOKEN, "us-east-1")
        self.objects = S3Sources(ObjectStore(settings, self.client), self.reading)

    def tearDown(self) -> None:
        super().tearDown()
        for event in self.log.events:
            self.assertNotRegex(f"{event} {formatEvent(event)}", f"{SECRET}|{TOKEN}|Signature=")

    def open_source(self, reads: bool) -> Coroutine[Any, Any, FarSource]:
        """Open a source."""
        return self.objects.open(S3Source("bucket", b"a.mp3"), reads=reads)


class RequestBucketListTests(SourceCase):
    """`S3Sources.request_bucket_list`"""

    def test_refused(self) -> None:
        """A refused bucket list raises an error with the store's status and code."""
        self.network.scripts.append(reply(403, error("AccessDenied")))
        refusal = self.error_of(self.objects.request_bucket_list(), Denied)
        self.assertEqual("status 403, AccessDenied", str(refusal))


class OpenTests(SourceCase, far_versions.StartTests):
    """`S3Sources.open`"""

    def test_one_request(self) -> None:
        """One signed GET of the start is sufficient; the end of a long source follows.

        Size and ETag are those of the store; the ETag is the validator.
        """
        for responses, size, ranges in (
            ([WHOLE], 10, [START]),
            ([serve, serve], len(LONG), [START, END]),
        ):
            opened = self.opened_anew(*responses)
            self.assertEqual((size, ranges), (opened.size, self.ranges))
            self.assertEqual(b'"1"', opened.validator)
            self.assertEqual(b's3://bucket/a.mp3\n"1"', opened.identity)
            self.assertTrue(opened.has_certain_identity())
            for request in self.network.requests:
                self.assertEqual(("GET", "/bucket/a.mp3"), (request.method, request.target))
                self.assertTrue(is_signed(request, SECRET))

    def test_stat(self) -> None:
        """A HEAD needs one byte."""
        self.assertEqual(len(LONG), self.opened(serve, reads=False).size)
        self.assertEqual(["0-0"], self.ranges)

    def test_tags(self) -> None:
        """Weak, malformed and very long ETags are ignored; other ETags are used unchanged."""
        unusable = ('W/"abc"', "abc", '""', '"a b"', '"a\tb"', '"é"', '"a"b"', f'"{"x" * 201}"', "")
        usable = ('"d41d8cd98f00b204e9800998ecf8427e-3"', '"!#$%&\'()*+,-./:;<=>?@[]^_`{|}~"')
        for tag in (*unusable, *usable):
            headers = {"ETag": tag} if tag else {}
            end = ranged(917_504, 999_999, headers)
            opened = self.opened_anew(ranged(0, 262_143, headers), end)
            used = tag if tag in usable else None
            self.assertEqual((used or "").encode(), opened.validator, tag)
            self.assertIs(used is not None, opened.has_certain_identity())
            self.assertEqual(used, self.network.requests[-1].headers.get("if-match"), tag)

    def test_refusals(self) -> None:
        """Missing and denied objects are 404, misconfigured stores 500, failing stores 502.

        The refusal of a status 400 depends on the error code in its body. A denied source logs an
        info event. Rejected credentials, a wrong clock and other errors log a warning. Each has
        this text alone. A missing source, and one that is opened, log nothing.
        """
        self.opened(WHOLE)
        denied, broken = LogLevel.info, LogLevel.warn
        rejected, skewed = "valid credentials are required", "a correct clock is required"
        for refusal, kind, status, code in (
            (NoSuchSource, None, 404, "NoSuchKey"),
            (NotFound, None, 404, "NoSuchBucket"),
            (NotFound, None, 404, ""),
            (NotFound, denied, 403, ""),
            (NotFound, denied, 401, ""),
            (NotFound, denied, 400, "InvalidBucketName"),
            (NotFound, denied, 403, "AccessDenied"),
            *((NotFound, denied, 400, code) for code in ("InvalidURI", "XAmzKey")),
            (NotFound, rejected, 400, "ExpiredToken"),
            (NotFound, rejected, 403, "InvalidAccessKeyId"),
            (NotFound, rejected, 403, "SignatureDoesNotMatch"),
            (NotFound, skewed, 403, "RequestTimeTooSkewed"),
            (NotConfigured, broken, 301, ""),
            (NotConfigured, broken, 405, ""),
            (NotConfigured, broken, 400, "AuthorizationHeaderMalformed"),
            (UpstreamUnavailable, broken, 429, ""),
            (UpstreamUnavailable, broken, 500, ""),
            (UpstreamUnavailable, broken, 503, ""),
        ):
            self.assertEqual([], self.log.events)
            opening = self.begin_to_open(*attempts(status, error(code)))
            self.network.advance(1)
            self.exactly(opening, refusal)
            reason = f"status {status}{f', {code}' if code else ''}"
            expected: dict[object, list[tuple[object, str]]] = {
                None: [],
                denied: [(denied, f"the bucket bucket refuses a source: {reason}")],
                broken: [(broken, f"a source in bucket cannot be read: {reason}")],
            }
            text = f"the store rejects the credentials for a source in bucket: {reason}; {kind}"
            logged = [
                (event["log_level"], formatEvent(event).partition(", here and")[0])
                for event in self.log.events
            ]
            self.assertEqual(expected.get(kind, [(broken, text)]), logged)
            self.log.events.clear()

    def test_busy(self) -> None:
        """A store that is busy once is asked again."""
        self.opened(busy(), WHOLE)

    def test_encoded(self) -> None:
        """A compressed object is a 415 when it is read; a coding that encodes nothing is not.

        An empty object is a 415, since it has no audio and no range.
        """
        stated = {**TAGGED, "Content-Range": "bytes 0-9/10"}
        encoded = [
            reply(206, b"0123456789", {**stated, "Content-Encoding": coding})
            for coding in ("gzip", "br", "aws-chunked,gzip")
        ]
        for response in (*encoded, reply(200, b"", TAGGED), reply(416, b"", {})):
            opened = self.opened_anew(response)
            self.exactly(self.see(opened), UndecodableSource)
            self.exactly(self.begin(opened.input(self.deadline(60))), UndecodableSource)
            self.assertEqual(1, len(self.network.requests))
        for coding in ("aws-chunked", "binary", "identity", ""):
            response = reply(206, b"0123456789", {**stated, "Content-Encoding": coding})
            self.successResultOf(self.see(self.opened_anew(response)))


class ReadTests(SourceCase):
    """Ranges of the version that was opened"""

    def test_range(self) -> None:
        """A range is signed, and requested for the ETag that the object had (D57)."""
        opened = self.long()
        self.assert_read(opened, serve)
        request = self.network.requests[-1]
        found = request.method, request.headers["range"], request.headers["if-match"]
        self.assertEqual(found, ("GET", f"bytes={MIDDLE}", '"1"'))
        self.assertTrue(is_signed(request, SECRET))
        self.assertTrue(self.result_of(opened.unchanged()))

    def test_changed(self) -> None:
        """Another version, which the store refuses or sends all the same, ends this one."""
        for response in (reply(412), reply(416), ranged(393_216, 917_503, {"ETag": '"2"'})):
            opened = self.long()
            refusal = self.exactly(self.read(opened, response), RenderFailed)
            self.assertEqual("The source changed while it was read.", refusal.message)
            self.assertIs(refusal, opened.failure)
            self.assertFalse(self.result_of(opened.unchanged()))
            self.assertFalse(opened.has_certain_identity())
            # What is known of it is of no use any more.
            self.opened(serve, serve)
            self.assertEqual([START, END], self.ranges)

    def test_refused(self) -> None:
        """A range that is refused is the same refusal as a source that is, and is logged once."""
        for response, kind, lines in (
            (reply(404, error("NoSuchKey")), NoSuchSource, 0),
            (reply(404), NotFound, 0),
            (reply(403), NotFound, 1),
            (reply(301), NotConfigured, 1),
            (reply(204), UpstreamUnavailable, 1),
            (reply(200, LONG, TAGGED), UpstreamUnavailable, 1),
        ):
            opened = self.long()
            self.log.events.clear()
            self.exactly(self.read(opened, response), kind)
            logged = [each for each in self.log.events if each["log_level"] > LogLevel.debug]
            self.assertEqual(lines, len(logged), response[:20])
