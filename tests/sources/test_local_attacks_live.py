"""Malicious local sources and URLs.

Many tests first show that their attack works on a plain ffmpeg. The service must open no file
outside AP_LOCAL_ROOT, and must not connect to a host that a file names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from itertools import cycle
from urllib.parse import quote

from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults

from tests.support.attacks import (
    Recorder,
    Watch,
    after_id3_tag,
    concat_script,
    decode_playlist,
    decode_unguarded,
    manifest,
    master_playlist,
    movie_with_external_data,
    playlist,
)
from tests.support.audio import convert, tone, write_wav
from tests.support.authority import Authority
from tests.support.http import Response
from tests.support.origins import open_origin
from tests.support.processes import set_environment
from tests.support.service import ServiceCase, fetch, signed

#: Options of the two kinds of requests that open a source.
SOURCE_OPTIONS = ("f:wav", "info")


@cache
def secret(form: str) -> bytes:
    """Return the sound outside the root, which no response may contain."""
    wav = write_wav(tone(44100, 22050, 3000))
    return wav if form == "wav" else convert(wav, name=f"secret.{form}")


@cache
def inside() -> bytes:
    """Return the sound inside the root, which every client may get.

    It is too large to be read with the first request to an origin.
    """
    return write_wav(tone(22050, 44100, 440))


def fetch_limited(
    port: int, targets: Iterable[bytes], method: bytes = b"GET"
) -> Deferred[list[Response]]:
    """Send requests, two at a time, and return their responses."""
    semaphore = DeferredSemaphore(2)
    return gatherResults(
        [semaphore.run(Deferred.fromCoroutine, fetch(port, target, method)) for target in targets]
    )


def local_path(path: str | bytes, options: str = "f:wav") -> bytes:
    """Return the signed path of a local source, with all special characters escaped."""
    return signed(f"/{options}/plain/local://{quote(path, safe='/')}")


def header_names(response: Response) -> list[bytes]:
    """Return the header names of a response."""
    return sorted(name for name, _ in response.headers)


class AttackCase(ServiceCase):
    """Root with a sound in it, and a watched folder outside the root.

    :ivar outside: the watched folder; it contains ``secret.wav``, also as mp3 and mp4.
    """

    def setUp(self) -> None:
        super().setUp()
        self.add("inside.wav", inside())
        self.outside = self.root.with_name("outside")
        self.outside.mkdir()
        for form in ("wav", "mp3", "mp4"):
            (self.outside / f"secret.{form}").write_bytes(secret(form))
            (self.root / f"link.{form}").symlink_to(self.outside / f"secret.{form}")
        self.watch = Watch(self, self.outside)

    async def assert_refused(self, names: Iterable[str]) -> None:
        """Assert that a service refuses sources with 415, and opens no file outside the root.

        The requests alternate between a wav, an info document and peaks.
        """
        requested = [*zip(names, cycle((*SOURCE_OPTIONS, "f:peaks")), strict=False)]
        port = self.start().port
        for row, response in zip(
            requested,
            await fetch_limited(port, [local_path(*row) for row in requested]),
            strict=True,
        ):
            self.assertEqual((415, "undecodable_source"), (response.status, response.error), row)
        self.assertEqual(set(), await self.watch.opened())


class PlaylistTests(AttackCase):
    """Source files that are playlists of other files."""

    async def test_files(self) -> None:
        """HLS, DASH and concat files return 415, and no file that they name is read (D43).

        An HLS playlist returns 415 under any file name extension. A playlist of http or https URLs
        opens no connection.
        """
        above = os.path.relpath(self.outside, self.root)
        mp3, mp4 = self.outside / "secret.mp3", self.outside / "secret.mp4"
        playlists = {
            "hls-absolute.mp3": playlist(f"{mp3}"),
            "hls-above.wav": playlist(f"{above}/secret.mp3"),
            "hls-map.mp3": playlist(f"{mp4}", more=f'#EXT-X-MAP:URI="{mp4}"'),
            "hls-master.wav": master_playlist(f"{self.root}/hls-absolute.m3u8"),
            "dash-file.wav": manifest(f"file://{mp4}"),
            # The concat demuxer opens files of the same folder; here they are symlinks.
            "concat-link.flac": concat_script("inside.wav", "link.wav"),
            "concat-behind-tag.mp3": after_id3_tag(concat_script("link.wav")),
        }
        # The master playlist refers to the first of them.
        others = ["hls-absolute.m3u8", "hls-absolute.txt"]
        for name in (*playlists, *others):
            self.add(name, playlists.get(name, playlists["hls-absolute.mp3"]))
        for name in playlists:
            # The protocol whitelist alone does not prevent the attack.
            decoded = await decode_playlist(f"{self.root}/{name}", "-protocol_whitelist", "file")
            opened = await self.watch.opened()
            # ffmpeg 9 reads no playlist behind a tag.
            if opened or "behind-tag" not in name:
                self.assertGreater(len(decoded), 40_000, name)
                self.assertTrue(opened, name)
        certificate = Authority(self.root.with_name("authority")).issue("localhost")
        origins = [open_origin(self), open_origin(self, certificate)]
        words = ("-protocol_whitelist", "file,http,https,tls,tcp")
        for origin in origins:
            url = origin.put("/secret.mp3", secret("mp3"))
            for kind, content in (("hls.m3u8", playlist(url)), ("dash.mp3", manifest(url))):
                others.append(f"{origin.secure}-{kind}")
                self.add(others[-1], content)
                await decode_playlist(f"{self.root}/{others[-1]}", *words)
                # ffmpeg 9 verifies the origin's certificate before it sends a request.
                self.assertTrue(origin.connections, kind)
                origin.connections.clear()
        await self.assert_refused([*playlists, *others])
        self.assertEqual([[], []], [origin.connections for origin in origins])

    async def test_data_reference(self) -> None:
        """A movie file whose audio data is in another file returns 415 (D43)."""
        for name in ("movie.mov", "movie.m4a", "movie.mp4"):
            self.add(name, movie_with_external_data(f"{self.outside}/secret.wav", 22050))
        words = ("-enable_drefs", "1", "-use_absolute_path", "1")
        decoded = await decode_unguarded(f"{self.root}/movie.mov", *words)
        self.assertEqual(secret("wav")[44:], decoded)
        self.assertIn("secret.wav", await self.watch.opened())
        await self.assert_refused(["movie.mov", "movie.m4a", "movie.mp4"])

    async def test_companions(self) -> None:
        """Files that ffmpeg opens in addition to a source are not read (D43).

        They are the other images of a sequence, and the subtitles of a VobSub index file.
        """
        for name in ("frame-1.jpg", "titles.sub"):
            (self.root / name).symlink_to(self.outside / "secret.mp3")
        self.add("titles.idx", b"# VobSub index file, v7\n")
        self.add("frame-%d.jpg", inside())
        for name in ("titles.idx", "frame-%d.jpg"):
            await decode_unguarded(f"{self.root}/{name}")
            self.assertIn("secret.mp3", await self.watch.opened(), name)
        await self.assert_refused(["titles.idx"])
        # An audio file whose name is an image sequence pattern renders normally.
        names = ("inside.wav", "frame-%d.jpg")
        one, other = await fetch_limited(self.start().port, map(local_path, names))
        self.assertEqual((200, one.body), (other.status, other.body))
        self.assertEqual(set(), await self.watch.opened())


class NameTests(AttackCase):
    """File names with a special meaning for ffmpeg, a shell or HTTP."""

    async def test_special_names(self) -> None:
        """A file name never acts as an option, protocol or filter; it only identifies the file."""
        special_names = [
            *"-i -- pipe:0 %d.wav concat:link.wav|link.wav cache:link.wav".split(),
            *"subfile,,start,0,end,0,,:link.wav amovie=link.wav[out]".split(),
        ]
        other_names: list[str | bytes] = [
            *"-f - -protocol_whitelist @ % *.wav [a].wav fd:0 data:,x = #x file:link.wav".split(),
            *"movie=link.wav local: %00 a|b.wav a;b.wav a'b.wav a\"b.wav a\\b.wav $(id)".split(),
            *("a b.wav", " -i", "a\nb.wav", "a\r\nX-Injected: 1", "\x1b[31m", "a\tb", "..wav"),
            *(b"\xff\xfe.wav", b"\xa0"),
        ]
        for name in (*special_names, *other_names):
            (self.root / os.fsdecode(name)).write_bytes(inside())
        for text, words in (
            ("concat:link.wav|link.wav", ()),
            ("amovie=./link.wav[out]", ("-f", "lavfi")),
        ):
            self.assertTrue(await decode_unguarded(text, *words, folder=self.root), text)
            self.assertIn("secret.wav", await self.watch.opened(), text)
        port = self.start().port
        expected, expected_info = await fetch_limited(
            port, [local_path("inside.wav", it) for it in SOURCE_OPTIONS]
        )
        reference = await fetch(port, local_path("inside.wav", "info"), b"HEAD")
        # For most names, a HEAD shows that the file is found. `special_names` are examples of each
        # kind of name that ffmpeg may interpret.
        for options, method, good, names in (
            ("f:wav", b"GET", expected, special_names),
            ("info", b"GET", expected_info, other_names[::4]),
            ("info", b"HEAD", reference, other_names),
        ):
            targets = [local_path(name, options) for name in names]
            responses = await fetch_limited(port, targets, method)
            for name, response in zip(names, responses, strict=True):
                self.assertEqual((200, good.body), (response.status, response.body), name)
                self.assertEqual(header_names(good), header_names(response), name)
        self.assertEqual(set(), await self.watch.opened())


#: Segments that try to inject filters, options or headers. tests.grammar has the values of each
#: option.
INJECTIONS = (
    *"enhance:voice,volume=9 enhance:voice:amovie=x norm:ebu:-16'-1.5 t:0;anullsink".split(),
    *"gain:1[a][b] f:wav|f:mp3 br:128,-i -i:x af:volume=9 f:wav%20-i%20x dl:a%0d%0aX-A:1".split(),
)

#: Values that are accepted unchanged, because no program interprets them.
HARMLESS = (
    *"cb:a%0d%0aX-Injected:1 cb:a,volume=9 cb:-i cb:%00 cb:$(id)".split(),
    *"dl:a%22;X-Injected=1 dl:-i dl:a;filename=b dl:a,b[c]'d dl:%E2%80%AE.wav".split(),
)


class OptionTests(AttackCase):
    """Option values that try to inject filters, options or headers."""

    async def test_injections(self) -> None:
        """No option value reaches a filter, a command line or a header unescaped (D2, D10)."""
        recorder = Recorder(self.root.with_name("recorder"))
        set_environment(self, PATH=recorder.path)
        port = self.start().port
        reference = await fetch(port, local_path("inside.wav"), b"HEAD")
        usual = await fetch(port, local_path("inside.wav"))
        before = {run.words for run in recorder.inputs()}
        for segment in INJECTIONS:
            response = await fetch(port, local_path("inside.wav", segment))
            self.assertEqual((422, "invalid_options"), (response.status, response.error), segment)
        self.assertEqual(before, {run.words for run in recorder.inputs()})
        # tests.web.test_variant has the values of Content-Disposition.
        for segment in HARMLESS:
            response = await fetch(port, local_path("inside.wav", f"f:wav/{segment}"), b"HEAD")
            self.assertEqual(200, response.status, segment)
            names = {*header_names(reference), *[b"content-disposition"] * ("dl:" in segment)}
            self.assertEqual(names, {*header_names(response)}, segment)
        some = [local_path("inside.wav", f"f:wav/{segment}") for segment in HARMLESS[::4]]
        for response in await fetch_limited(port, some):
            self.assertEqual((200, usual.body), (response.status, response.body))
        # None of these requests runs ffmpeg or ffprobe with a new command line.
        self.assertEqual(before, {run.words for run in recorder.inputs()})
