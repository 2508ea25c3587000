"""`audioproxy explain` with a probe of the source."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from twisted.trial.unittest import TestCase

from audioproxy.urls import Variant
from tests.cli.command import SECRETS, SIGNER, command, json_keys
from tests.cli.test_explain import KEYS
from tests.support.audio import read_wav
from tests.support.runs import run_program
from tests.support.service import PATIENCE, TEST_PATIENCE, generate_audio, short_flac


class SourceTests(TestCase):
    """Explanations that include a probe of the source."""

    timeout = TEST_PATIENCE

    def setUp(self) -> None:
        self.root = root = Path(self.mktemp()).resolve()
        root.mkdir()
        (root / "a b.flac").write_bytes(short_flac().read_bytes())
        self.settings = {
            **SECRETS,
            "PATH": os.environ["PATH"],
            "AP_LOCAL_ROOT": str(root),
            "TMPDIR": str(root),
            "AP_PROBE_TIMEOUT": f"{PATIENCE:.0f}",
        }

    def explain(self, status: int, url: str) -> dict[str, Any]:
        """Run the command, require its status, and return its document."""
        ended = command("explain", "--json", url, environment=self.settings)
        self.assertEqual((status, ""), (ended.status, ended.err))
        document: dict[str, Any] = json.loads(ended.out)
        return document

    def test_commands_run(self) -> None:
        """A shell can run the ffmpeg command that `explain` shows without changes."""
        url = SIGNER.url("local://a b.flac", Variant(f="wav", bd="32f", t=("0.1", "0.2")))
        ended = command("explain", url, environment=self.settings)
        self.assertRegex(ended.out, r"read as +flac in flac, 44100 Hz")
        self.assertNotIn("assumed", ended.out)
        line = re.findall("(?m)^ffmpeg +(.+)$", ended.out)[0]
        with open(self.mktemp(), "wb+") as output:
            ran = run_program("sh", "-c", line, stdout=output, text=False)
            self.assertEqual(0, ran.status, ran.err)
            output.seek(0)
            self.assertEqual(8820, len(read_wav(output.read())))

    def test_tags(self) -> None:
        """The tags of the output are shown as they are written (D61)."""
        root = Path(self.settings["AP_LOCAL_ROOT"])
        words = "-metadata title=Tïtle -metadata track=3 -metadata comment=no -c:a"
        generate_audio(root / "a.mka", "-i", str(root / "a b.flac"), *words.split(), "copy")
        for form, tags in (("mp3", {"title": "Tïtle", "track": "3"}), ("aac", None)):
            parts = self.explain(0, SIGNER.url("local://a.mka", Variant(f=form)))
            self.assertEqual(tags, parts.get("tags"))

    def test_several_streams(self) -> None:
        """Which of several audio streams is rendered is shown, and which one is marked (D71)."""
        root = Path(self.settings["AP_LOCAL_ROOT"])
        words = "-map 0 -map 0 -c copy -disposition:0 0 -disposition:1 default"
        generate_audio(root / "a.mka", "-i", str(root / "a b.flac"), *words.split())
        url = SIGNER.url("local://a.mka")
        expected = {"rendered": 1, "audio_streams": 2, "marked": 2}
        self.assertEqual(self.explain(0, url)["stream"], expected)
        ended = command("explain", url, environment=self.settings)
        text = "the first of 2 audio streams; the source marks number 2 as the default"
        self.assertRegex(ended.out, f"(?m)^stream +{text}$")
        self.settings["AP_VARIANT_STORE"] = "s3://b"
        self.settings |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "a")
        self.settings["AWS_REGION"] = "a"
        self.assertEqual(KEYS, json_keys(self.explain(0, SIGNER.url("local://a b.flac"))))

    def test_unusable_settings(self) -> None:
        """Settings that are valid but cannot be used are reported like invalid ones."""
        self.settings |= {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
            "AP_S3_ENDPOINT": "http://127.0.0.1:9",
            "AP_S3_ADDRESSING": "virtual",
        }
        parts = self.explain(0, SIGNER.url("local://a b.flac"))
        self.assertIn("AP_S3_ADDRESSING: virtual addressing needs a host", parts["assumed"][0])
        self.assertIn("libmp3lame", parts["ffmpeg"])

    def test_refusals(self) -> None:
        """If a URL is refused because of its source, `explain` shows the status and the reason."""
        good = SIGNER.url("local://a b.flac")
        late = SIGNER.url("local://a b.flac", Variant(t=500))
        (self.root / "\u00fc").write_bytes(b"")
        missing = "404 not_found No such file or directory: /.*"
        for url, limit, words in (
            (SIGNER.url("local://missing"), "", missing),
            (SIGNER.url("local://u\u0308"), "", f"{missing} Unicode form: local://%C3%BC$"),
            (late, "", '422 invalid_options "t:500" is not accepted'),
            (good, "10", "413 source_too_large The source has"),
        ):
            self.settings["AP_MAX_SRC_BYTES"] = limit
            refused = " ".join(map(str, self.explain(4, url)["refused"].values()))
            self.assertRegex(refused, f"^{words}")
