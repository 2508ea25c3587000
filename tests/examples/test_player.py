"""Server side of the player: source listing, signing and access checks."""

from __future__ import annotations

import html
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlencode

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

from audioproxy.config import Config, ConfigError
from audioproxy.errors import NotConfigured
from audioproxy.grammar.formats import FORMATS
from audioproxy.grammar.segments import split_signature, split_target
from audioproxy.grammar.signature import verify
from audioproxy.grammar.sources import Source
from audioproxy.media.loudness import Measurement
from audioproxy.urls import Signer, Variant
from examples.player import documentation
from examples.player.__main__ import configure
from examples.player.site import Root, make_site
from examples.player.sources import Sources
from examples.player.uploads import Uploads
from examples.samples import Home
from tests.deploy.balancer import installed
from tests.support.http import KEY, NOW, SALT, Connection, Malformed, Response
from tests.support.runs import run_program
from tests.support.service import PROJECT

#: The part of the URLs before the signature.
BASE = "http://127.0.0.1:4001/audio"
#: A file name that a page could interpret as markup.
HOSTILE = "<img src=x onerror=alert(1)>.wav"


class PlayerCase(SynchronousTestCase):
    """Tests with a folder of sources, and the player's application."""

    def setUp(self) -> None:
        """Make the folder."""
        self.root = Path(self.mktemp()).resolve()
        self.root.mkdir()
        self.allowed: tuple[str, ...] | None = None
        self.uploads = Uploads(self.root, 1000)
        self.env_file = self.root.parent / "its settings.env"
        #: Calls of the function that measures, each with the Deferred that it awaits.
        self.measuring: list[tuple[Source, Variant | None, Deferred[Measurement]]] = []

    def add(self, *names: str | bytes) -> None:
        """Create empty files below the root."""
        for name in names:
            path = Path(os.fsdecode(os.path.join(os.fsencode(self.root), os.fsencode(name))))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    async def measure(self, source: Source, variant: Variant | None) -> Measurement:
        """Wait until the test ends the measurement."""
        waiting: Deferred[Measurement] = Deferred()
        self.measuring.append((source, variant, waiting))
        return await waiting

    def site(self) -> Site:
        """Return the application's site, with a stand-in for the service below /audio."""
        proxy = Resource()
        proxy.putChild(b"variant", Data(b"a variant", "audio/mpeg"))
        signer = Signer(KEY, SALT, "/audio", now=lambda: NOW)
        sources = Sources(self.root, self.allowed)
        root = Root(proxy, signer, sources, self.uploads, self.measure, self.env_file)
        site = make_site(root)
        site.timeOut = None
        return site

    def connect(
        self, site: Site, target: str, method: bytes = b"GET", host: bytes = b"127.0.0.1:4001"
    ) -> Connection:
        """Return a connection that has sent a request."""
        connection = Connection(site)
        connection.method = method
        connection.send_raw(b"%s %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (method, target.encode(), host))
        return connection

    def fetch(
        self, target: str, method: bytes = b"GET", host: bytes = b"127.0.0.1:4001"
    ) -> Response:
        """Return the application's response."""
        return self.connect(self.site(), target, method, host).response

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
        """Visible files with an audio extension are listed by path in order; nothing else is."""
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
            document = json.loads(self.fetch(f"/sign?source={row['source']}").body)
            path = document["url"].removeprefix(BASE).encode()
            target = split_target(split_signature(path).signed)
            signed.add(unquote_to_bytes(target.source))
        self.assertEqual({b"local://" + name for name in names}, signed)

    def test_too_many(self) -> None:
        """A large collection is listed in part, with ``complete`` set to false."""
        self.add("a.wav", "b.wav", "c.wav", "d.txt")
        for listed, examined, count, complete in (
            *((2, 500, 2, False), (3, 500, 3, True)),
            *((500, 3, 3, False), (500, 4, 3, True)),
        ):
            document: Any = Sources(self.root, None, listed, examined).describe()
            self.assertEqual((count, complete), (len(document["sources"]), document["complete"]))


class UploadTests(PlayerCase):
    """Files that the user drops on the page."""

    def put(
        self, name: str, body: bytes = b"sound", target: str = "/uploads", **headers: str
    ) -> Response:
        """Return the response to a file that the page sends; an empty header is left out."""
        headers = {"Host": "127.0.0.1:4001", "Origin": "http://127.0.0.1:4001", **headers}
        headers = {"Content-Length": str(len(body)), **headers}
        lines = [f"{key}: {value}" for key, value in headers.items() if value]
        self.connection = Connection(self.site())
        query = urlencode({"name": os.fsencode(name)})
        head = "\r\n".join([f"PUT {target}?{query} HTTP/1.1", *lines, "", ""])
        self.connection.send_raw(head.encode() + body)
        return self.connection.response

    def stored(self) -> list[Path]:
        """Return all files below the root, hidden ones too."""
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    def test_source(self) -> None:
        """A file becomes a source in a folder of its own, until the end of the demo.

        The folder has another name in each run: the store keeps the variants of the run before.
        """
        row = self.put("My song.wav").document
        (path,) = self.stored()
        self.assertEqual(b"sound", path.read_bytes())
        self.assertEqual(str(path.relative_to(self.root)), row["name"])
        self.assertIn(row, json.loads(self.fetch("/sources").body)["sources"])
        self.assertEqual(200, self.fetch(f"/sign?source={row['source']}").status)
        self.add("own.wav")
        self.uploads.remove()
        self.assertEqual(
            [Path("own.wav")], [it.relative_to(self.root) for it in self.root.iterdir()]
        )
        self.uploads = Uploads(self.root, 1000)
        self.assertNotEqual(row, self.put("My song.wav").document)

    def test_names(self) -> None:
        """No name leaves the folder, hides the file or misleads, and none replaces another file."""
        for name, stored in (
            ("a.wav", "a.wav"),
            ("a.wav", "a-2.wav"),
            ("a.wav", "a-3.wav"),
            ("../../etc/passwd", "passwd"),
            ("C:\\Music\\b.mp3", "b.mp3"),
            ("..", "audio"),
            ("", "audio-2"),
            (".hidden.wav", "hidden.wav"),
            ("Größe 1%.wav", "Größe 1%.wav"),
            ("line\n\x00\u202egnp.wav", "linegnp.wav"),
            ("\udcff.wav", "\N{REPLACEMENT CHARACTER}.wav"),
            (HOSTILE.replace("/", ""), HOSTILE),
            ("ö" * 300 + ".flac", "ö" * 97 + ".flac"),
            ("x." + "y" * 300, "x." + "y" * 99),
        ):
            row = self.put(name).document
            self.assertEqual(stored, Path(row["name"]).name)
            self.assertEqual(b"sound", (self.root / row["name"]).read_bytes())

    def test_other_origins(self) -> None:
        """Only the page itself writes: no other site, no other host name, no other address."""
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": "http://127.0.0.1:8000"},
            {"Origin": "http://localhost:4001"},
            {"Origin": "https://127.0.0.1:4001"},
            {"Origin": "http://evil.example:4001", "Host": "evil.example:4001"},
        ):
            response = self.put("a.wav", **headers)
            self.assertEqual(421 if "Host" in headers else 403, response.status, headers)
            self.assertEqual([], list(self.root.iterdir()))
        for method in (b"GET", b"HEAD", b"POST"):
            self.assertEqual(405, self.fetch("/uploads?name=a.wav", method).status, method)

    def test_incomplete(self) -> None:
        """A file that is too large, cannot be written or ends early is refused, and removed.

        A file of the largest size is stored, and so is an empty one.
        """
        for size, status in ((1001, 413), (1000, 200), (0, 200)):
            response = self.put("a.wav", bytes(size))
            self.assertEqual(status, response.status)
            self.assertEqual(status == 413, b"more than 1000 bytes" in response.body)
        before = self.stored()
        self.assertEqual([0, 1000], sorted(path.stat().st_size for path in before))
        # A body that belongs to no upload is not kept either.
        self.assertEqual(404, self.put("a.wav", target="/nothing").status)
        self.assertRaises(Malformed, self.put, "a.wav", **{"Content-Length": "9"})
        self.connection.leave()
        self.assertEqual(before, self.stored())
        self.uploads = Uploads(self.root / "missing", 1000)
        response = self.put("a.wav")
        self.assertEqual((507, "not_written"), (response.status, response.error))
        self.assertIn(b"No such file", response.body)


