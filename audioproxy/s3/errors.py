"""The errors of an object store, one class for each kind, and their documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import ClassVar

from defusedxml.ElementTree import iterparse

from audioproxy.errors import NotConfigured, NotFound, Refusal, UpstreamUnavailable
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError

# Maximum bytes of a document that are read; real documents are much shorter.
_MAX_DOCUMENT = 64 * 1024
# Bytes at the start of a document in which a page in HTML says that it is one.
_MAX_START = 1024
_ERROR_TAG = re.compile(rb"<(?:[\w.-]+:)?Error[\s/>]")
_HTML = re.compile(rb"<(?:!doctype\s+)?html[\s>]", re.IGNORECASE)
_ERROR_CODE = re.compile(r"[^<>]{1,100}")

# Error codes of status 400 for a name that the store does not take, for an upload that failed on
# its way, and for rejected credentials. Any other 400 means that the configuration is wrong, such
# as the region or the endpoint.
_BAD_NAMES = re.compile(
    r"Invalid(Argument|BucketName|Key|ObjectName|Path|URI)\w*|KeyTooLong\w*|X(Amz|Minio)\w+"
)
_BAD_TRANSFERS = re.compile(r"BadDigest|IncompleteBody|RequestTimeout")
_BAD_CREDENTIALS = re.compile(r"ExpiredToken|InvalidToken|InvalidAccessKeyId|TokenRefreshRequired")
# With these, a store rejects a wrong secret or a wrong clock.
_BAD_SIGNATURES = re.compile(r"SignatureDoesNotMatch|RequestTimeTooSkewed")


@dataclass(eq=False)
class StoreError(Exception):
    """The store did not carry out a request; the text gives its status and error code.

    :cvar refusal: the refusal that clients get.
    :ivar code: of the store's error document, as ``message``; empty where there is none.
    :ivar retry_after: seconds, if the store says so.
    """

    refusal: ClassVar[type[Refusal]]
    text: str
    code: str = ""
    message: str = ""
    retry_after: float | None = None
    status: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def may_reject_credentials(self) -> bool:
        """Whether rejected credentials may be the cause, which nothing else tells.

        With its STS, radosgw says AccessDenied of a wrong secret key, without a text. Without it, a
        session token is an InvalidArgument.
        """
        return self.code == "InvalidArgument" or (self.code == "AccessDenied" and not self.message)


class Missing(StoreError):
    """There is no such object or bucket."""

    refusal = NotFound


class InvalidName(Missing):
    """The store does not take the name of the bucket or the object, or a header of the request."""


class Denied(StoreError):
    """The store rejects the credentials or denies them access. Clients get a 404."""

    refusal = NotFound

    @property
    def rejects_credentials(self) -> bool:
        """Whether the credentials or the clock are wrong, so that all requests are rejected."""
        return bool(_BAD_CREDENTIALS.fullmatch(self.code) or _BAD_SIGNATURES.fullmatch(self.code))


class WrongEndpoint(StoreError):
    """The endpoint, the region or the addressing is wrong for the bucket."""

    refusal = NotConfigured


class Unavailable(StoreError):
    """The store cannot be reached, has failed, or is busy."""

    refusal = UpstreamUnavailable


class NotAStore(Unavailable):
    """Another program responded, such as a console, or a proxy that is being maintained."""


class Changed(Unavailable):
    """The object is not the version that was requested."""


class Busy(Unavailable):
    """The store cannot be reached, or is busy, so that another attempt may succeed."""


class Unreachable(Busy):
    """There was no response; the cause is a `TransportError`."""


def element_texts(document: bytes) -> dict[str, str]:
    """Return the first text of the elements of each name, which has no namespace.

    If the document is not well-formed, the result has the elements before the error, and an
    ``Error`` element if such a tag is anywhere in the document.
    """
    texts: dict[str, str] = {}
    try:
        # S3 sends white space before the XML declaration, which is not well-formed.
        for _, element in iterparse(BytesIO(document.strip()), ("start", "end")):
            name = element.tag.rpartition("}")[2]
            texts[name] = texts.get(name) or element.text or ""
    except (SyntaxError, ValueError, LookupError):
        # The exceptions are ParseError, those of defusedxml for forbidden constructs, and those for
        # encodings unknown to Python.
        if _ERROR_TAG.search(document):
            texts.setdefault("Error", "")
    return texts


async def read_document(response: Response, limit: int = _MAX_DOCUMENT) -> bytes:
    """Return the document of a request that succeeded, of at most ``limit`` bytes.

    A store may report a failure with status 200, if it had to send the status before the request
    was finished. A page in HTML is from another program, such as a proxy that is being maintained.
    """
    if response.status not in (200, 204):
        raise await read_error(response)
    try:
        # While a store completes a multipart upload, it sends white space, for minutes.
        document = await response.read(limit, extend_timeout=True)
    except (BodyTooLarge, TransportError) as error:
        raise Unavailable(f"the response is incomplete: {error}") from error
    if _HTML.search(document[:_MAX_START]):
        raise NotAStore("the response is a page in HTML")
    texts = element_texts(document)
    if "Error" in texts:
        code = _error_code(texts)
        raise Unavailable(code or "an error without a code", code)
    return document


async def read_error(response: Response) -> StoreError:
    if response.status < 300:
        # The body is an object, not an error document.
        response.discard()
        return Unavailable(f"the response has status {response.status}, which was not expected")
    texts: Mapping[str, str] = {}
    with suppress(BodyTooLarge, TransportError):
        texts = element_texts(await response.read(_MAX_DOCUMENT))
    code = _error_code(texts)
    kind = _error_class(response.status, code)
    text = f"status {response.status}{f', {code}' if code else ''}"
    return kind(text, code, texts.get("Message", ""), response.retry_after, response.status)


def _error_code(texts: Mapping[str, str]) -> str:
    code = texts.get("Code", "")
    return code if _ERROR_CODE.fullmatch(code) else ""


def _error_class(status: int, code: str) -> type[StoreError]:
    if status == 404:
        return Missing
    if status in (401, 403) or (status == 400 and _BAD_CREDENTIALS.fullmatch(code)):
        return Denied
    if status == 400 and _BAD_NAMES.fullmatch(code):
        return InvalidName
    is_lost = status == 400 and _BAD_TRANSFERS.fullmatch(code)
    if is_lost or status in (408, 425, 429, 500, 502, 503, 504):
        return Busy
    if status in (412, 416):
        return Changed
    if status == 409 or status > 500:
        return Unavailable
    return WrongEndpoint
