"""Malicious local sources and URLs.

Many tests first show that their attack works on a plain ffmpeg. The service must open no file
outside AP_LOCAL_ROOT, and must not connect to a host that a file names.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Coroutine, Iterable
from contextlib import closing
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twisted.internet.defer import Deferred, DeferredSemaphore, execute, gatherResults

from audioproxy.errors import NotFound
from audioproxy.grammar.sources import LocalSource
from audioproxy.sources.local import LocalSources
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
from tests.support.http import KEY, SALT, Response
from tests.support.origins import open_origin
from tests.support.service import ServiceCase, children, fetch, signed, until

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


async def gather_limited(responses: Iterable[Coroutine[Any, Any, Response]]) -> list[Response]:
    """Run several requests, two at a time, and return their responses."""
    semaphore = DeferredSemaphore(2)
    return await gatherResults(
        [semaphore.run(Deferred.fromCoroutine, response) for response in responses]
    )


def local_path(path: str | bytes, options: str = "f:wav") -> bytes:
    """Return the signed path of a local source, with all special characters escaped."""
    return signed(f"/{options}/plain/local://{quote(path, safe='/')}")


def header_names(response: Response) -> list[bytes]:
    """Return the header names of a response."""
    return sorted(name for name, _ in response.headers)


def has_audio_of(response: Response, options: str, expected: Response) -> bool:
    """Return whether a 200 contains nothing but the expected audio, or describes it.

    A response that is broken off may have only the beginning of the audio.
    """
    if response.status != 200:
        return False
    if options == "info":
        return bool(response.complete and response.document == expected.document)
    return expected.body.startswith(response.body) and (
        response.body == expected.body or not response.complete
    )


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

    async def assert_refused(self, port: int, names: Iterable[str], *statuses: int) -> None:
        """Assert that sources are refused with one of the statuses.

        The requests alternate between a wav, an info document and peaks.
        """
        requested = [*zip(names, cycle((*SOURCE_OPTIONS, "f:peaks")), strict=False)]
        responses = await gather_limited(
            fetch(port, local_path(name, kind)) for name, kind in requested
        )
        for (name, kind), response in zip(requested, responses, strict=True):
            self.assertIn(response.status, statuses, (name, kind, response))
            code = {404: "not_found", 415: "undecodable_source"}[response.status]
            self.assertEqual(code, response.error, (name, kind))


class PlaylistTests(AttackCase):
    """Source files that are playlists of other files."""

    async def test_files(self) -> None:
        """HLS, DASH and concat files return 415, and no file that they name is read (D43).

        An HLS playlist returns 415 under any file name extension.
        """
        above = os.path.relpath(self.outside, self.root)
        mp3, mp4 = self.outside / "secret.mp3", self.outside / "secret.mp4"
        playlists = {
            "hls-absolute.mp3": playlist(f"{mp3}"),
            "hls-above.wav": playlist(f"{above}/secret.mp3"),
            "hls-file.m3u8": playlist(f"file://{mp3}"),
            "hls-link.flac": playlist("link.mp3"),
            "hls-map.mp3": playlist(f"{mp4}", more=f'#EXT-X-MAP:URI="{mp4}"'),
            "hls-master.wav": master_playlist(f"{self.root}/hls-absolute.m3u8"),
            "hls-behind-tag.m3u8": after_id3_tag(playlist(f"{mp3}")),
            "dash-absolute.flac": manifest(f"{mp4}"),
            "dash-absolute.mpd": manifest(f"{mp4}"),
            "dash-above.mp3": manifest(f"{above}/secret.mp4"),
            "dash-file.wav": manifest(f"file://{mp4}"),
            "dash-behind-tag.m3u8": after_id3_tag(manifest(f"{mp4}")),
            # The concat demuxer refuses absolute names, but follows symlinks.
            "concat-link.flac": concat_script("inside.wav", "link.wav"),
            "concat-behind-tag.mp3": after_id3_tag(concat_script("link.wav")),
        }
        # The master playlist refers to the first of them.
        others = [f"hls-absolute.{extension}" for extension in ("m3u8", "ogg", "m4a", "mpd", "txt")]
        for name in (*playlists, *others):
            self.add(name, playlists.get(name, playlists["hls-absolute.mp3"]))
        for name in playlists:
            # The protocol whitelist alone does not prevent the attack.
            decoded = await decode_playlist(f"{self.root}/{name}", "-protocol_whitelist", "file")
            self.assertGreater(len(decoded), 40_000, name)
            self.assertTrue(await self.watch.opened(), name)
        await self.assert_refused(self.start().port, [*playlists, *others], 415)
        self.assertEqual(set(), await self.watch.opened())

    async def test_hosts(self) -> None:
        """A playlist of http or https URLs returns 415 and opens no connection (D43)."""
        certificate = Authority(self.root.with_name("authority")).issue("localhost")
        origins = [open_origin(self), open_origin(self, certificate)]
        names = []
        for origin in origins:
            form = "s" * origin.secure
            mp3, mp4 = (origin.put(f"/secret.{it}", secret(it)) for it in ("mp3", "mp4"))
            for kind, content in (
                (f"hls{form}.mp3", playlist(mp3)),
                (f"hls{form}.m3u8", playlist(mp3)),
                (f"hls{form}-behind-tag.wav", after_id3_tag(playlist(mp3))),
                (f"dash{form}.mp3", manifest(mp4)),
            ):
                self.add(kind, content)
                names.append(kind)
                words = ("-protocol_whitelist", "file,http,https,tls,tcp")
                self.assertTrue(await decode_playlist(f"{self.root}/{kind}", *words), kind)
                self.assertTrue(origin.requests, kind)
                origin.connections.clear()
        await self.assert_refused(self.start().port, names, 415)
        self.assertEqual([[], []], [origin.connections for origin in origins])

    async def test_data_reference(self) -> None:
        """A movie file whose audio data is in another file returns 415 (D43)."""
        self.add("movie.mov", movie_with_external_data(f"{self.outside}/secret.wav", 22050))
        self.add("movie.m4a", movie_with_external_data(f"{self.outside}/secret.wav", 22050))
        words = ("-enable_drefs", "1", "-use_absolute_path", "1")
        decoded = await decode_unguarded(f"{self.root}/movie.mov", *words)
        self.assertEqual(secret("wav")[44:], decoded)
        self.assertIn("secret.wav", await self.watch.opened())
        port = self.start().port
        for name in ("movie.mov", "movie.m4a"):
            response = await fetch(port, local_path(name))
            self.assertEqual((415, "undecodable_source"), (response.status, response.error))
        self.assertEqual(set(), await self.watch.opened())

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
        port = self.start().port
        await self.assert_refused(port, ["titles.idx"], 415)
        # An audio file whose name is an image sequence pattern renders normally.
        expected = await fetch(port, local_path("inside.wav"))
        self.assertEqual(expected.body, (await fetch(port, local_path("frame-%d.jpg"))).body)
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
            *"-f - -y -protocol_whitelist @ ~ % %s *.wav ?.wav [a].wav fd:0 data:,x = : #x".split(),
            *"crypto:link.wav http:link.wav file:link.wav movie=link.wav !x local: %00 %2e".split(),
            *"a|b.wav a;b.wav a&b.wav a'b.wav a\"b.wav a\\b.wav $(id) `id` ${HOME} ...".split(),
            *("a b.wav", " -i", "a\nb.wav", "a\r\nX-Injected: 1", "\x1b[31m", "a\tb", "..wav"),
            *(b"\xff\xfe.wav", b"\xa0"),
        ]
        for name in (*special_names, *other_names):
            (self.root / os.fsdecode(name)).write_bytes(inside())
        for text, words in (
            ("subfile,,start,0,end,0,,:link.wav", ()),
            ("concat:link.wav|link.wav", ()),
            ("cache:link.wav", ("-protocol_whitelist", "file,cache")),
            ("amovie=./link.wav[out]", ("-f", "lavfi")),
        ):
            self.assertTrue(await decode_unguarded(text, *words, folder=self.root), text)
            self.assertIn("secret.wav", await self.watch.opened(), text)
        port = self.start().port
        expected, expected_info = await gather_limited(
            fetch(port, local_path("inside.wav", it)) for it in SOURCE_OPTIONS
        )
        reference = await fetch(port, local_path("inside.wav", "info"), b"HEAD")
        # For most names, a HEAD shows that the file is found. `special_names` are examples of each
        # kind of name that ffmpeg may interpret.
        for options, method, good, names in (
            ("f:wav", b"GET", expected, special_names),
            ("info", b"GET", expected_info, other_names[::4]),
            ("info", b"HEAD", reference, other_names),
        ):
            responses = await gather_limited(
                fetch(port, local_path(name, options), method) for name in names
            )
            for name, response in zip(names, responses, strict=True):
                self.assertEqual((200, good.body), (response.status, response.body), name)
                self.assertEqual(header_names(good), header_names(response), name)
        self.assertEqual(set(), await self.watch.opened())

    async def test_outside_or_missing_names(self) -> None:
        """A name that leads out of the root or to no file gives 404 (Local source confinement)."""
        above = os.path.relpath(self.outside, self.root)
        origin = open_origin(self)
        url = origin.put("/secret.wav", secret("wav"))
        (self.root / "folder").mkdir()
        (self.root / "way").symlink_to(self.outside)
        # tests.sources.test_local.RefusedTests has more paths.
        names: list[str | bytes] = [
            *(f"{self.outside}/secret.wav", f"{above}/secret.wav"),
            f"folder/../{above}/secret.wav",
            *"link.wav way/secret.wav inside.wav/ folder . /dev/zero /proc/self/environ -i".split(),
            *(f"{scheme}{self.outside}/secret.wav" for scheme in ("file:", "file://", "concat:")),
            f"subfile,,start,0,end,0,,:{self.outside}/secret.wav",
            f"amovie={self.outside}/secret.wav",
            *(url, url.replace("http:", "https:"), f"tcp://127.0.0.1:{origin.port}"),
            *("inside.wav\0", "inside.wav\0.mp3", "inside.wav\n", "inside.wav "),
            *("%2e%2e/outside/secret.wav", "..%2foutside%2fsecret.wav", "..\\outside\\secret.wav"),
            *(b"\xc0\xae\xc0\xae/outside/secret.wav", "inside.wav?x", "inside.wav#x"),
        ]
        port = self.start().port
        missing = await fetch(port, local_path("missing.wav"))
        self.assertEqual(404, missing.status)
        targets = [local_path(name, kind) for name in names for kind in SOURCE_OPTIONS]
        # The service decodes these source names once, never twice.
        for source in ("%2e%2e/outside/secret.wav", "..%2Foutside%2Fsecret.wav", "%252e%252e/x"):
            targets.append(signed(f"/f:wav/plain/local://{source}"))
        for name in (f"{self.outside}/secret.wav", f"{above}/secret.wav", "link.wav", "%2e%2e/x"):
            encoded = base64.urlsafe_b64encode(f"local://{name}".encode()).decode()
            targets.append(signed(f"/f:wav/enc/{encoded}"))
        responses = await gather_limited(fetch(port, target) for target in targets)
        for target, response in zip(targets, responses, strict=True):
            self.assertEqual((404, missing.body), (response.status, response.body), target)
        self.assertEqual(set(), await self.watch.opened())
        self.assertEqual([], origin.connections)

    async def test_irregular_files(self) -> None:
        """A FIFO, a link to a device or a directory gives 404 at once.

        (Local source confinement, 3)
        """
        os.mkfifo(self.root / "fifo.wav")
        (self.root / "folder.wav").mkdir()
        (self.root / "device.wav").symlink_to("/dev/zero")
        names = [f"{it}.wav" for it in ("fifo", "folder", "device")]
        await self.assert_refused(self.start().port, names, 404)


#: Script that lets a name alternate between a file or folder and a symlink until the script is
#: killed. Each stays for half a millisecond on average, so that a check often finds the file.
_SWAP = """
import os, random, sys, time
name, good, elsewhere = sys.argv[1:]
while True:
    {show}
    time.sleep(random.random() / 1000)
    {hide}
    time.sleep(random.random() / 1000)
    {end}