class SigningTests(PlayerCase):
    """Signed URLs for the page, which never gets the key."""

    def signed(self, document: dict[str, str], name: str) -> bytes:
        """Return the signed part of a URL after verifying its signature."""
        path = document[name]
        self.assertTrue(path.startswith(f"{BASE}/"))
        split = split_signature(path.removeprefix(BASE).encode())
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
        """exp is in seconds from now, for variant and waveform; the cache key is the same."""
        lasting, ending = self.document(f="wav"), self.document(f="wav", exp="60")
        for name in ("url", "waveform"):
            self.assertIn(b"/exp:%d/" % (NOW + 60), self.signed(ending, name))
        self.assertEqual(lasting["key"], ending["key"])

    def test_typed_sources(self) -> None:
        """A source is a path, absolute or below the folder, or an s3 or https URL as it is."""
        self.allowed = ("*",)
        for source, canonical in (
            ("a b.wav", b"local://a b.wav"),
            (f"{self.root}/c/d.wav", b"local://c/d.wav"),
            ("local://a.wav", b"local://a.wav"),
            ("s3://masters/piece.wav", b"s3://masters/piece.wav"),
            ("https://Host.example/a%20b.wav?x=%2F&y", b"https://host.example/a%20b.wav?x=%2F&y"),
        ):
            signed = self.signed(self.document(source), "info")
            named = unquote_to_bytes(signed.removeprefix(b"/info/plain/"))
            self.assertEqual(canonical, named, source)

    def test_refused_sources(self) -> None:
        """A source that is not allowed is refused with the setting that allows it.

        The service does not tell its clients, but the user of the page is its operator.
        """
        for allowed, source, words in (
            (None, "https://host.example/a.wav", "AP_SOURCE_ALLOWLIST is not set, so no host"),
            (("other.example",), "https://host.example/a.wav", "host.example is not on the list"),
            (("other",), "s3://masters/a.wav", "Masters is not on the list"),
            (None, "/etc/passwd", f"The path is not below {self.root}."),
            (None, f"{self.root}x/a.wav", f"The path is not below {self.root}."),
            (None, "http://host.example/a.wav", "A source is local://, s3:// or https://."),
        ):
            self.allowed = allowed
            document = self.document(source)
            self.assertEqual((404, "not_found"), (document["status"], document["error"]))
            self.assertIn(words.lower(), document["message"].lower())
        self.allowed = None
        self.assertEqual(200, self.document("s3://masters/a.wav")["status"])

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
        """/formats lists each format's options, why others are refused, and rates that work."""
        formats = {row["token"]: row for row in json.loads(self.fetch("/formats").body)["formats"]}
        self.assertEqual(set(FORMATS), set(formats))
        page = (PROJECT / "examples/player/page/fields.mjs").read_text()
        hints = page.partition("export const FORMATS = {\n")[2].partition("\n};")[0]
        self.assertEqual(list(FORMATS), re.findall(r"(?m)^  (\w+): ", hints))
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
        for token in formats.keys() - {"peaks"}:
            for rate in formats[token]["sr"]:
                self.assertEqual(200, self.document(f=token, sr=str(rate))["status"])


