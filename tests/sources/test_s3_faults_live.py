"""Objects that change or become unreadable while they are read, and misconfigured stores."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.support.http import Log, Response
from tests.support.origins import (
    Behavior,
    BehaviorSequence,
    File,
    Raw,
    ReceivedRequest,
    Redirect,
    Status,
    open_origin,
)
from tests.support.remote import (
    ABORTED,
    PASS,
    RemoteCase,
    RequestAction,
    is_signed_url,
    key_of,
    lifetime_of,
)
from tests.support.service import encoders, fetch, generate_audio, send, short_flac, until

MID_SOURCE_BYTES = 512 * 1024
RENDER_SECONDS = 300
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


def is_encoder_request(request: ReceivedRequest) -> bool:
    """Return whether the encoder, and not the probe, sent a request.

    The probe's presigned URL is valid for at least RENDER_SECONDS. The encoder's is valid for less.
    """
    return is_signed_url(request) and lifetime_of(request) < RENDER_SECONDS


def is_read(request: ReceivedRequest) -> bool:
    """Return whether a request reads an object, and does not only look it up."""
    return request.headers.get("range") != "bytes=0-0"


class SourceRelayCase(RemoteCase):
    """Service that reaches the source bucket through a test relay."""

    async def setUp(self) -> None:
        await super().setUp()
        self.log = Log()
        self.addCleanup(self.log.start())
        self.source = self.relay()
        settings = self.s3(self.source)
        self.service = await self.boot(source_s3=settings, render_timeout=RENDER_SECONDS)
        self.port = self.service.port

    def assert_refused(self, status: int, code: str, response: Response) -> None:
        """Require a refusal, an empty variant store and no logged error."""
        self.assertEqual((status, code), (response.status, response.error))
        self.assertEqual([], self.stored())
        self.assertEqual([], self.log.errors)


class ChangedTests(SourceRelayCase):
    """Objects replaced during a render; If-Match with the ETag prevents a mix of both versions."""

    def replace(self, number: int, key: str, data: bytes) -> None:
        """Replace an object just before the store receives the encoder's n-th request."""
        received: list[ReceivedRequest] = []

        def rule(request: ReceivedRequest) -> RequestAction:
            if is_encoder_request(request):
                received.append(request)
                if len(received) == number:
                    self.put(key, data)
            return PASS

        self.source.rule = rule

    async def test_between_probe_and_render(self) -> None:
        """A source replaced between probe and render returns 502; the next request succeeds."""
        first = self.put("a.wav", noise("a.wav", OLD))
        self.replace(1, "a.wav", noise("a.wav", NEW))
        path = self.url("a.wav")
        self.assert_refused(502, "upstream_unavailable", await fetch(self.port, path))
        tags = {request.headers.get("if-match") for request in self.source.requests}
        self.assertEqual({None, first}, tags)
        self.assertEqual(200, (await fetch(self.port, path)).status)

    async def test_between_two_ranges(self) -> None:
        """An m4a that is replaced between two range requests never gives a complete response.

        If nothing was sent before, it gives 502 or 500, not a 415 for its content.
        """
        old, new = noise("a.m4a", OLD), noise("a.m4a", NEW)
        for number in (2, 3):
            self.put("a.m4a", old)
            del self.source.requests[:]
            self.replace(number, "a.m4a", new)
            response = await fetch(self.port, self.url("a.m4a", f"f:mp3/cb:{number}"))
            encoder_requests = list(filter(is_encoder_request, self.source.requests))
            self.assertLessEqual(number, len(encoder_requests))
            self.assertEqual({True}, {"if-match" in each.headers for each in encoder_requests})
            if number == 2 or response.status != 200:
                self.assertIn(response.error, ("upstream_unavailable", "render_failed"))
                self.assertEqual(b"no-store", response["cache-control"])
            else:
                self.assertFalse(response.complete)
            self.assertEqual([], self.stored())

    async def test_while_it_is_read(self) -> None:
        """A source replaced during a range request gives the old variant or a broken stream."""
        for name, seed in (("a.wav", OLD), ("old.wav", OLD), ("new.wav", NEW)):
            self.put(name, noise("a.wav", seed))
        self.source.limit = MID_SOURCE_BYTES
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
    """Failed range requests, which ffmpeg ignores: it exits with status 0 all the same."""

    async def check(
        self, name: str, options: str, *rows: tuple[tuple[Behavior, ...], bool]
    ) -> None:
        """Require correct bytes from renders that recover, and no complete response from others.

        Renders that do not recover store no variant.

        :param rows: for each source: responses to the encoder's requests, of which the last one is
            repeated, and whether the render recovers.
        """
        origin, good = open_origin(self), File(noise(name, OLD))
        sequences = [
            BehaviorSequence(*behaviors, matches=is_encoder_request, others=good)
            for behaviors, _ in rows
        ]
        paths = [f"{number}-{name}" for number in range(len(rows) + 1)]
        for path, behavior in zip(paths, (good, *sequences), strict=True):
            origin.put(f"/{self.sources}/{path}", behavior)
        service = await self.boot(
            source_s3=self.s3(endpoint=origin.url("")),
            render_timeout=RENDER_SECONDS,
            max_concurrency=8,
        )
        clients = [await send(service.port, self.url(path, options)) for path in paths]
        intact, *responses = [await client.end() for client in clients]
        self.assertEqual((200, True), (intact.status, intact.complete))
        complete_count = 1 + sum(recovers for _, recovers in rows)
        stored = await self.until_stored(complete_count)
        self.assertEqual(complete_count, len(stored))
        results = zip(rows, sequences, responses, strict=True)
        for number, ((behaviors, recovers), sequence, response) in enumerate(results):
            failing = [at for at, each in enumerate(behaviors, 1) if each != good]
            self.assertLessEqual(failing[0], sequence.match_count, number)
            self.assertEqual(recovers, response.status == 200 and response.complete, number)
            self.assertEqual(recovers, key_of(response) in stored, number)
            if recovers:
                variant = self.server.get(self.variants, key_of(response))
                self.assertTrue(intact.body == response.body == variant.body, number)

    async def test_failed_range_of_ogg(self) -> None:
        """After a failed range request, an Ogg response has the whole audio or is incomplete.

        A response that lacks most of the 30-second source is never complete (D35).
        """
        good = File(noise("a.ogg", OLD))
        await self.check(
            *("a.ogg", "f:wav"),
            ((good, RESET, good), True),
            ((good, good, RESET, good), True),
            ((good, Status(503), good), False),
            *(((good, good, Status(code), good), False) for code in (404, 412, 503)),
        )

    async def test_failed_seek_of_trim(self) -> None:
        """A trim never returns audio from the wrong position after a failed seek."""
        good = File(noise("a.wav", OLD))
        await self.check(
            *("a.wav", "f:wav/t:20:5"),
            ((good, good, replace(good, sent=100_000), good), True),
            ((good, good, Raw(b"HTTP/1.1 206 So\r\nContent-Le"), good), True),
            ((good, good, Status(412), good), False),
            ((good, good, RESET), False),
            ((good, good, replace(good, sent=0)), False),
        )