"""
SWAP_FILES = _SWAP.format(
    show="os.link(good, name + '~'); os.rename(name + '~', name)",
    hide="os.symlink(elsewhere, name + '~'); os.rename(name + '~', name)",
    end="",
)
SWAP_FOLDERS = _SWAP.format(
    show="os.rename(good, name)",
    hide="os.rename(name, good); os.symlink(elsewhere, name)",
    end="os.remove(name)",
)


class SwapTests(AttackCase):
    """Paths that change between the check and the opening of a file."""

    def swap(self, script: str, *names: Path) -> None:
        """Run a script until the end of the test."""
        command = [sys.executable, "-c", script, *map(str, names)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    async def assert_race_is_safe(self, name: str) -> None:
        """Assert that a swapped name bypasses a plain check, but never the service's check."""
        path, decoded = self.root / name, b""
        while decoded != secret("wav")[44:]:
            # The file passes this check, and may be a symlink a moment later.
            if not path.parent.is_symlink() and not path.is_symlink():
                decoded = await decode_unguarded(str(path))
        self.assertTrue(await self.watch.opened())
        await self.assert_same_file(name)
        port = self.start().port
        expected = await fetch(port, local_path("inside.wav"))
        seen = {200: 0, 404: 0}
        while not all(seen.values()):
            number = sum(seen.values())
            targets = [local_path(name, f"f:wav/cb:{number + more}") for more in range(4)]
            for response in await gather_limited(fetch(port, target) for target in targets):
                self.assertIn(response.status, seen)
                seen[response.status] += 1
                if response.status == 200:
                    self.assertEqual(expected.body, response.body)
        self.assertEqual(set(), await self.watch.opened())

    async def assert_same_file(self, name: str) -> None:
        """Assert that `LocalSources.open` never opens the file outside the root."""
        files, source = LocalSources(str(self.root), execute), LocalSource(name.encode())
        size = len(inside())
        for _ in range(1000):
            try:
                opened = await files.open(source)
            except NotFound:
                continue
            with closing(opened):
                self.assertEqual(size, opened.size)

    async def test_file(self) -> None:
        """If a symlink replaces a file, clients get the original file or 404 (D43)."""
        inner, outer = self.root / "inside.wav", self.outside / "secret.wav"
        self.swap(SWAP_FILES, self.root / "it.wav", inner, outer)
        await self.assert_race_is_safe("it.wav")

    async def test_folder(self) -> None:
        """If a symlink replaces a file's folder, clients get the original file or 404 (D43)."""
        (self.outside / "secret.wav").rename(self.outside / "it.wav")
        self.add("real/it.wav", inside())
        self.swap(SWAP_FOLDERS, self.root / "folder", self.root / "real", self.outside)
        await self.assert_race_is_safe("folder/it.wav")