class SnippetTests(PlayerCase):
    """Programs to copy, each of which gives the URL that the page shows."""

    def setUp(self) -> None:
        """Write the settings of the service, and require node."""
        super().setUp()
        self.env_file.write_text(f"AP_KEY={KEY.hex()}\nAP_SALT={SALT.hex()}\n")
        node = Path(installed("node", "AUDIOPROXY_LANGUAGES"))
        self.path = f"{Path(sys.executable).parent}:{node.parent}:{os.environ['PATH']}"

    def run_bash(self, script: str) -> str:
        """Return the output of a script."""
        environ = {"PATH": self.path, "PYTHONPATH": str(PROJECT), "LC_ALL": "C.UTF-8"}
        ended = run_program("bash", "-c", script, environment=environ, cwd=self.root)
        self.assertEqual(0, ended.status, ended.err)
        return ended.out.strip()

    def run_example(self, command: str, text: str) -> str:
        """Return the output of a program, after the command for the shell in its first line."""
        setup = text.splitlines()[0].partition("in the shell: ")[2]
        (self.root / "program.mjs").write_text(text)
        return self.run_bash(f"{setup}; {command} program.mjs")

    def test_programs(self) -> None:
        """Each program prints the URL, whatever the source and the options are."""
        self.allowed = ("*",)
        rows: list[dict[str, str | bytes]] = [
            {"source": "a.wav"},
            {"f": "opus", "br": "96", "t": "4:14.25", "fade": "0.5:2", "norm": "ebu:-14"},
            {
                "source": b'it\'s \xff\n\\ "$HOME".wav',
                "f": "wav",
                "bd": "24",
                "t": "3",
                "gain": "-2.50",
                "exp": "999999999",
                "dl": "Größe '1\".wav",
                "cb": b"\xfe'",
            },
            {"source": "Größe %41 😀.wav", "f": "flac", "bd": "16", "enhance": "voice"},
            {"source": "https://host.example/a%20b.wav?x=%2F&y", "f": "peaks", "pk_fmt": "dat"},
        ]
        for row in rows:
            query = urlencode({"source": "a.wav", **row})
            document = json.loads(self.fetch(f"/sign?{query}").body)
            url, snippets = document["url"], document["snippets"]
            self.assertEqual(url, self.run_bash(snippets["command"]))
            self.assertEqual(url, self.run_example("python", snippets["python"]))
            self.assertEqual(url, self.run_example("node", snippets["javascript"]))
            (embedded,) = re.findall(r'="(http[^"]*)"', snippets["html"])
            self.assertEqual(url, html.unescape(embedded))
            self.assertEqual(url, self.run_bash(f"curl() {{ echo $3; }}; {snippets['curl']}"))
            for secret in (KEY.hex(), SALT.hex()):
                self.assertNotIn(secret, json.dumps(snippets))


