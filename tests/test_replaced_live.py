"""Recordings that are replaced under their name: which downloads resume, and what is recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from email.utils import formatdate

from audioproxy.service import AudioProxy
from audioproxy.variants.record import METADATA_PREFIX, VariantRecord
from audioproxy.variants.stored_file import read_trailer
from tests.support.http import Response
from tests.support.remote import RemoteCase, key_of
from tests.support.service import ServiceCase, fetch, generate_audio, signed, until, until_hit

RANGE = b"bytes=100-199"
#: A variant of some kilobytes, which the fast path serves, and one that it leaves to the ordinary
#: path.
OPTIONS = ("f:mp3/br:32/ch:1", "f:wav")


class ResumeCase(ServiceCase):
    """A service whose source is replaced.

    :ivar service: the service.
    """

    service: AudioProxy

    def tone(self, frequency: int) -> bytes:
        """Return a recording of two seconds."""
        sine = f"sine=frequency={frequency}:sample_rate=44100:duration=2"
        path = self.root.with_name(f"{frequency}.flac")
        return generate_audio(path, "-f", "lavfi", "-i", sine).read_bytes()

    async def get(self, path: bytes, method: bytes = b"GET", **headers: bytes) -> Response:
        """Request a variant."""
        return await fetch(self.service.port, path, method, **headers)

    async def first(self, path: bytes, body: bytes | None = None) -> tuple[Response, bytes]:
        """Render a variant; return the first HIT, and its Last-Modified.

        :param body: the body of an earlier recording, which is another one.
        """
        miss = await self.get(path)
        self.assertEqual((200, b"MISS"), (miss.status, miss["x-audio-proxy"]))
        self.assertIsNone(miss["last-modified"])
        self.assertNotEqual(body, miss.body)
        hit = await until_hit(self.service.port, path)
        self.assertEqual((miss.body, miss["etag"]), (hit.body, hit["etag"]))
        date = hit["last-modified"]
        assert date is not None
        return hit, date

    def is_over(self, key: str) -> bool:
        """Return whether requests can no longer join the render of a key."""
        subscription = self.service.engine.renders.find(key)
        if subscription is not None:
            subscription.leave()
        return subscription is None

    async def check(
        self, path: bytes, record: Callable[[str], VariantRecord], replace: Callable[[str], None]
    ) -> None:
        """Assert what a client gets that resumes a download, before and after a replacement.

        :param record: returns the record of a key.
        :param replace: replaces the source, and removes the variant of a key.
        """
        old, date = await self.first(path)
        key, tag = key_of(old), old["etag"] or b""
        found = record(key)
        self.assertEqual(formatdate(found.stored, usegmt=True).encode(), date)
        self.assertEqual(self.service.engine.programs.build_name, found.build)
        self.assertRegex(found.build, r"\A[0-9n][!-~]*:[0-9a-f]{8}\Z")
        head = await self.get(path, b"HEAD")
        self.assertEqual((200, date), (head.status, head["last-modified"]))
        for condition in (date, tag):
            part = await self.get(path, range=RANGE, if_range=condition)
            self.assertEqual((206, old.body[100:200]), (part.status, part.body))
            self.assertEqual(date, part["last-modified"])
        same = await self.get(path, if_modified_since=date)
        self.assertEqual((200, old.body), (same.status, same.body))
        not_modified = await self.get(path, if_none_match=tag)
        self.assertEqual((304, None), (not_modified.status, not_modified["last-modified"]))

        replace(key)
        await until(lambda: self.is_over(key), "the end of the render's output")
        # Last-Modified has whole seconds.
        await until(lambda: time.time() >= found.stored + 1, "the next second")
        # Without a stored variant, nobody gets a part: the stream of the render has no ranges.
        new, later = await self.first(path, old.body)
        self.assertEqual(tag, new["etag"])
        self.assertNotEqual(date, later)
        for condition, status in ((date, 200), (later, 206)):
            resumed = await self.get(path, range=RANGE, if_range=condition)
            body = new.body if status == 200 else new.body[100:200]
            self.assertEqual((status, body), (resumed.status, resumed.body))
        # The ETag is the cache key, so a client that has it alone cannot tell: hence ``cb``.
        glued = await self.get(path, range=RANGE, if_range=tag)
        self.assertEqual((206, new.body[100:200]), (glued.status, glued.body))


class FolderTests(ResumeCase):
    """A store in a folder"""

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
        self.service = self.start()
        tones = [self.tone(frequency) for frequency in (300, 400)]
        source = self.root / "a.flac"

        def replace(key: str) -> None:
            source.write_bytes(tones[1])
            (self.store / key[:2] / key).unlink()

        for options in OPTIONS:
            source.write_bytes(tones[0])
            path = signed(f"/{options}/plain/local://a.flac")
            await self.check(path, self.read_record, replace)

    async def test_cache_buster(self) -> None:
        """With another ``cb``, nothing that a client has of the old recording is resumed (D58)."""
        self.service = self.start()
        source = self.root / "a.flac"
        source.write_bytes(self.tone(300))
        old, date = await self.first(signed("/f:mp3/cb:1/plain/local://a.flac"))
        source.write_bytes(self.tone(400))
        await until(lambda: formatdate(usegmt=True).encode() != date, "the next second")
        path = signed("/f:mp3/cb:2/plain/local://a.flac")
        new, _ = await self.first(path, old.body)
        for condition in (date, old["etag"] or b""):
            resumed = await self.get(path, range=RANGE, if_range=condition)
            self.assertEqual((200, new.body), (resumed.status, resumed.body))


class BucketTests(ResumeCase, RemoteCase):
    """A store in a bucket"""

    def read_record(self, key: str) -> VariantRecord:
        """Return the record of a variant."""
        headers = self.server.get(self.variants, key).headers
        found = VariantRecord.read(
            {
                name.removeprefix(METADATA_PREFIX): text
                for name, text in headers.items()
                if name.startswith(METADATA_PREFIX)
            }
        )
        assert found is not None
        return found

    async def test_resume(self) -> None:
        """A date resumes the recording that it came from alone; an ETag any of its name (D58)."""
        self.service = await self.boot()
        tones = [self.tone(frequency) for frequency in (300, 400)]

        def replace(key: str) -> None:
            self.put("a.flac", tones[1])
            self.server.remove(self.variants, key)

        for options in OPTIONS:
            self.put("a.flac", tones[0])
            await self.check(self.url("a.flac", options), self.read_record, replace)

    async def test_redirect(self) -> None:
        """A redirect has no Last-Modified: the bucket states its own validators (D58)."""
        self.service = await self.boot(serve_mode="redirect", presign_ttl=60)
        self.put("a.flac", self.tone(300))
        path = self.url("a.flac")
        await self.get(path)
        await self.until_stored()
        hit = await until(lambda: self.redirected(path), "the redirect")
        head = await self.get(path, b"HEAD", range=RANGE)
        for response in (hit, head):
            self.assertEqual((302, None), (response.status, response["last-modified"]))
        bucket = self.server.fetch((hit["location"] or b"").decode())
        self.assertNotIn(bucket.headers["etag"], (None, hit["etag"]))

    async def redirected(self, path: bytes) -> Response | None:
        """Return the redirect to a variant, or None while it is not stored."""
        response = await self.get(path)
        return response if response.status == 302 else None
