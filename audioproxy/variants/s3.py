"""Variants as objects of a bucket, under their cache keys."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NoReturn

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from audioproxy.errors import NotFound, UpstreamUnavailable
from audioproxy.http_client.errors import Unreachable
from audioproxy.log_context import Logger
from audioproxy.s3.error_hints import required
from audioproxy.s3.multipart_upload import put_parts
from audioproxy.s3.objects import (
    Denied,
    Missing,
    ObjectStore,
    Payload,
    StoreError,
    StoreObject,
    Unavailable,
    WrongEndpoint,
    strong_tag,
)
from audioproxy.s3.signing import LONGEST
from audioproxy.scratch import Scratch, ScratchSpace
from audioproxy.streams import ByteStream
from audioproxy.threads import InThread
from audioproxy.variants.hashing_scratch import HashingScratch
from audioproxy.variants.headers import VariantHeaders
from audioproxy.variants.interfaces import Unwritable

#: The most bytes that one request writes, and so the size of a part. S3 takes 5 GiB, and others a
#: little less.
PART = 4 * 1024**3

# Uploads at a time: each has its scratch file, and a bucket may be slower than the encoders.
_MOST = 32

# Seconds after which a write-back that found the store unreachable or busy is tried once more.
_AGAIN = 1.0

_log = Logger()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A variant in the bucket, in the state that its entity tag names."""

    size: int
    headers: VariantHeaders
    tag: str | None
    target: StoreObject

    async def open_range(self, start: int, stop: int) -> ByteStream:
        """Return bytes of the variant, which come from the store as they are sent on.

        :raises UpstreamUnavailable, NotConfigured: where the store does not give them.
        """
        try:
            answer = await self.target.get(start, stop, self.tag)
        except StoreError as error:
            # It was there a moment ago. A client that asks again will get it, or a render.
            _log.warn("a stored variant is not given: {error}", error=error)
            raise (Unavailable if error.refusal is NotFound else error).refusal() from error
        return _Stretch(answer.flow(stop - start))

    def presign(self, seconds: int) -> str:
        """Return a URL that gives it to anyone for so long."""
        return self.target.presign(min(seconds, LONGEST))

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A flow of which the store is to blame for the failures."""

    flow: ByteStream

    def send(self, consumer: IConsumer) -> Deferred[None]:
        # The failure arrives from outside of the request's context (D54).
        context = copy_context()
        sending = self.flow.send(consumer)
        return sending.addErrback(lambda failure: context.run(self._blame, failure))

    def drop(self) -> None:
        self.flow.drop()

    def _blame(self, failure: Failure) -> Failure:
        if failure.check(Unreachable):
            _log.warn("a stored variant broke off: {error}", error=failure.value)
            raise UpstreamUnavailable from failure.value
        return failure


class S3VariantStore:
    """A variant store in a bucket, which several nodes may share.

    An object appears whole or not at all: the store checks it against a digest that was computed
    while the variant was rendered.

    :ivar object_store: the store of the bucket.
    :param space: where renders put their output until it is uploaded.
    :param part: bytes; what is larger is uploaded in parts of so many.
    """

    def __init__(
        self,
        store: ObjectStore,
        bucket: str,
        space: ScratchSpace,
        clock: IReactorTime,
        in_thread: InThread,
        part: int = PART,
    ) -> None:
        """Use a bucket.

        :raises Missing: for one that no host name can hold, with virtual addressing.
        """
        self.object_store = store
        self._bucket = bucket
        self._space = space
        self._clock = clock
        self._in_thread = in_thread
        self._part = part
        self._uploads = 0
        self._at("")

    @property
    def place(self) -> str:
        """The bucket and the origin of its store."""
        return f"s3://{self._bucket} at {self.object_store.name}"

    async def open(self) -> None:
        """Prove the bucket writable, by writing, finding and removing an object.

        :raises Unwritable: where it is not.
        """
        await self.prove()

    async def prove(
        self,
        content: bytes = b"",
        inspect: Callable[[StoreObject], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        """Write an object, find it, and remove it.

        :param content: bytes of the object.
        :param inspect: called with the object while it exists.
        :raises Unwritable: where one of the steps fails.
        """
        proof = self._at(f".audioproxy-proof-{uuid.uuid4().hex}")
        digest = hashlib.sha256(content).hexdigest()
        try:
            await proof.put({}, Payload(_Content(content), 0, len(content), digest))
        except StoreError as error:
            self._give_up("writing an object", error)
        try:
            # Without the right to read, every request would render.
            await proof.head()
            if inspect is not None:
                await inspect(proof)
        except StoreError as error:
            with suppress(StoreError):
                await proof.delete()
            self._give_up("finding the object that was written", error)
        try:
            await proof.delete()
        except StoreError as error:
            self._give_up("removing the object that was written", error)

    async def close(self, seconds: float) -> None:
        """Do nothing: what is not uploaded is not in the bucket."""

    def abandon(self) -> None:
        """Do nothing, as `close`."""

    async def create(self, seconds: float) -> HashingScratch:
        """Return a new scratch file.

        :raises OSError: where there is no room or no right to.
        """
        scratch = await self._space.create(seconds)
        try:
            return HashingScratch(scratch, self._in_thread, self._part)
        except OSError:
            scratch.close()
            raise

    async def lookup(self, key: str) -> StoredObject | None:
        """Return the variant stored under ``key``; None also where the store refuses to say.

        :raises UpstreamUnavailable, NotConfigured: where the store cannot tell.
        """
        target = self._at(key)
        try:
            answer = await target.head()
        except StoreError as error:
            if error.refusal is NotFound:
                # A store may refuse to say that an object is missing. One that refuses everything
                # will refuse the write-back too, which is told and counted.
                return None
            _log.warn("the variant store cannot be asked: {error}", error=error)
            raise error.refusal() from error
        headers = VariantHeaders(
            answer.header("content-type") or "application/octet-stream",
            answer.header("cache-control") or "no-store",
            answer.header("content-disposition"),
        )
        if not answer.length or not f"{headers}".isascii():
            # It is none of ours.
            return None
        return StoredObject(answer.length, headers, strong_tag(answer), target)

    async def commit(self, key: str, scratch: Scratch, size: int, headers: VariantHeaders) -> None:
        """Upload what a render wrote.

        :raises StoreError: where the store refuses.
        :raises OSError: where the scratch file cannot be read, or too many uploads are under way.
        """
        if not isinstance(scratch, HashingScratch):
            raise TypeError("only a file that this store created can be committed to it")
        if self._uploads >= _MOST:
            raise OSError(f"{_MOST} uploads have not ended")
        self._uploads += 1
        try:
            await self._commit(key, scratch, size, headers)
        finally:
            self._uploads -= 1

    async def _commit(
        self, key: str, scratch: HashingScratch, size: int, headers: VariantHeaders
    ) -> None:
        digests = await scratch.digests(size)
        starts = range(0, size, self._part)
        payloads = [
            Payload(scratch, start, min(start + self._part, size), digest)
            for start, digest in zip(starts, digests, strict=True)
        ]
        target, words = self._at(key), _words(headers)
        with suppress(Unavailable):
            await self._write(target, words, payloads)
            return
        # A connection that the store was just closing, or a moment of too many requests.
        await deferLater(self._clock, _AGAIN)
        await self._write(target, words, payloads)

    async def _write(
        self, target: StoreObject, words: dict[str, str], payloads: list[Payload]
    ) -> None:
        if len(payloads) == 1:
            await target.put(words, payloads[0])
        else:
            await put_parts(target, words, payloads)

    def _at(self, key: str) -> StoreObject:
        return self.object_store.at(self._bucket, key.encode("ascii"))

    def _give_up(self, step: str, error: StoreError) -> NoReturn:
        wanted = {
            Missing: "the name of a bucket that exists is required",
            Denied: "credentials that may write, read and delete objects there are required",
            WrongEndpoint: "the endpoint, the region and the addressing of that bucket are"
            " required",
            Unavailable: "a store that can be reached is required",
        }[type(error)]
        wanted = required(self.object_store, error, wanted)
        raise Unwritable(f"{step} in s3://{self._bucket} failed ({error}); {wanted}") from error


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of the object that `S3VariantStore.prove` writes."""

    content: bytes

    def read(self, offset: int, limit: int) -> bytes:
        return self.content[offset : offset + limit]


def _words(headers: VariantHeaders) -> dict[str, str]:
    words = {"content-type": headers.content_type, "cache-control": headers.cache_control}
    if headers.content_disposition is not None:
        words["content-disposition"] = headers.content_disposition
    return words
