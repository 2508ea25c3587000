"""`audioproxy doctor` with a real bucket: what it checks, and how it reports a wrong clock."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from botocore import auth
from botocore.compat import get_current_datetime

from audioproxy.cli.checks.results import CheckResult, Verdict
from audioproxy.service import BootError, make_service
from tests.support.authority import Authority
from tests.support.checks import run_checks, single_result
from tests.support.origins import open_origin
from tests.support.remote import ABORTED, PASS, RemoteCase, is_signed_url
from tests.support.servers import free_port
from tests.support.service import reactor


class BucketCase(RemoteCase):
    """Environment with a bucket as the variant store."""

    async def run_checks(self, **variables: str) -> list[CheckResult]:
        """Run the checks in redirect mode, and require that no line holds a secret."""
        environment = self.environment(**{"AP_SERVE_MODE": "redirect", **variables})
        results = await run_checks(self, environment)
        lines = "\n".join(result.line for result in results)
        for name, value in environment.items():
            if name in ("AP_KEY", "AP_SALT") or name.endswith(("_KEY", "_ID")):
                self.assertNotIn(value, lines, name)
        self.assertNotIn("X-Amz-Signature", lines)
        return results

    def assert_verdicts(self, results: list[CheckResult], **wanted: Verdict) -> None:
        """Require the verdicts of checks; underscores in their names stand for spaces."""
        for what, verdict in wanted.items():
            found = single_result(results, what.replace("_", " "))
            self.assertIs(verdict, found.verdict, found.line)

    def shift_clock(self, seconds: int) -> None:
        """Sign requests as if this machine's clock were `seconds` ahead."""
        self.patch(
            auth,
            "get_current_datetime",
            lambda: get_current_datetime() + timedelta(seconds=seconds),
        )


class GoodBucketTests(BucketCase):
    """Buckets that are configured correctly."""

    async def test_good_bucket(self) -> None:
        """A good bucket passes: an object is written, found, fetched by its URL and removed.

        A correct clock passes too.
        """
        results = await self.run_checks()
        self.assertNotIn(Verdict.BAD, [result.verdict for result in results])
        self.assert_verdicts(
            results,
            variant_store=Verdict.GOOD,
            presigned_URLs=Verdict.GOOD,
            way_to_the_store=Verdict.GOOD,
            clock=Verdict.GOOD,
        )
        self.assertIn(f"s3://{self.variants} at ", single_result(results, "variant store").text)
        self.assertEqual([], self.stored())

    async def test_separate_source_credentials(self) -> None:
        """Separate credentials for sources are verified, even if they have no permissions."""
        nobody = self.server.add_user("nothing")
        separate_credentials = {
            "AP_VARIANT_S3_ACCESS_KEY_ID": self.server.access_key,
            "AP_VARIANT_S3_SECRET_ACCESS_KEY": self.server.secret_key,
            "AP_VARIANT_S3_REGION": self.server.region,
            "AWS_ACCESS_KEY_ID": nobody.access_key,
        }
        for secret, verdict in ((nobody.secret_key, Verdict.GOOD), ("x" * 40, Verdict.BAD)):
            results = await self.run_checks(**separate_credentials, AWS_SECRET_ACCESS_KEY=secret)
            self.assert_verdicts(results, variant_store=Verdict.GOOD, bucket_sources=verdict)
        self.assertIn("SignatureDoesNotMatch", single_result(results, "bucket sources").text)


