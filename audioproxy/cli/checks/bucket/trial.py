"""The objects of one run of checks in a bucket, and what the checks share.

Whatever a run writes has a name that begins with `PREFIX`. The run removes it at its end, also
after a failure or Ctrl-C. What a killed run leaves is removed by a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar
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
from audioproxy.s3.objects import RETRY_DELAY, ObjectStore, StoreObject, UploadRange

T = TypeVar("T")
Condition: TypeAlias = Callable[[Config], bool]
Run: TypeAlias = "Callable[[Trial], Coroutine[Any, Any, str | None]]"

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


def in_redirect_mode(config: Config) -> bool:
    return config.serve_mode == "redirect"


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
    run: Run
    is_needed: Condition = always


class Checks(list[Check]):
    def add(
        self, name: str, checks: str, breaks: str, remedy: str, is_needed: Condition = always
    ) -> Callable[[Run], Run]:
        """Return the decorator of a function that makes a check."""

        def add(run: Run) -> Run:
            self.append(Check(name, checks, breaks, remedy, run, is_needed))
            return run

        return add


@dataclass(frozen=True, slots=True)
class Sample:
    """The object that most checks read.

    :ivar content: its first bytes; of an object that the checks wrote, all of them.
    """

    target: StoreObject
    content: bytes
    size: int
    etag: str | None


@dataclass(slots=True)
class Trial:
    """One run of checks in one bucket.

    :ivar found: the sample, as soon as there is one.
    :ivar server: the name that the store gives to itself.
    :ivar is_lost: the store cannot be reached.
    :ivar removals: what removes each thing that this run has written.
    :ivar part_size: bytes of the parts of an upload, except the last; S3 accepts no shorter ones.
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
    part_size: int = 5 * 1024 * 1024

    @property
    def sample(self) -> Sample:
        assert self.found is not None
        return self.found

    def key(self, name: str) -> str:
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

    def upload(self, name: str) -> tuple[StoreObject, str]:
        """Return an object whose uploads `clean` aborts, and the name of this removal."""
        target, key = self.object(name), self.key(name)
        removal = f"uploads of {key}"
        self.removals[removal] = partial(self._abort_uploads, key)
        return target, removal

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
        """Do some work, once more if the store is busy."""
        try:
            return await work()
        except Busy:
            await deferLater(self.objects.client.clock, RETRY_DELAY)
            return await work()


async def abort_upload(target: StoreObject, query: str) -> None:
    await read_document(await target.send("DELETE", query))


async def read(response: Response, limit: int) -> bytes:
    try:
        return await response.read(limit, extend_timeout=True)
    except BodyTooLarge as error:
        raise Failed(f"more than the {limit} bytes that were requested were sent") from error
    except TransportError as error:
        raise Unavailable(f"the response is incomplete: {error}") from error


async def require(response: Response, *statuses: int, content: bytes | None = None) -> None:
    """Read a response; raise `StoreError` or `Failed` if it has another status or content."""
    if response.status not in statuses:
        raise await read_error(response)
    if content is None:
        with suppress(BodyTooLarge, TransportError):
            await response.read(SAMPLE_SIZE)
        return
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
