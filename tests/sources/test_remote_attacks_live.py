"""Malicious origins. Many tests first show that their attack works on a plain ffmpeg.

The service allows the host ``localhost`` and trusts a private authority. It must not connect to
``127.0.0.1``, although that is the same machine, or to servers without TLS.
"""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache, cached_property
from itertools import cycle
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from urllib.parse import quote, unquote

from tests.sources.test_local_attacks_live import (
    FFMPEG_VARIABLES,
    SECRETS,
    gather_limited,
    header_names,
    inside,
    secret,
)
from tests.support.attacks import Recorder, concat_script, decode_unguarded, manifest, playlist
from tests.support.authority import Authority
from tests.support.http import KEY, SALT, Response
from tests.support.origins import (
    Behavior,
    BehaviorSequence,
    File,
    Methods,
    Origin,
    Redirect,
    Status,
    open_origin,
)
from tests.support.servers import RUNNING
from tests.support.service import (
    PATIENCE,
    PROJECT,
    TWISTD,
    ServiceCase,
    children,
    fetch,
    signed,
    until,
)

#: Protocol whitelist of the service for remote sources. On its own, this option does not prevent
#: attacks with redirects, certificates or playlists of https URLs.
PROTOCOLS = ("-protocol_whitelist", "https,tls,tcp")

#: Statuses of redirects.
REDIRECTS = (301, 302, 303, 307, 308)


def remote_path(url: str, options: str = "f:wav") -> bytes:
    """Return the signed path of an https source, with all special characters escaped."""
    return signed(f"/{options}/plain/{quote(url, safe='/:')}")


class SharedService:
    """Service in a separate process, and the certificate authority that it trusts.

    Most tests of this module share the service. It has no variant store, so that every request
    renders. ``subprocess`` starts the process, because trial permits no child process of the
    reactor to survive a test.

    :ivar root: the folder of its local sources.
    :ivar certificate: certificate for a good origin.
    :ivar lines: all output lines of the process.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        self.authority = Authority(folder / "authority")
        self.certificate = self.authority.issue("localhost", "127.0.0.1")
        words = [sys.executable, "-c", TWISTD, "--nodaemon", "--pidfile=", "audioproxy"]
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PROJECT),
            "AP_KEY": KEY.hex(),
            "AP_SALT": SALT.hex(),
            "AP_PORT": "0",
            "AP_METRICS_PORT": "0",
            "AP_LOCAL_ROOT": str(self.root),
            "AP_SERVE_MODE": "proxy",
            "AP_SOURCE_ALLOWLIST": "localhost",
            "SSL_CERT_FILE": str(self.authority.bundle),
        }
        self.lines: list[str] = []
        self._port: Queue[int] = Queue()
        self._process = subprocess.Popen(
            words,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        RUNNING.add(self._process.pid)
        atexit.register(self._process.kill)
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if match := re.search(r"listening on port (\d+)", line):
                self._port.put(int(match[1]))

    @cached_property
    def port(self) -> int:
        """The port; reading it waits until the service listens."""
        try:
            return self._port.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError("".join(self.lines)) from None

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None


@cache
def shared_service() -> SharedService:
    """Return the service, started once and killed at the exit of the test run."""
    return SharedService(Path("attacks").resolve())


class OriginCase(ServiceCase):
    """Service that allows one host, an origin on that host, and servers that it must not reach.

    :ivar origin: an allowed and trusted origin.
    :ivar foreign: a trusted origin on a host that is not allowed.
    :ivar cleartext: a server without TLS.
    """

    def setUp(self) -> None:
        super().setUp()
        self.authority = shared_service().authority
        self.origin, self.foreign = (
            open_origin(self, shared_service().certificate) for _ in range(2)
        )
        self.cleartext = open_origin(self)
        self.good_url = self.origin.put("/good.wav", inside())
        self.foreign_url = self.foreign.put("/secret.wav", secret("wav"), host="127.0.0.1")
        self.cleartext_url = self.cleartext.put("/secret.wav", secret("wav"))

    async def select_service(self, port: int | None = None) -> None:
        """Select a service, by default the shared one, and check that it serves a good source."""
        self.port = shared_service().port if port is None else port
        self.expected = await fetch(self.port, remote_path(self.good_url))
        self.assertEqual(200, self.expected.status, self.expected)
        missing = await fetch(self.port, remote_path(self.origin.url("/missing.wav")))
        self.assertEqual((404, "not_found"), (missing.status, missing.error))
        self.missing = missing.body

    async def assert_followed(self, urls: Iterable[str], origin: Origin, *words: str) -> None:
        """Assert that a plain ffmpeg follows each URL to an origin; clear the origin's record."""
        for url in urls:
            self.assertTrue(await decode_unguarded(url, *PROTOCOLS, *words), url)
            self.assertTrue(origin.requests, url)
            origin.connections.clear()

    async def assert_statuses(
        self, urls: Iterable[str], *statuses: int, options: str = "f:wav"
    ) -> None:
        """Assert that responses have one of the statuses, and that all 404 bodies are equal."""
        urls = list(urls)
        responses = await gather_limited(
            fetch(self.port, remote_path(url, options)) for url in urls
        )
        for url, response in zip(urls, responses, strict=True):
            self.assertIn(response.status, statuses, (url, response))
            if response.status == 415:
                self.assertEqual("undecodable_source", response.error, url)
            elif response.status == 404:
                self.assertEqual(self.missing, response.body, url)

    def assert_no_connections(self, *origins: Origin) -> None:
        """Assert that origins got no connection; by default, ``foreign`` and ``cleartext``."""
        for origin in origins or (self.foreign, self.cleartext):
            self.assertEqual([], origin.connections)


