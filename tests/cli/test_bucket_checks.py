"""`audioproxy doctor --bucket`: each check finds the fault that it is for."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from botocore import auth
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.checks.bucket import writing
from audioproxy.cli.checks.bucket.table import CHECKS, check_buckets, run_checks, source_checks
from audioproxy.cli.checks.bucket.trial import PREFIX, Check, Trial
from audioproxy.cli.checks.results import CheckResult, Verdict, good
from audioproxy.config import BucketStore, Config, S3Config
from audioproxy.engine.parts import Capabilities
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.s3.objects import ObjectStore
from audioproxy.variants.proof import PROOF_PREFIX
from audioproxy.variants.s3 import S3VariantStore
from tests.cli.command import command
from tests.support.checks import collect, single_result
from tests.support.s3_double import (
    BUCKET,
    After,
    Before,
    Reply,
    S3Double,
    StoredObject,
    Upload,
    key_of,
    refusal,
)
from tests.support.wire import ClientCase, Request

SECRET, TOKEN = "a-secret-that-nobody-may-see", "a-token-that-nobody-may-see"
SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", SECRET, TOKEN, "us-east-1")
CONFIG = Config(
    allow_insecure=True,
    variant_store=BucketStore(BUCKET),
    variant_s3=SETTINGS,
    source_s3=SETTINGS,
    allow_origin="*",
)
ORIGIN = "Access-Control-Allow-Origin"


@dataclass(frozen=True)
class Fault:
    """A fault of a store.

    :ivar words: what the check reports.
    :ivar ignored: what the store does not verify.
    :ivar before: what it does with a request.
    :ivar after: what it does with a response.
    """

    words: str
    ignored: str = ""
    before: Before = lambda store, request: request
    after: After = lambda request, sent: sent


def is_for(request: Request, words: str) -> bool:
    """Return whether all words are in the method, the target or the headers of a request."""
    lines = " ".join(f"{name.lower()}:{value}" for name, value in request.lines)
    return all(word in f"{request.method} {request.target} {lines}" for word in words.split())


def refuse(words: str, status: int, code: str = "Refused") -> Fault:
    """Return the fault of a store that refuses the requests with these words."""

    def before(store: S3Double, request: Request) -> Request | Reply:
        return refusal(status, code) if is_for(request, words) else request

    return Fault(f"status {status}, {code}", before=before)


def accept(words: str, found: str, body: bytes = b"", **headers: str) -> Fault:
    """Return the fault of a store that does nothing, and responds with this."""

    def before(store: S3Double, request: Request) -> Request | Reply:
        return Reply(206 if headers else 200, body, headers) if is_for(request, words) else request

    return Fault(found, before=before)


def drop(name: str, words: str, found: str) -> Fault:
    """Return the fault of a store that ignores a header."""

    def before(store: S3Double, request: Request) -> Request:
        lines = tuple(line for line in request.lines if line[0].lower() != name)
        return replace(request, lines=lines) if is_for(request, words) else request

    return Fault(found, before=before)


def send(words: str, found: str, body: bytes | None = None, **headers: str) -> Fault:
    """Return the fault of a store that sends another body, or other headers."""

    def after(request: Request, sent: Reply) -> Reply:
        if sent.status >= 300 or not is_for(request, words):
            return sent
        lines = {**sent.headers, **headers}
        return Reply(sent.status, sent.body if body is None else body, lines)

    return Fault(found, after=after)


def lower_metadata(store: S3Double, request: Request) -> Request:
    """Store metadata in lower case."""
    lines = tuple(
        (name, value.lower() if "x-amz-meta-" in name.lower() else value)
        for name, value in request.lines
    )
    return replace(request, lines=lines)


def misread_plus(store: S3Double, request: Request) -> Request:
    """Take a plus sign for a space in what is written."""
    target = request.target.replace("%2B", "%20")
    return replace(request, target=target) if request.method == "PUT" else request


def keep_first(store: S3Double, request: Request) -> Request | Reply:
    """Accept no replacement of an object, but say so."""
    if request.method == "PUT" and key_of(request) in store.objects:
        return Reply(200)
    return request


OTHER_BYTES = b"x" * 64 * 1024
#: The faults of each check.
FAULTS: dict[str, Sequence[Fault]] = {
    "write": [refuse("PUT sample", 403, "AccessDenied"), refuse("PUT sample", 503, "SlowDown")],
    "read back": [
        send("GET sample", "other bytes were sent", OTHER_BYTES),
        send("GET sample", "states a length of 1", b"x"),
        send("GET sample", "encoded \\(gzip", **{"Content-Encoding": "gzip"}),
        refuse("GET sample", 404, "NoSuchKey"),
    ],
    "digest": [Fault("status 200", "digest")],
    "digest of part": [Fault("status 200", "digest")],
    "parts": [
        refuse("POST uploads=", 501, "NotImplemented"),
        refuse("PUT partNumber=2", 400, "InvalidPart"),
        send("GET parts range:bytes=0-0", "the size is", **{"Content-Range": "bytes 0-0/9"}),
    ],
    "metadata": [Fault("audioproxy-options is '!", before=lower_metadata)],
    "metadata size": [refuse("PUT metadata", 400, "MetadataTooLarge")],
    "overwrite": [Fault("other bytes were sent", before=keep_first)],
    "new ETag": [send("GET etag", '"1" before and "1" after', ETag='"1"')],
    "key spelling": [Fault("status 404, NoSuchKey", before=misread_plus)],
    "deletion": [accept("DELETE deleted", "status 200"), refuse("DELETE deleted", 403)],
    "ETag": [
        send("GET range sample", 'the ETag is W/"1"', ETag='W/"1"'),
        send("GET range sample", "the ETag of a range is '\"1\"'", ETag='"1"'),
    ],
    "first byte": [drop("range", "range:bytes=0-0", "status 200")],
    "range": [drop("range", "range:bytes=21845-", "status 200")],
    "open range": [drop("range", "range:bytes=32768-", "status 200")],
    "missing object": [
        refuse("GET missing", 500, "InternalError"),
        accept("GET missing", "it was found"),
    ],
    "presigned URL": [refuse("GET X-Amz-Signature", 403, "AccessDenied")],
    "altered URL": [Fault("status 200", "signature")],
    "expired URL": [Fault("status 200", "expiry")],
    "wrong secret": [Fault("the object was sent", "signature")],
    "private": [Fault("status 200", "signature")],
    "presigned types": [
        send("X-Amz-Signature", "content-type is 'text/html'", **{"content-type": "text/html"})
    ],
    "presigned method": [Fault("status 204", "signature")],
    "CORS": [
        send("origin:null", f"{ORIGIN} is https://a.example", **{ORIGIN: "https://a.example"})
    ],
    "left-overs": [refuse("GET uploads=", 501, "NotImplemented")],
    "clean-up": [accept("DELETE sample", "objects that remain is 1")],
}


class BucketCase(ClientCase):
    """A bucket in memory, and runs of checks in it."""

    def setUp(self) -> None:
        super().setUp()
        self.start = datetime.now(UTC)
        self.patch(auth, "get_current_datetime", self.now)
        self.store = self.new_store()

    def now(self) -> datetime:
        """Return the time of this machine, which passes as the network's."""
        return (self.start + timedelta(seconds=self.network.seconds())).replace(tzinfo=None)

    def new_store(
        self, fault: Fault | None = None, token: str | None = TOKEN, behind: float = 0
    ) -> S3Double:
        """Return a new store at the other end of the network.

        :param behind: seconds by which its clock is behind.
        """
        # Closed connections take time in each step of the network.
        self.network.peers[:] = [peer for peer in self.network.peers if not peer.closed]
        start = self.start - timedelta(seconds=behind)
        self.store = store = S3Double(self.network, SECRET, token, start)
        if fault is not None:
            store.ignored = frozenset(fault.ignored.split())
            store.before, store.after = fault.before, fault.after
        return store

    def run_checks(
        self, checks: Sequence[Check] = CHECKS, config: Config = CONFIG, **settings: Any
    ) -> list[CheckResult]:
        """Return the results of checks, which wait for some seconds in all."""
        running = self.begin(collect(self.checking(checks, config, **settings)))
        self.pass_time()
        return self.successResultOf(running)

    def checking(
        self, checks: Sequence[Check] = CHECKS, config: Config = CONFIG, **settings: Any
    ) -> AsyncGenerator[CheckResult]:
        """Return a run of checks."""
        s3 = replace(SETTINGS, **settings)
        trial = Trial(ObjectStore(s3, self.client), s3, BUCKET, config, part_size=4096)
        return run_checks(trial, checks)

    def pass_time(self) -> None:
        """Advance the clock by more seconds than a run waits."""
        for _ in range(20):
            self.network.advance(1)


