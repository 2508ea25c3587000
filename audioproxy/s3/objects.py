"""S3-compatible object store: objects by bucket and key, and its errors as classes."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes, urlsplit

from defusedxml.ElementTree import iterparse

from audioproxy.errors import NotConfigured, NotFound, Refusal, UpstreamUnavailable
from audioproxy.http_client.bodies import BodyTooLarge, RequestBody
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import TransportError
from audioproxy.s3.signing import EMPTY_SHA256, TIMESTAMP_FORMAT, RequestSigner
from audioproxy.streams import Readable

if TYPE_CHECKING:
    from audioproxy.config import S3Config

# A bucket that can be a part of a host name, as virtual addressing needs it.
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_HOST_LABELS = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# Bytes of a document that are read; none is nearly that long.
_MAX_DOCUMENT = 64 * 1024
_STRONG_ETAG = re.compile(r'"[!#-~]{1,200}"')
_ERROR_TAG = re.compile(rb"<(?:[\w.-]+:)?Error[\s/>]")
_ERROR_CODE = re.compile(r"[^<>]{1,100}")

# Error codes of a 400 for a name that the store cannot have, or for credentials that it does not
# take. Any other 400 means that all requests are wrong: their region, their endpoint.
_BAD_NAMES = re.compile(r"InvalidBucketName|InvalidObjectName|InvalidURI|KeyTooLongError|XMinio\w+")
_BAD_CREDENTIALS = re.compile(r"ExpiredToken|InvalidToken|InvalidAccessKeyId|TokenRefreshRequired")


class StoreError(Exception):
    """The store did not carry out a request; the text names its status and error code.

    :cvar refusal: the error for the client.
    """

    refusal: type[Refusal]


class Missing(StoreError):
    """There is no such object, or no such bucket."""

    refusal = NotFound


class Denied(StoreError):
    """The store refuses the credentials, or their access to this. Clients get a 404."""

    refusal = NotFound


class WrongEndpoint(StoreError):
    """The endpoint, the region or the addressing is not that of the bucket."""

    refusal = NotConfigured


class Unavailable(StoreError):
    """The store cannot be reached, or is broken or busy."""

    refusal = UpstreamUnavailable


@dataclass(frozen=True, slots=True)
class UploadRange:
    """A byte range of a file that is uploaded.

    :ivar sha256: of the bytes, in lower-case hex.
    """

    source: Readable
    start: int
    stop: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> UploadRange:
        """Return bytes in memory as a range."""
        return cls(_InMemory(data), 0, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class _InMemory:
    """Bytes in memory, read by offset."""

    data: bytes

    def read(self, offset: int, limit: int) -> bytes:
        return self.data[offset : offset + limit]


class ObjectStore:
    """One object store, accessed with one user's credentials.

    :ivar name: its origin, for logs and messages.
    :ivar last_dates: ``X-Amz-Date`` of the last request that got a response, and ``Date`` of that
        response: the clocks of both sides, as the headers spell them.
    """

    def __init__(self, settings: S3Config, client: HttpClient) -> None:
        """Prepare to send requests.

        :param settings: with credentials.
        :raises ValueError: for an addressing that the endpoint cannot have.
        """
        assert settings.access_key_id and settings.secret_access_key and settings.region
        self.name = settings.endpoint or _default_endpoint(settings.region)
        self.client = client
        self.signer = RequestSigner(
            settings.access_key_id,
            settings.secret_access_key,
            settings.session_token,
            settings.region,
        )
        self.last_dates: tuple[str, str | None] | None = None
        self._virtual = settings.addressing == "virtual"
        if self._virtual and _is_address(urlsplit(self.name).hostname or ""):
            raise ValueError("virtual addressing needs a host name, not an IP address")

    @property
    def clock_ahead(self) -> int | None:
        """Seconds by which this machine's clock is ahead of the store's; None where unknown."""
        try:
            signed, sent = self.last_dates or ("", None)
            store_time = parsedate_to_datetime(sent or "")
            own_time = datetime.strptime(signed, TIMESTAMP_FORMAT).replace(tzinfo=UTC)
            return round((own_time - store_time).total_seconds())
        except (TypeError, ValueError):
            return None

    def object(self, bucket: str, key: bytes) -> StoreObject:
        """Return the object of a key, which need not exist.

        :raises Missing: for a bucket that cannot be part of a host name, with virtual addressing.
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
    """One object of a store. Every method raises `StoreError` where the store refuses."""

    store: ObjectStore
    url: str

    def presign(self, seconds: int) -> str:
        """Return a URL with which anyone can read the object for so many seconds."""
        return self.store.signer.presign("GET", self.url, seconds)

    async def head(self) -> Response:
        """Return the object's headers."""
        response = await self.send("HEAD")
        if response.status == 200:
            return response
        if response.status == 400:
            # The response to a HEAD has no error code, and radosgw gives none for a key with NUL.
            if "%00" in self.url:
                raise Missing("no store has a key with a NUL")
            response = await self.send("GET", headers={"range": "bytes=0-0"})
        raise await _read_error(response)

    async def get(self, start: int, stop: int, etag: str | None) -> Response:
        """Return a byte range of the object, as long as its entity tag is ``etag``."""
        headers = {"range": f"bytes={start}-{stop - 1}"}
        if etag is not None:
            headers["if-match"] = etag
        response = await self.send("GET", headers=headers)
        if response.status != 206:
            raise await _read_error(response)
        if not (response.header("content-range") or "").startswith(f"bytes {start}-{stop - 1}/"):
            await response.discard()
            raise Unavailable("a range that was not requested")
        return response

    async def put(self, headers: Mapping[str, str], body: UploadRange) -> None:
        """Write the object, all or nothing: the store checks the hash."""
        await read_document(await self.send("PUT", headers=headers, body=body))

    async def delete(self) -> None:
        """Remove the object."""
        await read_document(await self.send("DELETE"))

    async def send(
        self,
        method: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: UploadRange | None = None,
    ) -> Response:
        """Send a signed request.

        :param query: percent-encoded, each parameter with an equals sign.
        :raises Unavailable: where there is no response.
        """
        url = f"{self.url}?{query}" if query else self.url
        request_body, sha256 = None, EMPTY_SHA256
        if body is not None:
            request_body, sha256 = RequestBody(body.source, body.start, body.stop), body.sha256
        signed = self.store.signer.sign(method, url, headers or {}, sha256)
        try:
            response = await self.store.client.request(method, url, signed, request_body)
        except TransportError as error:
            raise Unavailable(f"{self.store.name} is unreachable: {error}") from error
        self.store.last_dates = signed["X-Amz-Date"], response.header("date")
        return response


