"""Checks of buckets: requests and results, with scripted responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, cast

from audioproxy.cli.checks.results import CheckResult, Verdict, good
from audioproxy.cli.checks.settings import UsableSettings
from audioproxy.cli.checks.stores import (
    check_bucket,
    check_bucket_sources,
    check_clock,
    check_stores,
)
from audioproxy.config import BucketStore, Config, S3Config
from audioproxy.engine.parts import Capabilities
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.s3.objects import ObjectStore
from audioproxy.sources.s3 import S3Sources
from audioproxy.variants.s3 import S3VariantStore
from tests.support.checks import collect, single_result
from tests.support.s3_double import S3Double
from tests.support.wire import ClientCase, error, reply

SECRET = "a-secret-that-nobody-may-see"
SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", SECRET, None, "us-east-1")


class StoreCase(ClientCase):
    """Buckets for variants and for sources."""

    def setUp(self) -> None:
        super().setUp()
        self.objects = ObjectStore(SETTINGS, self.client)
        parts: Any = ("bucket", AnonymousSpace(), self.network, None)
        self.variants = S3VariantStore(self.objects, *parts)
        self.sources = S3Sources(self.objects, cast(Any, None))

    def config(self, **settings: Any) -> Config:
        """Return the configuration of a service with a bucket for its variants."""
        settings = {"presign_ttl": 60, "variant_s3": SETTINGS, **settings}
        return Config(allow_insecure=True, variant_store=BucketStore("bucket"), **settings)

    def results(self, check: AsyncIterator[CheckResult], *responses: bytes) -> list[CheckResult]:
        """Return the results of a check whose requests get these responses."""
        self.network.scripts += responses
        running = self.begin(collect(check))
        # A request may be repeated.
        for _ in range(3):
            self.network.advance(1)
        return self.successResultOf(running)


class BucketTests(StoreCase):
    """The function `check_bucket`."""

    def check(self, *responses: bytes, **settings: Any) -> list[CheckResult]:
        """Return the results for a store that sends these responses."""
        return self.results(check_bucket(self.config(**settings), self.variants), *responses)

    def test_good(self) -> None:
        """The check proves what the service proves at boot, with presigned URLs if it uses them."""
        place = "s3://bucket at http://s3.test: a test object was written, read in parts"
        for mode, how in (("redirect", ", also by its presigned URL"), ("proxy", "")):
            S3Double(self.network, SECRET, None, datetime.now(UTC))
            parts: Any = (self.objects, "bucket", AnonymousSpace(), self.network, None)
            self.variants = S3VariantStore(*parts, presign_ttl=60 if mode == "redirect" else None)
            results = self.check(serve_mode=mode)
            self.assertEqual(good("variant store", f"{place}{how}, and removed"), results[0])

    def test_unwritable(self) -> None:
        """An unusable bucket is reported as at boot, with the cause and the requirement."""
        result = single_result(
            self.check(*[reply(403, error("AccessDenied"))] * 2), "variant store"
        )
        self.assertIs(Verdict.BAD, result.verdict)
        words = r"\AAP_VARIANT_STORE: writing .*AccessDenied.*; .*credentials that may.* required\Z"
        self.assertRegex(result.text, words)


class SourceTests(StoreCase):
    """The function `check_bucket_sources`."""

    def check(self, response: bytes) -> CheckResult:
        """Return the result for a store that sends this response."""
        config = self.config(source_s3=SETTINGS)
        return single_result(
            self.results(check_bucket_sources(config, self.sources), response), "bucket sources"
        )

    def test_credentials(self) -> None:
        """Accepted credentials are good; others, errors and a wrong clock are reported."""
        accepted = good("bucket sources", "http://s3.test accepts the credentials")
        self.assertEqual(accepted, self.check(reply(200, b"<ListAllMyBucketsResult/>")))
        for status, code in ((403, "AccessDenied"), (405, "MethodNotAllowed")):
            self.assertEqual(accepted, self.check(reply(status, error(code))))
        for status, code, required in (
            (403, "InvalidAccessKeyId", "are required"),
            (400, "AuthorizationHeaderMalformed", "are required"),
            (403, "RequestTimeTooSkewed", "a correct clock is required, here and in the store"),
        ):
            result = self.check(reply(status, error(code)))
            self.assertIs(Verdict.BAD, result.verdict)
            failure = rf"\Ahttp://s3.test: listing .* failed \(status {status}, {code}\); "
            failure += rf".*{required}\Z"
            self.assertRegex(result.text, failure)

    def test_unclear_denial(self) -> None:
        """AccessDenied without a text may be a wrong secret: radosgw with STS says no more."""
        result = self.check(reply(403, b"<Error><Code>AccessDenied</Code></Error>"))
        self.assertIs(Verdict.NOTE, result.verdict)
        self.assertIn("if sources fail, the right secret key", result.text)

    def test_encryption(self) -> None:
        """A cleartext connection to a store gets a note, unless it is local."""
        for host, verdict in {
            "127.0.0.1": Verdict.GOOD,
            "localhost": Verdict.GOOD,
            "s3.test": Verdict.NOTE,
        }.items():
            settings = replace(SETTINGS, endpoint=f"http://{host}")
            sources = S3Sources(ObjectStore(settings, self.client), cast(Any, None))
            checking = check_bucket_sources(self.config(source_s3=settings), sources)
            found = single_result(self.results(checking, reply(200)), "way to sources")
            self.assertIs(verdict, found.verdict, found.line)


class ClockTests(StoreCase):
    """The function `check_clock`, and its use in `check_stores`."""

    def test_verdicts(self) -> None:
        """A clock offset of more than 5 seconds is a note, and of more than 300 an error."""
        offsets = {5: "GOOD", -5: "GOOD", 6: "NOTE", -300: "NOTE", 300: "NOTE", 301: "BAD"}
        offsets[-400] = "BAD"
        self.assertEqual(offsets, {ahead: check_clock(ahead).verdict.name for ahead in offsets})
        self.assertIn("400 s behind the store's", check_clock(-400).text)

    def test_clock_offset(self) -> None:
        """The clock is compared with a store's Date header, even in an error response."""
        date = {"Date": format_datetime(datetime.now(UTC) - timedelta(seconds=9), usegmt=True)}
        settings = UsableSettings(self.config(), frozenset(), ())
        # Without a Date header there is no result for the clock.
        for headers, count in (({}, 0), (date, 1)):
            for store, sources in ((self.variants, None), (None, self.sources)):
                able = Capabilities(bucket=store)
                proxy: Any = SimpleNamespace(store=store, capabilities=able, bucket_sources=sources)
                checking = check_stores(settings, proxy)
                results = self.results(checking, *[reply(404, error("NoSuchBucket"), headers)] * 2)
                clocks = [each for each in results if each.check == "clock"]
                self.assertEqual(count, len(clocks))
                for found in clocks:
                    self.assertIs(Verdict.NOTE, found.verdict)
                    self.assertRegex(found.text, r"machine's is \d+ s ahead of the store's; set it")
