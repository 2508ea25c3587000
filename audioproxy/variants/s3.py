"""Variant store in a bucket: one object for each cache key."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedCalls
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled
from audioproxy.errors import NotFound, UpstreamUnavailable
from audioproxy.files.scratch_files import ScratchFile, ScratchSpace, read_chunks
from audioproxy.files.streams import ByteStream
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError
from audioproxy.observe.log_context import Logger
from audioproxy.s3.errors import Changed, InvalidName, StoreError, Unavailable, WrongEndpoint
from audioproxy.s3.multipart_upload import put_multipart
from audioproxy.s3.objects import RETRY_DELAY, ObjectStore, StoreObject, UploadRange
from audioproxy.s3.signing import MAX_PRESIGN_SECONDS
from audioproxy.variants.interfaces import VariantChanged
from audioproxy.variants.proof import prove
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import VariantHeaders

#: The most bytes of one request, and so of one part of a multipart upload. S3 accepts 5 GiB, and
#: other stores accept a little less.
PART_SIZE = 4 * 1024**3

# Uploads at a time: each holds its scratch file, and a bucket may be slower than the encoders.
_MAX_UPLOADS = 32

# The error code for a body that has another digest than the request states.
_DAMAGED = "XAmzContentSHA256Mismatch"

_log = Logger()


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A variant in the bucket, in the version that its entity tag names."""

    size: int
    etag: str | None
    target: StoreObject
    stored: int | None = None

    async def open_range(self, start: int, stop: int) -> ByteStream:
        """Return a byte range of the variant, forwarded from the store as it is sent."""
        try:
            response = await self.target.get(start, stop, self.etag)
            self._check_range(response, stop)
        except Changed as error:
            raise VariantChanged(str(error)) from error
        except StoreError as error:
            if error.refusal is NotFound:
                # The object was found a moment ago. Another lookup finds that it was removed.
                raise VariantChanged(str(error)) from error
            _log.warn("a stored variant cannot be read: {error}", error=error)
            raise error.refusal() from error
        return _RangeStream(response.stream(stop - start))

    def _check_range(self, response: Response, stop: int) -> None:
        """Raise `Changed` for a range of another object, one that ends before ``stop``, or coded.

        A store may ignore If-Match.
        """
        etag, total, found = response.header("etag"), response.total, response.range
        is_same = (etag, total, response.is_encoded) == (self.etag, self.size, False)
        if not is_same or found is None or found.last + 1 != stop:
            response.discard()
            raise Changed(
                f"the object has {total} bytes and the ETag {etag}, and had {self.size} bytes and"
                f" the ETag {self.etag} in its lookup, or its range is too short or has a coding"
            )

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(frozen=True, slots=True)
class _RangeStream:
    """A stream of a variant, whose transport errors become `UpstreamUnavailable`."""

    stream: ByteStream

    def send(self, consumer: IConsumer) -> Deferred[None]:
        # The failure arrives outside the request's log context (D54).
        context = copy_context()
        sending = self.stream.send(consumer)
        return sending.addErrback(lambda failure: context.run(self._translate, failure))

    def discard(self) -> None:
        self.stream.discard()

    def _translate(self, failure: Failure) -> Failure:
        if failure.check(TransportError):
            _log.warn("the transfer of a stored variant failed: {error}", error=failure.value)
            raise UpstreamUnavailable from failure.value
        return failure


