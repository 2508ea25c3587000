"""Objects that change or become unreadable while they are read, and misconfigured stores."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from audioproxy.sources import fetch as fetch_module
from tests.support.origins import (
    Behavior,
    BehaviorSequence,
    File,
    Raw,
    Redirect,
    Status,
    open_origin,
)
from tests.support.remote import (
    PASS,
    RemoteCase,
    RequestAction,
    key_of,
)
from tests.support.service import encoders, fetch, generate_audio, send, until
from tests.support.wire import Request

MID_SOURCE_BYTES = 512 * 1024
#: Response that resets the connection and sends nothing.
RESET = Raw(b"", "abort")
#: Seeds of two different noises.
OLD, NEW = 400, 500


@cache
def noise(name: str, seed: int) -> bytes:
    """Return half a minute of incompressible noise, made once for all tests."""
    source = f"anoisesrc=amplitude=0.1:sample_rate=44100:duration=30:seed={seed},aformat=s16"
    path = Path(f"sounds/s3/{seed}-{name}").resolve()
    return generate_audio(path, "-f", "lavfi", "-i", source).read_bytes()


class ChangedTests(RemoteCase):
    """Objects replaced during a render; If-Match with the ETag prevents a mix of both versions."""

    async def setUp(self) -> None:
        await super().setUp()
        self.source = self.relay()
        self.port = (await self.boot(source_s3=self.s3(self.source))).port

    def replace_before(self, number: int, key: str, data: bytes) -> list[Request]:
        """Replace an object before the n-th request, and return the list of requests."""
        received: list[Request] = []

        def rule(request: Request) -> RequestAction:
            received.append(request)
            if len(received) == number:
                self.put(key, data)
            return PASS

        self.source.rule = rule
        return received

    async def test_before_the_first_byte(self) -> None:
        """An object that is replaced before the first byte is opened anew.

        The response is that of the new version, of which alone something is stored.
        """
        self.put("new.m4a", noise("a.m4a", NEW))
        for number, options in ((2, "f:mp3"), (2, "info"), (2, "f:peaks"), (3, "f:peaks/pts:9")):
            self.source.rule = lambda request: PASS
            new = await fetch(self.port, self.url("new.m4a", options))
            self.put("a.m4a", noise("a.m4a", OLD))
            received = self.replace_before(number, "a.m4a", noise("a.m4a", NEW))
            response = await fetch(self.port, self.url("a.m4a", options))
            self.assertEqual((200, new.body), (response.status, response.body), options)
            self.assertIn("if-match", received[number - 1].headers)

    async def test_while_it_is_read(self) -> None:
        """A source replaced during a range request gives the old variant or a broken stream."""
        for name, seed in (("a.wav", OLD), ("old.wav", OLD), ("new.wav", NEW)):
            self.put(name, noise("a.wav", seed))
        self.source.rule = lambda request: MID_SOURCE_BYTES
        client = await send(self.port, self.url("a.wav", "f:flac"))
        await until(
            lambda: client.response and self.source.stalled, "a stalled connection to the store"
        )
        self.put("a.wav", noise("a.wav", NEW))
        self.source.release()
        response = await client.end()
        old, new = [
            await fetch(self.port, self.url(name, "f:flac")) for name in ("old.wav", "new.wav")
        ]
        self.assertNotEqual(new.body, response.body)
        if response.complete:
            self.assertTrue(old.body == response.body, "a mix of the old and the new source")
        else:
            await until(lambda: not encoders(), "the encoder to end")
            stored = await self.until_stored(2)
            self.assertEqual(sorted([key_of(old), key_of(new)]), stored)


class LostRangeTests(RemoteCase):
    """Stores that fail for a range, at each of a render's requests"""

    async def test_once(self) -> None:
        """A request that fails once, in any way, is repeated, and the render is complete (D35)."""
        origin = open_origin(self)
        service = await self.boot(source_s3=self.s3(endpoint=origin.url("")), max_concurrency=20)
        good = File(noise("a.wav", OLD))
        failures = (
            *(RESET, Status(503), Status(429, ("Retry-After: 1",)), Status(500)),
            *(replace(good, sent=50_000), Raw(b"HTTP/1.1 206 So\r\nContent-Le")),
        )
        rows: list[Behavior] = [good]
        rows += [
            BehaviorSequence(*[good] * number, failure, good)
            for failure in failures
            for number in range(3)
        ]
        clients = []
        for number, behavior in enumerate(rows):
            origin.put(f"/{self.sources}/{number}", behavior)
            clients.append(await send(service.port, self.url(f"{number}", "f:wav/t:20:5")))
        responses = [await client.end() for client in clients]
        for behavior, response in zip(rows, responses, strict=True):
            found = response.status, response.complete, response.body == responses[0].body
            self.assertEqual((200, True, True), found, behavior)
        await self.until_stored(len(rows))

    async def test_for_good(self) -> None:
        """A store that fails for good gives an error or a broken stream, and stores nothing.

        A refusal of If-Match alone, to a version that the store still has, is opened anew once.
        """
        self.patch(fetch_module, "_DELAYS", (0.0,) * 4)
        origin = open_origin(self)
        service = await self.boot(source_s3=self.s3(endpoint=origin.url("")), max_concurrency=20)
        good = File(noise("a.m4a", OLD))
        for behavior, status, code in (
            (BehaviorSequence(good, RESET), 502, "upstream_unavailable"),
            (BehaviorSequence(good, Status(503)), 502, "upstream_unavailable"),
            (BehaviorSequence(good, Status(404)), 404, "not_found"),
            (BehaviorSequence(good, Status(403)), 404, "not_found"),
            (BehaviorSequence(good, Status(412), good, Status(412)), 500, "probe_failed"),
        ):
            origin.put(f"/{self.sources}/a.m4a", behavior)
            for options in ("f:mp3", "info"):
                if isinstance(behavior, BehaviorSequence):
                    behavior.match_count = 0
                response = await fetch(service.port, self.url("a.m4a", options))
                self.assertEqual((status, code), (response.status, response.error), behavior)
        self.assertEqual([], self.stored())
        origin.put(f"/{self.sources}/a.m4a", BehaviorSequence(good, Status(412), good))
        self.assertEqual(200, (await fetch(service.port, self.url("a.m4a"))).status)


class WrongStoreTests(RemoteCase):
    """Stores that redirect"""

    async def test_reads(self) -> None:
        """A store that redirects the look-up, or a range, is a configuration error (500)."""
        origin, elsewhere = open_origin(self), open_origin(self)
        path, good = f"/{self.sources}/a.m4a", File(noise("a.m4a", OLD))
        redirect = Redirect(elsewhere.put(path, good))
        service = await self.boot(source_s3=self.s3(endpoint=origin.url("")))
        for options in ("f:mp3", "info"):
            for behavior in (redirect, BehaviorSequence(good, redirect)):
                origin.put(path, behavior)
                response = await fetch(service.port, self.url("a.m4a", options))
                self.assertEqual((500, "not_configured"), (response.status, response.error))
        self.assertEqual(([], []), (self.stored(), elsewhere.connections))