def strong_etag(response: Response) -> str | None:
    """Return an object's entity tag; None where it is weak or cannot be sent in a header."""
    etag = response.header("etag")
    return etag if etag is not None and _STRONG_ETAG.fullmatch(etag) else None


def element_texts(document: bytes) -> dict[str, str]:
    """Return the text of each element of an XML document by its name without the namespace.

    Several elements of one name give the first text. Of a document that is not well-formed, this
    returns the elements ahead of the fault, and an ``Error`` that stands anywhere in it.
    """
    texts: dict[str, str] = {}
    try:
        # White space ahead of an XML declaration is not well-formed, and S3 sends it.
        for _, element in iterparse(BytesIO(document.strip()), ("start", "end")):
            name = element.tag.rpartition("}")[2]
            texts[name] = texts.get(name) or element.text or ""
    except (SyntaxError, ValueError, LookupError):
        # ParseError, what defusedxml forbids, and encodings that Python does not know.
        if _ERROR_TAG.search(document):
            texts.setdefault("Error", "")
    return texts


async def read_document(response: Response) -> bytes:
    """Return the document of a request that succeeded.

    :raises StoreError: for one that failed. A store may report that with status 200, where it had
        to send the status before it was done.
    """
    if response.status not in (200, 204):
        raise await _read_error(response)
    try:
        # A store that completes a multipart upload sends white space for minutes.
        document = await response.read(_MAX_DOCUMENT, extend_timeout=True)
    except (BodyTooLarge, TransportError) as error:
        raise Unavailable(f"the response is incomplete: {error}") from error
    texts = element_texts(document)
    if "Error" in texts:
        raise Unavailable(_error_code(texts) or "an error without a code")
    return document


async def _read_error(response: Response) -> StoreError:
    """Return the error of an unexpected response."""
    code = ""
    if response.status >= 300:
        with suppress(BodyTooLarge, TransportError):
            code = _error_code(element_texts(await response.read(_MAX_DOCUMENT)))
    else:
        # The body of a successful response is an object, not an error document.
        await response.discard()
    kind = _error_class(response.status, code)
    return kind(f"status {response.status}{f', {code}' if code else ''}")


def _error_code(texts: Mapping[str, str]) -> str:
    """Return the ``Code`` of an error document; nothing where it has none, or a strange one."""
    code = texts.get("Code", "")
    return code if _ERROR_CODE.fullmatch(code) else ""


def _error_class(status: int, code: str) -> type[StoreError]:
    if status == 404:
        return Missing
    if status in (401, 403) or (status == 400 and _BAD_CREDENTIALS.fullmatch(code)):
        return Denied
    if status == 400 and _BAD_NAMES.fullmatch(code):
        return Missing
    if status < 300 or status in (408, 409, 412, 416, 425, 429) or status >= 500:
        return Unavailable
    return WrongEndpoint


def _default_endpoint(region: str) -> str:
    suffix = ".cn" if region.startswith("cn-") else ""
    return f"https://s3.{region}.amazonaws.com{suffix}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
