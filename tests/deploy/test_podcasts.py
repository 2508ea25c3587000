"""What podcast directories require of the URLs of a feed, through HAProxy and nginx.

The rules are those of docs/podcasts.md.
"""

from __future__ import annotations

import mimetypes
import sys
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from audioproxy.urls import Signer, Variant
from tests.deploy.balancer import HAProxy, Nginx, balance, installed
from tests.support.http import KEY, SALT
from tests.support.origins import Status, open_origin
from tests.support.service import ServiceCase, fetch, short_flac, until_hit
from tests.test_docs import rows

#: Variants that a feed may have, each with its file name.
EPISODES = {
    "Episode 1 & 2.mp3": Variant(f="mp3", br=96, ch=1),
    "episode-3.m4a": Variant(f="m4a", br=96),
}


class PodcastTests(ServiceCase):
    """Enclosures of stored episodes.

    :ivar enclosures: the attributes that `audioproxy warm --enclosure` prints for each URL, with
        the port of the balancer.
    """

    async def setUp(self) -> None:
        """Start a service behind both balancers, and make the enclosures of two episodes."""
        super().setUp()
        self.add("masters/one.flac", short_flac())
        port = self.start().port
        urls, ports = [], []
        for kind in (HAProxy, Nginx):
            balancer = await balance(self, kind, self.root.parent, {"one": port})
            signer = Signer(KEY, SALT, f"http://127.0.0.1:{balancer.port}")
            for name, variant in EPISODES.items():
                urls.append(signer.url("local://masters/one.flac", variant, file_name=name))
                ports.append(balancer.port)
        words = ("-m", "audioproxy.cli.main", "warm", "--enclosure", "--concurrency", "1", *urls)
        process = self.spawn(sys.executable, *words, **self.environment())
        self.assertEqual(0, await process.end(), process.stderr)
        lines = process.stdout.splitlines()
        self.assertEqual(["<itunes:duration>1</itunes:duration>"] * len(urls), lines[1::2])
        items = [ElementTree.fromstring(line).attrib for line in lines[::2]]
        self.assertEqual(urls, [item["url"] for item in items])
        self.enclosures = list(zip(ports, items, strict=True))
        for listening, url in zip(ports, urls, strict=True):
            # Directories look at a feed after its episodes are stored.
            await until_hit(listening, urlsplit(url).path.encode())

    async def test_head(self) -> None:
        """HEAD gives a 200 with the length and the type that the feed states."""
        for port, enclosure in self.enclosures:
            path = urlsplit(enclosure["url"]).path.encode()
            head, whole = await fetch(port, path, b"HEAD"), await fetch(port, path)
            self.assertEqual((200, b""), (head.status, head.body))
            stated = enclosure["length"].encode(), enclosure["type"].encode()
            self.assertEqual(stated, (head["content-length"], head["content-type"]))
            self.assertEqual(int(enclosure["length"]), len(whole.body))
            self.assertEqual(b"bytes", head["accept-ranges"])

    async def test_range(self) -> None:
        """The range ``bytes=0-1``, with which players begin, gives a 206 with two bytes."""
        for port, enclosure in self.enclosures:
            path = urlsplit(enclosure["url"]).path.encode()
            part = await fetch(port, path, range=b"bytes=0-1")
            whole = await fetch(port, path)
            self.assertEqual((206, whole.body[:2]), (part.status, part.body))
            expected = f"bytes 0-1/{enclosure['length']}".encode()
            self.assertEqual((expected, b"2"), (part["content-range"], part["content-length"]))
            self.assertEqual(whole["etag"], part["etag"])

    def test_extension(self) -> None:
        """The path of each URL ends in its file name, whose extension has the type of the feed."""
        mimetypes.add_type("audio/mp4", ".m4a")
        names = []
        for _, enclosure in self.enclosures:
            path = urlsplit(enclosure["url"]).path
            names.append(unquote(path.rpartition("/")[2]))
            self.assertEqual(enclosure["type"], mimetypes.guess_type(path)[0])
        self.assertEqual([*EPISODES] * 2, names)


class NameTests(ServiceCase):
    """Names under which programs save an episode, as docs/podcasts.md has them.

    :ivar urls: of the first column, behind HAProxy.
    :ivar names: by program, each the names in its column.
    """

    async def setUp(self) -> None:
        """Start a service behind HAProxy, and sign each path of the page."""
        super().setUp()
        self.add("piece.wav", short_flac())
        balancer = await balance(self, HAProxy, self.root.parent, {"one": self.start().port})
        signer = Signer(KEY, SALT, f"http://127.0.0.1:{balancer.port}")
        paths, *columns = zip(*rows("podcasts", "Path"), strict=True)
        self.urls = [_sign(signer, path.strip("`")) for path in paths]
        self.names = dict(zip(("yt-dlp", "gPodder"), columns, strict=True))

    def assert_saved(self, program: str, folder: str) -> None:
        """Require that each numbered folder has a file with the name of the page."""
        files = (self.root / "saved").glob(f"{folder}/*.*")
        found = {path.parent.name: f"`{path.name}`" for path in files}
        self.assertEqual({str(i): name for i, name in enumerate(self.names[program], 1)}, found)

    async def test_yt_dlp(self) -> None:
        """yt-dlp takes the name from the path, or from behind ?/, and ignores `dl`."""
        output = f"{self.root}/saved/%(autonumber)d/%(id)s.%(ext)s"
        words = ("-m", "yt_dlp", "--quiet", "--ignore-config", "--output", output, *self.urls)
        process = self.spawn(sys.executable, *words, **self.environment())
        self.assertEqual(0, await process.end(), process.stderr)
        self.assert_saved("yt-dlp", "*")

    async def test_gpodder(self) -> None:
        """gPodder takes the name from `dl`, from the path, or from behind ?/."""
        gpo = installed("gpo", "AUDIOPROXY_GPODDER")
        origin = open_origin(self)
        feeds = [
            origin.put(f"/{number}", Status(200, ("Content-Type: application/rss+xml",), feed))
            for number, feed in enumerate(map(_feed, self.urls, range(1, 9)), 1)
        ]
        environ = {**self.environment(), "GPODDER_HOME": f"{self.root}/saved", "LC_ALL": "C.UTF-8"}
        for words in (*(("subscribe", feed) for feed in feeds), ("update",), ("download",)):
            process = self.spawn(gpo, *words, **environ)
            self.assertEqual(0, await process.end(), process.stdout + process.stderr)
        self.assert_saved("gPodder", "Downloads/*")


def _sign(signer: Signer, path: str) -> str:
    """Return the URL of a path of the page, in which ``...`` stands for a signature."""
    signed, *query = path.partition("?")
    if not signed.startswith("/media/..."):
        return signer.sign(signed) + "".join(query)
    inner, _, name = signed.removeprefix("/media/...").rpartition("/")
    return signer.sign(inner).replace(signer.base, f"{signer.base}/media") + f"/{name}"


def _feed(url: str, number: int) -> bytes:
    """Return a feed with one episode, whose title is its number."""
    return (
        f"<rss version='2.0'><channel><title>{number}</title><link>http://a.example/{number}</link>"
        f"<item><title>{number}</title><guid>{number}</guid><enclosure url='{url}' length='1'"
        " type='audio/mpeg'/></item></channel></rss>"
    ).encode()
