"""The variants of a bucket, for commands."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredQueue
from twisted.internet.interfaces import IConsumer, IDelayedCall, IPushProducer, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from audioproxy.concurrency.workers import for_each
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError
from audioproxy.s3.errors import Changed, Denied, Missing, StoreError
from audioproxy.s3.listing import ListedObject, list_page
from audioproxy.s3.objects import ObjectStore, StoreObject, UploadRange
from audioproxy.variants.catalog import (
    KEY,
    CatalogError,
    Entry,
    Finding,
    OnFailure,
    Pace,
    Page,
    Verdict,
    compare_digests,
)
from audioproxy.variants.proof import proof_key
from audioproxy.variants.record import VariantRecord

T = TypeVar("T")

# The bucket is listed by these first digits of the keys, several of them at a time.
_PREFIXES = [f"{digit:x}" for digit in range(16)]
# Digits of a key that tell how far a listing has come.
_DIGITS = 8


class BucketCatalog:
    """The variants in a bucket, as `VariantCatalog`; ``most`` requests at a time."""

    def __init__(self, store: ObjectStore, bucket: str, most: int) -> None:
        self._store = store
        self._bucket = bucket
        self._most = most
        self._is_proved = False

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield the variants of one page of a listing at a time.

        If there are none, an object is written, listed and removed: some stores list nothing of
        what they have, such as of a bucket with versions.
        """
        waiting: list[tuple[str, str | None]] = [(prefix, None) for prefix in _PREFIXES]
        running: set[Deferred[Any]] = set()
        # In tuples: a queue cannot keep a bare Failure until somebody waits (Twisted 26.10).
        arrived: DeferredQueue[tuple[Any]] = DeferredQueue()
        covered = dict.fromkeys(_PREFIXES, 0.0)

        def finish(outcome: Any, fetching: Deferred[Any]) -> None:
            running.discard(fetching)
            arrived.put((outcome,))

        try:
            while waiting or running or arrived.pending:
                while waiting and len(running) < self._most:
                    fetching: Deferred[Any] = Deferred.fromCoroutine(self._list(*waiting.pop()))
                    running.add(fetching)
                    fetching.addBoth(finish, fetching)
                (outcome,) = await arrived.get()
                if isinstance(outcome, Failure):
                    outcome.raiseException()
                prefix, objects, token = outcome
                entries = [
                    Entry(each.key, each.size, each.modified)
                    for each in objects
                    # A store that ignores the prefix lists each variant for all of them.
                    if KEY.fullmatch(each.key) and each.key.startswith(prefix)
                ]
                self._is_proved = self._is_proved or bool(entries)
                if token is None:
                    covered[prefix] = 1.0
                else:
                    waiting.append((prefix, token))
                    if entries:
                        covered[prefix] = int(entries[-1].key[1:_DIGITS], 16) / 16 ** (_DIGITS - 1)
                yield Page(entries, sum(covered.values()) / len(_PREFIXES))
        finally:
            for fetching in list(running):
                fetching.cancel()
        if not self._is_proved:
            await self._prove_listing()

    async def find(self, key: str) -> Entry | None:
        try:
            size, response = await self._find(key)
        except _Missing:
            return None
        date = response.date("last-modified")
        stored = 0.0 if date is None else date.timestamp()
        return Entry(key, size, stored, None, response.header("etag"))

    async def read_records(
        self, entries: Sequence[Entry], on_failure: OnFailure
    ) -> list[tuple[Entry, VariantRecord | None]]:
        found: list[tuple[Entry, VariantRecord | None]] = []

        async def read(entry: Entry) -> None:
            try:
                _, response = await self._find(entry.key)
            except _Missing:
                return
            except CatalogError as error:
                on_failure(entry, error)
                return
            found.append(
                (replace(entry, version=response.header("etag")), VariantRecord.of_object(response))
            )

        await for_each(entries, read, self._most)
        return found

    async def check(self, entry: Entry, pace: Pace) -> Finding:
        target = self._object(entry.key)
        try:
            size, response = await self._find(entry.key)
            entry = replace(entry, version=response.header("etag"))
            record = VariantRecord.of_object(response)
            if record is None:
                return Finding(Verdict.UNKNOWN, entry)
            if not size:
                return Finding(Verdict.BROKEN, entry, "it is empty")
            return await _translated(self._check(target, entry, size, record, pace))
        except _Missing:
            return Finding(Verdict.GONE, entry)

    async def remove(
        self,
        entries: Sequence[Entry],
        on_removed: Callable[[Entry], object],
        on_failure: OnFailure,
        *,
        unchanged: bool = False,
    ) -> None:
        async def remove(entry: Entry) -> None:
            target = self._object(entry.key)
            try:
                if unchanged:
                    _, response = await self._find(entry.key)
                    if response.header("etag") != entry.version:
                        return
                await _translated(target.retry_once(target.delete))
            except _Missing:
                return
            except CatalogError as error:
                on_failure(entry, error)
                return
            on_removed(entry)

        await for_each(entries, remove, self._most)

    async def flush(self) -> None:
        """Do nothing: a store removes an object before it responds."""

    async def _list(
        self, prefix: str, token: str | None
    ) -> tuple[str, list[ListedObject], str | None]:
        try:
            found = await list_page(self._store, self._bucket, prefix, token)
        except StoreError as error:
            right = "; the right ListBucket is required" if isinstance(error, Denied) else ""
            raise CatalogError(f"it cannot be listed ({error}){right}") from error
        return prefix, *found

    async def _find(self, key: str) -> tuple[int, Response]:
        size, response = await _translated(self._object(key).find())
        if size is None or (size and response.range is None) or response.is_encoded:
            raise CatalogError("the store did not return the first byte of an object")
        return size, response

    async def _prove_listing(self) -> None:
        """Raise `CatalogError` if a listing lacks an object that was just written."""
        key = proof_key()
        proof = self._object(key)
        try:
            write = partial(proof.put, {}, UploadRange.of(b"proof"))
            await self._attempt("written", proof, lambda: proof.retry_once(write))
            # By a part of the key, as variants are listed.
            _, objects, _ = await self._list(key[:-1], None)
        except BaseException:
            with suppress(StoreError):
                await proof.remove()
            raise
        self._is_proved = key in [each.key for each in objects]
        await self._attempt("removed", proof, proof.remove)
        if not self._is_proved:
            raise CatalogError(
                "its listing is empty, and lacks an object that was just written, so its variants"
                " are unknown; a store with consistent listings (ListObjectsV2) is required, and a"
                " bucket without versions"
            )

    async def _attempt(
        self, what: str, proof: StoreObject, work: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        try:
            await work()
        except StoreError as error:
            rights = "the rights PutObject and DeleteObject are required"
            raise CatalogError(
                "its listing is empty, and whether that is true is tested with the object"
                f" {proof.url.rpartition('/')[2]}, which cannot be {what} ({error})"
                + (f"; {rights}" if isinstance(error, Denied) else "")
            ) from error

    async def _check(
        self, target: StoreObject, entry: Entry, size: int, record: VariantRecord, pace: Pace
    ) -> Finding:
        etag = entry.version
        assert etag is None or isinstance(etag, str)
        response = await target.get(0, size, etag)
        if (response.header("etag"), response.total) != (etag, size):
            # The store ignores If-Match, or it has no strong tag.
            response.abort()
            return Finding(Verdict.GONE, entry)
        digest = _PacedDigest(target.store.client.clock, pace)
        await response.stream(size).send(digest)
        return compare_digests(entry, digest.sha256.hexdigest(), record)

    def _object(self, key: str) -> StoreObject:
        return self._store.object(self._bucket, key.encode("ascii"))


class _Missing(CatalogError):
    """There is no such object, or not in the version that was requested."""


async def _translated(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (Missing, Changed) as error:
        raise _Missing(str(error)) from error
    except (StoreError, TransportError) as error:
        raise CatalogError(str(error)) from error


@implementer(IConsumer)
class _PacedDigest:
    """Consumer that computes a digest of the bytes, and pauses their producer to keep a pace."""

    def __init__(self, clock: IReactorTime, pace: Pace) -> None:
        self.sha256 = hashlib.sha256()
        self._clock = clock
        self._pace = pace
        self._producer: IPushProducer | None = None
        self._resuming: IDelayedCall | None = None

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None
        if self._resuming is not None and self._resuming.active():
            self._resuming.cancel()

    def write(self, data: bytes) -> None:
        self.sha256.update(data)
        seconds = self._pace.spend(len(data))
        if not seconds or self._producer is None:
            return
        self._producer.pauseProducing()
        if self._resuming is not None and self._resuming.active():
            self._resuming.reset(seconds)
        else:
            self._resuming = self._clock.callLater(seconds, self._resume)

    def _resume(self) -> None:
        if self._producer is not None:
            self._producer.resumeProducing()
