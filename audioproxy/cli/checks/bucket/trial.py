"""The objects of one run of checks in a bucket, and what the checks share.

Whatever a run writes has a name that begins with `PREFIX`. The run removes it at its end, also
after a failure or Ctrl-C. What a killed run leaves is removed by a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from twisted.internet.task import deferLater

from audioproxy.config import Config, S3Config
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError
from audioproxy.s3.errors import (
    Busy,
    Missing,
    StoreError,
    Unavailable,
    Unreachable,
    read_document,
    read_error,
)
from audioproxy.s3.listing import list_uploads
from audioproxy.s3.multipart_upload import create_upload, put_multipart
from audioproxy.s3.objects import RETRY_DELAY, ObjectStore, StoreObject, UploadRange

T = TypeVar("T")

#: The names of all objects of all runs begin with this.
PREFIX = ".audioproxy-doctor-"

#: Statuses of a request that is refused, which is no failure of the store.
REFUSALS = range(400, 500)

#: Statuses of a range: it may be 200 if its Content-Range is what was asked (D41).
RANGE = (200, 203, 206)

#: Bytes of the object that most checks read. Of a source, these are its first bytes.
SAMPLE_SIZE = 64 * 1024


class Failed(Exception):
    """What the store did instead of what a check requires."""


class Noted(Exception):
    """A check found nothing that is wrong, but something to know, or could not run."""


def always(config: Config) -> bool:
    return True


def never(config: Config) -> bool:
    return False


def in_redirect_mode(config: Config) -> bool:
    return config.serve_mode == "redirect"


def with_sources(config: Config) -> bool:
    return config.source_s3.configured


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a bucket. Its texts are parts of a sentence.

    :ivar checks: what it checks, as it is when nothing is wrong.
    :ivar breaks: what happens in the service otherwise.
    :ivar remedy: what to do then.
    :ivar run: returns a text to print in place of ``checks``, or None. It raises `Failed` or
        `StoreError` for a failure, and `Noted`.
    :ivar is_needed: whether a failure is bad with these settings. Otherwise it is a note.
    """

    name: str
    checks: str
    breaks: str
    remedy: str
    run: Callable[[Trial], Coroutine[Any, Any, str | None]]
    is_needed: Callable[[Config], bool] = always


@dataclass(frozen=True, slots=True)
class Sample:
    """The object that most checks read.

    :ivar content: its first bytes; of an object that the checks wrote, all of them.
    :ivar etag: its entity tag, as the store sent it.
    """

    target: StoreObject
    content: bytes
    size: int
    etag: str | None


@dataclass(slots=True)
class Trial:
    """One run of checks in one bucket.

    :ivar settings: of the store.
    :ivar found: the sample, as soon as there is one.
    :ivar server: the name that the store gives to itself.
    :ivar is_lost: the store cannot be reached.
    :ivar removals: what removes each thing that this run has written.
    """

    objects: ObjectStore
    settings: S3Config
    bucket: str
    config: Config
    found: Sample | None = None
    server: str | None = None
    is_lost: bool = False
    _prefix: str = field(default_factory=lambda: f"{PREFIX}{uuid4().hex}-")
    removals: dict[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)

    @property
    def sample(self) -> Sample:
        assert self.found is not None
        return self.found

    def key(self, name: str) -> str:
        """Return the key of an object of this run; without a name, how all of them begin."""
        return self._prefix + name

    def object(self, name: str) -> StoreObject:
        """Return an object of this run, which `clean` removes."""
        key = self.key(name)
        target = self.objects.object(self.bucket, key.encode())
        self.removals[key] = target.delete
        return target

    async def write(
        self, name: str, content: bytes, headers: Mapping[str, str] | None = None
    ) -> StoreObject:
        target = self.object(name)
        await target.put(headers or {}, UploadRange.of(content))
        return target

    async def start_upload(self, name: str) -> tuple[StoreObject, str]:
        """Start a multipart upload, which `clean` aborts; return its object and its query."""
        target, key = self.object(name), self.key(name)
        self.removals[f"uploads of {key}"] = partial(self._abort_uploads, key)
        upload = await create_upload(target, {})
        # With the id, the right to list uploads is not needed.
        self.removals[f"uploads of {key}"] = partial(abort_upload, target, upload)
        return target, upload

    async def write_parts(
        self, name: str, parts: Sequence[bytes], headers: Mapping[str, str]
    ) -> StoreObject:
        target, key = self.object(name), self.key(name)
        self.removals[f"uploads of {key}"] = partial(self._abort_uploads, key)
        await put_multipart(target, headers, [UploadRange.of(part) for part in parts])
        del self.removals[f"uploads of {key}"]
        return target

    async def fetch(
        self, url: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send a request without credentials, as a client does."""
        return await self.objects.request(method, url, headers or {})

    async def clean(self) -> None:
        """Remove everything that this run wrote. What fails here is removed by a later run."""
        for name, remove in list(self.removals.items()):
            try:
                await self.run_twice(remove)
            except Unreachable:
                return
            except Missing:
                # An upload that was aborted is missing.
                pass
            except StoreError:
                continue
            del self.removals[name]

    async def _abort_uploads(self, key: str) -> None:
        for upload in await list_uploads(self.objects, self.bucket, key):
            await abort_upload(self.objects.object(self.bucket, key.encode()), upload.query)

    async def run_twice(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of work, which is done once more if the store is busy."""
        try:
            return await work()
        except Busy:
            await deferLater(self.objects.client.clock, RETRY_DELAY)
            return await work()


async def abort_upload(target: StoreObject, query: str) -> None:
    await read_document(await target.send("DELETE", query))


async def read(response: Response, limit: int) -> bytes:
    """Return the body of a response.

    :raises Failed: if it is longer than the limit.
    :raises Unavailable: if it is incomplete.
    """
    try:
        return await response.read(limit, extend_timeout=True)
    except BodyTooLarge as error:
        raise Failed(f"more than the {limit} bytes that were requested were sent") from error
    except TransportError as error:
        raise Unavailable(f"the response is incomplete: {error}") from error


async def require_status(response: Response, *statuses: int) -> None:
    """Read and discard a response; raise `StoreError` unless it has one of these statuses."""
    if response.status not in statuses:
        raise await read_error(response)
    with suppress(BodyTooLarge, TransportError):
        await response.read(SAMPLE_SIZE)


async def require_content(response: Response, content: bytes, *statuses: int) -> None:
    """Raise `Failed` or `StoreError` for a response with another status or body."""
    if response.status not in statuses:
        raise await read_error(response)
    fault = ""
    if response.length != len(content):
        fault = f"the response states a length of {response.length}, not {len(content)} bytes"
    elif response.is_encoded:
        fault = f"the response is encoded ({response.header('content-encoding')})"
    if fault:
        response.abort()
        raise Failed(fault)
    if await read(response, len(content)) != content:
        raise Failed("other bytes were sent")


def require_equal(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise Failed(f"{name} is {found!r:.100}, not {expected!r:.100}")
