"""URLs of the URL builder, requested from a real service by clients that normalize URLs."""

from __future__ import annotations

import json
import os
import random

from audioproxy import urls
from audioproxy.urls import NotFound, Signer, Variant, local
from tests.browser.node import program
from tests.deploy.balancer import installed
from tests.support.http import KEY, SALT
from tests.support.service import ServiceCase, fetch, short_flac

#: File names that clients, shells and servers tend to alter.
HARD = (
    *("a b", " a", "a ", "100%", "%20", "%2e%2e", "a#b", "a?b", "a+b", "a&b", "a;b", "a=b", "a,b"),
    *("'a'", '"a"', "`a`", "$HOME", "a\\b", "\\", "a|b", "a<b>", "{a,b}", "[1-3]", "a^b", "~", "*"),
    *("a..b", "..a", "a..", "...", ".a", "a.", "-a", "a:b", "@a", "!", "(a)", "a\tb", "a\nb", "\r"),
    *("Größe", "Gro\u0308ße", "音", "🎵", "\u202e", "\u00a0", "\ufeff", "\x7f", "\x01", "plain"),
    *("enc", "info", "a//b", "a/", "a/./b", "a/../b", "a/.", "a/b/..", "a/%2e/b", "a/.%2e/b"),
)
#: Paths of files below the root.
NAMES = (
    *(b"a b.flac", b"100%25 #1?.flac", b"Gr\xc3\xb6\xc3\x9fe.flac", b"\xff\xfe.flac"),
    *(b"'a' \"b\" & c; d=e, f+g.flac", b"$HOME `a` \\ | <b> {c,d} [1-3] ^~*!@()", b"a..b", b"..a"),
    *(b"trailing.", b"\xf0\x9f\x8e\xb5.flac", b"a\tb\nc", b"plain", b"folder/./file", b"x/../y"),
)

#: Program that prints how the URL parser of browsers spells each URL of its input's first list, and
#: the status of each URL of the second one.
CLIENT = """
import { readFileSync } from "node:fs";
const [parsed, fetched] = JSON.parse(readFileSync(process.argv[1], "utf-8"));
const statuses = [];
for (const url of fetched) {
  statuses.push((await fetch(url, { method: "HEAD" })).status);
}
console.log(JSON.stringify([parsed.map((url) => new URL(url).href), statuses]));
"""


def hard_urls() -> list[str]:
    """Return URLs for sources of every kind, with names that are hard to spell."""
    chance = random.Random(1)
    signer = Signer(KEY, SALT, "https://audio.example")
    names = [f"local://x/{name}" for name in HARD]
    names += [f"s3://bucket/{name}" for name in HARD]
    names += [f"https://example.com/{name}" for name in HARD if name.isascii()]
    drawn = [b"s3://b/" + chance.randbytes(chance.randint(1, 40)) for _ in range(200)]
    built = []
    for name in [*names, *drawn]:
        try:
            source = urls.read_source(name)
        except NotFound:
            # An https URL may not contain spaces or control characters.
            continue
        built += [signer.url(source, Variant(dl="a..b", cb=name)), signer.info_url(source)]
    return built


class BuilderTests(ServiceCase):
    """`audioproxy.urls` against the real service."""

    async def output(self, *command: str) -> str:
        """Run a program to its end and return what it prints."""
        process = self.spawn(*command, PATH=os.environ["PATH"])
        self.assertEqual(0, await process.end(), process.stderr)
        return process.stdout

    async def test_unusual_file_names(self) -> None:
        """URLs for any file name are served to the test client, curl and fetch().

        A browser's URL parser leaves every URL unchanged, byte for byte. HEAD opens the source, so
        that no variant needs to be rendered.
        """
        for name in NAMES:
            self.add(os.path.normpath(os.fsdecode(name)), short_flac())
        (self.root / "x").mkdir()
        port = self.start().port
        signer = Signer(KEY, SALT, f"http://127.0.0.1:{port}")
        variant = Variant(f="wav", t=(0, 0.01), dl="Größe 1.wav", cb="100%")
        built = [signer.url(local(name), variant, expires_in=3600) for name in NAMES]
        for name, url in zip(NAMES, built, strict=True):
            target = url.removeprefix(signer.base).encode("ascii")
            response = await fetch(port, target, b"HEAD")
            tag = f'"{variant.key(local(name))}"'.encode()
            seen = (response.status, response["etag"], response["content-type"])
            self.assertEqual((200, tag, variant.content_type.encode()), seen, name)
        response = await fetch(port, target)
        self.assertEqual((200, b"RIFF"), (response.status, response.body[:4]))
        info = signer.info_url(local(NAMES[0])).removeprefix(signer.base)
        document = (await fetch(port, info.encode("ascii"))).document
        self.assertEqual("flac", document["format"])
        parsed = hard_urls()
        self.assertGreater(len(parsed), 600)
        asked = self.root.with_name("asked.json")
        asked.write_text(json.dumps([parsed, built]))
        module = ("--input-type=module", "--eval", CLIENT)
        answer = await self.output(program("node"), *module, str(asked))
        self.assertEqual([parsed, [200] * len(NAMES)], json.loads(answer))
        curl = installed("curl", "AUDIOPROXY_UTILITIES")
        each = ("--silent", "--head", "--output", os.devnull, "--write-out", "%{http_code}\n")
        words = [word for url in built for word in (*each, url, "--next")]
        statuses = (await self.output(curl, *words[:-1])).splitlines()
        self.assertEqual(["200"] * len(NAMES), statuses)
