"""`audioproxy warm` against real servers, and in a process of its own."""

from __future__ import annotations

import json
import os
from xml.etree import ElementTree

from tests.cli.command import command, start_command, wait_for
from tests.support.origins import STALL, Status, open_origin
from tests.support.runs import RunResult
from tests.support.service import Process, ServiceCase, short_flac, signed, until, until_hit


class ServiceTests(ServiceCase):
    """`warm` against the real service."""

    def url(self, port: int, rest: str) -> str:
        """Return a signed URL of the service."""
        return f"http://127.0.0.1:{port}{signed(rest).decode()}"

    def warm(self, *words: str) -> RunResult:
        """Run the command."""
        return command("warm", *words, environment={"PATH": os.environ["PATH"]})

    def test_json(self) -> None:
        """--json prints what each URL gave, with the duration of the received audio."""
        self.add("a.flac", short_flac())
        port = self.start().port
        trimmed = [f"f:{each}/t:0.25:0.5" for each in ("mp3", "opus", "wav")]
        durations = {**dict.fromkeys(trimmed, 0.5), "f:peaks/pts:9": None, "f:mp3": 1.0}
        # The header of aac states no length.
        durations["f:aac"] = None
        paths = [f"/{options}/plain/local://a.flac" for options in durations]
        urls = [self.url(port, path) for path in paths]
        first = self.warm("--json", *urls)
        self.assertEqual(0, first.status, first.err)
        hits = [wait_for(until_hit(port, signed(path))) for path in paths]
        second = self.warm("--json", "-c", "1", *urls, urls[0].replace("a.f", "b.f"), urls[0] + "#")
        self.assertEqual(1, second.status, second.err)
        self.assertRegex(second.err, "8 URLs in .* 7 stored already, 1 failed; ")
        *rows, failed, again = map(json.loads, second.out.splitlines())
        for url, row, hit, seconds in zip(urls, rows, hits, durations.values(), strict=True):
            duration = row["duration"]
            expected = {"url": url, "status": 200, "result": "stored already", "state": "HIT"}
            expected |= {"bytes": len(hit.body), "etag": str(hit["etag"], "ascii")}
            expected |= {"content_type": str(hit["content-type"], "ascii"), "duration": duration}
            self.assertEqual(expected, row)
            self.assertEqual(seconds is None, duration is None)
            # The frames of an mp3 include the encoder's padding.
            self.assertApproximates(seconds or 0, duration or 0, 0.06)
        self.assertEqual(rows[0] | {"url": urls[0] + "#"}, again)
        self.assertEqual(["url", "status", "error"], list(failed))
        self.assertEqual(401, failed["status"])
        rendered = [row | {"result": "rendered", "state": "MISS"} for row in rows]
        printed = {row["url"]: row for row in map(json.loads, first.out.splitlines())}
        self.assertEqual({row["url"]: row for row in rendered}, printed)

    def test_enclosure(self) -> None:
        """--enclosure prints elements of a feed, and fails where a directory would refuse the URL.

        A redirect has no length; a path needs the right extension; info and peaks are no audio.
        A URL whose signed part has an escape is printed with a warning: apps may spell it anew.
        """
        for name in ("a.mp3", "exp:1/a.mp3", "a b.mp3"):
            self.add(name, short_flac())
        port = self.start().port
        # The name of a folder is no option.
        path = "/f:mp3/t:0:0.5/plain/local://exp:1/a.mp3"
        url = self.url(port, path) + "?a='1'&b=\"2\"#x"
        spaced = self.url(port, "/f:mp3/plain/local://a%20b.mp3")
        named = self.url(port, "/dl:a%20b/plain/local://a.mp3")
        redirect = open_origin(self).put("/s/plain/b", Status(302, ("X-Audio-Proxy: HIT",), b""))
        refused = [
            self.url(port, f"/{rest}/plain/local://a.mp3")
            for rest in ("info", "f:peaks", "f:flac", "exp:4102444800")
        ]
        ended = self.warm("--enclosure", "-c", "1", url, spaced, named, redirect, *refused)
        self.assertEqual(1, ended.status, ended.err)
        for words in (
            "302: an enclosure needs a length; set AP_SERVE_MODE=proxy",
            "application/json: an enclosure is audio",
            "a path that ends in .flac is required for audio/flac; sign the URL with --file-name",
            "exp: apps request an enclosure for years",
            "a%20b.mp3: some apps spell %20 in another way, which is a 401; sign the URL with --",
            "a.mp3: some apps spell %20 in another way, which is a 401; use dl and cb without it",
        ):
            self.assertIn(words, ended.err)
        self.assertEqual(2, ended.err.count("some apps"))
        item, duration, *others = ended.out.splitlines()
        self.assertIn(f'url="{spaced}"', others[0])
        self.assertIn("&amp;b=&quot;2&quot;", item)
        self.assertEqual("<itunes:duration>1</itunes:duration>", duration)
        expected = {
            "url": url.removesuffix("#x"),
            "length": str(len(wait_for(until_hit(port, signed(path))).body)),
            "type": "audio/mpeg",
        }
        self.assertEqual(expected, ElementTree.fromstring(item).attrib)

    def test_rendered(self) -> None:
        """`warm` renders missing variants, and prints refusals without signatures."""
        self.add("a.flac", short_flac())
        port = self.start().port
        urls = [self.url(port, f"/{each}/plain/local://a.flac") for each in ("f:mp3", "f:mp9")]
        ended = self.warm(*urls)
        self.assertEqual(1, ended.status)
        self.assertRegex(ended.out, r"\A2 URLs in .+: 1 rendered, 1 failed; \S+ kB\n\Z")
        words = r"\Aaudioproxy: f:mp9/plain/local://a\.flac: 422 invalid_.*\n\Z"
        self.assertRegex(ended.err, words)


class ProgramTests(ServiceCase):
    """`warm` in a process of its own."""

    def warm(self, *words: str, terminal: bool = False, **variables: str) -> Process:
        """Start the command."""
        return start_command(self, "warm", *words, terminal=terminal, **variables)

    async def test_interrupted(self) -> None:
        """Ctrl-C ends `warm` at once with a summary of what was done, and status 130."""
        origin = open_origin(self)
        done = origin.put("/s/plain/a", Status(302, ("X-Audio-Proxy: HIT",), b""))
        stalled = origin.put("/s/plain/b", STALL)
        # The second process also waits for further lines of standard input.
        for words, lines, summary in (
            (("-c", "1", done, stalled), "", "1 URL in [0-9.]+ s: 1 stored already; 0 B"),
            (("-",), f"{stalled}\n", "0 URLs in [0-9.]+ s"),
        ):
            seen = len(origin.requests_for("/s/plain/b"))
            process = self.warm(*words)
            if lines:
                process.transport.write(lines.encode())
            await until(lambda seen=seen: len(origin.requests_for("/s/plain/b")) > seen, "both")
            process.signal(2)
            self.assertEqual((130, ""), (await process.end(), process.stderr))
            self.assertRegex(process.stdout, rf"\Astopped: {summary}\n\Z")

    async def test_progress(self) -> None:
        """`warm` shows a progress bar on a terminal, but not with --quiet."""
        origin = open_origin(self)
        url = origin.put("/s/plain/a", Status(302, ("X-Audio-Proxy: HIT",), b""))
        for words, shown in (((), True), (("--quiet",), False)):
            process = self.warm(*words, url, terminal=True)
            self.assertEqual(0, await process.end(), process.stdout)
            self.assertEqual(shown, "0/1" in process.stdout, process.stdout)
            self.assertIn("1 URL in ", process.stdout)
