"""Arguments of ffmpeg for a bucket source, and secrets that must not be logged."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from tests.support.attacks import Recorder, Run
from tests.support.remote import HOLD, PASS, RemoteCase, is_signed_url
from tests.support.service import PATIENCE, fetch, long_flac, send, short_flac, until


class SecretsCase(RemoteCase):
    """Service in a process of its own, whose ffmpeg and ffprobe record their arguments."""

    async def setUp(self) -> None:
        await super().setUp()
        self.recorder = Recorder(self.root.with_name("recorder"))

    def runs(self) -> list[Run]:
        """Return the records of the calls with a presigned URL."""
        return [run for run in self.recorder.inputs() if "X-Amz-" in str(run.words)]


class CommandTests(SecretsCase):
    """Arguments of ffmpeg and ffprobe for a bucket source over TLS (D45)."""

    tls = True

    async def test_command_lines(self) -> None:
        """ffmpeg gets one presigned URL, valid for AP_RENDER_TIMEOUT at most, and no other secret.

        The arguments also hold the whitelists of protocols and formats, and If-Match with the
        source's ETag. The same applies to ffprobe. Both verify the store's certificate against its
        own bundle.
        """
        tag = self.put("a b.flac", short_flac())
        node = self.twistd(PATH=self.recorder.path, AWS_PROFILE="x", AP_RENDER_TIMEOUT="40")
        port = await node.port()
        for options in ("f:mp3", "f:peaks/pts:3"):
            self.assertEqual(200, (await fetch(port, self.url("a b.flac", options))).status)
        runs = self.runs()
        self.assertEqual({"ffmpeg", "ffprobe"}, {run.words[0] for run in runs})
        self.assertLessEqual(3, len(runs))
        for run in runs:
            (url,) = run.after("-i")
            self.assertEqual(1, sum("X-Amz-" in word for word in run.words))
            parts = urlsplit(url)
            self.assertEqual(f"/{self.sources}/a%20b.flac", parts.path)
            (seconds,) = parse_qs(parts.query)["X-Amz-Expires"]
            self.assertTrue(1 <= int(seconds) <= 40, (run.words[0], seconds))
            for option, values in {
                "-protocol_whitelist": ["https,tls,tcp"],
                "-max_redirects": ["0"],
                "-headers": [f"If-Match: {tag}\r\n"],
                "-tls_verify": ["1"],
                "-ca_file": [str(self.server.ca_bundle)],
            }.items():
                self.assertEqual(values, run.after(option), run.words)
                self.assertEqual(1, run.before_input.count(option), run.words)
            (demuxers,) = run.after("-format_whitelist")
            self.assertFalse({"hls", "dash", "concat", "image2"} & {*demuxers.split(",")})
            self.assertIn("-format_whitelist", run.before_input)
        # A child's environment has PATH and LC_ALL at most, so no setting and no secret.
        for run in self.recorder.runs():
            self.assertLessEqual({*run.environment}, {"PATH", "LC_ALL"})


class LogTests(SecretsCase):
    """Output on stdout and stderr (Request log, 5)."""

    async def test_no_secrets_in_log(self) -> None:
        """No presigned URL, signature, key or token is in the debug log, however a request ends."""
        reader = self.server.add_user("get")
        if "session token" in self.server.checks:
            reader = self.server.temporary_credentials(reader)
        for name in ("a.flac", "b.flac"):
            self.put(name, short_flac())
        self.put("text.mp3", b"No sound, but words.\n" * 500)
        self.put("long.flac", long_flac())
        relay = self.relay()
        node = self.twistd(
            PATH=self.recorder.path,
            AP_LOG_LEVEL="debug",
            AP_PROBE_TIMEOUT=str(int(PATIENCE)),
            AP_S3_ENDPOINT=f"http://127.0.0.1:{relay.port}",
            AP_SERVE_MODE="redirect",
            AWS_ACCESS_KEY_ID=reader.access_key,
            AWS_SECRET_ACCESS_KEY=reader.secret_key,
            AWS_SESSION_TOKEN=reader.session_token or "",
            AP_VARIANT_S3_ENDPOINT=self.server.endpoint,
            AP_VARIANT_S3_ACCESS_KEY_ID=self.server.access_key,
            AP_VARIANT_S3_SECRET_ACCESS_KEY=self.server.secret_key,
            AP_VARIANT_S3_REGION=self.server.region,
        )
        port = await node.port()
        self.assertEqual(200, (await fetch(port, self.url("a.flac"))).status)
        await self.until_stored()
        self.assertEqual(302, (await fetch(port, self.url("a.flac"))).status)
        self.assertEqual(415, (await fetch(port, self.url("text.mp3"))).status)
        # Break connections during a render and a probe, so that ffmpeg's errors quote their URLs.
        relay.limit = 100_000
        stream = await send(port, self.url("long.flac"))
        await until(lambda: stream.response and relay.stalled, "a stalled connection to the store")
        relay.rule = lambda request: HOLD if is_signed_url(request) else PASS
        others = [await send(port, self.url("b.flac", options)) for options in ("f:mp3", "info")]
        await until(lambda: relay.stalled == 2, "the probe")
        await relay.close()
        self.assertFalse((await stream.end()).complete)
        self.assertEqual([502, 502], [(await client.end()).status for client in others])
        self.assertEqual(502, (await fetch(port, self.url("text.mp3"))).status)
        node.signal(15)
        self.assertEqual(0, await node.end())
        # The log names bucket and key of the source, which an operator needs to find the fault.
        self.assertRegex(
            node.stdout, rf"render 200 upstream_unavailable .*{self.sources}/long\.flac"
        )
        commands = str([run.words for run in self.runs()])
        signatures = re.findall(r"X-Amz-Signature=([0-9a-f]{64})", commands)
        self.assertLessEqual(4, len(signatures))
        output = node.stdout + node.stderr
        self.assertIn("[debug]", output)
        words = ["X-Amz-", "x-amz-", "Signature", "Credential", "AWS4", *signatures]
        words += [reader.access_key, reader.secret_key, reader.session_token or words[0]]
        for word in (*words, self.server.access_key, self.server.secret_key):
            self.assertNotIn(word, output)