#: Segments that try to inject filters, options or headers. Only the options dl and cb decode
#: percent-encoding.
INJECTIONS = (
    *"enhance:voice,volume=9 enhance:voice[out] enhance:voice:amovie=x enhance:../voice".split(),
    *"norm:ebu,volume=9 norm:ebu:-16,volume=9 norm:ebu:-16:-1.5:11:print_format=json".split(),
    *"norm:ebu:I=-16 norm:ebu:-16'-1.5 t:1,2 t:0;anullsink t:0[out] t:'0' t:0:1:2 t:0:1,a".split(),
    *"t:1e1 t:0x1 t:nan t:inf t:- t:0\\:1 fade:0.1,volume=9 fade:0.1:0.1:t=in gain:1dB".split(),
    *"gain:1,amovie=x gain:1[a][b] f:wav,mp3 f:wav|f:mp3 f:../wav f:-i f:lavfi f: br:9k".split(),
    *"br:128,-i sr:44100,anull sr:48000:8000 ch:1[a] ch:stereo bd:16le bd:s16 q:1:2".split(),
    *"pts:8,8 pk_fmt:json,dat -i:x i:x filter_complex:amovie=x map:0 af:volume=9 y:1".split(),
    *"t:0%2C1 t:0%3A1 gain:1%2Camovie%3Dx enhance:voice%2Cvolume%3D9 f:wav%20-i%20x".split(),
    *"f:wav%00 norm:ebu%3A-16 dl:a%0d%0aX-Injected:1 dl:a%0aX-Injected:1 dl:a%00b".split(),
    *"dl:..%2Fa dl:a%5Cb dl:%0d dl:%7f dl:%ff dl: dl:%zz cb:%ff%zz".split(),
)

