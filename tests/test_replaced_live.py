"""Recordings that are replaced under their name: which downloads resume, and what is recorded.

`tests.web.test_response_plan` has the rules, and what a redirect to a bucket states.
"""

from __future__ import annotations

import os
import time
from email.utils import formatdate

from audioproxy.service import AudioProxy
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.stored_file import read_trailer
from tests.support.http import Response
from tests.support.remote import key_of
from tests.support.service import ServiceCase, fetch, generate_audio, signed, until, until_hit

RANGE = b"bytes=100-199"
#: A variant of some kilobytes, which the fast path serves, and one that it leaves to the ordinary
#: path.
OPTIONS = ("f:mp3/br:32/ch:1", "f:wav")


class ReplacedTests(ServiceCase):
    """A service whose source is replaced.

    :ivar service: the service.
    :ivar source: its source.
    """

    service: AudioProxy

    def setUp(self) -> None:
        super().setUp()
        self.service, self.source = self.start(), self.root / "a.flac"

    def write_tone(self, frequency: int) -> None:
        """Write a recording of two seconds."""
        sine = f"sine=frequency={frequency}:sample_rate=44100:duration=2"
        generate_audio(self.source, "-f", "lavfi", "-i", sine)

    async def get(self, path: bytes, method: bytes = b"GET", **headers: bytes) -> Response:
        """Request a variant."""
        return await fetch(self.service.port, path, method, **headers)

    async def first(self, path: bytes) -> tuple[Response, bytes]:
        """Render a variant; return the first HIT, and its Last-Modified."""

        async def render() -> Response | None:
            response = await self.get(path)
            # For a second, the output of the last render can still be joined (D37).
            return None if response["x-audio-proxy"] == b"COALESCED" else response

        miss = await until(render, "a new render")
        assert miss is not None
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        self.assertIsNone(miss["last-modified"])
        hit = await until_hit(self.service.port, path)
        self.assertEqual((miss.body, miss["etag"]), (hit.body, hit["etag"]))
        date = hit["last-modified"]
        assert date is not None
        return hit, date

    def read_record(self, key: str) -> VariantRecord:
        """Return the record of a variant, and set the times of its file to others."""
        path = self.store / key[:2] / key
        with path.open("rb") as file:
            trailer = read_trailer(file.fileno())
        assert trailer is not None and trailer[1] is not None
        os.utime(path, (1_000_000_000, 1_000_000_000))
        return trailer[1]

    async def test_resume(self) -> None:
        """A date resumes the recording that it came from alone; an ETag any of its name (D58)."""
        for options in OPTIONS:
            self.write_tone(300)
            path = signed(f"/{options}/plain/local://a.flac")
            old, date = await self.first(path)
            key, tag = key_of(old), old["etag"] or b""
            found = self.read_record(key)
            self.assertEqual(formatdate(found.stored, usegmt=True).encode(), date)
            self.assertEqual(self.service.engine.programs.build_name, found.build)
            self.assertRegex(found.build, r"\A[0-9n][!-~]*:[0-9a-f]{8}\Z")
            head = await self.get(path, b"HEAD")
            self.assertEqual((200, date), (head.status, head["last-modified"]))
            for condition in (date, tag):
                part = await self.get(path, range=RANGE, if_range=condition)
                self.assertEqual((206, old.body[100:200]), (part.status, part.body))
                self.assertEqual(date, part["last-modified"])

            self.write_tone(400)
            (self.store / key[:2] / key).unlink()
            # Last-Modified has whole seconds.
            await until(lambda it=found: time.time() >= it.stored + 1, "the next second")
            # Without a stored variant, nobody gets a part: the stream of the render has no ranges.
            new, later = await self.first(path)
            self.assertEqual((tag, True), (new["etag"], new.body != old.body))
            self.assertNotEqual(date, later)
            # The ETag is the cache key, so a client that has it alone cannot tell: hence ``cb``.
            part = (206, new.body[100:200])
            for condition, expected in ((date, (200, new.body)), (later, part), (tag, part)):
                resumed = await self.get(path, range=RANGE, if_range=condition)
                self.assertEqual(expected, (resumed.status, resumed.body))

    async def test_cache_buster(self) -> None:
        """With another ``cb``, nothing that a client has of the old recording is resumed (D58)."""
        self.write_tone(300)
        old, date = await self.first(signed("/f:mp3/cb:1/plain/local://a.flac"))
        self.write_tone(400)
        await until(lambda: formatdate(usegmt=True).encode() != date, "the next second")
        path = signed("/f:mp3/cb:2/plain/local://a.flac")
        new, _ = await self.first(path)
        self.assertNotEqual(old.body, new.body)
        for condition in (date, old["etag"] or b""):
            resumed = await self.get(path, range=RANGE, if_range=condition)
            self.assertEqual((200, new.body), (resumed.status, resumed.body))