class RedirectTests(OriginCase):
    """Origins that redirect."""

    async def test_to_cleartext(self) -> None:
        """Any redirect to cleartext, at any hop, gives 404.

        (Format and encoding options, 5; D48)
        """
        urls = [
            self.origin.put(f"/to-{status}", Redirect(self.cleartext_url, status))
            for status in REDIRECTS
        ]
        urls.append(self.origin.put_chain("/chain", 3, self.cleartext_url))
        await self.assert_followed(urls[:4], self.cleartext)
        await self.select_service()
        await self.assert_statuses(urls, 404)
        await self.assert_statuses(urls[:1], 404, options="info")
        self.assert_no_connections()

    async def test_to_another_host(self) -> None:
        """A redirect to a host that is not allowed gives 404, at any hop (Source allowlist)."""
        urls = [
            self.origin.put(f"/to-{status}", Redirect(self.foreign_url, status))
            for status in REDIRECTS
        ]
        urls += [
            self.origin.put_chain("/chain", 4, self.foreign_url),
            self.origin.put("/half", Redirect(self.foreign_url.removeprefix("https:"))),
            self.origin.put("/capitals", Redirect(self.foreign_url.replace("https", "HTTPS"))),
        ]
        # This chain leads through a host that is not allowed, and back.
        back = self.foreign.put("/back", Redirect(self.good_url), host="127.0.0.1")
        urls.append(self.origin.put("/there-and-back", Redirect(back)))
        await self.assert_followed(urls[:4], self.foreign)
        await self.select_service()
        await self.assert_statuses(urls, 404)
        await self.assert_statuses(urls[:1], 404, options="info")
        self.assert_no_connections()

    async def test_odd_locations(self) -> None:
        """A redirect to a malformed URL, another host or another scheme is refused.

        The locations include a local file of the service, which could be rendered.
        """
        path = shared_service().root / "inside.wav"
        path.write_bytes(inside())
        foreign, origin = self.foreign.port, self.origin.port
        locations = [
            f"https://localhost@127.0.0.1:{foreign}/secret.wav",
            f"https://user:word@localhost:{origin}/good.wav",
            f"https://localhost:{foreign}\\@127.0.0.1:{foreign}/secret.wav",
            f"https://127.0.0.1:{foreign}#@localhost/secret.wav",
            f"https://[::ffff:127.0.0.1]:{foreign}/secret.wav",
            f"https://2130706433:{foreign}/secret.wav",
            f"https:/127.0.0.1:{foreign}/secret.wav",
            f"https:\\\\127.0.0.1:{foreign}\\secret.wav",
            f"tls://127.0.0.1:{foreign}",
            f"tcp://127.0.0.1:{self.cleartext.port}",
            *(f"{scheme}{path}" for scheme in ("file://", "file:", "concat:", "local://", "s3:/")),
            *("local://inside.wav", "s3://bucket/key", "data:audio/wav;base64,UklGRg==", "pipe:0"),
            *(
                "https://",
                "https://:443/",
                "//",
                "https://localhost:0/",
                "https://localhost:99999/",
            ),
            *("https://localhost:port/", "https://%6cocalhost/", "", " ", "\x01", "caf\xe9"),
        ]
        urls = [self.origin.put(f"/{n}", Redirect(it)) for n, it in enumerate(locations)]
        await self.select_service()
        await self.assert_statuses(urls, 404, 415, 502)
        self.assert_no_connections()

    async def test_redirect_limit(self) -> None:
        """Five redirects are followed, six are refused, and a redirect loop ends (D41)."""
        five = self.origin.put_chain("/five", 5, self.good_url)
        six = self.origin.put_chain("/six", 6, self.good_url)
        here, there = (self.origin.url(path) for path in ("/here", "/there"))
        self.origin.put("/here", Redirect(there))
        self.origin.put("/there", Redirect(here))
        self.origin.put("/self", Redirect("/self"))
        self.assertTrue(await decode_unguarded(six, *PROTOCOLS))
        await self.select_service()
        response = await fetch(self.port, remote_path(five))
        self.assertEqual((200, self.expected.body), (response.status, response.body))
        await self.assert_statuses([six, here, self.origin.url("/self")], 404, 415, 502)
        for path in ("/here", "/there", "/self"):
            self.assertLessEqual(len(self.origin.requests_for(path)), 12, path)

    async def test_body_of_a_redirect(self) -> None:
        """Audio in the body of a 204, 300, 302 or 304 response is not rendered (D41)."""
        urls = [
            self.origin.put(f"/{status}", Status(status, (), inside()))
            for status in (300, 302, 304, 204)
        ]
        self.assertTrue(await decode_unguarded(urls[1], *PROTOCOLS))
        await self.select_service()
        await self.assert_statuses(urls, 404, 415, 502)

    async def test_redirect_after_the_check(self) -> None:
        """A redirect that only later requests get is not followed (D41).

        (Format and encoding options, 5)
        """
        urls = []
        for name, target_url in (("cleartext", self.cleartext_url), ("foreign", self.foreign_url)):
            redirect, sound = Redirect(target_url), File(inside())
            behaviors: dict[str, Behavior] = {
                "get": Methods(sound, redirect),
                "second": BehaviorSequence(sound, redirect),
                "third": BehaviorSequence(sound, sound, redirect),
                "late-get": Methods(Status(405), BehaviorSequence(sound, redirect)),
            }
            urls += [
                self.origin.put(f"/{name}-{it}", behavior) for it, behavior in behaviors.items()
            ]
            origin = {"cleartext": self.cleartext, "foreign": self.foreign}[name]
            await self.assert_followed([self.origin.url(f"/{name}-get")], origin)
        await self.select_service()
        for options in ("f:wav", "info", "f:peaks"):
            # It is not fixed which request of the service gets the redirect. If no request gets it,
            # the response is a 200 from the good source.
            responses = await gather_limited(
                fetch(self.port, remote_path(url, options)) for url in urls
            )
            for url, response in zip(urls, responses, strict=True):
                self.assertTrue(
                    response.status in (404, 415, 502) or self.has_expected_audio(response), url
                )
        self.assert_no_connections()

    def has_expected_audio(self, response: Response) -> bool:
        """Return whether a response is a 200 and, if it is a complete wav, has the expected audio.

        Peaks, info documents and incomplete wavs are not compared.
        """
        if response.status != 200 or response["content-type"] != b"audio/wav":
            return response.status == 200
        return not response.complete or response.body == self.expected.body


