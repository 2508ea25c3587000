"""S3-compatible object store: objects by bucket and key."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote_from_bytes, urlsplit

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.task import deferLater

from audioproxy.files.streams import Readable
from audioproxy.http_client.bodies import RequestBody
from audioproxy.http_client.client import HttpClient, Response, parse_date
from audioproxy.http_client.errors import NameMismatch, TransportError, UntrustedCertificate
from audioproxy.s3.errors import (
    Busy,
    Changed,
    Missing,
    StoreError,
    Unavailable,
    Unreachable,
    read_document,
    read_error,
)
from audioproxy.s3.signing import EMPTY_SHA256, TIMESTAMP_FORMAT, RequestSigner

if TYPE_CHECKING:
    from audioproxy.config import S3Config

T = TypeVar("T")

# A bucket name that can be part of a host name, which virtual addressing requires.
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_HOST_LABELS = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_STRONG_ETAG = re.compile(r'"[!#-~]{1,200}"')

#: Seconds after which a request is sent once more, where the store was unreachable or busy.
RETRY_DELAY = 1.0
# Seconds after which a lookup or a read is not repeated: its client does not wait so long.
_RETRIED_SECONDS = 5.0

# What errors of TLS need. The first class that matches counts.
_CERTIFICATE_HINTS = {
    NameMismatch: "AP_S3_ADDRESSING=path, or the endpoint's name as in its certificate, is"
    " required",
    UntrustedCertificate: "AP_S3_CA_BUNDLE or AP_VARIANT_S3_CA_BUNDLE with the CA of its"
    " certificate is required",
}


@dataclass(frozen=True, slots=True)
class UploadRange:
    """A byte range of a file to upload, with its SHA-256 in lower-case hex."""

    source: Readable
    start: int
    stop: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> UploadRange:
        return cls(_InMemory(data), 0, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class _InMemory:
    data: bytes

    def read(self, offset: int, limit: int) -> bytes:
        return self.data[offset : offset + limit]


class ObjectStore:
    """One object store, accessed with the credentials of one user.

    :ivar name: its origin, for logs and messages.
    :ivar last_dates: ``X-Amz-Date`` of the last request that got a response, and ``Date`` of that
        response: the clocks of both sides.
    :raises ValueError: for virtual addressing of an endpoint that is an IP address.
    """

    def __init__(self, settings: S3Config, client: HttpClient) -> None:
        assert settings.access_key_id and settings.secret_access_key and settings.region
        suffix = ".cn" if settings.region.startswith("cn-") else ""
        default = f"https://s3.{settings.region}.amazonaws.com{suffix}"
        self.name = settings.endpoint or default
        self.client = client
        self.signer = RequestSigner(
            settings.access_key_id,
            settings.secret_access_key,
            settings.session_token,
            settings.region,
        )
        self.last_dates: tuple[str, str | None] | None = None
        self._virtual = settings.addressing == "virtual"
        host = urlsplit(self.name).hostname or ""
        if self._virtual and (isIPAddress(host) or isIPv6Address(host)):
            raise ValueError("virtual addressing needs a host name, not an IP address")

    @property
    def clock_ahead(self) -> int | None:
        """Seconds by which this machine's clock is ahead of the store's; None if unknown."""
        signed, sent = self.last_dates or ("", None)
        store_time = parse_date(sent)
        if store_time is None:
            return None
        own_time = datetime.strptime(signed, TIMESTAMP_FORMAT).replace(tzinfo=UTC)
        return round((own_time - store_time).total_seconds())

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: RequestBody | None = None
    ) -> Response:
        """Send a request as it is, without a signature."""
        try:
            return await self.client.request(method, url, headers, body)
        except TransportError as error:
            raise Unreachable(f"{self.name} is unreachable: {error}") from error

    def hint_for(self, error: StoreError, otherwise: str) -> str:
        """Return what the failed request needs to succeed."""
        if error.code == "RequestTimeTooSkewed":
            ahead = self.clock_ahead
            where = ", here and in the store"
            if ahead is not None:
                where = f": {describe_clock_offset(ahead)}"
            return f"a correct clock is required{where}"
        for kind, hint in _CERTIFICATE_HINTS.items():
            if isinstance(error.__cause__, kind):
                return hint
        return otherwise

    def object(self, bucket: str, key: bytes) -> StoreObject:
        """Return the object of a key, which need not exist.

        :raises Missing: with virtual addressing, for a bucket that cannot be part of a host name.
        """
        path = quote_from_bytes(key, safe="/-_.~")
        if not self._virtual:
            return StoreObject(self, f"{self.name}/{bucket}/{path}")
        if _HOST_LABELS.fullmatch(bucket) is None:
            raise Missing(f"the bucket {bucket} cannot be a part of a host name")
        scheme, _, host = self.name.partition("://")
        return StoreObject(self, f"{scheme}://{bucket}.{host}/{path}")


@dataclass(frozen=True, slots=True)
class StoreObject:
    """One object of a store; requests raise `StoreError`."""

    store: ObjectStore
    url: str

    def presign(self, seconds: int, query: str = "") -> str:
        """Return a URL with which anyone can read the object for ``seconds``.

        :param query: percent-encoded parameters, which are signed too.
        """
        return self.store.signer.presign("GET", _with_query(self.url, query), seconds)

    async def find(self) -> tuple[int | None, Response]:
        """Return the size of the object, if the store states it, and a response without its body.

        The first byte is requested: some stores send a body after the response to HEAD, which
        would be taken for the response to the next request.
        """
        size, response = await self.get_start(1)
        # The body may be an object of any size, where the store does not serve ranges.
        response.discard()
        return size, response

    async def get_start(self, count: int) -> tuple[int | None, Response]:
        """Return the size of the object, if the store states it, and its first bytes.

        The body is that of the response's range, or the whole object where that is None. The size
        is 0 for a response with status 416.
        """
        return await self.retry_once(lambda: self._get_start(count))

    async def get_all(self) -> Response:
        response = await self.send("GET")
        if response.status != 200:
            raise await read_error(response)
        return response

    async def get_end(self, count: int) -> Response:
        response = await self.send("GET", headers={"range": f"bytes=-{count}"})
        if response.range is None:
            response.abort()
            raise Unavailable("the response does not have the last bytes")
        return response

    async def get(self, start: int, stop: int, etag: str | None) -> Response:
        """Return a byte range of the object, if its tag is still ``etag``, or weak.

        The range may end before ``stop``: stores may limit what they return.
        """
        return await self.retry_once(lambda: self.get_once(start, stop, etag))

    async def _get_start(self, count: int) -> tuple[int | None, Response]:
        response = await self.send("GET", headers={"range": f"bytes=0-{count - 1}"})
        status = response.status
        if status == 400 and "%00" in self.url:
            # For a key with NUL, radosgw does not send an error code.
            response.abort()
            raise Missing("no store has a key with a NUL")
        if status not in (200, 206, 416):
            raise await read_error(response)
        found = response.range
        if status == 206 and (found is None or found.first or found.last >= count):
            response.discard()
            raise Unavailable("the response does not have the range that was requested")
        # An empty object has no range.
        return 0 if status == 416 else response.total, response

    async def retry_once(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make an attempt, and another one if the store is busy, within what a client waits."""
        clock = self.store.client.clock
        start = clock.seconds()
        try:
            return await attempt()
        except Busy as busy:
            if clock.seconds() - start > _RETRIED_SECONDS:
                raise
            delay = max(RETRY_DELAY, min(busy.retry_after or 0, _RETRIED_SECONDS))
        await deferLater(clock, delay)
        return await attempt()

    async def get_once(self, start: int, stop: int, etag: str | None) -> Response:
        headers = {"range": f"bytes={start}-{stop - 1}"}
        if etag is not None and _STRONG_ETAG.fullmatch(etag):
            headers["if-match"] = etag
        response = await self.send("GET", headers=headers)
        found = response.range
        if found is None and response.status != 206:
            raise await read_error(response)
        if found is None or found.first != start or found.last >= stop:
            response.discard()
            # The object may have become shorter.
            raise Changed("the response does not have the range that was requested")
        return response

    async def put(self, headers: Mapping[str, str], body: UploadRange) -> None:
        """Write the object: atomic, and the store verifies the hash."""
        await read_document(await self.send("PUT", headers=headers, body=body))

    async def delete(self) -> None:
        await read_document(await self.send("DELETE"))

    async def remove(self) -> None:
        """Remove the object, once more if the store is busy, which may have removed it."""
        may_be_gone = False

        async def attempt() -> None:
            nonlocal may_be_gone
            try:
                await self.delete()
            except Missing:
                if not may_be_gone:
                    raise
            except Busy:
                may_be_gone = True
                raise

        await self.retry_once(attempt)

    async def send(
        self,
        method: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: UploadRange | None = None,
    ) -> Response:
        """Send a signed request.

        :param query: percent-encoded, with an equals sign in each parameter.
        """
        url = _with_query(self.url, query)
        request_body, sha256 = None, EMPTY_SHA256
        if body is not None:
            request_body, sha256 = RequestBody(body.source, body.start, body.stop), body.sha256
        headers = dict(headers or {})
        # A range need not be signed, and signing one more header takes time.
        unsigned = {"range": headers.pop("range")} if "range" in headers else {}
        signed = {**self.store.signer.sign(method, url, headers, sha256), **unsigned}
        response = await self.store.request(method, url, signed, request_body)
        self.store.last_dates = signed["X-Amz-Date"], response.header("date")
        return response


def _with_query(url: str, query: str) -> str:
    return f"{url}?{query}" if query else url


def describe_clock_offset(ahead: int) -> str:
    """Return the seconds by which this machine's clock is ahead of a store's as text."""
    side = "ahead of" if ahead >= 0 else "behind"
    return f"this machine's is {abs(ahead)} s {side} the store's"


def strong_etag(response: Response) -> str | None:
    """Return an object's entity tag; None if it is weak or cannot be sent in a header."""
    etag = response.header("etag")
    return etag if etag is not None and _STRONG_ETAG.fullmatch(etag) else None
