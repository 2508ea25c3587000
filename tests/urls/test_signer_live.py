"""URLs of `audioproxy.urls` in a browser's URL parser."""

from __future__ import annotations

import json
import random
import subprocess

from twisted.trial.unittest import SynchronousTestCase

from audioproxy import urls
from audioproxy.urls import NotFound, Signer, Variant
from tests.browser.node import program
from tests.support.http import KEY, SALT
from tests.support.service import PATIENCE

#: File names that clients, shells and servers tend to alter.
HARD = (
    *("a b", " a", "a ", "100%", "%20", "%2e%2e", "a#b", "a?b", "a+b", "a&b", "a;b", "a=b", "a,b"),
    *("'a'", '"a"', "`a`", "$HOME", "a\\b", "\\", "a|b", "a<b>", "{a,b}", "[1-3]", "a^b", "~", "*"),
    *("a..b", "..a", "a..", "...", ".a", "a.", "-a", "a:b", "@a", "!", "(a)", "a\tb", "a\nb", "\r"),
    *("Größe", "Gro\u0308ße", "音", "🎵", "\u202e", "\u00a0", "\ufeff", "\x7f", "\x01", "plain"),
    *("enc", "info", "a//b", "a/", "a/./b", "a/../b", "a/.", "a/b/..", "a/%2e/b", "a/.%2e/b"),
)


class ProgramTests(SynchronousTestCase):
    """URLs of `Signer`"""

    def test_clients(self) -> None:
        """A browser's URL parser leaves every URL unchanged, byte for byte."""
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
        self.assertGreater(len(built), 600)
        script = (
            "const urls = JSON.parse(require('fs').readFileSync(0));"
            "console.log(JSON.stringify(urls.map((url) => new URL(url).href)))"
        )
        ended = subprocess.run(
            [program("node"), "-e", script],
            input=json.dumps(built),
            capture_output=True,
            check=True,
            text=True,
            timeout=PATIENCE,
        )
        self.assertEqual(built, json.loads(ended.stdout))
