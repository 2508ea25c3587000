"""Sources in an object store, which ffmpeg reads through a presigned URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import (
    NoSuchSource,
    NotFound,
    Refusal,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import S3Source
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import USER_AGENT
from audioproxy.http_client.errors import TransportError
from audioproxy.media.command.inputs import Input, remote_input
from audioproxy.observe.log_context import Logger
from audioproxy.s3.objects import (
    Denied,
    Missing,
    ObjectStore,
    StoreError,
    StoreObject,
    read_document,
    strong_etag,
)
from audioproxy.sources.interfaces import Look

T = TypeVar("T")

_log = Logger()


@dataclass(frozen=True, slots=True)
class OpenS3Source:
    """An object that exists, in the version that its entity tag names.

    :ivar is_encoded: it was stored with a content coding, which ffmpeg does not undo.
    """

    source: S3Source
    size: int | None
    etag: str | None
    target: StoreObject
    ca_file: str | None
    lifetime: float
    is_encoded: bool = False
    # ffmpeg opens the URL.
    descriptors: ClassVar[Mapping[int, int]] = {}

    @property
    def validator(self) -> bytes:
        """The entity tag."""
        return (self.etag or "").encode("ascii")

    @property
    def identity(self) -> bytes:
        """The source and its entity tag."""
        return self.source.canonical + b"\n" + self.validator

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        """Return what a child sees of a presigned URL.

        It is valid for as long as a render may take: the store's clock may be some seconds ahead of
        this machine's.

        :raises UndecodableSource: as `input` does.
        """
        return await look(self._presigned_input(self.lifetime))

    async def input(self, deadline: Deadline) -> Input:
        """Return the input for a presigned URL that is valid until the deadline.

        :raises UndecodableSource: for an object that is empty, and so has no range, or encoded.
        """
        return self._presigned_input(deadline.remaining)

    def _presigned_input(self, seconds: float) -> Input:
        if self.size == 0:
            raise UndecodableSource
        if self.is_encoded:
            raise UndecodableSource("The object has a Content-Encoding, such as gzip.")
        return remote_input(
            self.target.presign(max(1, int(seconds))),
            USER_AGENT,
            self.ca_file,
            if_match=self.etag,
        )

    async def read(self, offset: int, count: int) -> bytes:
        """Request bytes of the object."""
        try:
            response = await self.target.get(offset, offset + count, self.etag)
            return await response.read(count, extend_timeout=True)
        except StoreError as error:
            raise _translate(error, self.target.store, self.source.bucket) from error
        except (BodyTooLarge, TransportError) as error:
            bucket = self.source.bucket
            _log.warn("a source in {bucket} cannot be read: {error}", bucket=bucket, error=error)
            raise UpstreamUnavailable from error

    def has_certain_identity(self) -> bool:
        """Return whether there is an entity tag, on which the bytes and all reads depend."""
        return self.etag is not None

    async def unchanged(self) -> bool:
        """Return whether the object still has its entity tag.

        ffmpeg reads nothing of another version, but reports the source as broken.
        """
        try:
            _, response = await self.target.find()
            return strong_etag(response) == self.etag or self.etag is None
        except Missing:
            return False
        except StoreError:
            # ffmpeg has already read the object to its end, so a failure of the store does no harm
            # now.
            return True

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(frozen=True, slots=True)
class S3Sources:
    """Opens objects of one store.

    :ivar ca_file: PEM file of the certificates that ffmpeg trusts; None is the system's own.
    :ivar lifetime: seconds that a render may take.
    """

    object_store: ObjectStore
    ca_file: str | None
    lifetime: float

    async def open(self, source: S3Source) -> OpenS3Source:
        """Request an object's headers.

        :raises NotFound: where it does not exist, or access is denied.
        :raises NotConfigured: where the endpoint, the region or the addressing is wrong.
        :raises UpstreamUnavailable: where the store cannot be reached, or is broken.
        """
        try:
            target = self.object_store.object(source.bucket, source.key)
            size, response = await target.find()
        except StoreError as error:
            raise _translate(error, self.object_store, source.bucket) from error
        return OpenS3Source(
            source,
            size,
            strong_etag(response),
            target,
            self.ca_file,
            self.lifetime,
            response.is_encoded,
        )

    async def request_bucket_list(self) -> None:
        """Request the list of buckets, and discard it.

        :raises StoreError: where the store refuses the request or the credentials.
        """
        response = await StoreObject(self.object_store, f"{self.object_store.name}/").send("GET")
        if response.status == 200:
            response.discard()
        else:
            await read_document(response)


def _translate(error: StoreError, store: ObjectStore, bucket: str) -> Refusal:
    """Return the error for the client, and log one that is not the client's fault."""
    if error.refusal is NotFound:
        if isinstance(error, Denied) and error.rejects_credentials:
            _log.warn(
                "the store rejects the credentials for a source in {bucket}: {error}; {hint}",
                bucket=bucket,
                error=error,
                hint=store.hint_for(error, "valid credentials are required"),
            )
        elif isinstance(error, Denied):
            _log.info("the bucket {bucket} refuses a source: {error}", bucket=bucket, error=error)
        # Without this code, the bucket itself may be missing.
        return (NoSuchSource if error.code == "NoSuchKey" else NotFound)(str(error))
    _log.warn("a source in {bucket} cannot be read: {error}", bucket=bucket, error=error)
    return error.refusal()
