"""Browsers and players at redirects to a bucket, as docs/browsers.md describes them.

Pages report what they play to their origin, so a browser needs no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from audioproxy.web.cors import Cors
from tests.browser.node import program, start_with_home
from tests.deploy.balancer import installed
from tests.support.audio import Sound, write_wav
from tests.support.origins import BehaviorSequence, File, Redirect, Status, open_origin
from tests.support.service import ServiceCase, until
from tests.test_docs import PAGES, code, rows

RATE, SECONDS = 44_100, 180
#: Seconds at which programs seek: far beyond what they read ahead.
LATE = 150
#: Value of ``Content-Type``, and the CORS rule of a bucket.
KIND, RULE = "Content-Type: audio/wav", "Access-Control-Allow-Origin: *"
CORS = [f"{name.decode()}: {value.decode()}" for name, value in Cors("*").headers]
RECOVERY, KEEP = code(PAGES["browsers"], "js")[:2]

PAGE = """<!doctype html><title>x</title><audio muted ATTRIBUTES></audio><script type="module">
const audio = document.querySelector("audio")
const first = (...names) => new Promise((resolve) => {
  for (const name of names) audio.addEventListener(name, () => resolve(name), { once: true })
})
PREPARE
audio.src = "SOURCE"
audio.play().catch(() => {})
let result = await first("playing", "error")
if (result === "playing") {
  audio.currentTime = LATE
  result = await first("seeked", "error")
}
AFTER
await fetch("REPORT?" + (result === "seeked" ? "plays" : result))
location.href = "/next"
</script>"""
# A listener that pauses, seeks, and finds that the URL has expired.
PAUSE = 'audio.addEventListener("playing", () => audio.pause(), { once: true })\n'
PAUSED = f"""
while (audio.readyState < 1 || audio.seeking) await first("loadedmetadata", "seeked")
if (audio.paused && audio.currentTime === {LATE}) result = "paused"
"""
# The code loads the URL once more, and keeps the second error.
GIVEN_UP = """
await first("error")
if (!audio.error) result = "loads again"
"""
PLAYED = f"""
while (audio.currentTime <= {LATE}) await first("timeupdate")
if (!audio.paused) result = "plays"
"""
REGISTER = """
const { serviceWorker } = navigator
const claimed = new Promise((resolve) => { serviceWorker.oncontrollerchange = resolve })
await serviceWorker.register("worker.js")
await claimed
"""
WORKER = """
self.addEventListener("install", () => self.skipWaiting())
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()))
self.addEventListener("fetch", (event) => {
  if (event.request.url === "SOURCE") RESPOND
})
"""


def chromium(page: str, source: str) -> list[str]:
    """Return the command that opens a page. With remote debugging, it stays open."""
    words = ("--no-sandbox", "--disable-gpu", "--autoplay-policy=no-user-gesture-required")
    return [program("chromium-headless-shell"), *words, "--remote-debugging-port=0", page]


def ffmpeg(page: str, source: str) -> list[str]:
    words = ("-nostdin", "-ss", str(LATE), "-i", source, "-f", "null", "-")
    return [installed("ffmpeg"), *words]


#: The players of the page that `make test-more` installs.
PROGRAMS: dict[str, Callable[[str, str], list[str]]] = {"Chromium": chromium, "ffmpeg": ffmpeg}


class RedirectCase(ServiceCase):
    """Pages of one origin, and audio of another one, which redirects to a bucket."""

    def setUp(self) -> None:
        """Start the origins."""
        super().setUp()
        self.sound = write_wav(Sound(RATE, np.zeros((2, SECONDS * RATE), np.float32)))
        self.pages, self.audio = open_origin(self), open_origin(self)

    def redirect(self, name: str, *headers: str, then: Iterable[Status] = ()) -> str:
        """Return the URL of a redirect to an object, each time to another URL of it.

        :param headers: those of the redirect. The bucket has a CORS rule.
        :param then: what the first URL serves after its first range.
        """
        whole = File(self.sound, headers=(KIND, RULE))
        targets = (
            self.audio.put(f"/bucket/{name}", BehaviorSequence(whole, *then)),
            self.audio.put(f"/bucket/{name}/again", whole),
        )
        found = (Status(302, (f"Location: {target}", *headers), b"") for target in targets)
        return self.audio.put(f"/service/{name}", BehaviorSequence(*found))

    def page(
        self,
        name: str,
        source: str,
        *headers: str,
        attributes: str = "",
        prepare: str = "",
        after: str = "",
    ) -> str:
        """Return the URL of a page that plays a source, seeks, and reports.

        :param headers: of the page.
        :param attributes: of the audio element.
        :param prepare: a script that runs before the source is set; ``after``, after the seek.
        """
        text = PAGE
        for word, value in {
            "ATTRIBUTES": attributes,
            "PREPARE": prepare,
            "AFTER": after,
            "SOURCE": source,
            "LATE": str(LATE),
            "REPORT": f"/report/{name}",
        }.items():
            text = text.replace(word, value)
        response = Status(200, ("Content-Type: text/html", *headers), text.encode())
        # localhost and 127.0.0.1 are two sites.
        return self.pages.put(f"/{name}/", response, "127.0.0.1")

    def place(self, name: str) -> str:
        """Return where the later ranges of a source came from; empty if there were none so far."""
        if len(self.audio.requests_for(f"/service/{name}")) > 1:
            return "the service"
        return "the bucket" if len(self.audio.requests_for(f"/bucket/{name}")) > 1 else ""

    def is_reported(self, name: str) -> bool:
        return bool(self.pages.requests_for(f"/report/{name}"))

    def report(self, name: str) -> str:
        """Return what a page has reported."""
        (request,) = self.pages.requests_for(f"/report/{name}")
        return request.target.partition("?")[2]


class PlayerTests(RedirectCase):
    """Players and browsers at a redirect."""

    async def test_later_ranges(self) -> None:
        """Each program asks for later ranges where the page says."""
        places = {player.rpartition(" ")[0]: place for player, place in rows("browsers", "Player")}
        for name, command in PROGRAMS.items():
            source = self.redirect(name)
            _, all_ended = start_with_home(self, *command(self.page(name, source), source))
            await until(partial(self.place, name), f"{name} to seek")
            self.assertEqual(places[name], self.place(name), name)
            await until(all_ended, f"{name} to end")


class PageTests(RedirectCase):
    """What docs/browsers.md promises of Chromium."""

    async def browse(self, pages: dict[str, str]) -> dict[str, str]:
        """Open pages by their names, and return the reports."""
        # A page leads to the next one, since a browser starts slowly.
        way = BehaviorSequence(*map(Redirect, pages.values()), Status(204))
        start_with_home(self, *chromium(self.pages.put("/next", way, "127.0.0.1"), ""))
        await until(lambda: all(map(self.is_reported, pages)), "the pages to report")
        return {name: self.report(name) for name in pages}

    async def test_recovery(self) -> None:
        """The code of the page goes on from the same time, and stays paused if it was.

        It gives up on a source that fails again at the same time.
        """
        expired = [Status(403)]
        pages = {
            name: self.page(name, source, prepare=prepare, after=after)
            for name, source, prepare, after in (
                ("without", self.redirect("a", then=expired), "", ""),
                ("with", self.redirect("b", then=expired), RECOVERY, PLAYED),
                ("paused", self.redirect("c", then=expired), RECOVERY + PAUSE, PAUSED),
                ("missing", self.audio.put("/missing", Status(404)), RECOVERY, GIVEN_UP),
            )
        }
        expected = {"without": "error", "with": "plays", "paused": "paused", "missing": "error"}
        self.assertEqual(expected, await self.browse(pages))
        self.assertEqual(2, len(self.audio.requests_for("/missing")))

    async def test_embedder_policy(self) -> None:
        """A page with COEP plays what the table says."""
        table = rows("browsers", "Element")
        pages, expected = {}, {}
        for index, (element, allowed, *modes) in enumerate(table):
            headers = CORS if allowed == "set" else []
            stored = File(self.sound, headers=(KIND, *headers))
            sources = self.audio.put(f"/proxy/{index}", stored), self.redirect(f"{index}", *headers)
            attributes = element.strip("`<>").removeprefix("audio")
            for mode, (source, result) in enumerate(zip(sources, modes, strict=True)):
                name = f"{index}-{mode}"
                policy = "Cross-Origin-Embedder-Policy: require-corp"
                pages[name] = self.page(name, source, policy, attributes=attributes)
                expected[name] = result
        self.assertEqual(expected, await self.browse(pages))

    async def test_service_workers(self) -> None:
        """A service worker does to playback what the table says."""
        pages, expected = {}, {}
        for index, (response, result, place) in enumerate(
            rows("browsers", "`event.respondWith` of")
        ):
            name = f"worker{index}"
            source = self.redirect(name, *CORS)
            call = "{}" if response == "nothing" else f"event.respondWith({response.strip('`')})"
            script = KEEP + WORKER.replace("SOURCE", source).replace("RESPOND", call)
            kind = ("Content-Type: text/javascript",)
            self.pages.put(f"/{name}/worker.js", Status(200, kind, script.encode()))
            pages[name] = self.page(name, source, prepare=REGISTER)
            expected[name] = (result, place)
        reports = await self.browse(pages)
        for name, report in reports.items():
            place = self.place(name) or ("the worker's cache" if report == "plays" else "")
            self.assertEqual(expected[name], (report, place), name)
