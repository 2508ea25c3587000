"""Objects that change or become unreadable while they are read, and misconfigured stores."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.support.origins import (
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
    is_signed_url,
    key_of,
    lifetime_of,
)
from tests.support.service import encoders, fetch, generate_audio, send, short_flac, until
from tests.support.wire import Request

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


def is_encoder_request(request: Request) -> bool:
    """Return whether the encoder, and not the probe, sent a request.

    The probe's presigned URL is valid for at least RENDER_SECONDS. The encoder's is valid for less.
    """
    return is_signed_url(request) and lifetime_of(request) < RENDER_SECONDS


class ChangedTests(RemoteCase):
    """Objects replaced during a render; If-Match with the ETag prevents a mix of both versions."""

    async def setUp(self) -> None:
        await super().setUp()
        self.source = self.relay()
        settings = self.s3(self.source)
        self.port = (await self.boot(source_s3=settings, render_timeout=RENDER_SECONDS)).port

    def replace_before(self, number: int, key: str, data: bytes) -> list[Request]:
        """Replace an object before the encoder's n-th request, and return the list of these."""
        received: list[Request] = []

        def rule(request: Request) -> RequestAction:
            if is_encoder_request(request):
                received.append(request)
                if len(received) == number:
                    self.put(key, data)
            return PASS

        self.source.rule = rule
        return received

    async def test_between_two_ranges(self) -> None:
        """An m4a that is replaced before a range request never gives a complete response.

        If nothing was sent before, it gives 502 or 500, not a 415 for its content.
        """
        old, new = noise("a.m4a", OLD), noise("a.m4a", NEW)
        for number in (1, 2, 3):
            self.put("a.m4a", old)
            received = self.replace_before(number, "a.m4a", new)
            response = await fetch(self.port, self.url("a.m4a", f"f:mp3/cb:{number}"))
            self.assertLessEqual(number, len(received))
            self.assertEqual({True}, {"if-match" in each.headers for each in received})
            if number < 3 or response.status != 200:
                self.assertIn(response.error, ("upstream_unavailable", "render_failed"))
                self.assertEqual(b"no-store", response["cache-control"])
            else:
                self.assertFalse(response.complete)
            self.assertEqual([], self.stored())
        self.assertEqual(200, (await fetch(self.port, self.url("a.m4a"))).status)

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
    """Failed range requests, which ffmpeg ignores: it exits with status 0 all the same."""

    async def test_failed_ranges(self) -> None:
        """After a failed range request, a response has the right audio or is incomplete (D35).

        A response that lacks most of the 30-second Ogg is never complete, and a trim never has
        audio from the wrong position. A render that does not recover stores no variant.
        """
        origin = open_origin(self)
        settings = self.s3(endpoint=origin.url(""))
        service = await self.boot(
            source_s3=settings, render_timeout=RENDER_SECONDS, max_concurrency=11
        )
        ogg, wav = File(noise("a.ogg", OLD)), File(noise("a.wav", OLD))
        # Responses to the encoder's requests, the last of which is repeated, and whether the render
        # recovers. The first row of each source has no failure.
        sent = []
        for good, options, rows in (
            (
                *(ogg, "f:wav"),
                (
                    ((ogg,), True),
                    ((ogg, RESET, ogg), True),
                    ((ogg, ogg, RESET, ogg), True),
                    ((ogg, Status(503), ogg), False),
                    ((ogg, ogg, Status(412), ogg), False),
                ),
            ),
            (
                *(wav, "f:wav/t:20:5"),
                (
                    ((wav,), True),
                    ((wav, wav, replace(wav, sent=100_000), wav), True),
                    ((wav, wav, Raw(b"HTTP/1.1 206 So\r\nContent-Le"), wav), True),
                    ((wav, wav, Status(412), wav), False),
                    ((wav, wav, RESET), False),
                    ((wav, wav, replace(wav, sent=0)), False),
                ),
            ),
        ):
            for behaviors, recovers in rows:
                behavior = BehaviorSequence(*behaviors, matches=is_encoder_request, others=good)
                origin.put(f"/{self.sources}/{len(sent)}", behavior)
                client = await send(service.port, self.url(f"{len(sent)}", options))
                sent.append((client, behavior, behaviors, recovers))
        responses = [await client.end() for client, *_ in sent]
        stored = await self.until_stored(sum(recovers for *_, recovers in sent))
        intact = responses[0]
        for row, response in zip(sent, responses, strict=True):
            _, behavior, behaviors, recovers = row
            if len(behaviors) == 1:
                intact = response
            failing = [at for at, each in enumerate(behaviors, 1) if each != behaviors[0]]
            self.assertLessEqual(failing[0] if failing else 1, behavior.match_count, behaviors)
            self.assertEqual(recovers, response.status == 200 and response.complete, behaviors)
            self.assertEqual(recovers, key_of(response) in stored, behaviors)
            if recovers:
                variant = self.server.get(self.variants, key_of(response))
                self.assertTrue(intact.body == response.body == variant.body, behaviors)


class WrongStoreTests(RemoteCase):
    """Stores that redirect or fail, and objects that disappear after the lookup."""

    async def test_reads(self) -> None:
        """If a lookup succeeds and reads fail, a 404 gives 404; a 503 or a lost connection, 502.

        That is so for the probe and for the encoder. A redirect of ffprobe's requests gives 415,
        and ffprobe does not follow it. A redirect of the lookup is a configuration error (500).
        """
        origin, elsewhere = open_origin(self), open_origin(self)
        path, good = f"/{self.sources}/a.flac", File(short_flac().read_bytes())
        redirect = Redirect(elsewhere.put(path, good))
        service = await self.boot(
            source_s3=self.s3(endpoint=origin.url("")), render_timeout=RENDER_SECONDS
        )
        for behavior, matches, status, code in (
            (redirect, None, 500, "not_configured"),
            (redirect, is_signed_url, 415, "undecodable_source"),
            # The encoder's last: then the probe is cached.
            *(
                (failure, matches, status, code)
                for matches in (is_signed_url, is_encoder_request)
                for failure, status, code in (
                    (Status(503), 502, "upstream_unavailable"),
                    (RESET, 502, "upstream_unavailable"),
                    (Status(404), 404, "not_found"),
                )
            ),
        ):
            if matches is not None:
                behavior = BehaviorSequence(behavior, matches=matches, others=good)
            origin.put(path, behavior)
            for options in ("f:mp3", "info")[: 1 if matches is is_encoder_request else 2]:
                response = await fetch(service.port, self.url("a.flac", options))
                self.assertEqual((status, code), (response.status, response.error))
        self.assertEqual(([], []), (self.stored(), elsewhere.connections))
