"""Proof at boot that a bucket does with an object what the service needs of it.

One object is written, read in each way in which variants are read, and removed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError

from audioproxy.concurrency.workers import all_results
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError
from audioproxy.s3.errors import (
    Busy,
    Changed,
    Denied,
    InvalidName,
    Missing,
    NotAStore,
    StoreError,
    Unavailable,
    Unreachable,
    WrongEndpoint,
    read_error,
)
from audioproxy.s3.objects import ObjectStore, StoreObject, UploadRange, strong_etag
from audioproxy.variants.interfaces import Unwritable
from audioproxy.variants.record import VariantRecord
from audioproxy.variants.response_headers import CACHE_CONTROL, VariantHeaders

#: The names of all objects of all proofs begin with this.
PROOF_PREFIX = ".audioproxy-proof-"

# Seconds after which nothing more is tried to find out what a store refuses.
_TIME_TO_TRY = 5.0

_CONTENT_SIZE = 1024
_INSIDE = 300, 700
#: What the object is written with.
HEADERS = VariantHeaders(
    "audio/ogg",
    CACHE_CONTROL,
    "attachment; filename=\"a b.opus\"; filename*=UTF-8''a%20b%C3%A9.opus",
)
# What the response to a presigned URL is asked to have in their place.
_OTHER_HEADERS = VariantHeaders("audio/flac", "public, max-age=60", "attachment; filename=b")
_OTHER_ETAG = f'"{"0" * 32}"'

_UPLOADS = "a store that accepts uploads is required"
# What each error of a first request needs. The first class that matches counts.
_WANTED = {
    InvalidName: "a bucket name that the store takes, and credentials of its kind, are required",
    Missing: "the name of a bucket that exists is required",
    Denied: "credentials that may write, read and delete objects there are required",
    WrongEndpoint: "the endpoint, the region and the addressing of that bucket are required",
    Changed: "a store that accepts unconditional writes is required",
    NotAStore: "the endpoint of an S3 store is required",
    Unreachable: "a store that can be reached is required",
    Busy: "a store that is ready is required",
    Unavailable: _UPLOADS,
}
_KEPT = "a store that keeps Cache-Control and Content-Disposition is required"
_RANGES = (
    "a store that serves ranges with status 206, Content-Range (RFC 9110, 14) and ETag is required"
)
_CONSISTENCY = "a store that finds an object as soon as it is written is required"
_REMOVAL = "a store that removes objects is required"
_METADATA = "a store that keeps 1.6 KB of metadata, in values of up to 256 bytes, is required"
_VERSIONS = (
    "a store that states the ETag of an object in each response, or refuses If-Match for another"
    " one (412), is required"
)
_PRESIGNED = (
    "a store and an AP_PRESIGN_TTL with which presigned URLs send ranges (206), with Content-Type,"
    " Cache-Control and Content-Disposition as written, are required, or AP_SERVE_MODE=proxy"
)


def wanted_for(error: StoreError) -> str:
    if error.code == "SignatureDoesNotMatch":
        return "the secret key that belongs to the access key is required"
    wanted = next(text for kind, text in _WANTED.items() if isinstance(error, kind))
    if error.may_reject_credentials:
        return f"{wanted}, or the right secret key and session token"
    return wanted


#: A large record: its source takes several values, which are as long as any.
LARGE_RECORD = VariantRecord("f:opus", "0" * 64, 0, b"s3://" + b"k" * 1195, b'"0"', "0" * 64)


def proof_key() -> str:
    return f"{PROOF_PREFIX}{uuid.uuid4().hex}"


async def prove(store: ObjectStore, bucket: str, presign_ttl: int | None) -> bool:
    """Write an object, read it in each way, and remove it.

    :param presign_ttl: seconds for which clients get presigned URLs; None in proxy mode.
    :returns: whether presigned URLs can name the headers of their responses.
    :raises Unwritable: for the first step that the store does not do as it should.
    """
    target = store.object(bucket, proof_key().encode("ascii"))
    proof = _Proof(target, bucket, os.urandom(_CONTENT_SIZE))
    is_written = False
    try:
        await proof.write()
        is_written = True
        obeys = await proof.read(presign_ttl)
    except BaseException as error:
        # A stop of the service does not wait for a store that has not responded yet.
        if is_written or not isinstance(error, CancelledError):
            with suppress(StoreError):
                await target.remove()
        raise
    with proof.step("removing the object that was written", _REMOVAL):
        await target.remove()
    return obeys


class _Unfit(StoreError):
    """The store answered, but not as the service needs it."""


def _is_overloaded(error: BaseException | None) -> bool:
    return isinstance(error, Unreachable) or (isinstance(error, Busy) and error.status != 500)


@dataclass
class _Proof:
    """The object of one proof; ``obeys``: presigned URLs can name headers of their responses."""

    target: StoreObject
    bucket: str
    content: bytes
    obeys: bool = False

    @contextmanager
    def step(self, step: str, wanted: str | None = None) -> Iterator[None]:
        """Do a step that needs ``wanted`` (None for the first one: all), or raise `Unwritable`."""
        try:
            yield
        except StoreError as error:
            if type(error) is Missing and wanted == _RANGES:
                wanted = _CONSISTENCY
            # These are about any request.
            if wanted is None or isinstance(error, Busy | Denied | NotAStore):
                wanted = wanted_for(error)
            wanted = self.target.store.hint_for(error, wanted)
            raise Unwritable(f"{step} in s3://{self.bucket} failed ({error})", wanted) from error

    async def write(self) -> None:
        """Write the object. If the store refuses it, find out what it refuses of it."""
        body, kept = UploadRange.of(self.content), HEADERS.lines()
        headers = {**kept, **LARGE_RECORD.metadata()}
        clock = self.target.store.client.clock
        start = clock.seconds()

        async def write(what: str, wanted: str | None = None) -> None:
            with self.step(f"writing {what}", wanted):
                await self.target.retry_once(partial(self.target.put, headers, body))

        if (failure := await _failure_of(write("an object"))) is None:
            return
        cause = failure.__cause__
        assert isinstance(cause, StoreError)
        is_clear = isinstance(cause, Denied | Unreachable) or cause.code == "NoSuchBucket"
        for what, wanted, lines, part in (
            ("metadata", _METADATA, kept, body),
            ("headers", _KEPT, {}, body),
            ("a body", _UPLOADS, {}, UploadRange.of(b"")),
        ):
            if is_clear or clock.seconds() - start > _TIME_TO_TRY:
                break
            try:
                await self.target.put(lines, part)
            except StoreError:
                continue
            # A store that was busy takes all of it now.
            again = await _failure_of(write(f"an object with {what}", wanted))
            if again is None:
                return
            if not _is_overloaded(again.__cause__):
                raise Unwritable(again.fault, wanted) from again.__cause__
        raise failure

    async def read(self, presign_ttl: int | None) -> bool:
        """Read the object in each way, side by side; see `prove`."""
        steps = [self._read_as_hit(), self._read_other()]
        if presign_ttl is not None:
            steps.append(self._read_presigned(presign_ttl))
        for failure in await all_results(map(_failure_of, steps)):
            if failure is not None:
                raise failure
        return self.obeys

    async def _read_as_hit(self) -> None:
        """Look the object up, and read a part of the version that was found."""
        with self.step("finding the object that was written", _RANGES):
            size, found = await self.target.find()
            if found.range is None:
                raise _Unfit(f"a range was answered with status {found.status} and no range")
            _require_no_coding(found)
            _require("the size", size, _CONTENT_SIZE)
        with self.step("reading the metadata of the object", _METADATA):
            if VariantRecord.of_object(found) != LARGE_RECORD:
                raise _Unfit("the object does not have the metadata that was written")
        etag = found.header("etag")

        async def read_part() -> None:
            response = await self.target.get_once(*_INSIDE, strong_etag(found))
            await self._require_bytes(response, *_INSIDE)
            if etag is None:
                raise _Unfit("the object has no ETag")
            _require("the ETag of a part", response.header("etag"), etag)

        with self.step("reading a part of the object", _RANGES):
            await self.target.retry_once(read_part)

    async def _read_other(self) -> None:
        with self.step("reading another version of the object", _VERSIONS), suppress(Changed):
            response = await self.target.get(*_INSIDE, _OTHER_ETAG)
            # Some stores ignore If-Match. The service compares the ETag of each response, too.
            etag = response.header("etag")
            response.discard()
            if etag in (None, _OTHER_ETAG):
                raise _Unfit(f"this version was sent, with the ETag {etag}")

    async def _read_presigned(self, seconds: int) -> None:
        with self.step("reading the object by its presigned URL", _PRESIGNED):
            try:
                headers = await self._fetch(seconds, _OTHER_HEADERS.response_parameters())
                self.obeys = headers == _OTHER_HEADERS
                if headers in (HEADERS, _OTHER_HEADERS):
                    return
            except StoreError as error:
                if _is_overloaded(error):
                    raise
            try:
                headers = await self._fetch(seconds)
            except Denied as error:
                raise _Unfit(str(error)) from error
            for name, found, written in zip(HEADERS.lines(), headers, HEADERS, strict=True):
                _require(name, found, written)

    async def _fetch(self, seconds: int, query: str = "") -> VariantHeaders:
        """Read a part of the object by a presigned URL; return its headers."""
        url = self.target.presign(seconds, query)
        return await self.target.retry_once(lambda: self._fetch_once(url))

    async def _fetch_once(self, url: str) -> VariantHeaders:
        start, stop = _INSIDE
        asked = {"range": f"bytes={start}-{stop - 1}"}
        response = await self.target.store.request("GET", url, asked)
        if response.status == 200:
            response.discard()
            # A client would take it for the whole variant, whatever its Content-Range.
            raise _Unfit("a range was answered with status 200 in place of 206")
        if response.status != 206:
            raise await read_error(response)
        await self._require_bytes(response, start, stop)
        return VariantHeaders(
            response.header("content-type") or "",
            response.header("cache-control") or "",
            response.header("content-disposition"),
        )

    async def _require_bytes(self, response: Response, start: int, stop: int) -> None:
        try:
            body = await response.read(_CONTENT_SIZE)
        except BodyTooLarge as error:
            raise _Unfit("more bytes were sent") from error
        except TransportError as error:
            raise Unreachable(f"the response is incomplete: {error}") from error
        _require_no_coding(response)
        if body != self.content[start:stop]:
            raise _Unfit("other bytes were sent")


async def _failure_of(step: Coroutine[Any, Any, None]) -> Unwritable | None:
    try:
        await step
    except Unwritable as failure:
        return failure
    return None


def _require(name: str, found: object, written: object) -> None:
    if found != written:
        raise _Unfit(f"{name} is {found!r:.100}, not {written!r}")


def _require_no_coding(response: Response) -> None:
    if response.is_encoded:
        raise _Unfit(f"the Content-Encoding is {response.header('content-encoding')}")