class CertificateTests(OriginCase):
    """Origins with wrong certificates."""

    async def test_wrong(self) -> None:
        """An origin with an invalid certificate gives 502 and gets no request (D42, D48)."""
        other = Authority(self.root.with_name("other"))
        origins = {
            "self-signed": self.authority.make_self_signed("localhost"),
            "expired": self.authority.issue_expired("localhost"),
            "for another name": self.authority.issue_for_another_name(),
            "for an address": self.authority.issue("127.0.0.1"),
            "by another authority": other.issue("localhost"),
        }
        urls = {}
        for what, certificate in origins.items():
            origin = open_origin(self, certificate)
            urls[origin.put("/good.wav", inside())] = origin
            self.assertTrue(await decode_unguarded(origin.url("/good.wav"), *PROTOCOLS), what)
            origin.connections.clear()
        # A good origin that redirects to an origin with an invalid certificate gives 502, too.
        redirects = [self.origin.put(f"/{n}", Redirect(url)) for n, url in enumerate(urls)]
        await self.select_service()
        await self.assert_statuses([*urls, *redirects], 502)
        await self.assert_statuses(urls, 502, options="info")
        for origin in urls.values():
            self.assertTrue(origin.connections)
            self.assertEqual([], origin.requests)

    async def test_after_the_check(self) -> None:
        """An origin whose certificate is invalid after the first connection gives 502 (D42).

        It gets no request on the later connections.
        """
        good, bad = (self.authority.issue(name) for name in ("localhost", "another.test"))
        await self.select_service()
        for options in ("f:wav", "info"):
            origin = open_origin(self, good, bad)
            await self.assert_statuses([origin.put("/good.wav", inside())], 502, options=options)
            first, *others = origin.connections
            self.assertTrue(first.requests)
            self.assertTrue(others)
            self.assertEqual(
                [], [request for connection in others for request in connection.requests]
            )

    async def test_system_store(self) -> None:
        """Without SSL_CERT_FILE, the service does not trust a private authority (D42)."""
        self.assertTrue(await decode_unguarded(self.good_url, *PROTOCOLS))
        self.origin.connections.clear()
        node = self.twistd(AP_SOURCE_ALLOWLIST="localhost")
        self.port = await node.port()
        await self.assert_statuses([self.good_url], 502)
        self.assertEqual([], self.origin.requests)

    async def test_cleartext_port(self) -> None:
        """A server that does not speak TLS gets no request."""
        url = self.cleartext_url.replace("http:", "https:")
        await self.select_service()
        response = await fetch(self.port, remote_path(url))
        self.assertNotEqual(200, response.status)
        self.assertEqual([], self.cleartext.requests)
        self.assertTrue(shared_service().alive)


