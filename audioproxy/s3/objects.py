"""An S3-compatible object store: objects by bucket and key, and what its refusals mean."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes, urlsplit

from audioproxy.errors import NotConfigured, NotFound, Refusal, UpstreamUnavailable
from audioproxy.http_client.bodies import TooLong, Upload
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import Unreachable
from audioproxy.s3.signing import EMPTY, MOMENT, Identity
from audioproxy.streams import Readable

if TYPE_CHECKING:
    from audioproxy.config import S3Config

# A bucket that can be a part of a host name, as virtual addressing wants it.
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_LABELS = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# Bytes of an error document that are read; none has nearly so many.
_DOCUMENT = 64 * 1024
_TAG = re.compile(r'"[!#-~]{1,200}"')
_ERROR = re.compile(r"<Error[\s>]")
_CODE = re.compile(r"<Code>([^<>]{1,100})</Code>")

# What a 400 says of a name that the store cannot have, or of an identity that it does not take.
# Any other one means that the requests as a whole are wrong: their region, their endpoint.
_BAD_NAMES = re.compile(r"InvalidBucketName|InvalidObjectName|InvalidURI|KeyTooLongError|XMinio\w+")
_BAD_IDENTITIES = re.compile(r"ExpiredToken|InvalidToken|InvalidAccessKeyId|TokenRefreshRequired")


class StoreError(Exception):
    """The store did not do what it was asked for; the text says what it said.

    :cvar refusal: what that means for a client.
    """

    refusal: type[Refusal]


class Missing(StoreError):
    """There is no such object, or no such bucket."""

    refusal = NotFound


class Denied(StoreError):
    """The store refuses the credential, or this to it. To a client that is a 404."""

    refusal = NotFound


class WrongEndpoint(StoreError):
    """The store is the wrong one: the endpoint, the region or the addressing is not its own."""

    refusal = NotConfigured


class Unavailable(StoreError):
    """The store cannot be reached, or is broken or busy."""

    refusal = UpstreamUnavailable


@dataclass(frozen=True, slots=True)
class Payload:
    """A stretch of a file that is uploaded.

    :ivar digest: lower-case hex SHA-256 of its bytes.
    """

    source: Readable
    start: int
    stop: int
    digest: str


class ObjectStore:
    """One object store, seen by one identity.

    :ivar name: its origin, for logs and messages.
    :ivar moments: when the last request was signed that got an answer, and when that was sent, each
        as its own side's clock had it and in the spelling of its header.
    """

    def __init__(self, settings: S3Config, client: HttpClient) -> None:
        """Prepare to send requests.

        :param settings: with an identity.
        :raises ValueError: for an addressing that the endpoint cannot have.
        """
        assert settings.access_key_id and settings.secret_access_key and settings.region
        self.name = settings.endpoint or _default_endpoint(settings.region)
        self.client = client
        self.identity = Identity(
            settings.access_key_id,
            settings.secret_access_key,
            settings.session_token,
            settings.region,
        )
        self.moments: tuple[str, str | None] | None = None
        self._virtual = settings.addressing == "virtual"
        if self._virtual and _is_address(urlsplit(self.name).hostname or ""):
            raise ValueError(
                "virtual addressing puts the bucket ahead of a host name, not of an IP"
            )

    @property
    def clock_ahead(self) -> int | None:
        """Seconds by which this machine's clock is ahead of the store's; None where none told."""
        try:
            signed, sent = self.moments or ("", None)
            there = parsedate_to_datetime(sent or "")
            here = datetime.strptime(signed, MOMENT).replace(tzinfo=UTC)
            return round((here - there).total_seconds())
        except (TypeError, ValueError):
            return None

    def at(self, bucket: str, key: bytes) -> StoreObject:
        """Return an object, be it there or not.

        :raises Missing: for a bucket that no host name can hold, with virtual addressing.
        """
        path = quote_from_bytes(key, safe="/-_.~")
        if not self._virtual:
            return StoreObject(self, f"{self.name}/{bucket}/{path}")
        if _LABELS.fullmatch(bucket) is None:
            raise Missing(f"the bucket {bucket} cannot be a part of a host name")
        scheme, _, host = self.name.partition("://")
        return StoreObject(self, f"{scheme}://{bucket}.{host}/{path}")


@dataclass(frozen=True, slots=True)
class StoreObject:
    """One object of a store. Every method raises `StoreError` where the store refuses."""

    store: ObjectStore
    url: str

    def presign(self, seconds: int) -> str:
        """Return a URL with which anyone can read it for so many seconds."""
        return self.store.identity.presign("GET", self.url, seconds)

    async def head(self) -> Response:
        """Return its headers."""
        answer = await self.send("HEAD")
        if answer.status == 200:
            return answer
        if answer.status == 400:
            # A HEAD has no words for what is wrong, and radosgw none for a key with a NUL.
            if "%00" in self.url:
                raise Missing("no store has a key with a NUL")
            answer = await self.send("GET", headers={"range": "bytes=0-0"})
        raise await _error(answer)

    async def get(self, start: int, stop: int, tag: str | None) -> Response:
        """Return a stretch of it, as long as it has the entity tag ``tag``."""
        headers = {"range": f"bytes={start}-{stop - 1}"}
        if tag is not None:
            headers["if-match"] = tag
        answer = await self.send("GET", headers=headers)
        if answer.status != 206:
            raise await _error(answer)
        if not (answer.header("content-range") or "").startswith(f"bytes {start}-{stop - 1}/"):
            await answer.drop()
            raise Unavailable("another range than was asked for")
        return answer

    async def put(self, headers: Mapping[str, str], payload: Payload) -> None:
        """Write it, all or nothing: the store checks the digest."""
        await read_answer(await self.send("PUT", headers=headers, payload=payload))

    async def delete(self) -> None:
        """Remove it."""
        await read_answer(await self.send("DELETE"))

    async def send(
        self,
        method: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        payload: Payload | None = None,
    ) -> Response:
        """Send a signed request.

        :param query: percent-encoded, each parameter with an equals sign.
        :raises Unavailable: without an answer.
        """
        url = f"{self.url}?{query}" if query else self.url
        body = digest = None
        if payload is not None:
            body, digest = Upload(payload.source, payload.start, payload.stop), payload.digest
        signed = self.store.identity.sign(method, url, headers or {}, digest or EMPTY)
        try:
            answer = await self.store.client.request(method, url, signed, body)
        except Unreachable as error:
            raise Unavailable(f"{self.store.name} is unreachable: {error}") from error
        self.store.moments = signed["X-Amz-Date"], answer.header("date")
        return answer


def strong_tag(answer: Response) -> str | None:
    """Return an object's entity tag, where it is one that conditions and headers can have."""
    tag = answer.header("etag")
    return tag if tag is not None and _TAG.fullmatch(tag) else None


