"""Objects that change while they are read.

`tests.test_faults` and `tests.sources.test_s3` have stores that fail.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.support.remote import PASS, RemoteCase, RequestAction, key_of
from tests.support.service import encoders, fetch, generate_audio, send, until
from tests.support.wire import Request

MID_SOURCE_BYTES = 512 * 1024
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