class PlaylistTests(OriginCase):
    """Origins that serve playlists of other files."""

    async def test_playlists(self) -> None:
        """HLS, DASH and concat from an origin give 415, and no further URL is requested (D43)."""
        foreign = self.foreign.put("/secret.mp3", secret("mp3"), host="127.0.0.1")
        movie = self.foreign.put("/secret.mp4", secret("mp4"), host="127.0.0.1")
        bare = self.cleartext.put("/secret.mp3", secret("mp3"))
        playlists = {
            "/hls.mp3": playlist(foreign),
            "/hls.m3u8": playlist(foreign),
            "/dash.mp3": manifest(movie),
            "/dash.mpd": manifest(movie),
            "/bare.mp3": playlist(bare),
            "/relative.mp3": playlist("next.mp3"),
            "/script.mp3": concat_script("next.wav"),
        }
        kind = "Content-Type: application/vnd.apple.mpegurl"
        urls = [
            self.origin.put(path, File(content, headers=(kind,) * path.startswith("/hls")))
            for path, content in playlists.items()
        ]
        self.origin.put("/next.mp3", secret("mp3"))
        self.origin.put("/next.wav", secret("wav"))
        await self.assert_followed(urls[:4], self.foreign)
        # The service adds http to its whitelist only for a development endpoint without TLS.
        await self.assert_followed(urls[4:5], self.cleartext, PROTOCOLS[0], "https,tls,tcp,http")
        for url in urls[5:]:
            self.assertTrue(await decode_unguarded(url, *PROTOCOLS), url)
        self.origin.connections.clear()
        await self.select_service()
        await self.assert_statuses(urls, 415)
        await self.assert_statuses(urls, 415, options="info")
        self.assert_no_connections()
        for path in ("/next.mp3", "/next.wav"):
            self.assertEqual([], self.origin.requests_for(path))


