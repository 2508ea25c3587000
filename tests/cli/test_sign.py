"""`audioproxy sign`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.urls import Signer, Variant
from tests.cli.command import KEY, PIECE, SALT, SECRETS, SIGNER, command
from tests.support.runs import RunResult


class SignTests(SynchronousTestCase):
    """URLs that `sign` prints, compared with those of the library."""

    def test_variant(self) -> None:
        """`sign` prints a URL for each source, with the options in canonical order."""
        words = ("--options", "t:30:15/f:opus", "--base", "https://audio.example")
        ended = command("sign", *words, PIECE, "s3://b/k")
        variant = Variant(f="opus", t=(30, 15))
        expected = [SIGNER.url(source, variant) for source in (PIECE, "s3://b/k")]
        self.assertEqual(RunResult(0, "\n".join(expected) + "\n", ""), ended)

    def test_info_encoded_and_path(self) -> None:
        """`sign` supports info documents, base64url-encoded sources and given paths."""
        base = ("--base", "https://audio.example")
        info = command("sign", *base, "--info", PIECE)
        self.assertEqual(SIGNER.info_url(PIECE), info.out.strip())
        encoded = Signer(KEY, SALT, encoded=True).url(PIECE)
        self.assertEqual(encoded, command("sign", "--encoded", PIECE).out.strip())
        path = "/f:mp3/br:8/plain/local://a%20b"
        self.assertEqual(SIGNER.sign(path), command("sign", *base, "--path", path).out.strip())

    def test_file_name(self) -> None:
        """--file-name ends each URL in a name."""
        ended = command(
            "sign", "--file-name", "a b.opus", "-o", "f:opus", "-e", "1h", PIECE, "s3://b/k"
        )
        lines = ended.out.splitlines()
        self.assertEqual([True] * 2, [each.endswith("/a%20b.opus") for each in lines], ended)
        self.assertEqual([0, 0], [command("verify", each).status for each in lines])

    def test_lifetime(self) -> None:
        """--expires-in is seconds, minutes, hours or days from now; --round moves the end on."""
        for words, seconds, step in (
            ("90", 90, 1),
            ("15m", 900, 1),
            ("1h", 3600, 1),
            ("7d", 604_800, 1),
            ("1d --round 6h", 86_400, 21_600),
        ):
            before = int(time.time())
            url = command("sign", "--expires-in", *words.split(), PIECE).out
            exp = int(url.split("/exp:")[1].split("/")[0])
            self.assertEqual(0, exp % step)
            self.assertIn(exp - seconds, range(before, int(time.time()) + step))

    def test_end(self) -> None:
        """--expires-at accepts a date, a date with a time and a zone, or Unix seconds."""
        for text, exp in (
            ("2100-01-01", 4_102_444_800),
            ("2100-01-01T01:00+01:00", 4_102_444_800),
            ("2100-01-01 00:00Z", 4_102_444_800),
            ("4102444800", 4_102_444_800),
        ):
            url = command("sign", "--expires-at", text, PIECE).out
            self.assertIn(f"/exp:{exp}/", url, text)
        for text, message in (
            ("2100-01-01T00:00", "has no time zone; add one"),
            ("tomorrow", "'tomorrow' is not a date; use one such as 2030-12-31"),
        ):
            ended = command("sign", "--expires-at", text, PIECE)
            self.assertEqual((2, ""), (ended.status, ended.out), text)
            self.assertIn(message, ended.err)
        expected = RunResult(1, "", f"audioproxy: {PIECE}: This URL has expired.\n")
        self.assertEqual(expected, command("sign", "--expires-at", "2020-01-01", PIECE))

    def test_standard_input(self) -> None:
        """`sign -` signs each non-blank line, and reports an invalid source."""
        ended = command("sign", "-", stdin=f"{PIECE}\n\nhttp://h/a\n  s3://b/k\n")
        self.assertEqual((1, 2), (ended.status, len(ended.out.splitlines())))
        self.assertIn("http://h/a: a source is local://, s3:// or https://", ended.err)

    def test_json(self) -> None:
        """With --json, a line has the source and its URL, or its error."""
        ended = command("sign", "--json", "local://a", "http://h/a")
        good, bad = map(json.loads, ended.out.splitlines())
        url = SIGNER.url("local://a").removeprefix(SIGNER.base)
        self.assertEqual({"source": "local://a", "url": url, "error": None}, good)
        self.assertEqual(("http://h/a", None), (bad["source"], bad["url"]))
        self.assertIn("a source is local://", bad["error"])
        self.assertEqual(1, ended.status)

    def test_refusals(self) -> None:
        """Refused options exit with 1 and usage errors with 2, each with one line."""
        for status, message, words, settings in (
            (1, '"br:9000" is not accepted', ("-o", "br:9000", PIECE), {}),
            (1, "a variant never expires", ("-o", "exp:99", PIECE), {}),
            (2, "AP_KEY: not set; export", (PIECE,), {"AP_KEY": ""}),
            (2, "AP_SALT: not set; export", (PIECE,), {"AP_SALT": ""}),
            (2, "AP_KEY: 2 bytes; at least 32", (PIECE,), {"AP_KEY": "0011"}),
            (2, "AP_SALT: character 1", (PIECE,), {"AP_SALT": "zz"}),
            (2, "a base is an origin", ("-b", "audio example", PIECE), {}),
            (2, "--path: a path starts with a slash", ("--path", "f:mp3"), {}),
            (2, "--expires-in works with", ("-e", "1h", "--info", PIECE), {}),
            (2, "--round goes with --expires-in", ("--round", "1h", PIECE), {}),
            (2, "--file-name works with", ("--file-name", "a.mp3", "--path", "/f:mp3"), {}),
            (2, "file name 'a': a name that ends in .mp3", ("--file-name", "a", PIECE), {}),
        ):
            ended = command("sign", *words, environment={**SECRETS, **settings})
            self.assertEqual((status, ""), (ended.status, ended.out))
            self.assertRegex(ended.err, rf"\Aaudioproxy: .*{re.escape(message)}.*\n\Z")
        for text in ("0", "1w", "-1", "1.5h", ""):
            ended = command("sign", f"--expires-in={text}", PIECE)
            self.assertEqual(2, ended.status, text)
            self.assertIn("a number with m, h or d", ended.err)

    def test_presigned(self) -> None:
        """`sign` warns of a source whose query is presigned, and signs it."""
        url = "https://h.example/a.wav?v=1&X-Amz-Signature=hidden"
        for words in ((url,), ("--info", url)):
            ended = command("sign", *words)
            self.assertEqual((0, 1), (ended.status, len(ended.out.splitlines())))
            shown = r"https://h\.example/a\.wav\?\w{8}"
            self.assertRegex(ended.err, rf"\Aaudioproxy: warning: {shown}: the query seems .*\n\Z")
        self.assertEqual("", command("sign", "https://h.example/a.wav?v=1", PIECE).err)

    def test_bad_path(self) -> None:
        """`sign --path` reports an invalid path, and signs the others."""
        ended = command("sign", "--path", "/a/plain/x", "b", "/c/../d", "/e/plain/y")
        self.assertEqual((2, 2), (ended.status, len(ended.out.splitlines())))
        self.assertIn("b: --path: a path starts with a slash", ended.err)
        self.assertIn("/c/../d: --path: clients remove . and .. segments", ended.err)

    def test_env_file(self) -> None:
        """--env-file has systemd's format; ambiguous lines are refused with their number."""
        file = Path(self.mktemp())
        lines = f"# keys\n\n; or so\n AP_KEY='{SECRETS['AP_KEY']}'\nAP_SALT=fa11\nAP_PORT=\n"
        file.write_text(lines + 'AP_LOCAL_ROOT="/srv/a b"\nAP_SOURCE_ALLOWLIST=*.a.example,b\n')
        words = ("sign", "--env-file", str(file), "--base", "https://audio.example", PIECE)
        ended = command(*words, environment={"AP_SALT": "00"})
        self.assertEqual(SIGNER.url(PIECE) + "\n", ended.out)
        # systemd and shells interpret these lines differently.
        for line in (
            *("AP_SALT=fa11 # the salt", "AP_SALT", "export AP_SALT=fa11", "AP_LOCAL_ROOT=/a b"),
            *("AP_LOCAL_ROOT=/srv/$HOME", 'AP_LOCAL_ROOT="a\\"b"', "AP_LOCAL_ROOT='a'b"),
        ):
            file.write_text(f"AP_PORT=1\n{line}\n")
            ended = command("sign", "--env-file", str(file), PIECE)
            self.assertEqual((2, ""), (ended.status, ended.out), line)
            self.assertIn(f"{file}, line 2: NAME=value is expected", ended.err)
        file.write_bytes(b"\xff")
        missing = self.mktemp()
        for name, fault in (
            (str(file), ", line 1: UTF-8 is expected"),
            (missing, " cannot be read (No such file or directory)"),
        ):
            expected = RunResult(2, "", f"audioproxy: --env-file: {name}{fault}\n")
            self.assertEqual(expected, command("sign", "--env-file", name, PIECE))
