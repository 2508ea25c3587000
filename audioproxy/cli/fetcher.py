"""Fetches URLs completely, as a player does, and classifies the responses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from http.client import responses
from typing import IO
from urllib.parse import urlsplit

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IConsumer
from twisted.internet.task import deferLater
from zope.interface import implementer

from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.url_input import parse_url, percent_encode_typed
from audioproxy.files.streams import ConsumerGone
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import TransportError

#: The possible results of a fetch.
RENDERED, STORED, NOT_A_VARIANT, FAILED = "rendered", "stored already", "not a variant", "failed"

_RESULTS = {"MISS": RENDERED, "COALESCED": RENDERED, "HIT": STORED}

# Statuses of a broken or slow backend.
_GATEWAY = (502, 503, 504)
# Requests in a row for a URL without a response, or with one of these statuses.
_MOST_GATEWAY_TRIES = 3
# Seconds before the next request: without a Retry-After header, and the maximum with one.
_RETRY_DELAY, _MAX_RETRY_DELAY = 2.0, 60.0
# Most bytes of an error document.
_DOCUMENT = 64 * 1024

# Renders of other clients go first (D65).
_HEADERS = {"x-audio-proxy-lane": "low"}

_URL = re.compile(r"(https?)(://[!-.0-9:->A-~]+)(/[^?#\s]*)?(\?[^#\s]*)?(#.*)?", re.IGNORECASE)


class FetchFailed(Exception):
    """A URL that could not be fetched; its status is that of the response, if there was one."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Fetched:
    """A response that was read to its end, or a redirect to the store, which has no bytes.

    :ivar result: such as `RENDERED`.
    :ivar state: the value of X-Audio-Proxy.
    """

    status: int
    result: str
    state: str | None
    bytes: int | None = None
    content_type: str | None = None
    etag: str | None = None


class Fetcher:
    def __init__(
        self, client: HttpClient, timeout: float, tries: int, on_bytes: Callable[[int], object]
    ) -> None:
        """Create a fetcher, which calls ``on_bytes`` with the size of each piece of a body.

        :param timeout: seconds without a byte after which a fetch fails.
        :param tries: of a URL while the service is busy (429) and no other URL makes progress: the
            URLs themselves may keep the service busy.
        """
        self._client = client
        self._timeout = timeout
        self._tries = tries
        self._on_bytes = on_bytes
        self._received = 0

    async def fetch(self, url: str, body: IO[bytes] | None = None) -> Fetched:
        """Fetch a URL, and write its body to a file without a buffer, if one is given."""
        try:
            response = await self._request(normalize_url(url))
        except TransportError as error:
            raise FetchFailed(f"the request failed ({error})") from error
        state, status = response.header("x-audio-proxy"), response.status
        if status == 302 and state == "HIT":
            response.discard()
            return Fetched(status, STORED, state)
        if status != 200:
            raise FetchFailed(await _describe_error(response), status)
        counter = _ByteCounter(self._count_bytes, body)
        try:
            await response.stream(None, self._timeout).send(counter)
        except ConsumerGone as error:
            # A stream that is cancelled fails with ConsumerGone.
            raise CancelledError from error
        except TransportError as error:
            raise FetchFailed(
                f"ended early after {counter.size} bytes, see the node's log ({error})", status
            ) from error
        if not counter.is_kept:
            raise FetchFailed("TMPDIR has no room for the body; name a larger disk", status)
        result = _RESULTS.get(state or "", NOT_A_VARIANT)
        kind = response.header("content-type")
        return Fetched(status, result, state, counter.size, kind, response.header("etag"))

    async def _request(self, url: str) -> Response:
        busy = failed = 0
        received = self._received
        while True:
            try:
                response = await self._client.request("GET", url, _HEADERS, timeout=self._timeout)
            except TransportError as error:
                # A service that stops closes the connections of requests that wait.
                failed += 1
                if not error.is_closed or failed >= _MOST_GATEWAY_TRIES:
                    raise
                await deferLater(self._client.clock, _RETRY_DELAY)
                continue
            if response.status == 429:
                failed = 0
                if received != self._received:
                    busy, received = 0, self._received
                busy += 1
                is_last = busy >= self._tries
            else:
                failed += 1
                is_last = response.status not in _GATEWAY or failed >= _MOST_GATEWAY_TRIES
            if is_last:
                return response
            response.discard()
            delay = response.retry_after
            delay = _RETRY_DELAY if delay is None else min(delay, _MAX_RETRY_DELAY)
            await deferLater(self._client.clock, delay)

    def _count_bytes(self, size: int) -> None:
        self._received += size
        self._on_bytes(size)


@implementer(IConsumer)
class _ByteCounter:
    """Consumer that counts bytes, and keeps them in a file, if there is one and it has room."""

    def __init__(self, on_bytes: Callable[[int], object], file: IO[bytes] | None) -> None:
        self.size, self.is_kept = 0, True
        self._on_bytes = on_bytes
        self._file = file

    def registerProducer(self, producer: object, streaming: bool) -> None:
        pass

    def unregisterProducer(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        if self._file is not None:
            try:
                self.is_kept &= self._file.write(data) == len(data)
            except OSError:
                self.is_kept = False
        self.size += len(data)
        self._on_bytes(len(data))


def redact_url(url: str) -> str:
    """Return the part of a URL after the signature. The signature must not be printed."""
    try:
        return parse_url(percent_encode_typed(url)).signed.decode("ascii").removeprefix("/")
    except UsageError:
        return "a line without a signed URL"


def normalize_url(url: str) -> str:
    """Return a URL without its fragment, with non-ASCII characters percent-encoded."""
    match = _URL.fullmatch(url)
    if match is None:
        wanted = "`audioproxy sign --base` prints whole URLs"
        raise FetchFailed(f"not an http or https URL without blanks; {wanted}")
    try:
        urlsplit(url).port  # noqa: B018
    except ValueError:
        raise FetchFailed("no valid host, or a port that is not a number up to 65535") from None
    scheme, host, path, query = match[1].lower(), match[2], match[3] or "/", match[4] or ""
    return scheme + host + percent_encode_typed(path + query)


async def _describe_error(response: Response) -> str:
    if 300 <= response.status < 400:
        response.discard()
        return f"{response.status}: a redirect that the service did not send; use its target URL"
    try:
        document = json.loads(await response.read(_DOCUMENT))
        return f"{response.status} {document['error']}: {document['message']}"
    except (LookupError, RecursionError, BodyTooLarge, TypeError, TransportError, ValueError):
        return f"{response.status} {responses.get(response.status, '')}".rstrip()