class LoudnessTests(PlayerCase):
    """Loudness of sources and results."""

    def test_measured_once(self) -> None:
        """Requests for the same loudness share one measurement; values that are missing are null.

        Without a format, the source itself is measured. Only options that change the audio count.
        """
        site = self.site()
        result = "/loudness?source=a.wav&f=wav&gain=-2.50&t=3:5"
        requests = [self.connect(site, it) for it in ("/loudness?source=a.wav", result, result)]
        self.assertEqual({b"local://a.wav"}, {source.canonical for source, _, _ in self.measuring})
        variants = [variant and variant.canonical for _, variant, _ in self.measuring]
        self.assertEqual([None, "f:wav/gain:-2.5/t:3:5"], variants)
        for _, _, waiting in self.measuring:
            waiting.callback(Measurement((), (), 0.5))
        values = {"integrated": None, "range": None, "true_peak": 20 * math.log10(0.5)}
        for connection in requests:
            self.assertEqual(values, json.loads(connection.response.body))
        # It is measured anew afterwards, because a file may change.
        self.connect(site, result)
        self.assertEqual(3, len(self.measuring))

    def test_refusals(self) -> None:
        """A refusal of the measurement, of the source or of the options is an error document."""
        connection = self.connect(self.site(), "/loudness?source=a.wav")
        self.measuring[0][2].errback(NotConfigured())
        self.assertEqual(500, connection.response.status)
        self.assertEqual("not_configured", json.loads(connection.response.body)["error"])
        for query, status in (("source=../a", 404), ("source=a&f=wav&dl=b", 422), ("f=x", 404)):
            self.assertEqual(status, self.fetch(f"/loudness?{query}").status, query)
        self.assertEqual(1, len(self.measuring))


class SettingsTests(PlayerCase):
    """Settings of the player from the environment."""

    def settings(self, **variables: str) -> Config:
        """Return the configuration for these variables."""
        environ = {"AP_LOCAL_ROOT": str(self.root), **variables}
        config, self.env_file = configure(Home(self.root / "run"), environ)
        return config

    def test_sources(self) -> None:
        """The allowlist and the object store are configured as in the service.

        A region alone is a setting of other programs. An empty allowlist is refused.
        """
        config = self.settings(AWS_REGION="eu-1")
        self.assertEqual((None, False), (config.source_allowlist, config.source_s3.configured))
        config = self.settings(
            AP_SOURCE_ALLOWLIST="masters,*.example",
            AP_S3_ENDPOINT="https://s3.example",
            AWS_ACCESS_KEY_ID="id",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_REGION="eu-1",
        )
        self.assertEqual(("masters", "*.example"), config.source_allowlist)
        self.assertTrue(config.source_s3.configured)
        self.assertRaises(ConfigError, self.settings, AP_SOURCE_ALLOWLIST="")


class SiteTests(PlayerCase):
    """Hosts, methods and headers of the player's pages."""

    def test_page(self) -> None:
        """The Content-Security-Policy allows own resources and fresh nonces; no key is shown."""
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

    def test_served_files(self) -> None:
        """No folder is listed, and only files that the page uses are served."""
        for target in ("/page", "/page/", "/page/index.html", "/page/..%2fsite.py", "/site.py"):
            self.assertIn(self.fetch(target).status, (404, 405), target)
        for name in ("main.mjs", "style.css", "icon.svg"):
            response = self.fetch(f"/page/{name}", b"HEAD")
            found = response.status, response["x-content-type-options"]
            self.assertEqual((200, b"nosniff"), found)

    def test_documentation(self) -> None:
        """/docs/ has the site that `make docs` has built, or else the Markdown and its reader."""
        self.patch(documentation, "SITE", self.root / "site")
        for name in ("", "urls.html", "urls.md", "images/player-light.png"):
            self.assertEqual(200, self.fetch(f"/docs/{name}", b"HEAD").status, name)
        for target in ("/docs/images/", "/docs/none.html", "/docs/..%2fREADME.md"):
            self.assertEqual(404, self.fetch(target).status, target)
        (self.root / "site" / "assets").mkdir(parents=True)
        (self.root / "site" / "index.html").write_text("Home")
        home = self.fetch("/docs/", b"HEAD")
        self.assertEqual((200, b"4"), (home.status, home["content-length"]))
        self.assertEqual(b"docs/", self.fetch("/docs")["location"][-5:])
        for target in ("/docs/assets/", "/docs/none.html", "/docs/..%2fa.wav", "/docs/urls.md"):
            self.assertEqual(404, self.fetch(target).status, target)
