"""Malicious origins, and what the children that read their sources know.

`tests.sources.test_https` has redirects; to a child, a remote source is a file, so
`tests.sources.test_local_attacks_live` has what may be in it.
"""

from __future__ import annotations

import os

from tests.sources.test_https_live import HttpsCase, authority
from tests.sources.test_local_attacks_live import (
    SOURCE_OPTIONS,
    fetch_limited,
    header_names,
    inside,
    local_path,
)
from tests.support.attacks import Recorder
from tests.support.http import KEY, SALT
from tests.support.origins import File, Redirect, open_origin
from tests.support.service import children, fetch, until


class NameTests(HttpsCase):
    """What an origin states of its sources."""

    async def test_headers_of_an_origin(self) -> None:
        """Headers of an origin add no header and no line to the service's responses."""
        odd = {
            "return": (b'ETag: "a\rX-Injected: 1"', b"Last-Modified: a\rX-Injected: 1"),
            "zero": (b'ETag: "a\0b"',),
            "bytes": (b'ETag: "\xff\x80\xe2\x80\xa8"',),
            "type": (b"Content-Type: text/html\rX-Injected: 1", b"Set-Cookie: a=b"),
            "long": (b'ETag: "%s"' % (b"a" * 3000),),
        }
        urls = [
            self.origin.put(f"/{name}", File(inside(), etag=None, modified=None, headers=lines))
            for name, lines in odd.items()
        ]
        good, port = self.origin.put("/good.wav", inside()), self.start(variant_store=None).port
        for options in SOURCE_OPTIONS:
            reference = await fetch(port, self.path(good, options))
            targets = [self.path(url, options) for url in urls]
            for url, response in zip(urls, await fetch_limited(port, targets), strict=True):
                self.assertIn(response.status, (200, 502), url)
                if response.status == 200:
                    names = {*header_names(reference), b"etag"}
                    self.assertLessEqual({*header_names(response)}, names, url)
                    self.assertNotIn(b"Injected", b"".join(value for _, value in response.headers))


#: Secrets in the environment of the service, which child processes must not get.
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIASECRET",
    "AWS_SECRET_ACCESS_KEY": "aws-secret",
    "AWS_SESSION_TOKEN": "session-secret",
    "AWS_REGION": "secret-region-1",
    "AP_ALLOW_ORIGIN": "https://secret.example",
    "SECRET": "another-secret",
}

#: Environment variables that would change the behavior of ffmpeg.
FFMPEG_VARIABLES = {
    "FFREPORT": "file=report.log:level=56",
    "AV_LOG_FORCE_COLOR": "1",
    "LD_BIND_NOW": "1",
}


class ChildTests(HttpsCase):
    """Arguments and environments of ffmpeg and ffprobe."""

    # The runs that check ffmpeg at boot are tested, too.
    checks_ffmpeg = True

    async def test_children(self) -> None:
        """Children get whitelists and the source, but no environment except PATH and LC_ALL.

        A remote source is a file to them (D74): no URL is on their command line (D45).
        """
        recorder, proxy = Recorder(self.root.with_name("recorder")), open_origin(self)
        proxies = ("http_proxy", "https_proxy", "ALL_PROXY")
        node = self.twistd(
            **{**SECRETS, **FFMPEG_VARIABLES},
            **dict.fromkeys(proxies, f"http://127.0.0.1:{proxy.port}"),
            SSL_CERT_FILE=str(authority().bundle),
            AP_SOURCE_ALLOWLIST="localhost",
            PATH=recorder.path,
        )
        for name in ("inside.wav", "a\nINFO injected.wav"):
            self.add(name, inside())
        url = self.origin.put("/good.wav", inside())
        moved = self.origin.put("/moved.wav", Redirect("/good.wav"))
        port = await node.port()
        every = ("f:mp3/norm:ebu", "f:peaks", "info", "f:flac/t:0.01:0.1/fade:0.01:0.01")
        targets = [
            *(local_path("inside.wav", options) for options in every),
            *(local_path("a\nINFO injected.wav", options) for options in every[2:]),
            *map(self.path, (url, moved) * 2, every),
        ]
        for target, response in zip(targets, await fetch_limited(port, targets), strict=True):
            self.assertEqual(200, response.status, target)
        await until(lambda: not children(node.pid), "all children to end")
        runs, inputs = recorder.runs(), recorder.inputs()
        self.assertGreater(len(runs), len(inputs))
        for run in runs:
            self.assertEqual({"PATH": recorder.path, "LC_ALL": "C"}, dict(run.environment))
            self.assertLessEqual(run.descriptors, {0, 1, 2, 3}, run.words)
            text = "\n".join((*run.words, *run.environment.values()))
            words = "inside", "injected", "https:"
            for hidden in (*SECRETS.values(), KEY.hex(), SALT.hex(), *words):
                self.assertNotIn(hidden, text.replace(recorder.path, ""), run.words)
        seen = {(run.words[0], *run.after("-i")) for run in inputs}
        self.assertEqual({("ffmpeg", "file:/dev/fd/3"), ("ffprobe", "file:/dev/fd/3")}, seen)
        for run in inputs:
            self.assertIn("-format_whitelist", run.before_input)
            self.assertEqual(["file"], run.after("-protocol_whitelist")[:1])
            self.assertIn(3, run.descriptors)
        self.assertEqual([], [*self.root.glob("*.log")])
        self.assertFalse(os.path.exists("report.log"))
        for line in node.stdout.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT[0-9:.]+Z ", node.stdout)
        self.assertEqual([], proxy.connections)
