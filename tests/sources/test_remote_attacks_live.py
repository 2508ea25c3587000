"""Malicious origins. Many tests first show that their attack works on a plain ffmpeg.

The service allows the host ``localhost`` and trusts a private authority. It must not connect to
``127.0.0.1``, although that is the same machine, or to servers without TLS.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from audioproxy.sources import https_origin
from tests.sources.test_https_live import (
    HttpsCase,
    authority,
    certificate,
)
from tests.sources.test_https_live import sound as long_source
from tests.sources.test_local_attacks_live import (
    fetch_limited,
    header_names,
    inside,
    local_path,
    secret,
)
from tests.support.attacks import (
    Recorder,
    concat_script,
    decode_playlist,
    decode_unguarded,
    manifest,
    playlist,
)
from tests.support.authority import Authority
from tests.support.http import KEY, SALT, Response
from tests.support.origins import (
    BehaviorSequence,
    File,
    Origin,
    Redirect,
    open_origin,
)
from tests.support.service import children, fetch, until

#: Options with which every ffmpeg follows redirects and ignores certificates. Without them,
#: versions before 9 do so too.
UNGUARDED = ("-protocol_whitelist", "http,https,tls,tcp", "-tls_verify", "0")


class OriginCase(HttpsCase):
    """Service that allows one host, an origin on that host, and servers that it must not reach.

    :ivar foreign: a trusted origin on a host that is not allowed.
    :ivar cleartext: a server without TLS.
    """

    def setUp(self) -> None:
        super().setUp()
        self.foreign = open_origin(self, certificate("localhost", "127.0.0.1"))
        self.cleartext = open_origin(self)
        self.good_url = self.origin.put("/good.wav", inside())
        self.foreign_url = self.foreign.put("/secret.wav", secret("wav"), host="127.0.0.1")
        self.cleartext_url = self.cleartext.put("/secret.wav", secret("wav"))

    async def start_service(self, port: int | None = None) -> None:
        """Start a service, unless one runs, and request a good and a missing source.

        It has no variant store, so every request renders. The earlier record is cleared first.
        """
        self.origin.connections.clear()
        self.port = port or self.start(variant_store=None).port
        self.expected = await self.get(self.good_url)
        self.assertEqual(200, self.expected.status, self.expected)
        self.expected_info = await self.get(self.good_url, "info")
        missing = await self.get(self.origin.url("/missing.wav"))
        self.assertEqual((404, "not_found"), (missing.status, missing.error))
        self.missing = missing.body

    async def get(self, url: str, options: str = "f:wav", method: bytes = b"GET") -> Response:
        """Request a variant or an info document of an https source."""
        return await fetch(self.port, self.path(url, options), method)

    async def get_all(self, urls: Iterable[str], options: str = "f:wav") -> list[Response]:
        """Request all URLs."""
        return await fetch_limited(self.port, [self.path(url, options) for url in urls])

    async def assert_followed(self, urls: Iterable[str], origin: Origin) -> None:
        """Assert that an unguarded ffmpeg follows URLs to an origin; clear the origin's record."""
        for url in urls:
            await decode_unguarded(url, *UNGUARDED)
            self.assertTrue(origin.requests, url)
            origin.connections.clear()

    async def assert_statuses(
        self, urls: Iterable[str], *statuses: int, kinds: Iterable[str] = ("f:wav", "info")
    ) -> None:
        """Assert that responses have one of the statuses, and that all 404 bodies are equal."""
        urls = list(urls)
        for options in kinds:
            for url, response in zip(urls, await self.get_all(urls, options), strict=True):
                self.assertIn(response.status, statuses, (url, response))
                if response.status == 415:
                    self.assertEqual("undecodable_source", response.error, url)
                elif response.status == 404:
                    self.assertEqual(self.missing, response.body, url)

    def assert_no_connections(self) -> None:
        """Assert that ``foreign`` and ``cleartext`` got no connection."""
        self.assertEqual(([], []), (self.foreign.connections, self.cleartext.connections))


class RedirectTests(OriginCase):
    """Origins that redirect."""

    async def test_redirect_after_the_check(self) -> None:
        """A redirect of a later range is checked as that of the first request is: a 404 (D41).

        (Format and encoding options, 5)
        """
        sound = File(long_source("last.m4a", "180"))
        await self.start_service()
        for number, url in enumerate((self.cleartext_url, self.foreign_url)):
            await self.assert_followed(
                [self.origin.put(f"/{number}", Redirect(url))],
                self.foreign if number else self.cleartext,
            )
            for options in ("f:wav", "info", "f:peaks"):
                later = BehaviorSequence(sound, Redirect(url))
                await self.assert_statuses(
                    [self.origin.put(f"/{number}{options}", later)], 404, kinds=(options,)
                )
        self.assert_no_connections()


