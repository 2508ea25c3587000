"""What podcast directories require of the URLs of a feed, through HAProxy and nginx.

The rules are those of docs/podcasts.md.
"""

from __future__ import annotations

import mimetypes
import sys
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from audioproxy.urls import Signer, Variant
from tests.deploy.balancer import HAProxy, Nginx, balance
from tests.support.http import KEY, SALT
from tests.support.service import ServiceCase, fetch, short_flac, until_hit

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

    async def test_rules(self) -> None:
        """HEAD and the range with which players begin give what the feed states of an episode.

        The path of its URL ends in its file name, whose extension has the type of the feed.
        """
        mimetypes.add_type("audio/mp4", ".m4a")
        names = []
        for port, enclosure in self.enclosures:
            path, length = urlsplit(enclosure["url"]).path, enclosure["length"].encode()
            names.append(unquote(path.rpartition("/")[2]))
            self.assertEqual(enclosure["type"], mimetypes.guess_type(path)[0])
            target = path.encode()
            head, whole = await fetch(port, target, b"HEAD"), await fetch(port, target)
            self.assertEqual((200, b""), (head.status, head.body))
            stated = length, enclosure["type"].encode()
            self.assertEqual(stated, (head["content-length"], head["content-type"]))
            self.assertEqual(int(length), len(whole.body))
            self.assertEqual(b"bytes", head["accept-ranges"])
            part = await fetch(port, target, range=b"bytes=0-1")
            self.assertEqual((206, whole.body[:2]), (part.status, part.body))
            expected = (b"bytes 0-1/" + length, b"2")
            self.assertEqual(expected, (part["content-range"], part["content-length"]))
            self.assertEqual(whole["etag"], part["etag"])
        self.assertEqual([*EPISODES] * 2, names)