class CheckTests(BucketCase):
    """The table of checks."""

    def test_good(self) -> None:
        """A store without faults passes all checks, with few requests, and nothing remains."""
        for result in self.run_checks():
            self.assertIs(Verdict.GOOD, result.verdict, result.line)
        self.assertEqual(({}, {}), (self.store.objects, self.store.uploads))
        self.assertLess(len(self.network.requests), 80)

    def test_faults(self) -> None:
        """Each check finds its faults, and says what was found, what breaks and what to do."""
        self.assertEqual([check.name for check in CHECKS], [*FAULTS])
        for index, check in enumerate(CHECKS):
            # The first two write the object that the others read.
            checks = [*CHECKS[: min(2, index)], check]
            for fault in FAULTS[check.name]:
                self.new_store(fault)
                result = single_result(self.run_checks(checks), check.name)
                verdict = Verdict.BAD if check.is_needed(CONFIG) else Verdict.NOTE
                self.assertIs(verdict, result.verdict, result.line)
                self.assertRegex(result.text, fault.words)
                words = f"; should be: {check.checks}. Otherwise, {check.breaks}; {check.remedy}"
                self.assertIn(words, result.text)


class TrialTests(BucketCase):
    """Runs of checks: settings, rights, failures, what is removed."""

    def verdicts(self, results: list[CheckResult]) -> dict[str, str]:
        """Return the texts of the results that are not good."""
        return {each.check: each.text for each in results if each.verdict is not Verdict.GOOD}

    def test_settings(self) -> None:
        """Checks of what is not used are left out, and their failures are no problem."""
        config = replace(CONFIG, serve_mode="proxy", allow_origin=None, source_s3=S3Config())
        self.new_store(refuse("X-Amz-Signature", 403, "AccessDenied"))
        results = self.run_checks(config=config)
        self.assertNotIn(Verdict.BAD, [each.verdict for each in results])
        self.assertIn("AP_ALLOW_ORIGIN is not set", self.verdicts(results)["CORS"])
        self.assertIn("status 403", self.verdicts(results)["presigned URL"])
        self.new_store(token=None)
        self.assertEqual({}, self.verdicts(self.run_checks(session_token=None)))

    def test_rights(self) -> None:
        """Without the right to list, a missing object and left-overs are notes."""

        def deny(store: S3Double, request: Request) -> Request | Reply:
            is_missing = request.method == "GET" and key_of(request) not in store.objects
            return refusal(403, "AccessDenied") if is_missing else request

        self.new_store(Fault("", before=deny))
        results = self.run_checks()
        self.assertNotIn(Verdict.BAD, [each.verdict for each in results])
        texts = self.verdicts(results)
        self.assertIn("the right ListBucket", texts.pop("missing object"))
        self.assertIn("not checked, since", texts.pop("left-overs"))
        self.assertEqual({}, texts)
        self.assertIn("the listing is denied", single_result(results, "clean-up").text)

    def test_no_removal(self) -> None:
        """Without the rights to remove and to list, the clean-up does not claim to be complete."""

        def deny(store: S3Double, request: Request) -> Request | Reply:
            is_denied = request.method == "DELETE" or not key_of(request)
            return refusal(403, "AccessDenied") if is_denied else request

        self.new_store(Fault("", before=deny))
        result = single_result(self.run_checks(), "clean-up")
        self.assertIs(Verdict.BAD, result.verdict)
        self.assertIn("removals failed, and the listing is denied; should be: ", result.text)

    def test_busy(self) -> None:
        """A check is repeated if the store is busy. Nothing is asked of an unreachable store."""
        busy = [refusal(503, "SlowDown")]

        def refuse_once(store: S3Double, request: Request) -> Request | Reply:
            return busy.pop() if busy and request.method == "DELETE" else request

        self.new_store(Fault("", before=refuse_once))
        self.assertEqual({}, self.verdicts(self.run_checks()))
        self.network.unknown = {"s3.test"}
        texts = self.verdicts(self.run_checks())
        self.assertEqual(["write", "other checks"], [*texts])
        self.assertEqual("not run, since the store is unreachable", texts["other checks"])

    def test_wrong_clock(self) -> None:
        """A store's clock that is far behind is reported, and no expiry of URLs is checked."""
        self.new_store(behind=400)
        parts: Any = (BUCKET, AnonymousSpace(), self.network, None)
        variants = S3VariantStore(ObjectStore(SETTINGS, self.client), *parts)
        able = Capabilities(bucket=variants)
        engine: Any = SimpleNamespace(capabilities=able, bucket_sources=None)
        running = self.begin(collect(check_buckets(CONFIG, engine, None)))
        self.pass_time()
        results = self.successResultOf(running)
        texts = self.verdicts(results)
        self.assertEqual({"expired URL", "way to the store", "clock"}, {*texts})
        self.assertIn("the clocks differ", texts["expired URL"])
        self.assertIn("400 s ahead of the store's", texts["clock"])
        text = "a server without a name; path addressing, region us-east-1"
        self.assertEqual(good("store", text), single_result(results, "store"))

    def test_crash(self) -> None:
        """A check that raises is reported as an error and does not stop the others."""

        async def crash(trial: Trial) -> str | None:
            raise RuntimeError("oh")

        checks = [CHECKS[0], replace(CHECKS[1], run=crash), CHECKS[2]]
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            texts = self.verdicts(self.run_checks(checks))
        self.assertEqual(["read back"], [*texts])
        self.assertIn("RuntimeError: oh", printed.getvalue())

    def test_cancelled(self) -> None:
        """A run that is cancelled while it waits for any response removes what it wrote."""
        for count in range(1, 58, 3):
            waiting = [count]

            def hold(request: Request, sent: Reply, waiting: list[int] = waiting) -> Reply | None:
                waiting[0] -= 1
                return None if waiting[0] == 0 else sent

            store = self.new_store(Fault("", after=hold))
            running = Deferred.fromCoroutine(collect(self.checking()))
            while waiting[0] > 0:
                self.network.advance(1)
            running.cancel()
            self.pass_time()
            self.failureResultOf(running, CancelledError)
            self.assertEqual(({}, {}), (store.objects, store.uploads), count)

    def test_left(self) -> None:
        """What killed runs left for an hour is removed: no other object, and no other run's."""
        run = f"{PREFIX}{'0' * 32}-"
        left = [f"{run}sample", f"{run}{writing.SPELLING}", f"{PROOF_PREFIX}{'a' * 32}"]
        kept = ["0" * 64, f"{PREFIX}sample", f"{PROOF_PREFIX}x", f"a{run}sample"]
        hour_ago, now = self.start - timedelta(hours=1), self.start
        for key in left + kept:
            self.store.objects[key] = StoredObject(b"1", {}, hour_ago)
        self.store.objects[f"{run}young"] = StoredObject(b"1", {}, now)
        for name, key, started in (
            ("old", left[0], hour_ago),
            ("young", left[0], now),
            ("other", kept[0], hour_ago),
        ):
            self.store.uploads[name] = Upload(key, {}, started)
        results = self.run_checks()
        text = single_result(results, "left-overs").text
        self.assertEqual("4 objects of killed runs removed", text)
        self.assertEqual({*kept, f"{run}young"}, {*self.store.objects})
        self.assertEqual({"young", "other"}, {*self.store.uploads})

    def test_source(self) -> None:
        """The reading of a source is checked without writing to its bucket."""
        for size in (1, 1000, 64 * 1024 + 1, 10**6):
            self.new_store().objects["a b.wav"] = StoredObject(os.urandom(size), {}, self.start)
            self.network.requests.clear()
            self.assertEqual({}, self.verdicts(self.run_checks(source_checks(b"a b.wav"))), size)
            methods = {request.method for request in self.network.requests}
            self.assertEqual({"GET"}, methods)
        for key, body, found in ((b"none", b"", "status 404, NoSuchKey"), (b"e", b"", "is empty")):
            self.new_store().objects["e"] = StoredObject(body, {}, self.start)
            texts = self.verdicts(self.run_checks(source_checks(key)))
            self.assertEqual(["found", "other checks"], [*texts])
            self.assertIn(found, texts["found"])


class UsageTests(SynchronousTestCase):
    """The options of the command"""

    def test_usage(self) -> None:
        """Options without --bucket, and a source that is no object, are usage errors."""
        for words, found in (
            (["--names"], "--source and --names need --bucket"),
            (["--source", "s3://a/b"], "--source and --names need --bucket"),
            (["--bucket", "--source", "s3://a"], "--source s3://a: not the address of an object"),
            (["--bucket", "--source", "https://a/b"], "not the address of an object"),
        ):
            ended = command("doctor", *words)
            self.assertEqual(2, ended.status, words)
            self.assertIn(found, ended.err)