class CertificateTests(OriginCase):
    """Origins with wrong certificates."""

    async def test_wrong(self) -> None:
        """An origin with an invalid certificate gives 502 and gets no request (D42, D48).

        So does a server that does not speak TLS, and a good origin that redirects to one of them.
        """
        self.patch(https_origin, "_DELAYS", (0.0, 0.0))
        other = Authority(self.root.with_name("other"))
        origins = {self.cleartext_url.replace("http:", "https:"): self.cleartext}
        for wrong in (
            authority().make_self_signed("localhost"),
            authority().issue_expired("localhost"),
            authority().issue("another.test"),
            authority().issue("127.0.0.1"),
            other.issue("localhost"),
        ):
            origin = open_origin(self, wrong)
            origins[origin.put("/good.wav", inside())] = origin
            await self.assert_followed([origin.url("/good.wav")], origin)
        redirects = [self.origin.put(f"/{n}", Redirect(url)) for n, url in enumerate(origins)]
        await self.start_service()
        await self.assert_statuses([*origins, *redirects], 502)
        for url, origin in origins.items():
            self.assertEqual(502, (await self.get(url, "info", b"HEAD")).status)
            self.assertTrue(origin.connections)
            self.assertEqual([], origin.requests)

    async def test_after_the_check(self) -> None:
        """An origin whose certificate is invalid after the look-up gives 502 (D42, D48).

        It gets no request on the later connections. The look-up makes two.
        """
        await self.start_service()
        # Every response ends its connection.
        closing = File(long_source("last.m4a", "180"), version="1.0")
        good = certificate("localhost")
        origin = open_origin(self, good, good, certificate("another.test"))
        await self.assert_statuses(
            [origin.put("/good.m4a", closing)], 502, kinds=("f:wav/t:150:5",)
        )
        first, second, *others = origin.connections
        self.assertTrue(first.requests and second.requests and others)
        self.assertEqual([[]] * len(others), [each.requests for each in others])


class PlaylistTests(OriginCase):
    """Origins that serve playlists of other files."""

    def put_playlists(self, origin: Origin, foreign: Origin) -> list[str]:
        """Put playlists of an origin's own files and of foreign ones there; return the URLs."""
        mp3 = foreign.put("/secret.mp3", secret("mp3"), host="127.0.0.1")
        movie = foreign.put("/secret.mp4", secret("mp4"), host="127.0.0.1")
        origin.put("/next.mp3", secret("mp3"))
        origin.put("/next.wav", secret("wav"))
        hls_type = "Content-Type: application/vnd.apple.mpegurl"
        return [
            origin.put("/hls.mp3", File(playlist(mp3), headers=(hls_type,))),
            origin.put("/dash.mp3", manifest(movie)),
            origin.put("/relative.m3u8", playlist("next.mp3")),
            origin.put("/script.mp3", concat_script("next.wav")),
        ]

    async def test_playlists(self) -> None:
        """HLS, DASH and concat from an origin give 415, and no further URL is requested (D43)."""
        # ffmpeg 9 always verifies the certificates of URLs in playlists; http has none.
        for url in self.put_playlists(self.cleartext, self.cleartext):
            decoded = await decode_playlist(url, "-protocol_whitelist", "http,tcp")
            self.assertTrue(decoded, url)
        self.cleartext.connections.clear()
        urls = self.put_playlists(self.origin, self.foreign)
        await self.start_service()
        await self.assert_statuses(urls, 415)
        self.assert_no_connections()
        for path in ("/next.mp3", "/next.wav"):
            self.assertEqual([], self.origin.requests_for(path))


class NameTests(OriginCase):
    """URLs whose spelling imitates other URLs."""

    async def test_paths(self) -> None:
        """A path never acts as a header, option or command.

        Except for an empty query, the origin gets the path as spelled. Characters that a URL may
        not contain are escaped.
        """
        marks = '|"<>^`{}\\'
        paths = [
            *("/a%0d%0aX-Injected:%201", "/a%20HTTP/1.1%0d%0aHost:%20b", "/concat:b|c"),
            *"/-i /`id` /subfile,,start,0:b /a'b\"c /%03d.flac /a?x=-i&y=%0a /?".split(),
            *("/x/../a/./b", "//127.0.0.1/a", f"/a{'-'.join(marks)}b", "/a%zz", "/100%"),
            *"/a%2Fb%2f%41//a//b/ /a;b=c;/d?b=c%20+?d/../&e=; //a:b@c!$&'()*,=~[] /a;?b".split(),
        ]
        escaped = {
            "/concat:b|c": "/concat:b%7Cc",
            "/`id`": "/%60id%60",
            "/a'b\"c": "/a'b%22c",
            f"/a{'-'.join(marks)}b": f"/a{'-'.join(f'%{ord(mark):02X}' for mark in marks)}b",
            "/a%zz": "/a%25zz",
            "/100%": "/100%25",
        }
        spelled = {escaped.get(path, path.removesuffix("?")) for path in paths}
        for path in spelled:
            self.origin.put(path.partition("?")[0], inside())
        await self.start_service()
        for options, reference, some in (
            ("info", self.expected_info, paths),
            ("f:wav", self.expected, paths[:4]),
        ):
            responses = await self.get_all(map(self.origin.url, some), options)
            for path, response in zip(some, responses, strict=True):
                self.assertEqual((200, reference.body), (response.status, response.body), path)
                self.assertEqual(header_names(reference), header_names(response), path)
        usual = {"/good.wav", "/missing.wav"}
        targets = {request.target for request in self.origin.requests}
        self.assertEqual(spelled, targets - usual)
        for request in self.origin.requests:
            self.assertNotIn("x-injected", request.headers)
            self.assertEqual(f"localhost:{self.origin.port}", request.headers["host"])
        self.assert_no_connections()

    async def test_headers_of_an_origin(self) -> None:
        """Headers of an origin add no header and no line to the service's responses."""
        odd = {
            "return": (b'ETag: "a\rX-Injected: 1"', b"Last-Modified: a\rX-Injected: 1"),
            "zero": (b'ETag: "a\0b"',),
            "bytes": (b'ETag: "\xff\x80\xe2\x80\xa8"',),
            "type": (b"Content-Type: text/html\rX-Injected: 1", b"Set-Cookie: a=b"),
            "long": (b'ETag: "%s"' % (b"a" * 3000),),
        }
        urls = [
            self.origin.put(f"/{name}", File(inside(), etag=None, modified=None, headers=lines))
            for name, lines in odd.items()
        ]
        await self.start_service()
        for options, reference in (("f:wav", self.expected), ("info", self.expected_info)):
            for url, response in zip(urls, await self.get_all(urls, options), strict=True):
                self.assertIn(response.status, (200, 502), url)
                if response.status == 200:
                    names = {*header_names(reference), b"etag"}
                    self.assertLessEqual({*header_names(response)}, names, url)
                    self.assertNotIn(b"Injected", b"".join(value for _, value in response.headers))