class RefusedTests(BucketCase):
    """Buckets that fail the checks."""

    async def test_refusals(self) -> None:
        """If the store check fails, its result names the cause and the requirement."""
        reader = self.server.add_user("read")
        reader_variables = {
            "AWS_ACCESS_KEY_ID": reader.access_key,
            "AWS_SECRET_ACCESS_KEY": reader.secret_key,
        }
        for variables, cause, required in (
            ({"AP_VARIANT_STORE": "s3://no-such-bucket"}, "NoSuchBucket", "bucket that exists"),
            (reader_variables, "AccessDenied", "credentials that may write"),
            (
                {"AP_S3_ENDPOINT": f"http://127.0.0.1:{free_port()}"},
                "unreachable",
                "that can be reached",
            ),
        ):
            results = await self.run_checks(**variables)
            self.assert_verdicts(
                results,
                variant_store=Verdict.BAD,
                presigned_URLs=Verdict.NOTE,
                temporary_files=Verdict.GOOD,
            )
            text = single_result(results, "variant store").text
            self.assertRegex(text, rf"\AAP_VARIANT_STORE: .*{cause}.*; .*{required}.* required\Z")

    async def test_presigned(self) -> None:
        """A presigned URL that fails is an error in redirect mode, and a note in proxy mode."""
        relay = self.relay()
        relay.rule = lambda request: ABORTED if is_signed_url(request) else PASS
        endpoint = f"http://127.0.0.1:{relay.port}"
        for mode, verdict in (("redirect", Verdict.BAD), ("proxy", Verdict.NOTE)):
            results = await self.run_checks(AP_S3_ENDPOINT=endpoint, AP_SERVE_MODE=mode)
            self.assert_verdicts(results, variant_store=Verdict.GOOD, presigned_URLs=verdict)
        self.assertEqual([], self.stored())

    async def test_certificates(self) -> None:
        """For an untrusted certificate, the result names AP_S3_CA_BUNDLE.

        With the right bundle, the check "way to the store" passes.
        """
        authority = Authority(Path(self.mktemp()).resolve())
        origin = open_origin(self, authority.issue("localhost"))
        endpoint = {"AP_S3_ENDPOINT": f"https://localhost:{origin.port}"}
        results = await self.run_checks(**endpoint)
        self.assertIn("AP_S3_CA_BUNDLE", single_result(results, "variant store").text)
        self.assert_verdicts(results, way_to_the_store=Verdict.NOTE)
        results = await self.run_checks(**endpoint, AP_S3_CA_BUNDLE=str(authority.bundle))
        way = single_result(results, "way to the store")
        self.assertEqual((Verdict.GOOD, True), (way.verdict, str(authority.bundle) in way.text))


class ClockTests(BucketCase):
    """Machines whose clock is wrong."""

    AHEAD = r"this machine's is 120[234] s ahead of the store's"

    async def test_refused(self) -> None:
        """If the store refuses a wrong clock, `doctor` and the boot error report the offset."""
        self.shift_clock(1203)
        results = await self.run_checks()
        self.assert_verdicts(results, variant_store=Verdict.BAD, clock=Verdict.BAD)
        self.assertRegex(
            single_result(results, "variant store").text, f"RequestTimeTooSkewed.*{self.AHEAD}"
        )
        self.assertRegex(single_result(results, "clock").text, rf"\A{self.AHEAD}; set it by NTP\Z")
        service = make_service(self.config(), reactor)
        try:
            error = await self.assertFailure(service.startService(), BootError)
        finally:
            await service.stopService()
        self.assertRegex(str(error), rf"a correct clock is required: {self.AHEAD}\Z")

    async def test_accepted_clock_offset(self) -> None:
        """A clock offset that the store accepts is a note, and above 300 seconds an error.

        A presigned URL that is expired by the store's clock is reported as an error.
        """
        for seconds, verdict in ((60, Verdict.NOTE), (-400, Verdict.BAD)):
            self.shift_clock(seconds)
            results = await self.run_checks()
            self.assert_verdicts(results, variant_store=Verdict.GOOD, clock=verdict)
        # The presigned URL is valid for 300 seconds, which have passed by the store's clock.
        self.assert_verdicts(results, presigned_URLs=Verdict.BAD)
        text = single_result(results, "clock").text
        self.assertTrue(re.search("(399|400|401) s behind the store's", text), text)
        self.assertEqual([], self.stored())
