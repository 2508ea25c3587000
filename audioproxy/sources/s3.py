"""Sources in an object store: asked about by us, read by ffmpeg through a presigned URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from audioproxy.errors import NotFound, Refusal, UndecodableSource
from audioproxy.grammar.sources import S3Source
from audioproxy.http_client.client import USER_AGENT
from audioproxy.log_context import Logger
from audioproxy.media.inputs import Input, remote_input
from audioproxy.s3.objects import (
    Denied,
    Missing,
    ObjectStore,
    StoreError,
    StoreObject,
    read_answer,
    strong_tag,
)

_log = Logger()


@dataclass(frozen=True, slots=True)
class S3SourceObject:
    """An object that is there, in the state that its entity tag names."""

    size: int | None
    tag: str | None
    target: StoreObject
    ca_file: str | None
    lifetime: float

    @property
    def validator(self) -> bytes:
        """The entity tag."""
        return (self.tag or "").encode("ascii")

    @property
    def descriptors(self) -> Mapping[int, int]:
        """Nothing: a child opens the object itself."""
        return {}

    async def input(self, seconds: float, *, whole: bool) -> Input:
        """Return a presigned URL that lives for so many seconds.

        For a look it lives as long as for a render, which is longer: the store's clock may be
        some seconds ahead of ours.

        :raises UndecodableSource: for an empty object, of which no range can be had.
        """
        if self.size == 0:
            raise UndecodableSource
        return remote_input(
            self.target.presign(max(1, int(seconds if whole else self.lifetime))),
            USER_AGENT,
            self.ca_file,
            if_match=self.tag,
        )

    def fingerprint(self) -> bytes:
        """Return the entity tag, which the store makes of the bytes, and which reads insist on."""
        return self.validator

    async def unchanged(self) -> bool:
        """Tell whether the object still has its entity tag.

        ffmpeg got nothing of another one, but does not say so: it calls the source broken then.
        """
        try:
            return strong_tag(await self.target.head()) == self.tag or self.tag is None
        except Missing:
            return False
        except StoreError:
            # It was read to its end, and now there is nobody to ask.
            return True

    def close(self) -> None:
        """Do nothing: nothing is open."""


class S3Sources:
    """The objects of one store, as sources.

    :ivar object_store: the store.
    :param ca_file: PEM file of what ffmpeg trusts there; None is the system's own.
    :param lifetime: seconds that a render may take.
    """

    def __init__(self, store: ObjectStore, ca_file: str | None, lifetime: float) -> None:
        self.object_store = store
        self._ca_file = ca_file
        self._lifetime = lifetime

    async def open(self, source: S3Source) -> S3SourceObject:
        """Find out whether an object is there.

        :raises NotFound: where it is not, or where the store refuses to say.
        :raises NotConfigured: where the store says that it is the wrong one.
        :raises UpstreamUnavailable: where the store cannot be reached, or is broken.
        """
        try:
            target = self.object_store.at(source.bucket, source.key)
            answer = await target.head()
        except StoreError as error:
            raise _refuse(error, source.bucket) from error
        return S3SourceObject(
            answer.length, strong_tag(answer), target, self._ca_file, self._lifetime
        )

    async def request_bucket_list(self) -> None:
        """Request the list of buckets, and drop it.

        :raises StoreError: where the store refuses, be it the request or the credentials.
        """
        answer = await StoreObject(self.object_store, f"{self.object_store.name}/").send("GET")
        if answer.status == 200:
            await answer.drop()
        else:
            await read_answer(answer)


def _refuse(error: StoreError, bucket: str) -> Refusal:
    """Return what a client is told; the log is told what is not the client's fault."""
    if error.refusal is NotFound:
        if isinstance(error, Denied):
            _log.info("the bucket {bucket} refuses a source: {error}", bucket=bucket, error=error)
        return NotFound(str(error))
    _log.warn("a source in {bucket} cannot be had: {error}", bucket=bucket, error=error)
    return error.refusal()