async def read_answer(answer: Response) -> str:
    """Return the document of a request that went well.

    :raises StoreError: for one that did not. A store may say so with a status of 200, when it had
        to say something before it was done.
    """
    if answer.status not in (200, 204):
        raise await _error(answer)
    try:
        # A store that puts parts together sends a blank now and then, for minutes.
        text = (await answer.read(_DOCUMENT, patient=True)).decode("utf-8", "replace")
    except (TooLong, Unreachable) as error:
        raise Unavailable(f"the answer is not whole: {error}") from error
    if _ERROR.search(text):
        match = _CODE.search(text)
        raise Unavailable(match[1] if match else "an error without a code")
    return text


async def _error(answer: Response) -> StoreError:
    """Return what an answer means that is not the one that was hoped for."""
    status = answer.status
    match = None
    if status >= 300:
        match = _CODE.search(await _document(answer))
    else:
        # What comes with the status of a success is an object, and no description of an error.
        await answer.drop()
    code = match[1] if match else ""
    return _class_of(status, code)(f"status {status}{f', {code}' if code else ''}")


def _class_of(status: int, code: str) -> type[StoreError]:
    if status == 404:
        return Missing
    if status in (401, 403) or (status == 400 and _BAD_IDENTITIES.fullmatch(code)):
        return Denied
    if status == 400 and _BAD_NAMES.fullmatch(code):
        return Missing
    if status < 300 or status in (408, 409, 412, 416, 425, 429) or status >= 500:
        return Unavailable
    return WrongEndpoint


async def _document(answer: Response) -> str:
    try:
        return (await answer.read(_DOCUMENT)).decode("utf-8", "replace")
    except (TooLong, Unreachable):
        return ""


def _default_endpoint(region: str) -> str:
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"https://s3.{region}.amazonaws.com{suffix}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
