"""The keys of what each command prints with --json: programs read them, so they never change.

Those of `audioproxy doctor` are tested where that runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from audioproxy.urls import Signer
from tests.cli.command import command
from tests.support.http import KEY, SALT
from tests.support.service import ServiceCase, short_flac
from tests.support.variants import StoredVariant

AMOUNT = dict.fromkeys(("variants", "bytes"))
AGES = ("up to 1 day", "1-7 days", "7-30 days", "30-365 days", "over 365 days")
VARIANT = dict.fromkeys("key bytes stored used options source source_sha256 build".split())
ENDED = dict.fromkeys(("failed", "interrupted"))
VERDICT = dict.fromkeys(("verdict", "reason", "expires", "previous_pair"))
MEASURED = dict.fromkeys(("source", "integrated", "range", "true_peak"))
READ_AS = dict.fromkeys("codec container sample_rate channels bit_depth seconds".split())
EXPLAINED = {
    "signed": None,
    "signature": VERDICT,
    "options": {"f": None},
    "defaults": [None],
    "canonical": None,
    "source": None,
    "cache_key": None,
    "stored_as": None,
    "read_as": READ_AS,
    "descriptors": {"3": None},
    "ffprobe": [None],
    "ffmpeg": [None],
}
INFO = {"signed", "signature", "source", "read_as", "descriptors", "ffprobe"}
FETCHED = "url status result state bytes content_type etag duration".split()
#: The document of each command of `audioproxy store` that prints one.
STORE_DOCUMENTS: dict[str, dict[str, Any]] = {
    "stat": {
        **AMOUNT,
        "unknown": AMOUNT,
        "formats": {"mp3": AMOUNT},
        "builds": {"7:1": AMOUNT, "unknown": AMOUNT},
        "ages": dict.fromkeys(AGES, AMOUNT),
    },
    "verify": {
        **dict.fromkeys(("good", "unknown", "gone", "bytes")),
        "broken": [dict.fromkeys(("key", "reason", "removed"))],
    },
    "purge local://one.wav": {
        **dict.fromkeys(("dry_run", "bytes", "unknown", "unaddressed", "untagged")),
        "removed": [VARIANT],
        "left": dict.fromkeys(("unreachable", "refused", "no_validator", "no_address")),
        "cache_tags": [],
    },
    "prune --max-bytes 0": {"dry_run": None, "removed": AMOUNT, "remaining": AMOUNT},
}


def keys(value: Any) -> Any:
    """Return a document with None for each text, number and truth value."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keys(each) for each in value[:1]]
    return None


class JsonTests(ServiceCase):
    """Commands with --json"""

    def setUp(self) -> None:
        super().setUp()
        self.add("a.flac", short_flac())

    def output(self, *words: str) -> str:
        """Return what a command prints."""
        return command(*words, "--json", environment=self.environment()).out

    def rows(self, *words: str) -> list[Any]:
        """Return the keys of each line that a command prints."""
        return [keys(json.loads(line)) for line in self.output(*words).splitlines()]

    def document(self, *words: str) -> Any:
        """Return the keys of the only document that a command prints."""
        return keys(json.loads(self.output(*words)))

    def test_urls(self) -> None:
        """The commands on URLs"""
        port = self.start().port
        signer = Signer(KEY, SALT, f"http://127.0.0.1:{port}")
        url, wrong = signer.url("local://a.flac"), f"{signer.base}/x/y"
        row = dict.fromkeys(("source", "url", "error"))
        self.assertEqual([row] * 2, self.rows("sign", "local://a", "a"))
        self.assertEqual([{"url": None, **VERDICT}] * 2, self.rows("verify", url, wrong))
        expected = [dict.fromkeys(FETCHED), dict.fromkeys(("url", "status", "error"))]
        self.assertEqual(expected, self.rows("warm", "-c", "1", url, wrong))
        self.assertEqual(EXPLAINED, self.document("explain", url))
        info = {name: EXPLAINED[name] for name in INFO} | {"asks_for": None}
        self.assertEqual(info, self.document("explain", signer.info_url("local://a.flac")))
        url = signer.url("https://h.example/a.wav?X-Amz-Signature=x", expires_in=9)
        self.assertEqual(
            EXPLAINED | dict.fromkeys(("ends", "warning")) | {"assumed": [None]},
            self.document("explain", "--no-probe", url),
        )
        refused = dict.fromkeys(("status", "error", "message"))
        self.assertEqual(
            {"signed": None, "signature": {"verdict": None}, "refused": refused},
            self.document("explain", "/insecure/br:0/plain/local://a"),
        )

    def test_measure(self) -> None:
        """`audioproxy measure`"""
        row = {**MEASURED, "error": None}
        self.assertEqual([row] * 2, self.rows("measure", "local://a.flac", "local://b"))
        row = {**MEASURED, **dict.fromkeys(("gain", "shortfall", "url", "error"))}
        words = ("measure", "--target", "-16", "--sign", "--album", "local://a.flac")
        self.assertEqual([row] * 2, self.rows(*words))

    def test_store(self) -> None:
        """The commands of `audioproxy store`"""
        one = StoredVariant.of("local://one.wav")
        broken = replace(StoredVariant.of("local://two.wav", build="7:1"), data=b"other audio")
        for variant in (one, broken, StoredVariant.of("local://three.wav").without_record):
            variant.write(self.store)
        self.assertEqual([VARIANT] * 3, self.rows("store", "ls"))
        for words, document in STORE_DOCUMENTS.items():
            found = self.document("store", *words.split())
            self.assertEqual({**document, **ENDED}, found, words)
