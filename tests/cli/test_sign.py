"""`audioproxy sign` and `audioproxy verify`."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.url_input import parse_url
from audioproxy.grammar.signature import sign, verify
from audioproxy.urls import Signer, Variant
from tests.cli.command import SECRETS, Ended, command
from tests.support.strategies import PROMISE

KEY, SALT = bytes.fromhex(SECRETS["AP_KEY"]), bytes.fromhex(SECRETS["AP_SALT"])
SIGNER = Signer(KEY, SALT, "https://audio.example")
PIECE = "local://masters/piece.wav"

#: What `Signer.sign` refuses in a path: what clients would not send as it is.
ODD = r"""[?#"<>\\^`{}]|(?:\.|%2[eE]){1,2}"""


class SignTests(SynchronousTestCase):
    """What it prints is what the library would make."""

    def assert_refused(self, status: int, words: str, *arguments: str, **settings: str) -> None:
        """Require a command to end with a status and one line that says why, and print nothing."""
        ended = command("sign", *arguments, environment={**SECRETS, **settings})
        self.assertEqual((status, ""), (ended.status, ended.out))
        self.assertTrue(ended.err.startswith("audioproxy: "), ended.err)
        self.assertEqual(1, ended.err.count("\n"), ended.err)
        self.assertIn(words, ended.err)

    def test_variant(self) -> None:
        """A URL of each source, with the options in canonical order."""
        words = ("--options", "t:30:15/f:opus", "--base", "https://audio.example")
        ended = command("sign", *words, PIECE, "s3://b/k")
        variant = Variant(f="opus", t=(30, 15))
        expected = [SIGNER.url(source, variant) for source in (PIECE, "s3://b/k")]
        self.assertEqual(Ended(0, "\n".join(expected) + "\n", ""), ended)

    def test_others(self) -> None:
        """The info document, a source nobody reads in passing, a path of one's own making."""
        base = ("--base", "https://audio.example")
        self.assertEqual(
            SIGNER.info_url(PIECE), command("sign", *base, "--info", PIECE).out.strip()
        )
        hidden = Signer(KEY, SALT, encoded=True).url(PIECE)
        self.assertEqual(hidden, command("sign", "--encoded", PIECE).out.strip())
        path = "/f:mp3/br:8/plain/local://a%20b"
        self.assertEqual(SIGNER.sign(path), command("sign", *base, "--path", path).out.strip())

    def test_lifetime(self) -> None:
        """A time in seconds, minutes, hours or days from now on."""
        for text, seconds in (("90", 90), ("15m", 900), ("1h", 3600), ("7d", 604_800)):
            before = int(time.time())
            url = command("sign", "--expires-in", text, PIECE).out
            exp = int(url.split("/exp:")[1].split("/")[0])
            self.assertIn(exp - seconds, range(before, int(time.time()) + 1))

    def test_standard_input(self) -> None:
        """A dash stands for the lines of the standard input, but for blank ones."""
        ended = command("sign", "-", stdin=f"{PIECE}\n\n  s3://b/k\n")
        self.assertEqual(2, len(ended.out.splitlines()))

    def test_bad_line(self) -> None:
        """A source that cannot be one is named, and the others are signed all the same."""
        ended = command("sign", "-", stdin=f"http://h/a\n{PIECE}\n")
        self.assertEqual(1, ended.status)
        self.assertEqual(1, len(ended.out.splitlines()))
        self.assertIn("http://h/a: a source is local://, s3:// or https://", ended.err)

    def test_refusals(self) -> None:
        """What is wrong is named in one line; mistakes and refusals end in different ways."""
        self.assert_refused(1, '"br:9000" is not accepted', "-o", "br:9000", PIECE)
        self.assert_refused(1, "a variant has no end, a URL has", "-o", "exp:99", PIECE)
        self.assert_refused(2, "AP_KEY: not set; export", PIECE, AP_KEY="")
        self.assert_refused(2, "AP_SALT: not set; export", PIECE, AP_SALT="")
        self.assert_refused(2, "AP_KEY: 2 bytes; at least 32", PIECE, AP_KEY="0011")
        self.assert_refused(2, "AP_SALT: character 1", PIECE, AP_SALT="zz")
        self.assert_refused(2, "a base is an origin", "-b", "audio example", PIECE)
        self.assert_refused(2, "--path: a path starts with a slash", "--path", "f:mp3")
        self.assert_refused(2, "--expires-in goes with", "-e", "1h", "--info", PIECE)

    def test_misspelt_time(self) -> None:
        """A time that is none is a mistake, and what would be right is said."""
        for text in ("0", "1w", "-1", "1.5h", ""):
            ended = command("sign", f"--expires-in={text}", PIECE)
            self.assertEqual(2, ended.status, text)
            self.assertIn("a number with m, h or d", ended.err)

    def test_bad_path(self) -> None:
        """A path that cannot be one is named, and the others are signed all the same."""
        ended = command("sign", "--path", "/a/plain/x", "b", "/c/../d", "/e/plain/y")
        self.assertEqual((2, 2), (ended.status, len(ended.out.splitlines())))
        self.assertIn("b: --path: a path starts with a slash", ended.err)
        self.assertIn("/c/../d: --path: clients take . and .. segments out", ended.err)

    def test_file_of_settings(self) -> None:
        """A file in the format of systemd's takes the place of the environment."""
        file = Path(self.mktemp())
        lines = f"# keys\n\n; or so\n AP_KEY='{SECRETS['AP_KEY']}'\nAP_SALT=fa11\nAP_PORT=\n"
        file.write_text(lines + 'AP_LOCAL_ROOT="/srv/a b"\nAP_SOURCE_ALLOWLIST=*.a.example,b\n')
        words = ("sign", "--env-file", str(file), "--base", "https://audio.example", PIECE)
        ended = command(*words, environment={"AP_SALT": "00"})
        self.assertEqual(SIGNER.url(PIECE) + "\n", ended.out)
        for line in (
            "AP_SALT=fa11 # the salt",
            "AP_SALT",
            "export AP_SALT=fa11",
            "AP_LOCAL_ROOT=/srv/a b",
            "AP_LOCAL_ROOT=/srv/$HOME",
            'AP_LOCAL_ROOT="a\\"b"',
            "AP_LOCAL_ROOT='a'b",
        ):
            # systemd and shells do not agree on what these mean.
            file.write_text(f"AP_PORT=1\n{line}\n")
            ended = command("sign", "--env-file", str(file), PIECE)
            self.assertEqual((2, ""), (ended.status, ended.out), line)
            self.assertIn(f"{file}, line 2: NAME=value is expected", ended.err)
        file.write_bytes(b"\xff")
        for name in (str(file), self.mktemp()):
            ended = command("sign", "--env-file", name, PIECE)
            self.assertEqual(2, ended.status)
            self.assertIn(f"--env-file: {name} cannot be read", ended.err)


class VerifyTests(SynchronousTestCase):
    """The status tells scripts, and the words tell people, what the service would do."""

    def assert_verdict(self, url: str, status: int, words: str) -> None:
        """Require a verdict on a URL, and the status that goes with it."""
        ended = command("verify", url)
        self.assertEqual((status, ""), (ended.status, ended.err), url)
        self.assertEqual(f"{words}: {url}\n", ended.out)

    def test_good(self) -> None:
        """A URL, one with a mount, its path alone, with a query that nobody signs (D17)."""
        url = SIGNER.url(PIECE, Variant(f="opus"))
        mounted = url.replace(".example/", ".example/in/audio/")
        for spelled in (url, mounted, url.removeprefix(SIGNER.base), f"{url}?utm=1#t=3"):
            self.assert_verdict(spelled, 0, "good")
        self.assert_verdict(SIGNER.info_url(PIECE), 0, "good")
        exp = SIGNER.url(PIECE, expires_at=4_102_444_800)
        self.assert_verdict(exp, 0, "good until 2100-01-01T00:00:00Z")

    def test_wrong(self) -> None:
        """Another path, no signature, and a slip that is named."""
        url = SIGNER.url(PIECE)
        self.assert_verdict(url.replace("piece", "other"), 1, "wrong signature")
        self.assert_verdict("/insecure/plain/" + PIECE, 1, "wrong signature")
        path = "/f:mp3/plain/" + PIECE
        slip = sign(KEY, b"", path.encode()).decode()
        words = "wrong signature (it was made without AP_SALT; the salt goes ahead of the path)"
        self.assert_verdict(f"/{slip}{path}", 1, words)

    def test_padded(self) -> None:
        """The padded spelling is the other one that is accepted (Authentication, 2)."""
        signature, rest = SIGNER.url(PIECE).removeprefix(SIGNER.base + "/").split("/", 1)
        self.assert_verdict(f"/{signature}=/{rest}", 0, "good")
        words = "its digest is right, and has too much padding; base64url without padding is"
        self.assert_verdict(f"/{signature}==/{rest}", 1, f"wrong signature ({words} expected)")

    def test_expired(self) -> None:
        """An end that has passed is told from a wrong signature (410 and 401)."""
        url = SIGNER.sign(f"/exp:86400/br:0/plain/{PIECE}")
        words = "good signature, but expired at 1970-01-02T00:00:00Z"
        self.assert_verdict(url, 3, words)

    def test_refused(self) -> None:
        """Options and sources that the service would refuse, in its own words."""
        for path, words in (
            ("/br:0/plain/local://a", '"br:0" is not accepted: f:mp3 takes 8 to 320 kbps'),
            ("/info/f:mp3/plain/local://a", "an info document takes no options"),
            ("/f:mp3/plain/http://h/a", "a source is local://, s3:// or https://"),
        ):
            ended = command("verify", SIGNER.sign(path))
            self.assertEqual(4, ended.status, path)
            self.assertTrue(ended.out.startswith("good signature, but refused ("), ended.out)
            self.assertIn(words, ended.out)
        words = "good signature of no source (plain/ or enc/ is expected)"
        self.assert_verdict(SIGNER.sign("/f:mp3/local://a"), 4, words)

    def test_several(self) -> None:
        """Each URL has its line, and the worst of them the status."""
        good, bad = SIGNER.url(PIECE), SIGNER.sign("/x:1/plain/local://a")
        ended = command("verify", good, "-", stdin=f"{bad}\n{good}\n")
        self.assertEqual((4, 3), (ended.status, len(ended.out.splitlines())))

    @PROMISE
    @given(path=st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40))
    def test_as_it_travels(self, path: str) -> None:
        """What `sign` prints for a path is what `verify` finds signed, whatever is in it."""
        text = SIGNER.sign(f"/f:mp3/plain/{re.sub(ODD, '', path)}")
        url = parse_url(text)
        self.assertTrue(verify(KEY, SALT, url.signed, url.signature), text)

    def test_odd_bytes(self) -> None:
        """What clients would encode is encoded, be it UTF-8 or not; the rest stands as it is."""
        for text, signed in (
            ("/x/plain/local://a[1]|b", b"/plain/local://a[1]|b"),
            ("/x/plain/local://a b", b"/plain/local://a%20b"),
            ("/x/plain/local://\xfc%C3", b"/plain/local://%C3%BC%C3"),
            ("/x/plain/local://\udcff", b"/plain/local://%FF"),
        ):
            self.assertEqual(signed, parse_url(text).signed, text)

    def test_confinement(self) -> None:
        """A path that leads out of the root is refused, as the service refuses it (404)."""
        ended = command("verify", SIGNER.sign("/f:mp3/enc/bG9jYWw6Ly8uLi9h"))
        self.assertEqual(4, ended.status)
        self.assertIn("climbs out of the root", ended.out)

    def test_no_url_among_others(self) -> None:
        """A line that is no URL is told, and the others are judged all the same."""
        ended = command("verify", "-", stdin=f"{SIGNER.url(PIECE)}\nno\n{SIGNER.url(PIECE)}\n")
        self.assertEqual((2, 2), (ended.status, len(ended.out.splitlines())))
        self.assertIn("'no' is no URL of the service", ended.err)

    def test_no_url(self) -> None:
        """What has no two segments is a mistake."""
        for text in ("https://audio.example", "x", "/x", "audio.example/x/y"):
            ended = command("verify", text)
            self.assertEqual((2, ""), (ended.status, ended.out), text)
            self.assertIn("is no URL of the service", ended.err)