#: Values that are accepted unchanged, because no program interprets them.
HARMLESS = (
    *"cb:a%0d%0aX-Injected:1 cb:a,volume=9 cb:[out] cb:-i cb:%00 cb:a;b cb:'\" cb:$(id)".split(),
    *"dl:a%22;X-Injected=1 dl:a%22b.mp3 dl:-i dl:a;filename=b dl:a,b[c]'d dl:a:b dl:%25s".split(),
    *"dl:caf%C3%A9%22;.wav dl:%E2%80%AE.wav dl:=%3Futf-8%3Fq%3Fa%3F= dl:a%20b".split(),
)


class OptionTests(AttackCase):
    """Option values that try to inject filters, options or headers."""

    async def test_injections(self) -> None:
        """No option value reaches a filter, a command line or a header unescaped (D2, D10)."""
        recorder = Recorder(self.root.with_name("recorder"))
        self.patch(os, "environ", {**os.environ, "PATH": recorder.path})
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
        for response in await gather_limited(fetch(port, target) for target in some):
            self.assertEqual((200, usual.body), (response.status, response.body))
        # None of these requests runs ffmpeg or ffprobe with a new command line.
        self.assertEqual(before, {run.words for run in recorder.inputs()})


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
    "http_proxy": "http://127.0.0.1:9",
    "LD_BIND_NOW": "1",
}