class NameTests(OriginCase):
    """URLs whose spelling imitates other URLs."""

    async def test_hosts(self) -> None:
        """Malformed URLs and URLs with a forbidden host or scheme give 404.

        The response body equals that for a missing source.
        """
        port = self.foreign.port
        hosts = [
            *"127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0177.0.0.1 127.0.0.1. [::1]".split(),
            *"[::ffff:127.0.0.1] [::ffff:7f00:1] 0 0.0.0.0 localhost.test notlocalhost".split(),
            *"localhost@127.0.0.1 a:b@localhost localhost%00.test localhost%2f@127.0.0.1".split(),
            *"localhost\\@127.0.0.1 127.0.0.1\\.localhost *.localhost x.localhost".split(),
            *("localhost\t", " localhost", "local host", "localhost\0", "l\u00f6calhost", "", "."),
            *("127.0.0.1#@localhost", "127.0.0.1?@localhost", "127.0.0.1/@localhost"),
        ]
        urls = [f"https://{host}:{port}/secret.wav" for host in hosts]
        urls += [
            *(
                self.cleartext_url,
                self.cleartext_url.replace("http:", "tcp:"),
                self.cleartext_url.replace("http:", "HTTP:"),
            ),
            *(f"{scheme}://localhost:{port}/" for scheme in "ftp tls rtmps httpproxy wss".split()),
            *(
                f"https:{slashes}localhost:{port}/secret.wav"
                for slashes in ("", "/", "\\\\", "///")
            ),
            f"concat:https://localhost:{port}/secret.wav",
            f"subfile,,start,0,end,0,,:https://localhost:{port}/secret.wav",
            f"async:https://localhost:{port}/secret.wav",
            f"https://localhost:{port}/secret.wav\r\nX-Injected: 1",
            f"https://localhost:{port}/secret.wav HTTP/1.1",
            *(
                f"https://localhost:{number}/"
                for number in ("0", "65536", "-1", "+443", "4 3", "x")
            ),
        ]
        await self.select_service()
        for options in ("f:wav", "info"):
            await self.assert_statuses(urls, 404, options=options)
        self.assert_no_connections()

    async def test_spellings(self) -> None:
        """Every spelling of an allowed host is allowed, and gives the same variant."""
        await self.select_service()
        port = self.origin.port
        for host in ("LOCALHOST", "localhost.", "LocalHost."):
            response = await fetch(self.port, remote_path(f"HTTPS://{host}:{port}/good.wav#x"))
            self.assertEqual(
                (200, self.expected["etag"]), (response.status, response["etag"]), host
            )

    async def test_paths(self) -> None:
        """A path never acts as a header, option or command.

        Except for escapes and an empty query, the origin gets the path as spelled.
        """
        paths = [
            "/a%0d%0aX-Injected:%201",
            "/a%20HTTP/1.1%0d%0aHost:%20b",
            *(
                "/-i",
                "/--",
                "/a;b&c",
                "/$(id)",
                "/`id`",
                "/a'b\"c",
                "/a|b",
                "/*",
                "/{x}",
            ),
            *(
                "/concat:b|c",
                "/subfile,,start,0,end,0,,:b",
                "/a?x=-i&y=%0a",
                "/?",
                "/a//b",
                "/a\\b",
            ),
            *("/../a", "/./a", "/a/..", "/%2e%2e/a", "/@127.0.0.1/", "//127.0.0.1/a", "/a,b"),
        ]
        await self.select_service()
        targets = []
        for number, path in enumerate(paths):
            bare = path.partition("?")[0]
            # ffmpeg escapes characters that a URL may not contain.
            for spelling in (bare, quote(bare, safe="/-;&$()'%*:,@.")):
                self.origin.put(spelling, inside())
            targets.append(remote_path(self.origin.url(path), ("f:wav", "info")[number % 2]))
        expected_info = await fetch(self.port, remote_path(self.good_url, "info"))
        self.origin.connections.clear()
        responses = await gather_limited(fetch(self.port, target) for target in targets)
        for path, response, reference in zip(
            paths, responses, cycle((self.expected, expected_info)), strict=False
        ):
            self.assertEqual((200, reference.body), (response.status, response.body), path)
            self.assertEqual(header_names(reference), header_names(response), path)
        requested = {unquote(request.target) for request in self.origin.requests}
        self.assertEqual({unquote(path).removesuffix("?") for path in paths}, requested)
        for request in self.origin.requests:
            self.assertNotIn("x-injected", request.headers)
            self.assertEqual(f"localhost:{self.origin.port}", request.headers["host"])
        self.assert_no_connections()

    async def test_sequences(self) -> None:
        """A URL that looks like an image sequence pattern is requested as one URL (D43)."""
        paths = ("/%d.jpg", "/a-%03d.png", "/b%25d.bmp")
        urls = [self.origin.put(path, inside()) for path in paths]
        for url in urls[:2]:
            await decode_unguarded(url, *PROTOCOLS)
        self.assertFalse({*paths} & {request.target for request in self.origin.requests})
        self.assertGreater(len(self.origin.requests), 4)
        # A percent sign that is not part of an escape is sent as %25.
        self.origin.put("/%25d.jpg", inside())
        await self.select_service()
        self.origin.connections.clear()
        await self.assert_statuses(urls, 200, 415)
        await self.assert_statuses(urls, 200, 415, options="info")
        requested = {request.target for request in self.origin.requests}
        self.assertLessEqual(requested, {"/%25d.jpg", *paths[1:]})

    async def test_headers_of_an_origin(self) -> None:
        """Headers of an origin add no header and no line to the service's responses."""
        odd = {
            "quotes": (b'ETag: "a"b", "c"',),
            "return": (b'ETag: "a\rX-Injected: 1"', b"Last-Modified: a\rX-Injected: 1"),
            "zero": (b'ETag: "a\0b"',),
            "bytes": (b'ETag: "\xff\x80\xe2\x80\xa8"',),
            "type": (b"Content-Type: text/html\rX-Injected: 1", b"Set-Cookie: a=b"),
            "long": (b'ETag: "%s"' % (b"a" * 3000),),
            "longer": (b"X-Long: %s" % (b"a" * 2_000_000),),
            "many": (b"X-Many: a",) * 20_000,
        }
        urls = [
            self.origin.put(f"/{name}", File(inside(), etag=None, modified=None, headers=lines))
            for name, lines in odd.items()
        ]
        await self.select_service()
        expected_info = await fetch(self.port, remote_path(self.good_url, "info"))
        for options, reference in (("f:wav", self.expected), ("info", expected_info)):
            responses = await gather_limited(
                fetch(self.port, remote_path(url, options)) for url in urls
            )
            for url, response in zip(urls, responses, strict=True):
                self.assertIn(response.status, (200, 404, 415, 502), url)
                if response.status == 200:
                    self.assertLessEqual(
                        {*header_names(response)}, {*header_names(reference), b"etag"}, url
                    )
                    self.assertNotIn(b"Injected", b"".join(value for _, value in response.headers))
        self.assertEqual(200, (await fetch(self.port, remote_path(self.good_url, "f:flac"))).status)


