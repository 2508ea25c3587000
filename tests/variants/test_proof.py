"""The proof of a bucket at boot, and the messages about a bucket that is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from twisted.internet.defer import CancelledError

from audioproxy.config import S3Config
from audioproxy.s3.objects import ObjectStore
from audioproxy.variants.interfaces import Unwritable
from audioproxy.variants.proof import PROOF_PREFIX, prove
from tests.support.s3_double import BUCKET, After, Before, Reply, S3Double, key_of, refusal
from tests.support.wire import Request, RetryCase, error, reply

SECRET, TOKEN = "a-secret-that-nobody-may-see", "a-token-that-nobody-may-see"


@dataclass(frozen=True, slots=True)
class Habits:
    """What a store does with requests, and with its responses."""

    before: Before | None = None
    after: After | None = None


def when(is_meant: Callable[[Request], bool], sent: Reply) -> Habits:
    """Return the habits of a store that answers some requests with one response."""
    return Habits(lambda store, request: sent if is_meant(request) else request)


def without(*names: str, after: After | None = None) -> Habits:
    """Return the habits of a store that overlooks headers of requests."""

    def before(store: S3Double, request: Request) -> Request:
        return replace(request, lines=tuple(each for each in request.lines if kept(each[0])))

    def kept(name: str) -> bool:
        return not name.lower().startswith(names)

    return Habits(before, after)


def busy(waiting: list[bool]) -> Habits:
    """Return the habits of a store that is busy for some requests, in their order."""

    def before(store: S3Double, request: Request) -> Request | Reply:
        return refusal(503, "SlowDown") if waiting and waiting.pop(0) else request

    return Habits(before)


def changed(method: str, change: Callable[[Reply], Reply]) -> Habits:
    """Return the habits of a store whose successful responses to a method are changed."""

    def after(request: Request, sent: Reply) -> Reply:
        return change(sent) if request.method == method and sent.status < 300 else sent

    return Habits(after=after)


def with_lines(**lines: str) -> Callable[[Reply], Reply]:
    """Return a function that adds headers to a response."""
    added = {name.replace("_", "-"): value for name, value in lines.items()}
    return lambda sent: replace(sent, headers={**sent.headers, **added})


def asks(words: str) -> Callable[[Request], bool]:
    """Return whether all words are in the method, the target or the headers of a request."""

    def is_meant(request: Request) -> bool:
        text = f"{request.method} {request.target} {dict(request.headers)}"
        return all(word in text for word in words.split())

    return is_meant


def has_long_metadata(request: Request) -> bool:
    return any(len(value) > 200 for value in metadata_of(request).values())


def metadata_of(request: Request) -> dict[str, str]:
    """Return the metadata that a request writes."""
    lines = request.headers.items()
    return {name: value for name, value in lines if name.startswith("x-amz-meta-")}


# The steps that fail.
WRITE = "writing an object"
FIND, PART = "finding the object that was written", "reading a part of the object"
VERSION = "reading another version of the object"
METADATA, WITH_METADATA = "reading the metadata of the object", f"{WRITE} with metadata"
REMOVE = "removing the object that was written"
PRESIGNED = "reading the object by its presigned URL"
# What is required then.
RANGES, KEEPS = "serves ranges", "keeps 1.6 KB of metadata"
AT_ONCE, PROXY = "as soon as it is written", "AP_SERVE_MODE=proxy"

PAGE = Reply(200, b"<!DOCTYPE html><html><body>We are back soon.</body></html>")
UNKNOWN = refusal(501, "NotImplemented")

# Stores that are refused: what they do, the step that fails, what is said of it, what is required.
Row = tuple[Habits, str, str, str]
UNFIT: dict[str, Row] = {
    "whole objects": (without("range"), FIND, "with status 200 and no range", RANGES),
    "no size": (
        changed("GET", with_lines(Content_Range="bytes 0-0/*")),
        *(FIND, "the size is None", RANGES),
    ),
    "no metadata": (without("x-amz-meta-"), METADATA, "does not have the metadata", KEEPS),
    "short metadata": (
        when(has_long_metadata, refusal(400, "InvalidArgument")),
        *(WITH_METADATA, "status 400, InvalidArgument", "in values of up to 256 bytes"),
    ),
    "no bodies": (
        when(lambda request: bool(request.body), UNKNOWN),
        *(f"{WRITE} with a body", "status 501, NotImplemented", "accepts uploads"),
    ),
    "pages for uploads": (
        when(asks("PUT"), PAGE),
        *(WRITE, "a page in HTML", "the endpoint of an S3 store"),
    ),
    "zeros": (
        changed("GET", lambda sent: replace(sent, body=bytes(len(sent.body)))),
        *(PART, "other bytes", RANGES),
    ),
    "codings": (
        changed("GET", with_lines(Content_Encoding="gzip")),
        *(FIND, "Content-Encoding", RANGES),
    ),
    "no tags": (
        changed("GET", lambda sent: replace(sent, headers=without_tag(sent))),
        *(PART, "the object has no ETag", "and ETag"),
    ),
    "other tags": (
        without(
            "if-match",
            after=lambda request, sent: with_lines(ETag=f'"{request.headers.get("range")}"')(sent),
        ),
        *(PART, "the ETag of a part is", "and ETag"),
    ),
    "If-Match is not known": (when(asks("if-match"), UNKNOWN), *(PART, "status 501", RANGES)),
    "nothing is found": (
        when(asks("GET authorization"), refusal(404, "NoSuchKey")),
        *(FIND, "status 404", AT_ONCE),
    ),
    "no right to read": (
        when(asks("GET authorization"), refusal(403, "AccessDenied")),
        *(FIND, "status 403", "credentials that may write, read and delete"),
    ),
    "refused headers": (
        when(asks("cache-control"), refusal(400, "InvalidRequest")),
        *(f"{WRITE} with headers", "status 400, InvalidRequest", "keeps Cache-Control"),
    ),
    "tags of its choice": (
        without(
            "if-match",
            after=lambda request, sent: with_lines(ETag=request.headers.get("if-match", '"a"'))(
                sent
            ),
        ),
        *(VERSION, "this version was sent", "states the ETag"),
    ),
    "no removal": (
        when(asks("DELETE"), refusal(403, "AccessDenied")),
        *(REMOVE, "status 403, AccessDenied", "write, read and delete"),
    ),
    "no removals": (
        when(asks("DELETE"), refusal(405, "MethodNotAllowed")),
        *(REMOVE, "status 405, MethodNotAllowed", "removes objects"),
    ),
}
NO_PRESIGNED_URLS = when(asks("X-Amz-Signature"), refusal(403, "SignatureDoesNotMatch"))
# Stores that are refused in redirect mode alone.
UNFIT_TO_REDIRECT: dict[str, Row] = {
    "no presigned URLs": (NO_PRESIGNED_URLS, PRESIGNED, "status 403", "AP_PRESIGN_TTL"),
    "lost types": (
        Habits(
            after=lambda request, sent: (
                with_lines(**{"content-type": "binary/octet-stream"})(sent)
                if asks("X-Amz-Signature")(request)
                else sent
            )
        ),
        *(PRESIGNED, "content-type is 'binary/octet-stream', not 'audio/ogg'", PROXY),
    ),
    "status 200 for a range": (
        changed("GET", lambda sent: replace(sent, status=200)),
        *(PRESIGNED, "a range was answered with status 200", PROXY),
    ),
    "busy for named headers": (
        when(asks("response-content-type"), refusal(503, "SlowDown")),
        *(PRESIGNED, "status 503", "a store that is ready is required"),
    ),
}


def without_tag(sent: Reply) -> dict[str, str]:
    """Return the headers of a response without its entity tag."""
    return {name: value for name, value in sent.headers.items() if name != "ETag"}


class ProofCase(RetryCase):
    """A bucket, and a store whose behaviour each test chooses."""

    def setUp(self) -> None:
        super().setUp()
        settings = S3Config("http://s3.test", "path", None, "AKIA", SECRET, TOKEN, "us-east-1")
        self.store = ObjectStore(settings, self.client)
        self.use(Habits())

    def use(self, habits: Habits) -> None:
        """Replace the store."""
        # Requests are signed with the time of the machine.
        self.double = S3Double(self.network, SECRET, TOKEN, datetime.now(UTC))
        self.double.before = habits.before or self.double.before
        self.double.after = habits.after or self.double.after
        self.network.requests.clear()

    def prove(self, *, redirects: bool = False) -> bool:
        """Return the result of the proof."""
        return self.result_of(prove(self.store, BUCKET, 300 if redirects else None))

    def refused(self, *, redirects: bool = False) -> Unwritable:
        """Return the failure of the proof."""
        return self.error_of(prove(self.store, BUCKET, 300 if redirects else None), Unwritable)


class ProofTests(ProofCase):
    """`prove`"""

    def test_good(self) -> None:
        """One object is written, read as variants are, and removed; each proof has its own name."""
        names = set()
        for redirects, reads in ((False, 3), (True, 4)):
            self.network.requests.clear()
            self.assertIs(redirects, self.prove(redirects=redirects))
            methods = [request.method for request in self.network.requests]
            self.assertEqual(["PUT", *["GET"] * reads, "DELETE"], methods)
            put = self.network.requests[0]
            metadata = metadata_of(put)
            self.assertEqual(256, max(map(len, metadata.values())))
            size = sum(len(name) + len(value) for name, value in metadata.items())
            self.assertTrue(1600 < size <= 1700, size)
            (name,) = {key_of(request) for request in self.network.requests}
            self.assertRegex(name, rf"^{PROOF_PREFIX}[0-9a-f]{{32}}$")
            names.add(name)
            self.assertEqual({}, self.double.objects)
        self.assertEqual(2, len(names))

    def test_unfit(self) -> None:
        """A store that does not do what variants need is refused by name; nothing remains."""
        for redirects, rows in ((False, UNFIT), (True, UNFIT_TO_REDIRECT)):
            for name, (habits, step, found, wanted) in rows.items():
                self.use(habits)
                failure = self.refused(redirects=redirects)
                self.assertTrue(failure.fault.startswith(f"{step} in s3://{BUCKET} failed"), name)
                self.assertIn(found, failure.fault, name)
                self.assertIn(wanted, failure.wanted, name)
                if not name.startswith("no removal"):
                    self.assertEqual({}, self.double.objects, name)

    def test_fit(self) -> None:
        """A store with other habits, each of which is right to the byte, is used (D41)."""
        for name, habits in {
            "status 200": changed("GET", lambda sent: replace(sent, status=200)),
            "no If-Match": without("if-match"),
            "no presigned URLs": NO_PRESIGNED_URLS,
            "no ranges past the end": Habits(
                after=lambda request, sent: (
                    refusal(500, "InternalError") if sent.status == 416 else sent
                )
            ),
            "identity": changed("GET", with_lines(Content_Encoding="identity")),
        }.items():
            self.use(habits)
            self.assertIs(False, self.prove(), name)

    def test_named_headers(self) -> None:
        """A store that ignores or refuses headers in presigned URLs is used without them."""

        def drop(store: S3Double, request: Request) -> Request:
            return replace(request, target=request.target.replace("response-", "x-"))

        for habits in (
            Habits(drop),
            when(asks("response-content-type"), refusal(400, "InvalidRequest")),
        ):
            self.use(habits)
            self.assertIs(False, self.prove(redirects=True))

    def test_refusals(self) -> None:
        """The failure names the step, the store's response and what is required."""
        skewed, now = "RequestTimeTooSkewed", datetime.now(UTC)
        rows: tuple[tuple[int, str, int | None, str], ...] = (
            (404, "NoSuchBucket", None, "a bucket that exists"),
            (403, "AccessDenied", None, "credentials that may write, read and delete objects"),
            (400, "InvalidArgument", None, "a bucket name that the store takes"),
            (301, "", None, "the endpoint, the region and the addressing"),
            (503, "SlowDown", None, "a store that is ready"),
            (403, "SignatureDoesNotMatch", None, "the secret key that belongs to"),
            (507, "XMinioStorageFull", None, "a store that accepts uploads"),
            (403, skewed, None, "a correct clock is required, here and in the store"),
            (403, skewed, -1250, r"required: this machine's is 12\d\d s ahead of the store's"),
            (403, skewed, 3650, r"required: this machine's is 3[56]\d\d s behind the store's"),
        )
        for status, code, ahead, wanted in rows:
            date = None if ahead is None else now + timedelta(seconds=ahead)
            headers = {"Date": format_datetime(date, usegmt=True)} if date else {}
            self.network.scripts[:] = [reply(status, error(code) if code else b"", headers)] * 9
            failure = self.refused()
            said = f"status {status}, {code}" if code else f"status {status}"
            self.assertEqual(f"writing an object in s3://{BUCKET} failed ({said})", failure.fault)
            self.assertRegex(failure.wanted, wanted)

    def test_busy(self) -> None:
        """A store that is busy for one request, or for three, is used, and nothing remains."""
        self.prove(redirects=True)
        for number, _ in enumerate(self.network.requests):
            for times in (1, 3):
                self.use(busy([False] * number + [True] * times))
                if times == 1 or not number:
                    self.assertIs(True, self.prove(redirects=True), number)
                    self.assertEqual({}, self.double.objects)

    def test_slow(self) -> None:
        """A store that fails after 20 s is refused without further uploads."""
        self.network.scripts[:] = []
        proving = self.begin(prove(self.store, BUCKET, None))
        self.network.advance(20)
        self.network.scripts[:] = [reply(204)]
        self.network.peers[-1].send(reply(504))
        self.network.run()
        self.assertIn("a store that is ready", self.exactly(proving, Unwritable).wanted)
        self.assertEqual(["PUT", "DELETE"], [each.method for each in self.network.requests])

    def test_unclear_denial(self) -> None:
        """A wrong secret is AccessDenied without a text in radosgw with STS."""
        denial = reply(403, b"<Error><Code>AccessDenied</Code></Error>")
        self.network.scripts[:] = [denial] * 2
        self.assertIn("or the right secret key and session token", self.refused().wanted)

    def test_unreachable(self) -> None:
        """A store that cannot be reached, or that is silent, is refused within a minute."""
        for refused in (None, ConnectionRefusedError()):
            self.network.refusal, self.network.scripts[:] = refused, []
            proving = self.begin(prove(self.store, BUCKET, 300))
            for _ in range(12):
                self.network.advance(5)
            failure = self.exactly(proving, Unwritable)
            self.assertIn("http://s3.test is unreachable", failure.fault)
            self.assertEqual("a store that can be reached is required", failure.wanted)

    def test_stopped(self) -> None:
        """A stop does not wait for a store that is silent, and removes what is written."""
        for method, methods in (("PUT", ["PUT"]), ("GET", ["PUT", "GET", "GET", "DELETE"])):
            self.use(
                Habits(after=lambda a, sent, method=method: None if a.method == method else sent)
            )
            proving = self.begin(prove(self.store, BUCKET, None))
            proving.cancel()
            self.network.run()
            self.exactly(proving, CancelledError)
            self.assertEqual(methods, [each.method for each in self.network.requests])

    def test_rate_limit(self) -> None:
        """A store that is busy again and again is not blamed for what it would take."""
        self.use(busy([True, True, *[False, True, True] * 3]))
        failure = self.refused()
        self.assertTrue(failure.fault.startswith("writing an object in s3://"), failure.fault)
        self.assertEqual("a store that is ready is required", failure.wanted)
        self.use(busy([True, True, False, True, True]))
        self.assertIs(False, self.prove())
