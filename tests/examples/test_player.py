"""Server side of the player: source listing, signing and access checks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.static import Data

from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.segments import split_signature, split_target
from audioproxy.grammar.signature import verify
from audioproxy.urls import Signer
from examples.player import sources
from examples.player.signing import describe_formats
from examples.player.site import make_site
from examples.player.sources import list_sources
from tests.support.http import KEY, NOW, SALT, Connection, Log, Response

#: A file name that a page could interpret as markup.
HOSTILE = "<img src=x onerror=alert(1)>.wav"


class PlayerCase(SynchronousTestCase):
    """Tests with a folder of sources, and the player's application."""

    def setUp(self) -> None:
        """Make the folder."""
        self.root = Path(self.mktemp()).resolve()
        self.root.mkdir()

    def add(self, *names: str | bytes) -> None:
        """Create empty files below the root."""
        for name in names:
            path = Path(os.fsdecode(os.path.join(os.fsencode(self.root), os.fsencode(name))))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def fetch(
        self, target: str, method: bytes = b"GET", host: bytes = b"127.0.0.1:4001"
    ) -> Response:
        """Return the application's response, with a stand-in for the service below /audio."""
        proxy = Resource()
        proxy.putChild(b"variant", Data(b"a variant", "audio/mpeg"))
        signer = Signer(KEY, SALT, "/audio", now=lambda: NOW)
        site = make_site(proxy, signer, self.root)
        site.timeOut = None
        connection = Connection(site)
        connection.method = method
        connection.send_raw(b"%s %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (method, target.encode(), host))
        return connection.response

    def document(self, source: str = "a.wav", **parameters: str) -> Any:
        """Return the document with the URLs of a variant, or with the refusal, and its status."""
        response = self.fetch(f"/sign?{urlencode({'source': source, **parameters})}")
        return {"status": response.status, **json.loads(response.body)}


class ListingTests(PlayerCase):
    """Listing of the sources."""

    def listed(self) -> Any:
        """Return the listing."""
        response = self.fetch("/sources")
        self.assertEqual(b"application/json", response["content-type"])
        return json.loads(response.body)

    def test_audio_in_order(self) -> None:
        """Visible files with an audio extension are listed by path, in order; others are not.

        Folders, symlinks and FIFOs are not listed, even with an audio extension.
        """
        self.add("b.WAV", "A.flac", "c/d.mp3", "notes.txt", "noext", "c/.hidden.wav", ".git/x.wav")
        (self.root / "folder.wav").mkdir()
        (self.root / "link.wav").symlink_to("b.WAV")
        (self.root / "around").symlink_to(self.root)
        os.mkfifo(self.root / "pipe.wav")
        names = [row["name"] for row in self.listed()["sources"]]
        self.assertEqual(["A.flac", "b.WAV", "c/d.mp3"], names)
        self.assertTrue(self.listed()["complete"])

    def test_odd_names(self) -> None:
        """Files whose names are not UTF-8, or contain markup, are listed and can be signed."""
        names = [b"\xff\n.wav", HOSTILE.encode(), "Größe %41.wav".encode()]
        self.add(*names)
        rows = self.listed()["sources"]
        self.assertEqual({"�\n.wav", HOSTILE, "Größe %41.wav"}, {row["name"] for row in rows})
        signed = set()
        for row in rows:
            path = self.document(row["source"])["url"].removeprefix("/audio").encode()
            target = split_target(split_signature(path).signed)
            signed.add(target.source)
        self.assertEqual(3, len(signed))

    def test_too_many(self) -> None:
        """A large collection is listed in part, with ``complete`` set to false."""
        self.add("a.wav", "b.wav", "c.wav", "d.txt")
        self.patch(sources, "MAX_LISTED", 2)
        document = list_sources(self.root)
        self.assertEqual((2, False), (len(document["sources"]), document["complete"]))
        self.patch(sources, "MAX_LISTED", 500)
        self.patch(sources, "MAX_EXAMINED", 3)
        self.assertFalse(list_sources(self.root)["complete"])
        self.patch(sources, "MAX_EXAMINED", 4)
        self.assertTrue(list_sources(self.root)["complete"])

    def test_folder_that_is_gone(self) -> None:
        """A missing folder is listed as empty."""
        self.root.rmdir()
        self.assertEqual({"sources": [], "complete": True}, self.listed())


class SigningTests(PlayerCase):
    """Signed URLs for the page, which never gets the key."""

    def signed(self, document: dict[str, str], name: str) -> bytes:
        """Return the signed part of a URL after verifying its signature."""
        path = document[name]
        self.assertTrue(path.startswith("/audio/"))
        split = split_signature(path.removeprefix("/audio").encode())
        assert split is not None
        self.assertTrue(verify(KEY, SALT, split.signed, split.signature))
        return split.signed

    def test_urls(self) -> None:
        """A response has URLs of the variant, of its trimmed waveform and of the info document."""
        document = self.document(f="opus", br="96", t="3:5", gain="-2.50", pts="300")
        source = b"/plain/local://a.wav"
        self.assertEqual(b"/br:96/f:opus/gain:-2.5/t:3:5" + source, self.signed(document, "url"))
        self.assertEqual(
            b"/ch:1/f:peaks/gain:-2.5/pk_bits:16/pk_fmt:json/pts:300/t:3:5" + source,
            self.signed(document, "waveform"),
        )
        self.assertEqual(b"/info" + source, self.signed(document, "info"))
        self.assertEqual("br:96/f:opus/gain:-2.5/t:3:5", document["canonical"])
        self.assertRegex(document["key"], r"\A[0-9a-f]{64}\Z")
        # With f:peaks the variant's URL is a waveform with all requested options.
        document = self.document(f="peaks", pk_fmt="dat", dl="a.dat")
        self.assertEqual(
            b"/ch:1/dl:a.dat/f:peaks/pk_bits:16/pk_fmt:dat/pts:800" + source,
            self.signed(document, "url"),
        )

    def test_expiry(self) -> None:
        """exp is in seconds from now and applies to variant and waveform.

        The cache key does not depend on it.
        """
        lasting, ending = self.document(f="wav"), self.document(f="wav", exp="60")
        for name in ("url", "waveform"):
            self.assertIn(b"/exp:%d/" % (NOW + 60), self.signed(ending, name))
        self.assertEqual(lasting["key"], ending["key"])

    def test_refusals(self) -> None:
        """Options and sources that the service would refuse get its status and message (D20)."""
        invalid, expired, missing = (422, "invalid_options"), (410, "expired"), (404, "not_found")
        for parameters, refusal, words in (
            ({"f": "mp3", "br": "9999"}, invalid, '"br:9999" is not accepted: f:mp3'),
            ({"br": "96", "q": "2"}, invalid, "exclude each other"),
            ({"t": "1/f:wav"}, invalid, '"t:1/f:wav" is not accepted'),
            ({"pts": "0"}, invalid, '"pts:0" is not accepted'),
            ({"shape": "1"}, invalid, '"shape" is not accepted'),
            ({"exp": "soon"}, invalid, '"exp" is not accepted'),
            ({"exp": "-5"}, expired, "expired"),
            ({"source": "../a.wav"}, missing, "leaves the root"),
            ({"source": ""}, missing, ""),
        ):
            document = self.document(**parameters)
            self.assertEqual({"error", "message", "status"}, document.keys())
            self.assertEqual(refusal, (document["status"], document["error"]), parameters)
            self.assertIn(words, document["message"])
        # A repeated parameter is refused like a repeated segment.
        self.assertEqual(422, self.fetch("/sign?source=a.wav&br=96&br=128").status)

    def test_formats(self) -> None:
        """/formats lists the options of each format, and why the service refuses the others."""
        formats = {row["token"]: row for row in json.loads(self.fetch("/formats").body)["formats"]}
        self.assertEqual(set(FORMATS), set(formats))
        self.assertEqual([8, 320], formats["mp3"]["br"])
        self.assertEqual([8000, 12000, 16000, 24000, 48000], formats["opus"]["sr"])
        for token, unavailable in (
            ("mp3", {"bd"}),
            ("flac", {"br"}),
            ("wav", {"br", "q"}),
            ("peaks", {"br", "q", "sr", "bd"}),
        ):
            self.assertEqual(unavailable, set(formats[token]["unavailable"]))
            for option, why in formats[token]["unavailable"].items():
                value = "16" if option == "bd" else "8000" if option == "sr" else "1"
                document = self.document(f=token, **{option: value})
                self.assertEqual(422, document["status"])
                self.assertIn(why, document["message"])

    def test_offered_rates(self) -> None:
        """Every sample rate that /formats offers is accepted."""
        for row in describe_formats()["formats"]:  # type: ignore[attr-defined]
            for rate in row["sr"] if row["token"] != "peaks" else ():
                self.assertEqual(200, self.document(f=row["token"], sr=str(rate))["status"])


class SiteTests(PlayerCase):
    """Hosts, methods and headers of the player's pages."""

    def test_page(self) -> None:
        """The Content-Security-Policy allows own resources only, and scripts by a fresh nonce.

        The page contains neither the key nor the salt.
        """
        response = self.fetch("/")
        policy = response["content-security-policy"].decode()
        self.assertIn("default-src 'self';", policy)
        nonce = policy.split("'nonce-")[1].split("'")[0]
        self.assertIn(f'nonce="{nonce}"'.encode(), response.body)
        self.assertNotIn(nonce.encode(), self.fetch("/").body)
        for secret in (KEY.hex(), SALT.hex()):
            self.assertNotIn(secret.encode(), response.body)

    def test_foreign_hosts(self) -> None:
        """A request with a foreign Host header returns 421, which stops DNS rebinding."""
        for host in (b"localhost:4001", b"127.0.0.1"):
            self.assertEqual(200, self.fetch("/formats", host=host).status, host)
        for host in (b"evil.example", b"127.0.0.1.evil.example:4001", b""):
            for target in ("/", "/sign?source=a.wav", "/sources", "/page/main.mjs", "/audio/x"):
                self.assertEqual(421, self.fetch(target, host=host).status, (host, target))

    def test_methods(self) -> None:
        """HEAD returns the headers of GET without a body, and logs nothing.

        Only GET and HEAD are supported; other methods return 405 or 501.
        """
        log = Log()
        self.addCleanup(log.start())
        # The page's nonce changes with each request, but not its length.
        for target in ("/", "/sign?source=a.wav", "/sign?source=", "/formats", "/page", "/none"):
            whole, head = self.fetch(target), self.fetch(target, b"HEAD")
            self.assertEqual(whole.status, head.status, target)
            self.assertEqual(whole["content-length"], head["content-length"], target)
        self.assertEqual(b"", self.fetch("/", b"HEAD", b"evil.example").body)
        for target in ("/", "/sign?source=a.wav", "/sources", "/page/main.mjs"):
            self.assertEqual(200, self.fetch(target, b"HEAD").status, target)
            for method in (b"POST", b"PUT", b"DELETE"):
                self.assertIn(self.fetch(target, method).status, (405, 501), (target, method))
        self.assertEqual([], log.events)

    def test_served_files(self) -> None:
        """No folder is listed, and only files that the page uses are served."""
        for target in ("/page", "/page/", "/page/index.html", "/page/..%2fsite.py", "/site.py"):
            self.assertIn(self.fetch(target).status, (404, 405), target)
        for name in ("main.mjs", "style.css", "icon.svg"):
            response = self.fetch(f"/page/{name}", b"HEAD")
            found = response.status, response["x-content-type-options"]
            self.assertEqual((200, b"nosniff"), found)