class S3VariantStore:
    """A variant store in a bucket, which several nodes may share.

    An object appears whole or not at all: the store checks it against a hash.

    :param space: where renders put their output until it is uploaded.
    :param presign_ttl: seconds for which clients get presigned URLs; None in proxy mode.
    :param part_size: bytes; a larger variant is uploaded in parts of this size.
    """

    def __init__(
        self,
        store: ObjectStore,
        bucket: str,
        space: ScratchSpace,
        clock: IReactorTime,
        run_in_thread: ThreadRunner,
        *,
        presign_ttl: int | None = None,
        part_size: int = PART_SIZE,
    ) -> None:
        """Use a bucket, whose name has to be part of a host name with virtual addressing."""
        self.object_store = store
        self._bucket = bucket
        self._space = space
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._presign_ttl = presign_ttl
        self._names_headers = False
        self._part_size = part_size
        self._uploads = 0
        self._lookups: SharedCalls[str, StoredObject | None] = SharedCalls()
        self._object("")

    @property
    def place(self) -> str:
        """The bucket and the origin of its store."""
        return f"s3://{self._bucket} at {self.object_store.name}"

    async def open(self) -> None:
        """Prove that the bucket does what the service needs, and find out what else it does."""
        self._names_headers = await prove(self.object_store, self._bucket, self._presign_ttl)
        if self._presign_ttl is not None and not self._names_headers:
            _log.info(
                "{place} ignores headers in presigned URLs: redirects have those that it has kept",
                place=self.place,
            )

    async def create(self, seconds: float) -> ScratchFile:
        return await self._space.create(seconds)

    async def lookup(self, key: str) -> StoredObject | None:
        """Return the variant stored under ``key``; None where there is none, or access is denied.

        Requests that arrive during a lookup share it, but not after a commit of ``key``. Nothing
        else is remembered: each lookup finds what the bucket has now.
        """
        return await self._lookups.join(key, lambda: self._look_up(key))

    def presign(self, key: str, seconds: int, headers: VariantHeaders) -> str:
        """Return a URL with which anyone can read the variant of a key for ``seconds``.

        :param headers: of the response, where the store takes them from the URL.
        """
        query = headers.response_parameters() if self._names_headers else ""
        return self._object(key).presign(min(seconds, MAX_PRESIGN_SECONDS), query)

    async def _look_up(self, key: str) -> StoredObject | None:
        target = self._object(key)
        try:
            size, response = await target.find()
        except StoreError as error:
            if error.refusal is NotFound:
                # A store may deny access to an object that is missing. A store that denies
                # everything denies the write-back too, which is logged and counted.
                return None
            _log.warn("a lookup in the variant store failed: {error}", error=error)
            raise error.refusal() from error
        if not size or response.range is None or response.is_encoded:
            # The store sent something else, such as a page about itself.
            return None
        record = VariantRecord.of_object(response)
        stored = None if record is None else record.stored
        return StoredObject(size, response.header("etag"), target, stored)

    async def commit(
        self,
        key: str,
        scratch: ScratchFile,
        size: int,
        headers: VariantHeaders,
        record: VariantRecord,
    ) -> None:
        if self._uploads >= _MAX_UPLOADS:
            raise OSError(f"{_MAX_UPLOADS} uploads are under way, and no more are accepted")
        self._uploads += 1
        try:
            await self._commit(key, scratch, size, headers, record)
        finally:
            # A lookup that began earlier may not have found the object.
            self._lookups.detach(key)
            self._uploads -= 1

    async def _commit(
        self,
        key: str,
        scratch: ScratchFile,
        size: int,
        headers: VariantHeaders,
        record: VariantRecord,
    ) -> None:
        if not size:
            raise ValueError("a lookup would take an empty object for a miss")
        parts, sha256 = await await_uncancelled(
            self._run_in_thread(lambda: _hash_parts(scratch, size, self._part_size))
        )
        target = self._object(key)

        async def put(record: VariantRecord) -> None:
            lines = {**headers.lines(), **record.metadata()}
            if len(parts) == 1:
                await target.put(lines, parts[0])
            else:
                await put_multipart(target, lines, parts)

        async def put_twice(record: VariantRecord) -> None:
            with suppress(Unavailable):
                await put(record)
                return
            # The store may have closed the connection just then, or have had too many requests for
            # a moment.
            await deferLater(self._clock, RETRY_DELAY)
            await put(record)

        record = replace(record, sha256=sha256)
        try:
            await put_twice(record)
        except (InvalidName, WrongEndpoint) as error:
            if error.status < 400:
                raise
            # The body was damaged on its way, or the store takes less metadata.
            await put_twice(record if error.code == _DAMAGED else record.least)

    def _object(self, key: str) -> StoreObject:
        return self.object_store.object(self._bucket, key.encode("ascii"))


@dataclass(frozen=True, slots=True)
class _ScratchReader:
    scratch: ScratchFile

    def read(self, offset: int, limit: int) -> bytes:
        return os.pread(self.scratch.descriptor, limit, offset)


def _hash_parts(scratch: ScratchFile, size: int, part_size: int) -> tuple[list[UploadRange], str]:
    """Return the parts in which ``size`` bytes are uploaded, and the SHA-256 of them all."""
    source = _ScratchReader(scratch)
    parts = []
    whole = hashlib.sha256()
    for start in range(0, size, part_size):
        stop = min(start + part_size, size)
        # The digest of the only part is that of the whole.
        sha256 = hashlib.sha256() if size > part_size else whole
        for chunk in read_chunks(scratch.descriptor, start, stop):
            sha256.update(chunk)
            if sha256 is not whole:
                whole.update(chunk)
        parts.append(UploadRange(source, start, stop, sha256.hexdigest()))
    return parts, whole.hexdigest()
