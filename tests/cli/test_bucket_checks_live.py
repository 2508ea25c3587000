"""`audioproxy doctor --bucket` with a real bucket, also when it is interrupted or killed."""

from __future__ import annotations

import base64
import hashlib
import json

from audioproxy.cli.checks.bucket.reading import READING
from audioproxy.cli.checks.bucket.table import CHECKS
from audioproxy.cli.checks.results import CheckResult, Verdict
from audioproxy.cli.doctor import check_bucket
from audioproxy.grammar.sources import S3Source
from tests.cli.command import start_command
from tests.support.remote import HOLD, PASS, RemoteCase, RequestAction
from tests.support.s3 import Identity
from tests.support.service import Process, reactor, until
from tests.support.wire import Request

CORS = (
    b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET"
    b"</AllowedMethod></CORSRule></CORSConfiguration>"
)


def credentials(user: Identity) -> dict[str, str]:
    """Return the settings of a user."""
    return {
        "AWS_ACCESS_KEY_ID": user.access_key,
        "AWS_SECRET_ACCESS_KEY": user.secret_key,
        "AWS_SESSION_TOKEN": user.session_token or "",
    }


class BucketTests(RemoteCase):
    """The command, with a bucket on a real server"""

    def allow_origins(self) -> None:
        """Set a CORS rule, if the server has such rules; the other allows all origins."""
        digest = base64.b64encode(hashlib.md5(CORS).digest()).decode()
        headers = {"Content-MD5": digest}
        self.server.request("PUT", self.variants, query="cors=", body=CORS, headers=headers)

    async def run_checks(
        self, source: S3Source | None = None, *, names: bool = False, **variables: str
    ) -> dict[str, CheckResult]:
        """Return the result of each check."""
        results: list[CheckResult] = []
        variables = {"AP_SERVE_MODE": "redirect", "AP_ALLOW_ORIGIN": "*", **variables}
        environment = self.environment(**variables)
        await check_bucket(reactor, environment, results.append, source, names=names)
        return {result.check: result for result in results}

    def start(self, *words: str, **variables: str) -> Process:
        """Start the command."""
        variables = {"AP_SERVE_MODE": "redirect", **variables}
        return start_command(self, "doctor", "--bucket", *words, **variables)

    async def test_good(self) -> None:
        """A new bucket passes every check but known ones; nothing remains, and no name is shown."""
        self.allow_origins()
        self.put("a b.wav", bytes(100_000))
        source = f"s3://{self.sources}/a b.wav"
        process = self.start("--json", "--source", source, AP_ALLOW_ORIGIN="*")
        server, status = self.server, await process.end()
        self.assertEqual(1 if server.fails else 0, status, process.stdout + process.stderr)
        secrets = (server.owner.access_key, server.owner.secret_key, "X-Amz-Signature")
        for word in (self.variants, self.sources, str(server.port), *secrets):
            self.assertNotIn(word, process.stdout)
        document = json.loads(process.stdout)
        found = {check["check"]: check for check in document["checks"]}
        keys = {name for check in found.values() for name in check}
        self.assertEqual(({"ok", "checks"}, {"check", "verdict", "text"}), ({*document}, keys))
        for check in CHECKS:
            for name in [check.name] + [f"source: {check.name}"] * (check in READING):
                passed = found[name]["verdict"] == "good"
                self.assertEqual(check.name not in server.fails, passed, found[name])
        self.assertEqual((0, 0), self.remaining())
        self.assertEqual([b"a b.wav"], server.keys(self.sources))

    async def test_rights(self) -> None:
        """Temporary credentials with the rights that the pages name pass, and others do not."""
        self.allow_origins()
        keep = self.server.temporary_credentials(self.server.add_user("keep"))
        results = await self.run_checks(**credentials(keep))
        bad = [each.line for each in results.values() if each.verdict is Verdict.BAD]
        self.assertEqual([], bad)
        results = await self.run_checks(**credentials(self.server.add_user("read")))
        self.assertIs(Verdict.BAD, results["write"].verdict)
        self.assertIn("there is no object", results["other checks"].text)

    async def test_names(self) -> None:
        """The report has the name of the endpoint if that is wanted."""
        endpoint = "http://127.0.0.1:9"
        for is_named, shown in ((False, "ENDPOINT"), (True, endpoint)):
            results = await self.run_checks(names=is_named, AP_S3_ENDPOINT=endpoint)
            self.assertIn(f"{shown} is unreachable", results["write"].text)

    async def test_settings(self) -> None:
        """Without a bucket or credentials, the result says what to set."""
        folder = {"AP_VARIANT_STORE": "", "AP_SERVE_MODE": "proxy"}
        results = await self.run_checks(**folder)
        self.assertIn("set AP_VARIANT_STORE to s3://NAME", results["bucket"].text)
        source = S3Source(self.sources, b"a")
        results = await self.run_checks(source, **folder)
        self.assertIn("NoSuchKey", results["source: found"].text)
        self.assertEqual(set(), {"bucket", "source"} & results.keys())
        results = await self.run_checks(source, **folder, AP_SOURCE_ALLOWLIST="other")
        self.assertIn("add it to AP_SOURCE_ALLOWLIST", results["source"].text)
        none = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"), "")
        results = await self.run_checks(source, **folder, **none)
        self.assertIn("set AWS_ACCESS_KEY_ID", results["source"].text)

    def remaining(self) -> tuple[int, int]:
        """Return the numbers of objects and of uploads in the bucket."""
        return len(self.stored()), len(self.server.uploads(self.variants))

    async def test_interrupted(self) -> None:
        """After Ctrl-C during an upload, everything that was written is removed."""
        relay = self.relay()

        def rule(request: Request) -> RequestAction:
            return HOLD if "partNumber" in request.target else PASS

        relay.rule = rule
        process = self.start(AP_S3_ENDPOINT=f"http://127.0.0.1:{relay.port}")
        await until(lambda: relay.stalled, "the part")
        written = 2 if "digest" in self.server.fails else 1
        self.assertEqual((written, 1), self.remaining())
        process.signal(2)
        self.assertEqual(130, await process.end(), process.stderr)
        self.assertEqual((0, 0), self.remaining())
