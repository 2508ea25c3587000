"""URLs of the URL builder, requested from a real service by clients that normalize URLs."""

from __future__ import annotations

import json
import os
import shutil

from twisted.trial.unittest import SkipTest

from audioproxy.urls import Signer, Variant, local
from tests.browser.node import program
from tests.support.http import KEY, SALT
from tests.support.service import Process, ServiceCase, fetch, reactor, short_flac, until_hit

#: Paths below the root.
NAMES = (
    *(b"a b.flac", b"100%25 #1?.flac", b"Gr\xc3\xb6\xc3\x9fe.flac", b"\xff\xfe.flac"),
    *(b"'a' \"b\" & c; d=e, f+g.flac", b"$HOME `a` \\ | <b> {c,d} [1-3] ^~*!@()", b"a..b", b"..a"),
    *(b"trailing.", b"\xf0\x9f\x8e\xb5.flac", b"a\tb\nc", b"plain", b"folder/./file", b"x/../y"),
)

#: Program that prints the status of each URL.
FETCH = """
const urls = JSON.parse(process.argv[1]);
for (const url of urls) {
  const response = await fetch(url);
  await response.arrayBuffer();
  console.log(response.status);
}
"""


class BuilderTests(ServiceCase):
    """`audioproxy.urls` against the real service."""

    async def output_lines(self, *command: str) -> list[str]:
        """Run a program to its end and return the lines that it prints."""
        process = Process()
        reactor.spawnProcess(process, command[0], command, env={"PATH": os.environ["PATH"]})
        self.assertEqual(0, await process.end(), process.stderr)
        return process.stdout.splitlines()

    async def test_unusual_file_names(self) -> None:
        """URLs for any file name are served to the test client, curl and fetch()."""
        for name in NAMES:
            self.add(os.path.normpath(os.fsdecode(name)), short_flac())
        (self.root / "x").mkdir()
        port = self.start().port
        signer = Signer(KEY, SALT, f"http://127.0.0.1:{port}")
        variant = Variant(f="wav", t=(0, 0.01), dl="Größe 1.wav", cb="100%")
        urls, targets = [], []
        for name in NAMES:
            url = signer.url(local(name), variant, expires_in=3600)
            target = url.removeprefix(signer.base).encode("ascii")
            response = await fetch(port, target)
            self.assertEqual((200, b"RIFF"), (response.status, response.body[:4]), name)
            self.assertEqual(f'"{variant.key(local(name))}"'.encode(), response["etag"])
            self.assertEqual(variant.content_type.encode(), response["content-type"])
            urls.append(url)
            targets.append(target)
        for target in targets:
            # Wait for the hits, so that the requests below need no render.
            await until_hit(port, target)
        info = signer.info_url(local(NAMES[0])).removeprefix(signer.base)
        document = (await fetch(port, info.encode("ascii"))).document
        self.assertEqual("flac", document["format"])
        served = ["200"] * len(NAMES)
        module = ("--input-type=module", "--eval", FETCH)
        self.assertEqual(
            served, await self.output_lines(program("node"), *module, json.dumps(urls))
        )
        curl = shutil.which("curl")
        if curl is None:
            raise SkipTest("curl is not installed; only the test client and fetch() were tested")
        each = ("--silent", "--output", os.devnull, "--write-out", "%{http_code}\n")
        words = [word for url in urls for word in (*each, url, "--next")]
        self.assertEqual(served, await self.output_lines(curl, *words[:-1]))
