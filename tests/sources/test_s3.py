"""Sources in an object store: metadata, input of ffmpeg, refusals and logs."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.logger import LogLevel, formatEvent

from audioproxy.config import S3Config
from audioproxy.errors import (
    NoSuchSource,
    NotConfigured,
    NotFound,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import S3Source
from audioproxy.http_client.client import USER_AGENT
from audioproxy.media.command.inputs import Input
from audioproxy.s3 import objects
from audioproxy.s3.objects import Denied, ObjectStore
from audioproxy.sources.s3 import OpenS3Source, S3Sources
from tests.support.http import Log
from tests.support.wire import (
    ClientCase,
    attempts,
    error,
    is_presigned,
    is_signed,
    reply,
    reply_without_length,
)

TAGGED = {"ETag": '"abc"'}
SECRET, TOKEN = "a-secret-that-nobody-may-see", "a-token-that-nobody-may-see"


async def look(opened: Input) -> Input:
    """Look at a source without a child."""
    return opened


class SourceCase(ClientCase):
    """Sources in a fake object store."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(objects, "RETRY_DELAY", 0)
        self.log = Log(self)
        self.objects = self.make()

    def tearDown(self) -> None:
        super().tearDown()
        for event in self.log.events:
            self.assertNotRegex(f"{event} {formatEvent(event)}", f"{SECRET}|{TOKEN}|Signature=")

    def make(
        self, endpoint: str = "http://s3.test", ca_file: str | None = None, addressing: str = "path"
    ) -> S3Sources:
        """Return the sources of a store with these settings."""
        settings = S3Config(endpoint, addressing, None, "AKIA", SECRET, TOKEN, "us-east-1")
        return S3Sources(ObjectStore(settings, self.client), ca_file, 300)

    def begin_to_open(
        self, *responses: bytes, bucket: str = "bucket", key: bytes = b"a.mp3"
    ) -> Deferred[OpenS3Source]:
        """Start to open a source with these responses of the store."""
        self.network.scripts[:] = responses
        return self.begin(self.objects.open(S3Source(bucket, key)))

    def open(self, response: bytes, *later: bytes) -> OpenS3Source:
        """Open a source with this response of the store; later responses follow."""
        opened = self.successResultOf(self.begin_to_open(response, *later))
        request = self.network.requests[-1]
        self.assertEqual((request.method, request.headers["range"]), ("GET", "bytes=0-0"))
        return opened

    def input_of(self, opened: OpenS3Source, seconds: float = 60.0, whole: bool = True) -> Input:
        """Return the input for ffmpeg, or for ffprobe."""
        deadline = self.deadline(seconds)
        return self.result_of(opened.input(deadline) if whole else opened.inspect(deadline, look))

    def options_of(self, opened: OpenS3Source) -> dict[str, str]:
        """Return the options of the input for ffmpeg."""
        options = self.input_of(opened).options
        return dict(zip(options[::2], options[1::2], strict=True))


class RequestBucketListTests(SourceCase):
    """`S3Sources.request_bucket_list`"""

    def test_given(self) -> None:
        """The request for the bucket list is signed; its response body is ignored."""
        self.network.scripts.append(reply(200, b"<ListAllMyBucketsResult/>"))
        self.result_of(self.objects.request_bucket_list())
        asked = self.network.requests[-1]
        self.assertEqual((asked.method, asked.target), ("GET", "/"))
        self.assertTrue(is_signed(asked, SECRET))

    def test_refused(self) -> None:
        """A refused bucket list raises an error with the store's status and code."""
        self.network.scripts.append(reply(403, error("AccessDenied")))
        refusal = self.error_of(self.objects.request_bucket_list(), Denied)
        self.assertEqual("status 403, AccessDenied", str(refusal))