class ChildTests(OriginCase):
    """Arguments and environments of ffmpeg and ffprobe for a remote source."""

    async def test_children(self) -> None:
        """Children verify TLS, follow no redirect, and get no secrets (D42 to D45)."""
        recorder = Recorder(self.root.with_name("recorder"))
        proxy = f"http://127.0.0.1:{self.cleartext.port}"
        hostile_variables = {
            **FFMPEG_VARIABLES,
            "http_proxy": proxy,
            "https_proxy": proxy,
            "ALL_PROXY": proxy,
        }
        trust = {"SSL_CERT_FILE": str(self.authority.bundle), "AP_SOURCE_ALLOWLIST": "localhost"}
        node = self.twistd(**{**SECRETS, **hostile_variables, **trust, "PATH": recorder.path})
        await self.select_service(await node.port())
        moved = self.origin.put("/moved.wav", Redirect("/good.wav"))
        for number, options in enumerate(("f:mp3/norm:ebu", "f:peaks", "info", "f:flac/t:0.01")):
            response = await fetch(
                self.port, remote_path(moved if number % 2 else self.good_url, options)
            )
            self.assertEqual(200, response.status, options)
        await until(lambda: not children(node.pid), "all children to end")
        for run in recorder.runs():
            shell = ("PWD", "_")
            seen = {name: it for name, it in run.environment.items() if name not in shell}
            self.assertLessEqual({*seen}, {"PATH", "LC_ALL"}, run.words)
            self.assertLessEqual(run.descriptors, {0, 1, 2}, run.words)
            text = "\n".join((*run.words, *seen.values()))
            for hidden in (*SECRETS.values(), KEY.hex(), SALT.hex()):
                self.assertNotIn(hidden, text)
        inputs = recorder.inputs()
        self.assertEqual({"ffmpeg", "ffprobe"}, {run.words[0] for run in inputs})
        for run in inputs:
            # The service has followed the redirect; the programs get the final URL.
            self.assertEqual([self.good_url], run.after("-i"), run.words)
            for option, values in {
                "-protocol_whitelist": ["https,tls,tcp"],
                "-tls_verify": ["1"],
                "-ca_file": [str(self.authority.bundle)],
                "-max_redirects": ["0"],
            }.items():
                self.assertEqual(values, run.after(option), run.words)
                self.assertIn(option, run.before_input)
            (demuxers,) = run.after("-format_whitelist")
            self.assertFalse({"hls", "dash", "concat", "image2"} & {*demuxers.split(",")})
        self.assertEqual([], [*Path(self.root).glob("*.log")])
        self.assertFalse(os.path.exists("report.log"))
        self.assert_no_connections()
