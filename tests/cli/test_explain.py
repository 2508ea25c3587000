"""`audioproxy explain`: the parts of a URL, without a probe of its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.urls import Variant
from tests.cli.command import SECRETS, SIGNER, command, json_keys

VERDICT = dict.fromkeys(("verdict", "reason", "expires", "previous_pair"))
INFO_KEYS = {
    "signed": None,
    "signature": VERDICT,
    "source": None,
    "read_as": dict.fromkeys("codec container sample_rate channels bit_depth seconds".split()),
    "descriptors": {"3": None},
    "ffprobe": [None],
}
#: The keys of a document about a variant.
KEYS = {
    **INFO_KEYS,
    **dict.fromkeys(("canonical", "cache_key", "stored_as")),
    "options": {"f": None},
    "defaults": [None],
    "ffmpeg": [None],
}


class UrlTests(SynchronousTestCase):
    """Explanations that need only the URL and the settings."""

    def explain(self, url: str, status: int = 0, **settings: str) -> dict[str, Any]:
        """Return the explanation of a URL without probing its source."""
        ended = command("explain", "--no-probe", "--json", url, environment={**SECRETS, **settings})
        self.assertEqual(status, ended.status, url)
        parts: dict[str, Any] = json.loads(ended.out)
        return parts

    def test_all_parts(self) -> None:
        """`explain` shows what a URL requests and how the service would serve it."""
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        url = SIGNER.sign("/f:opus/br:96/t:30.0:15/plain/s3://masters/piece.wav")
        store = {"AP_VARIANT_STORE": f"file://{folder}", "AP_SERVE_MODE": "proxy"}
        parts = self.explain(url, **store)
        key = Variant(f="opus", br=96, t=(30, 15)).key("s3://masters/piece.wav")
        verdict = {"verdict": "good", **dict.fromkeys(("reason", "expires", "previous_pair"))}
        expected = {
            "signature": verdict,
            "options": {"br": "96", "f": "opus", "t": "30:15"},
            "canonical": "br:96/f:opus/t:30:15",
            "source": "s3://masters/piece.wav",
            "cache_key": key,
            "stored_as": f"{folder}/{key[:2]}/{key}",
        }
        self.assertEqual(parts, parts | expected)
        assumed = tuple(parts["read_as"][name] for name in ("sample_rate", "seconds"))
        self.assertEqual((44100, 180.0), assumed)
        self.assertIn(" -protocol_whitelist file ", " ".join(parts["ffprobe"]))
        self.assertIn(" -c:a libopus ", " ".join(parts["ffmpeg"]))
        ended = command("explain", "--no-probe", url, environment={**SECRETS, **store})
        for line in (
            "signature    good",
            "options      br:96    bit rate of 96 kbps",
            "             t:30:15  15 s, from second 30 on",
        ):
            self.assertIn(f"{line}\n", ended.out)
        self.assertIn(" -c:a libopus ", ended.out)
        # For a variant store in a bucket, the object's s3:// URL is shown.
        identity = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "z"}
        parts = self.explain(url, AP_VARIANT_STORE="s3://variants", **identity)
        self.assertEqual(f"s3://variants/{key}", parts["stored_as"])

    def test_keys(self) -> None:
        """With --json, each part of a document has its key, and no others."""
        url = SIGNER.url("https://h.example/a.wav?X-Amz-Signature=x", expires_in=9)
        more = {"assumed": [None], **dict.fromkeys(("ends", "warning"))}
        refused = dict.fromkeys(("status", "error", "message"))
        for path, status, expected in (
            (url, 0, {key: KEYS[key] for key in KEYS if key != "stored_as"} | more),
            (SIGNER.info_url("local://a"), 0, {**INFO_KEYS, "asks_for": None, "assumed": [None]}),
            (
                "/insecure/br:0/plain/local://a",
                4,
                {"signed": None, "signature": {"verdict": None}, "refused": refused},
            ),
        ):
            self.assertEqual(expected, json_keys(self.explain(path, status)))

    def test_verdicts(self) -> None:
        """`explain` has the exit status of `verify`, and shows refusals with their HTTP status."""
        wrong = SIGNER.url("local://a").replace("f:mp3", "f:wav")
        for url, status, title, words in (
            (wrong, 1, "signature", "wrong signature"),
            (SIGNER.sign("/exp:1/plain/local://a"), 3, "ends", "1970-01-01T00:00:01Z, has passed"),
            (SIGNER.sign("/br:1/plain/local://a"), 4, "refused", '422 invalid_options: "br:1" is'),
            (SIGNER.sign("/f:mp3/plain/x"), 4, "refused", "404 not_found: a source starts with"),
            (SIGNER.sign("/f:mp3/local://a"), 4, "refused", ".*plain/ or enc/ and a source"),
            (SIGNER.sign("/info/f:mp3/plain/local://a"), 4, "refused", ".* has no options"),
            ("/insecure/plain/local://a", 0, "signature", ".*AP_ALLOW_INSECURE"),
            (SIGNER.url("local://a", file_name="b.mp3"), 0, "source", "local://a"),
        ):
            ended = command("explain", "--no-probe", url)
            self.assertEqual(status, ended.status, url)
            self.assertRegex(ended.out, rf"(?m)^{title} +{words}")
        self.assertEqual(1, self.explain(SIGNER.sign("/exp:1/plain/local://a"), 3)["ends"])

    def test_settings(self) -> None:
        """Without a key, `explain` exits with 0 and reports that the signature is not checked."""
        parts = self.explain(SIGNER.info_url("local://a"), AP_KEY="", AP_SALT="")
        self.assertEqual(
            ("info", {"verdict": "not checked"}), (parts["asks_for"], parts["signature"])
        )
        self.assertNotIn("ffmpeg", parts)
        parts = self.explain(SIGNER.url("local://a"), AP_PORT="x")
        self.assertIn("AP_PORT: 'x'; a whole number", parts["assumed"][0])
        self.assertEqual({"3": "AP_LOCAL_ROOT/a"}, parts["descriptors"])
        ended = command("explain", "--no-probe", SIGNER.url("local://a"))
        self.assertIn(" 3< AP_LOCAL_ROOT/a\n", ended.out)

    def test_remote(self) -> None:
        """The commands for a source that the service reads from a network read a file."""
        for source in ("https://h.example/a.mp3?token=hidden", "s3://hidden/a.mp3"):
            parts = self.explain(SIGNER.url(source))
            self.assertEqual({"3": "FILE"}, parts["descriptors"])
            for program in ("ffmpeg", "ffprobe"):
                self.assertIn("file:/dev/fd/3", parts[program])
                self.assertNotIn("h.example", str(parts[program]))
                self.assertNotIn("hidden", str(parts[program]))
            ended = command("explain", "--no-probe", SIGNER.url(source))
            self.assertIn(" 3< FILE\n", ended.out)

    def test_unprintable(self) -> None:
        """`explain` shows a source as one line of printable text, whatever bytes it contains."""
        parts = self.explain(SIGNER.sign("/f:mp3/plain/local://a%0A%1B%5B31m%FF%C3%BC"))
        self.assertEqual("local://a\\n\\x1b[31m\\xffü", parts["source"])
        ended = command("explain", "--no-probe", "/x/plain/local://%1B%5D0;evil%07")
        self.assertTrue(ended.out.replace("\n", "").isprintable(), ended.out)
