"""`audioproxy verify`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Callable
from unittest import mock
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.main import main
from audioproxy.cli.url_input import parse_url
from audioproxy.grammar.signature import sign
from audioproxy.urls import Signer, Variant
from tests.cli.command import KEY, PIECE, SALT, SECRETS, SIGNER, command
from tests.support import http
from tests.support.strategies import DETERMINISTIC

#: Parts of the name of a source as a signer may spell it, rightly or wrongly.
PIECES = (*"b/: \xfc%?#[", "//", "%20", "%2F", "(1)", "%C3%BC", "%00", "/../")
#: What may happen to a URL before it is sent.
CHANGES: tuple[Callable[[str], str], ...] = (
    lambda url: url,
    lambda url: url + "/",
    lambda url: url + "%20",
    lambda url: url + "?x=\xfc",
    lambda url: url.replace(".example/", ".example//"),
    lambda url: url.replace("://a", ":/a"),
    lambda url: url.replace("%2F", "/"),
    lambda url: url.replace(":", "%3A").replace("https%3A", "https:"),
    lambda url: url.replace("/plain", "%2Fplain"),
    lambda url: url.replace("/plain/local://", ""),
)


class VerifyTests(SynchronousTestCase):
    """Exit status and message of `verify`, which report what the service would do."""

    def assert_verdict(self, url: str, status: int, words: str) -> None:
        """Require a message on a URL, and the exit status that goes with it."""
        ended = command("verify", url)
        self.assertEqual((status, ""), (ended.status, ended.err), url)
        self.assertEqual(f"{words}: {url}\n", ended.out)

    def test_good(self) -> None:
        """`verify` accepts a URL with or without base, mount path or unsigned query (D17)."""
        url = SIGNER.url(PIECE, Variant(f="opus"))
        mounted = url.replace(".example/", ".example/in/audio/")
        for spelled in (url, mounted, url.removeprefix(SIGNER.base), f"{url}?utm=1#t=3"):
            self.assert_verdict(spelled, 0, "good")
        self.assert_verdict(SIGNER.info_url(PIECE), 0, "good")
        for base in (SIGNER.base, f"{SIGNER.base}/audio", ""):
            named = Signer(KEY, SALT, base).url(PIECE, file_name="Episode 1.mp3")
            for spelled in (named, named.replace("Episode", "%45"), f"{named}?utm=1/2"):
                self.assert_verdict(spelled, 0, "good")
        self.assert_verdict(named.replace("/Epi", "/x/Epi"), 1, "wrong signature")
        exp = SIGNER.url(PIECE, expires_at=4_102_444_800)
        self.assert_verdict(exp, 0, "good until 2100-01-01T00:00:00Z")

    def test_previous_pairs(self) -> None:
        """`verify` names the previous pair that signed a URL, whatever else it says (D55)."""
        old = Signer(b"o" * 32, b"old"), Signer(b"p" * 32, b"older")
        environment = {
            **SECRETS,
            "AP_PREVIOUS_KEY": ",".join(signer.key.hex() for signer in old),
            "AP_PREVIOUS_SALT": ",".join(signer.salt.hex() for signer in old),
        }
        for number, signer in enumerate((SIGNER, *old)):
            pair = f" (signed with pair {number} of AP_PREVIOUS_KEY)" if number else ""
            for url, status, words in (
                (signer.url(PIECE), 0, "good"),
                (signer.sign("/exp:0/plain/" + PIECE), 3, "good signature, but expired at"),
                (signer.sign("/br:0/plain/" + PIECE), 4, "good signature, but refused"),
            ):
                ended = command("verify", url, environment=environment)
                self.assertEqual(status, ended.status, ended)
                self.assertRegex(ended.out, rf"\A{words}.*{re.escape(f'{pair}: {url}')}\n\Z")
        self.assertEqual(1, command("verify", old[0].url(PIECE)).status)
        environment["AP_PREVIOUS_SALT"] = "5"
        ended = command("verify", SIGNER.url(PIECE), environment=environment)
        self.assertEqual(2, ended.status)
        self.assertIn("AP_PREVIOUS_SALT: entry 1 of 1: an odd number", ended.err)

    def test_wrong(self) -> None:
        """`verify` exits with 1 on a wrong signature, and names mistakes (Authentication, 2)."""
        url = SIGNER.url(PIECE)
        self.assert_verdict(url.replace("piece", "other"), 1, "wrong signature")
        self.assert_verdict("/insecure/plain/" + PIECE, 1, "wrong signature")
        path = "/f:mp3/plain/" + PIECE
        unsalted = sign(KEY, b"", path.encode()).decode()
        words = "wrong signature (it was made without AP_SALT; the salt precedes the path)"
        self.assert_verdict(f"/{unsalted}{path}", 1, words)
        # One padding character is accepted.
        signature, rest = SIGNER.url(PIECE).removeprefix(SIGNER.base + "/").split("/", 1)
        self.assert_verdict(f"/{signature}=/{rest}", 0, "good")

    def test_end_of_path(self) -> None:
        """`verify` says that a raw ? or # ends the path, if the rest of the URL was signed too."""
        for name in ("a?b=1", "a#1", "a?b#c", "a%3Fb"):
            path = f"/f:mp3/plain/https://h.example/{name}"
            signature = sign(KEY, SALT, path.encode()).decode()
            url = f"/{signature}{path.replace('%3F', '?')}"
            words = "a ? or # of the source ends the path; sign and send %3F and %23"
            self.assert_verdict(url, 1, f"wrong signature ({words})")
        self.assert_verdict(url.replace("a?", "x?"), 1, "wrong signature")
        self.assert_verdict(url.replace("a?", "x?") + "#my \u00e9", 1, "wrong signature")
        # All of a query was decoded.
        path = "/f:mp3/plain/https://h.example/a.wav%3Fx%3D1%26y%3D2"
        url = f"/{sign(KEY, SALT, path.encode()).decode()}{unquote(path)}"
        self.assert_verdict(url, 1, f"wrong signature ({words})")

    def test_several(self) -> None:
        """`verify` prints a line for each URL, and exits with the highest status of all."""
        good, bad = SIGNER.url(PIECE), SIGNER.sign("/x:1/plain/local://a")
        ended = command("verify", good, "-", stdin=f"{bad}\nno\n{good}\n")
        self.assertEqual((4, 3), (ended.status, len(ended.out.splitlines())))
        self.assertIn("'no' is not a URL of the service", ended.err)
        self.assertIn("good signature, but refused (", ended.out)

    def test_json(self) -> None:
        """With --json, a line has what `verify` says as values, also of what is no URL."""
        good = SIGNER.url(PIECE, expires_at=4_102_444_800)
        urls = [good, SIGNER.sign("/exp:1/plain/local://a"), SIGNER.sign("/br:0/plain/x"), "no"]
        ended = command("verify", "--json", *urls, good.replace("piece", "other"))
        rows = [json.loads(line) for line in ended.out.splitlines()]
        self.assertEqual([*urls, good.replace("piece", "other")], [row["url"] for row in rows])
        names = {"url", "verdict", "reason", "expires", "previous_pair"}
        self.assertEqual([names] * 5, [{*row} for row in rows])
        expected = [("good", 4_102_444_800), ("expired", 1), ("refused", None), ("no URL", None)]
        found = [(row["verdict"], row["expires"]) for row in rows]
        self.assertEqual([*expected, ("wrong signature", None)], found)
        self.assertIn('"br:0" is not accepted', rows[2]["reason"])

    def test_colour(self) -> None:
        """On a terminal, the verdict is in colour, unless NO_COLOR is set or it has none."""
        terminal = io.StringIO()
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        with contextlib.redirect_stdout(terminal):
            for variables in ({"NO_COLOR": ""}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
                with mock.patch.dict(os.environ, {**SECRETS, "TERM": "xterm", **variables}):
                    main(["verify", "/x/plain/local://a"])
        colored = [line.startswith("\x1b[31mwrong") for line in terminal.getvalue().splitlines()]
        self.assertEqual([True, False, False], colored)

    def test_raw_characters(self) -> None:
        """What a request line may not have is no URL, and `verify` says what to write for it."""
        self.assertEqual(b"/plain/local://a[1]|b", parse_url("/x/plain/local://a[1]|b").signed)
        url = SIGNER.url(PIECE)
        for raw, escape in ((" ", "%20"), ("\xfc", "%C3%BC"), ("\udcff", "%FF"), ("\t", "%09")):
            for text in (f"{url}{raw}a", f"{url}?{raw}a"):
                ended = command("verify", text)
                self.assertEqual((2, ""), (ended.status, ended.out))
                self.assertIn(f"it is a 400, since {raw!r} is not percent-encoded", ended.err)
                self.assertIn(f"; write {escape}\n", ended.err)
            self.assertEqual(0, command("verify", f"{url}#{raw}a").status)

    @DETERMINISTIC
    @given(
        options=st.sampled_from(("", "/f:opus", "/exp:1", "/br:0", "/info")),
        name=st.lists(st.sampled_from(PIECES), max_size=3),
        change=st.sampled_from(CHANGES),
    )
    def test_as_the_service(
        self, options: str, name: list[str], change: Callable[[str], str]
    ) -> None:
        """The verdict on any URL is the status of the service, for a client that encodes nothing.

        HEAD asks for it, since that renders nothing.
        """
        signed = f"{options}/plain/local://a{''.join(name)}"
        path = http.KEY, http.SALT, signed.encode()
        url = change(f"{SIGNER.base}/{sign(*path).decode()}{signed}")
        sent = url.strip().removeprefix(SIGNER.base).partition("#")[0]
        connection = http.ResourceHarness().connect()
        connection.send(sent.encode(), b"HEAD")
        statuses = {0: (200,), 1: (401,), 2: (400, 404), 3: (410,), 4: (404, 422)}
        secrets = {"AP_KEY": http.KEY.hex(), "AP_SALT": http.SALT.hex()}
        verdict = command("verify", url, environment=secrets).status
        self.assertIn(connection.response.status, statuses[verdict], url)

    def test_no_url(self) -> None:
        """`verify` exits with 2 if the path has no leading slash or fewer than two segments."""
        for text in ("https://audio.example", "x", "/x", "audio.example/x/y"):
            ended = command("verify", text)
            self.assertEqual((2, ""), (ended.status, ended.out), text)
            self.assertIn("is not a URL of the service", ended.err)
