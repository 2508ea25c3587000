"""Arguments of ffmpeg for a bucket source, and secrets that must not be logged."""

from __future__ import annotations

import re
from shlex import quote
from shutil import which
from urllib.parse import parse_qs, urlsplit

from tests.support.remote import HOLD, PASS, RemoteCase, is_signed_url
from tests.support.service import Process, fetch, long_flac, send, short_flac, until

RENDER_SECONDS, PROBE_SECONDS = 40, 6

# Script that records its arguments and environment, and then executes the real program.
RECORDER = """#!/bin/sh
cat /proc/$$/environ > {folder}/$$.environ
printf '%s\\0' {name} "$@" > {folder}/$$.words.new
mv {folder}/$$.words.new {folder}/$$.words
exec {real} "$@"
"""


class SecretsCase(RemoteCase):
    """Service in a process of its own, whose ffmpeg and ffprobe record their arguments."""

    async def setUp(self) -> None:
        await super().setUp()
        self.records = self.root.with_name("records")
        programs = self.root.with_name("programs")
        for folder in (self.records, programs):
            folder.mkdir()
        for name in ("ffmpeg", "ffprobe"):
            real = quote(which(name) or name)
            script = RECORDER.format(folder=quote(str(self.records)), name=name, real=real)
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        self.path = f"{programs}:{self.environment()['PATH']}"

    def start_recording(self, **variables: str) -> Process:
        """Start the service with the recording programs."""
        return self.twistd(
            PATH=self.path,
            AP_LOG_LEVEL="debug",
            AP_RENDER_TIMEOUT=str(RENDER_SECONDS),
            AP_PROBE_TIMEOUT=str(PROBE_SECONDS),
            **variables,
        )

    def commands(self) -> list[list[str]]:
        """Return the recorded command lines that contain a presigned URL."""
        every = [
            path.read_bytes().decode().split("\0")[:-1] for path in self.records.glob("*.words")
        ]
        return [words for words in every if any("X-Amz-" in word for word in words)]


def option(words: list[str], name: str) -> str:
    """Return the value of an option that must occur once, ahead of the input."""
    places = [place for place, word in enumerate(words) if word == name]
    if len(places) != 1 or places[0] > words.index("-i"):
        raise AssertionError(f"{name} in {words}")
    return words[places[0] + 1]


class CommandTests(SecretsCase):
    """Arguments of ffmpeg and ffprobe for a bucket source (D45)."""

    PROTOCOLS = "https,tls,tcp,http"

    async def test_command_lines(self) -> None:
        """ffmpeg gets one presigned URL, valid for AP_RENDER_TIMEOUT at most, and no other secret.

        The arguments also hold the whitelists of protocols and formats, and If-Match with the
        source's ETag. The same applies to ffprobe.
        """
        tag = self.put("a b.flac", short_flac())
        node = self.start_recording(AWS_PROFILE="x", AP_UNKNOWN="x")
        port = await node.port()
        for options in ("f:mp3", "f:peaks/pts:3"):
            self.assertEqual(200, (await fetch(port, self.url("a b.flac", options))).status)
        commands = self.commands()
        self.assertEqual({"ffmpeg", "ffprobe"}, {words[0] for words in commands})
        self.assertLessEqual(3, len(commands))
        for words in commands:
            url = words[words.index("-i") + 1]
            self.assertEqual(1, sum("X-Amz-" in word for word in words))
            parts = urlsplit(url)
            self.assertEqual(f"/{self.sources}/a%20b.flac", parts.path)
            (seconds,) = parse_qs(parts.query)["X-Amz-Expires"]
            self.assertTrue(1 <= int(seconds) <= RENDER_SECONDS, (words[0], seconds))
            self.assertEqual(self.PROTOCOLS, option(words, "-protocol_whitelist"))
            demuxers = option(words, "-format_whitelist").split(",")
            self.assertFalse({"hls", "dash", "concat", "image2"} & set(demuxers))
            self.assertEqual("0", option(words, "-max_redirects"))
            self.assertEqual(f"If-Match: {tag}\r\n", option(words, "-headers"))
            self.check_trust(words)
        # A child's environment has PATH and LC_ALL at most, so no setting and no secret.
        environments = [path.read_bytes() for path in self.records.glob("*.environ")]
        self.assertLessEqual(len(commands), len(environments))
        for environ in environments:
            names = {pair.partition(b"=")[0] for pair in environ.split(b"\0") if pair}
            self.assertLessEqual(names, {b"PATH", b"LC_ALL"})

    def check_trust(self, words: list[str]) -> None:
        """Require no TLS options, because ffmpeg's http protocol has none."""
        self.assertFalse({"-tls_verify", "-ca_file"} & set(words))


class TLSCommandTests(CommandTests):
    """Arguments of ffmpeg and ffprobe for a bucket source over TLS."""

    tls = True
    PROTOCOLS = "https,tls,tcp"

    def check_trust(self, words: list[str]) -> None:
        """Require that ffmpeg verifies the certificate against the store's own bundle."""
        self.assertEqual("1", option(words, "-tls_verify"))
        self.assertEqual(str(self.server.ca_bundle), option(words, "-ca_file"))


class LogTests(SecretsCase):
    """Output on stdout and stderr (Request log, 5)."""

    def check(self, node: Process, *secrets: str | None) -> None:
        """Require that the output contains no credential, signature or other given secret."""
        output = node.stdout + node.stderr
        self.assertIn("[debug]", output)
        for word in ("X-Amz-", "x-amz-", "Signature", "Credential", "AWS4", *filter(None, secrets)):
            self.assertNotIn(word, output)

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
        node = self.start_recording(
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
        self.assertRegex(node.stdout, rf"the encoder failed .*{self.sources}/long\.flac")
        commands = self.commands()
        signatures = re.findall(r"X-Amz-Signature=([0-9a-f]{64})", str(commands))
        self.assertLessEqual(4, len(signatures))
        self.check(
            node,
            *signatures,
            *(reader.access_key, reader.secret_key, reader.session_token),
            *(self.server.access_key, self.server.secret_key),
        )
