"""Sources in an object store."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.defer import Deferred

from audioproxy.errors import NoSuchSource, NotFound, Refusal, RenderFailed, UpstreamUnavailable
from audioproxy.grammar.sources import S3Source
from audioproxy.http_client.client import Response
from audioproxy.observe.log_context import Logger
from audioproxy.s3.errors import (
    Busy,
    Changed,
    Denied,
    InvalidName,
    StoreError,
    Unavailable,
    read_document,
)
from audioproxy.s3.objects import ObjectStore, StoreObject, strong_etag
from audioproxy.sources import fetch
from audioproxy.sources.far_source import LAST_BYTES, START_BYTES, FarReading, FarSource, Found
from audioproxy.sources.fetch import Part

_log = Logger()


@dataclass(frozen=True, slots=True)
class S3Sources:
    object_store: ObjectStore
    reading: FarReading

    async def open(self, source: S3Source, *, reads: bool = True) -> FarSource:
        """Request the start of an object, or its headers alone."""
        try:
            found = await self._request(source, reads)
        except StoreError as error:
            raise _translate(error, self.object_store, source.bucket) from error
        return self.reading.open(found, reads=reads)

    async def _request(self, source: S3Source, reads: bool) -> Found:
        target = self.object_store.object(source.bucket, source.key)
        start = None
        ending: Deferred[Response] | None = None
        if reads and not self.reading.files.knows(source.canonical):
            if not self.object_store.client.is_connected(target.url):
                # Another connection takes no longer than the first one.
                ending = Deferred.fromCoroutine(_request_end(target))
            try:
                size, response = await target.get_start(START_BYTES)
            except BaseException:
                fetch.abandon(ending, Response.abort)
                raise
            start = Part.of(response)
        else:
            size, response = await target.find()
        is_whole = response.range is None
        if reads and size is None and not is_whole:
            fetch.abandon(ending, Response.abort)
            if start is not None:
                start.discard()
            raise Unavailable("the store does not state the size of an object")
        etag = strong_etag(response)
        if etag is None and not is_whole:
            # Nothing tells whether later ranges are of the same version.
            is_whole = True
            if start is not None and response.length != size:
                start.discard()
                start = None
        unreadable = ""
        if size == 0:
            unreadable = "The source is empty."
        elif response.is_encoded:
            unreadable = "The object has a Content-Encoding, such as gzip."
        version = _ObjectVersion(self, source, target, size, etag, is_whole, start is not None)
        end = None if ending is None else ending.addCallback(version.accept_end)
        validator = (etag or "").encode()
        return Found(source.canonical, validator, size, version, start, end, unreadable)

    async def request_bucket_list(self) -> None:
        response = await StoreObject(self.object_store, f"{self.object_store.name}/").send("GET")
        if response.status == 200:
            response.discard()
        else:
            await read_document(response)


@dataclass(slots=True)
class _ObjectVersion:
    sources: S3Sources
    source: S3Source
    target: StoreObject
    size: int | None
    etag: str | None
    is_whole: bool
    is_requested: bool

    @property
    def name(self) -> str:
        return self.source.bucket

    def accept_end(self, response: Response) -> Part:
        """Return the response to a request for the last bytes, if it has them."""
        found, size = response.range, self.size or 0
        if not self._is_in(response) or found is None or found.first != size - LAST_BYTES:
            response.abort()
            raise fetch.Busy("the store has not returned the last bytes")
        return Part.of(response)

    async def get(self, first: int, stop: int | None) -> Part:
        if self.is_whole and self.etag is None:
            # Nothing tells whether another response is of the same version.
            if self.is_requested:
                raise UpstreamUnavailable("The store did not return the whole source.")
            self.is_requested = True
        try:
            if self.is_whole or stop is None:
                response = await self.target.get_all()
            else:
                response = await self.target.get_once(first, stop, self.etag)
            if not self._is_in(response):
                response.abort()
                raise Changed("the store has another version")
        except Changed as error:
            raise RenderFailed(fetch.CHANGED) from error
        except Busy as error:
            raise fetch.Busy(str(error), error.retry_after) from error
        except StoreError as error:
            raise _translate(error, self.sources.object_store, self.source.bucket) from error
        return Part.of(response)

    def _is_in(self, response: Response) -> bool:
        """Return whether a response has bytes of this version; a store may ignore If-Match."""
        return (
            self.is_whole == (response.range is None)
            and not response.is_encoded
            and self.etag in (None, strong_etag(response))
            and (self.size is None or response.total in (None, self.size))
        )


async def _request_end(target: StoreObject) -> Response:
    try:
        return await target.get_end(LAST_BYTES)
    except StoreError as error:
        raise fetch.Busy(str(error)) from error


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
        elif isinstance(error, Denied | InvalidName):
            text = str(error)
            if error.may_reject_credentials:
                text += "; the secret key or the session token may be wrong, too"
            _log.info("the bucket {bucket} refuses a source: {error}", bucket=bucket, error=text)
        # Without this code, the bucket itself may be missing.
        return (NoSuchSource if error.code == "NoSuchKey" else NotFound)(str(error))
    _log.warn("a source in {bucket} cannot be read: {error}", bucket=bucket, error=error)
    return error.refusal()