class OpenTests(SourceCase):
    """`S3Sources.open`"""

    def test_known(self) -> None:
        """Size and ETag are those of the store; the ETag is the validator.

        Without Content-Length and ETag, a source has none of them, and is read all the same.
        """
        for response, size, tag in (
            (reply(200, length=1234, headers={"ETag": '"abc-1"'}), 1234, '"abc-1"'),
            (reply_without_length(200), None, None),
        ):
            opened = self.open(response)
            self.assertEqual((size, tag), (opened.size, opened.etag))
            validator = (tag or "").encode()
            self.assertEqual(validator, opened.validator)
            self.assertEqual(b"s3://bucket/a.mp3\n" + validator, opened.identity)
            self.assertIs(tag is not None, opened.has_certain_identity())
            self.assertEqual({}, opened.descriptors)
            self.assertIn("X-Amz-", self.input_of(opened).url)
            opened.close()
            opened.close()

    def test_tags(self) -> None:
        """Weak, malformed and very long ETags are ignored; other ETags are used unchanged."""
        unusable = ('W/"abc"', "abc", '""', '"a b"', '"a\tb"', '"é"', '"a"b"', f'"{"x" * 201}"')
        usable = ('"d41d8cd98f00b204e9800998ecf8427e-3"', '"!#$%&\'()*+,-./:;<=>?@[]^_`{|}~"')
        for tag in (*unusable, *usable):
            opened = self.open(reply(200, length=5, headers={"ETag": tag}))
            used = tag if tag in usable else None
            self.assertEqual((used, (used or "").encode()), (opened.etag, opened.validator), tag)
            self.assertEqual(used is not None, "-headers" in self.options_of(opened), tag)

    def test_key(self) -> None:
        """The bytes of the key are requested exactly."""
        self.successResultOf(self.begin_to_open(reply(200, length=5), key=b"a//..\xff%2F"))
        self.assertEqual(self.network.requests[-1].target, "/bucket/a//..%FF%252F")

    def test_refusals(self) -> None:
        """Missing and denied objects are 404, misconfigured stores 500, failing stores 502.

        The refusal of a status 400 depends on the error code in its body. A denied source logs an
        info event. Rejected credentials, a wrong clock and other errors log a warning. Each has
        this text alone. A missing source, and one that is opened, log nothing.
        """
        self.open(InputTests.WHOLE)
        denied, broken = LogLevel.info, LogLevel.warn
        rejected, skewed = "valid credentials are required", "a correct clock is required"
        for refusal, kind, status, code in (
            (NoSuchSource, None, 404, "NoSuchKey"),
            (NotFound, None, 404, "NoSuchBucket"),
            (NotFound, None, 404, ""),
            (NotFound, denied, 403, ""),
            (NotFound, denied, 401, ""),
            (NotFound, None, 400, "InvalidBucketName"),
            (NotFound, denied, 403, "AccessDenied"),
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
            self.exactly(self.begin_to_open(*attempts(status, error(code))), refusal)
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

    def test_unreachable(self) -> None:
        """A store that cannot be reached is a 502, not a 404; an opened source is unchanged."""
        opened = self.open(InputTests.WHOLE)
        self.result_of(self.client.close())
        self.client.open()
        self.network.refusal = ConnectionRefusedError()
        opening, asking = self.begin_to_open(), self.begin(opened.unchanged())
        for _ in range(2):
            # The store is asked once more after a moment.
            self.network.advance(1)
        self.exactly(opening, UpstreamUnavailable)
        self.assertTrue(self.successResultOf(asking))

    def test_bucket_that_is_no_label(self) -> None:
        """With virtual addressing, a bucket whose name is no valid host label is a 404."""
        self.objects = self.make(addressing="virtual")
        self.exactly(self.begin_to_open(bucket="my_bucket"), NotFound)
        self.assertEqual(self.network.names, [])


class UnchangedTests(SourceCase):
    """`OpenS3Source.unchanged`"""

    def test_tag(self) -> None:
        """A source with the same ETag is unchanged; with another ETag, or missing, it changed.

        If the store does not say whether a source has changed, it counts as unchanged. So does a
        source without an ETag.
        """
        untagged = reply(200, length=5)
        other = reply(200, length=5, headers={"ETag": '"abd"'})
        for first, responses, verdict in (
            (InputTests.WHOLE, [InputTests.WHOLE], True),
            (InputTests.WHOLE, [other], False),
            (InputTests.WHOLE, [reply(404)], False),
            *((InputTests.WHOLE, attempts(status), True) for status in (403, 503, 301, 400)),
            (untagged, [other], True),
        ):
            opened = self.open(first, *responses)
            self.assertIs(verdict, self.result_of(opened.unchanged()), responses)
            self.assertEqual(self.network.requests[-1].target, "/bucket/a.mp3")


class ReadTests(SourceCase):
    """`OpenS3Source.read`"""

    def test_range(self) -> None:
        """A range of the version that was opened is requested (D57)."""
        part = reply(206, b"cde", {"Content-Range": "bytes 2-4/9"})
        opened = self.open(reply(200, length=9, headers=TAGGED), part)
        self.assertEqual(self.result_of(opened.read(2, 3)), b"cde")
        request = self.network.requests[-1]
        found = request.method, request.headers["range"], request.headers["if-match"]
        self.assertEqual(found, ("GET", "bytes=2-4", TAGGED["ETag"]))

    def test_failures(self) -> None:
        """A range that is refused, cut or of another version is a failed source."""
        for responses, refusal in (
            ([reply(206, b"cde", {"Content-Range": "bytes 0-2/9"})], UpstreamUnavailable),
            ([reply(206, b"cdefg", {"Content-Range": "bytes 2-4/9"})], UpstreamUnavailable),
            (attempts(503), UpstreamUnavailable),
            ([reply(412)], UpstreamUnavailable),
            ([reply(404)], NotFound),
            ([reply(403)], NotFound),
        ):
            opened = self.open(reply(200, length=9, headers=TAGGED), *responses)
            self.error_of(opened.read(2, 3), refusal)


class InputTests(SourceCase):
    """`OpenS3Source.input`"""

    WHOLE = reply(200, length=5, headers=TAGGED)

    def test_presigned(self) -> None:
        """A render gets a presigned URL for GET that expires with the render's time limit.

        A probe's URL is valid for AP_RENDER_TIMEOUT (300 seconds here), because the store's clock
        may be some seconds ahead of this machine's.
        """
        for seconds, lifetime in ((60.0, "60"), (59.999, "59"), (1.5, "1"), (0.3, "1"), (0, "1")):
            for whole, expected in ((True, lifetime), (False, "300")):
                url = self.input_of(self.open(self.WHOLE), seconds, whole).url
                self.assertTrue(url.startswith("http://s3.test/bucket/a.mp3?X-Amz-Algorithm="), url)
                self.assertEqual(parse_qs(urlsplit(url).query)["X-Amz-Expires"], [expected])
                self.assertTrue(is_presigned("GET", url, SECRET))
                self.assertFalse(is_presigned("PUT", url, SECRET))

    def test_options(self) -> None:
        """ffmpeg sends our User-Agent and If-Match, and follows no redirect (D45)."""
        options = self.options_of(self.open(self.WHOLE))
        self.assertEqual(options["-user_agent"], USER_AGENT)
        self.assertEqual(options["-max_redirects"], "0")
        self.assertEqual(options["-headers"], 'If-Match: "abc"\r\n')
        self.assertEqual(options["-seekable"], "1")
        self.assertTrue(self.input_of(self.open(self.WHOLE)).seekable)

    def test_trust(self) -> None:
        """Over TLS, ffmpeg verifies the certificate with the store's CA bundle or the system's."""
        for ca_file in (None, "/etc/ca.pem"):
            self.objects = self.make("http://s3.test", ca_file)
            opened = self.open(self.WHOLE)
            self.assertEqual(opened.ca_file, ca_file)
            self.assertNotIn("-tls_verify", self.options_of(opened))
            store = self.make("https://s3.test", ca_file).object_store
            opened = replace(opened, target=store.object("bucket", b"a.mp3"))
            options = self.options_of(opened)
            self.assertEqual(options["-tls_verify"], "1")
            self.assertEqual(options.get("-ca_file"), ca_file)
            self.assertNotIn("http", self.input_of(opened).protocols)

    def test_encoded(self) -> None:
        """A compressed object is a 415 at once; a Content-Encoding that encodes nothing is not.

        An empty object is a 415, since it has no audio and no range.
        """
        for coding in ("gzip", "br", "aws-chunked,gzip", None):
            headers = TAGGED if coding is None else {**TAGGED, "Content-Encoding": coding}
            opened = self.open(reply(200, length=0 if coding is None else 5, headers=headers))
            self.error_of(opened.inspect(self.deadline(60), look), UndecodableSource)
            self.error_of(opened.input(self.deadline(60)), UndecodableSource)
        for coding in ("aws-chunked", "binary", "identity", ""):
            headers = {**TAGGED, "Content-Encoding": coding}
            opened = self.open(reply(200, length=5, headers=headers))
            self.assertTrue(self.input_of(opened).seekable, coding)