class GoneTests(SourceRelayCase):
    """Objects and stores that disappear between two requests."""

    async def test_gone_before_it_is_read(self) -> None:
        """A source that becomes unreachable before the probe or the encoder reads it gives 502.

        A source that is deleted before the probe or the encoder reads it gives 404.
        """

        def remove() -> RequestAction:
            self.server.remove(self.sources, "a.flac")
            return PASS

        for fits in (is_signed_url, is_encoder_request):
            for action, status, code in (
                (lambda: ABORTED, 502, "upstream_unavailable"),
                (remove, 404, "not_found"),
            ):
                self.put("a.flac", short_flac())
                self.source.rule = lambda request, fits=fits, act=action: (
                    act() if fits(request) else PASS
                )
                self.assert_refused(status, code, await fetch(self.port, self.url("a.flac")))


class WrongStoreTests(RemoteCase):
    """Stores that are misconfigured, redirect, fail or do not listen."""

    async def test_reads(self) -> None:
        """If a lookup succeeds and reads fail, a 503 gives 502, and a 404 gives 404.

        A redirect of ffprobe's requests gives 415, and ffprobe does not follow it. A redirect of
        the lookup is a configuration error (500).
        """
        origin, elsewhere = open_origin(self), open_origin(self)
        path, good = f"/{self.sources}/a.flac", File(short_flac().read_bytes())
        redirect = Redirect(elsewhere.put(path, good))
        service = await self.boot(source_s3=self.s3(endpoint=origin.url("")))
        for behavior, status, code in (
            (redirect, 500, "not_configured"),
            (BehaviorSequence(redirect, matches=is_read, others=good), 415, "undecodable_source"),
            *(
                (BehaviorSequence(Status(failure), matches=is_read, others=good), status, code)
                for failure, status, code in (
                    (503, 502, "upstream_unavailable"),
                    (404, 404, "not_found"),
                )
            ),
        ):
            origin.put(path, behavior)
            for options in ("f:mp3", "info"):
                response = await fetch(service.port, self.url("a.flac", options))
                self.assertEqual((status, code), (response.status, response.error))
        self.assertEqual([], elsewhere.connections)