class ChildTests(AttackCase):
    """Arguments and environments of ffmpeg and ffprobe."""

    # The runs that check ffmpeg at boot are tested, too.
    checks_ffmpeg = True

    async def test_children(self) -> None:
        """Children get whitelists and the source, but no environment except PATH and LC_ALL.

        (D43, D45)
        """
        recorder = Recorder(self.root.with_name("recorder"))
        self.add("a\nINFO injected.wav", inside())
        node = self.twistd(**{**SECRETS, **FFMPEG_VARIABLES, "PATH": recorder.path})
        port = await node.port()
        every = ("f:mp3/norm:ebu", "f:peaks", "info", "f:flac/t:0.01:0.1/fade:0.01:0.01")
        for path, options in (
            *(("inside.wav", options) for options in every),
            *(("a\nINFO injected.wav", options) for options in every[2:]),
        ):
            response = await fetch(port, local_path(path, options))
            self.assertEqual(200, response.status, options)
        await until(lambda: not children(node.pid), "all children to end")
        runs = recorder.runs()
        self.assertGreater(len(runs), len(recorder.inputs()))
        for run in runs:
            self.assertEqual({"PATH": recorder.path, "LC_ALL": "C"}, dict(run.environment))
            self.assertLessEqual(run.descriptors, {0, 1, 2, 3}, run.words)
            text = "\n".join((*run.words, *run.environment.values()))
            for hidden in (*SECRETS.values(), KEY.hex(), SALT.hex(), "inside", "injected"):
                self.assertNotIn(hidden, text.replace(recorder.path, ""), run.words)
        programs = set()
        for run in recorder.inputs():
            programs.add(run.words[0])
            self.assertEqual(["file:/dev/fd/3"], run.after("-i"), run.words)
            self.assertEqual(["file"], run.after("-protocol_whitelist"), run.words)
            (demuxers,) = run.after("-format_whitelist")
            banned = set("hls dash concat image2 lavfi sdp rtsp imf vobsub tty libopenmpt".split())
            self.assertFalse(banned & set(demuxers.split(",")), demuxers)
            for option in ("-protocol_whitelist", "-format_whitelist"):
                self.assertIn(option, run.before_input)
            self.assertFalse({"-safe", "-enable_drefs", "-allowed_extensions"} & set(run.words))
            if run.words[0] == "ffmpeg":
                self.assertEqual(["0:a:0"], run.after("-map"), run.words)
                self.assertLessEqual({"-vn", "-sn", "-dn", "-nostdin"}, set(run.words))
        self.assertEqual({"ffmpeg", "ffprobe"}, programs)
        self.assertEqual([], [*self.root.glob("*.log")])
        for line in node.stdout.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT[0-9:.]+Z ", node.stdout)