#: Secrets in the environment of the service, which child processes must not get.
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIASECRET",
    "AWS_SECRET_ACCESS_KEY": "aws-secret",
    "AWS_SESSION_TOKEN": "session-secret",
    "AWS_REGION": "secret-region-1",
    "AP_ALLOW_ORIGIN": "https://secret.example",
    "SECRET": "another-secret",
}

#: Environment variables that would change the behavior of ffmpeg.
FFMPEG_VARIABLES = {
    "FFREPORT": "file=report.log:level=56",
    "AV_LOG_FORCE_COLOR": "1",
    "LD_BIND_NOW": "1",
}


class ChildTests(OriginCase):
    """Arguments and environments of ffmpeg and ffprobe."""

    # The runs that check ffmpeg at boot are tested, too.
    checks_ffmpeg = True

    async def test_children(self) -> None:
        """Children get whitelists and the source, but no environment except PATH and LC_ALL.

        A remote source is a file to them (D74): no URL is on their command line (D45).
        """
        recorder = Recorder(self.root.with_name("recorder"))
        proxies = ("http_proxy", "https_proxy", "ALL_PROXY")
        node = self.twistd(
            **{**SECRETS, **FFMPEG_VARIABLES},
            **dict.fromkeys(proxies, f"http://127.0.0.1:{self.cleartext.port}"),
            SSL_CERT_FILE=str(authority().bundle),
            AP_SOURCE_ALLOWLIST="localhost",
            PATH=recorder.path,
        )
        for name in ("inside.wav", "a\nINFO injected.wav"):
            self.add(name, inside())
        moved = self.origin.put("/moved.wav", Redirect("/good.wav"))
        await self.start_service(await node.port())
        every = ("f:mp3/norm:ebu", "f:peaks", "info", "f:flac/t:0.01:0.1/fade:0.01:0.01")
        targets = [
            *(local_path("inside.wav", options) for options in every),
            *(local_path("a\nINFO injected.wav", options) for options in every[2:]),
            *map(self.path, (self.good_url, moved) * 2, every),
        ]
        for target, response in zip(targets, await fetch_limited(self.port, targets), strict=True):
            self.assertEqual(200, response.status, target)
        await until(lambda: not children(node.pid), "all children to end")
        runs, inputs = recorder.runs(), recorder.inputs()
        self.assertGreater(len(runs), len(inputs))
        for run in runs:
            self.assertEqual({"PATH": recorder.path, "LC_ALL": "C"}, dict(run.environment))
            self.assertLessEqual(run.descriptors, {0, 1, 2, 3}, run.words)
            text = "\n".join((*run.words, *run.environment.values()))
            for hidden in (
                *SECRETS.values(),
                KEY.hex(),
                SALT.hex(),
                "inside",
                "injected",
                "https:",
            ):
                self.assertNotIn(hidden, text.replace(recorder.path, ""), run.words)
        seen = {(run.words[0], *run.after("-i")) for run in inputs}
        self.assertEqual({("ffmpeg", "file:/dev/fd/3"), ("ffprobe", "file:/dev/fd/3")}, seen)
        for run in inputs:
            self.assertIn("-format_whitelist", run.before_input)
            self.assertEqual(["file"], run.after("-protocol_whitelist")[:1])
            self.assertIn(3, run.descriptors)
        self.assertEqual([], [*self.root.glob("*.log")])
        self.assertFalse(os.path.exists("report.log"))
        for line in node.stdout.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT[0-9:.]+Z ", node.stdout)
        self.assert_no_connections()
