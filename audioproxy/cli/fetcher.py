"""One URL fetched as a listener would, to the last byte, and what its answer says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from http import HTTPStatus
from itertools import count
from urllib.parse import urlsplit

from twisted.internet.interfaces import IConsumer, IReactorTime
from twisted.internet.task import deferLater
from zope.interface import implementer

from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.url_input import as_sent, read_address
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import HttpClient, Response
from audioproxy.http_client.errors import TransportError

#: What may come of a URL.
RENDERED, STORED, OTHER, FAILED = "rendered", "stored already", "of no variant", "failed"

_STATES = {"MISS": RENDERED, "COALESCED": RENDERED, "HIT": STORED}

# How often a URL is asked for whose answer says that something behind the service is broken, or
# that it was too slow.
_BROKEN = dict.fromkeys((502, 503, 504), 3)
# Seconds between two times, where the answer does not say, and at most.
_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
# Bytes of an error document.
_DOCUMENT = 64 * 1024

_SECONDS = re.compile(r"[0-9]+")
_URL = re.compile(r"(https?)(://[!-.0-9:->A-~]+)(/[^?#\s]*)?(\?[^#\s]*)?(#.*)?", re.IGNORECASE)


class FetchFailed(Exception):
    """A URL has failed; the text says why."""


class Fetcher:
    """Fetches URLs.

    :param patience: seconds without a byte after which a URL has failed.
    :param tries: how often a URL is asked for while the service is busy.
    :param came: told of every piece of a body, by its size.
    """

    def __init__(
        self,
        client: HttpClient,
        clock: IReactorTime,
        patience: float,
        tries: int,
        came: Callable[[int], object],
    ) -> None:
        self._client = client
        self._clock = clock
        self._patience = patience
        self._tries = {429: tries, **_BROKEN}
        self._came = came

    async def fetch(self, url: str) -> str:
        """Fetch a URL, and return what came of it.

        :raises Hopeless: where it has failed.
        """
        wire_url = _spell(url)
        try:
            for tried in count(1):
                answer = await self._client.request("GET", wire_url, {}, timeout=self._patience)
                if tried >= self._tries.get(answer.status, 1):
                    break
                await answer.discard()
                await deferLater(self._clock, _pause(answer))
        except TransportError as error:
            raise FetchFailed(f"no answer ({error})") from error
        return await self._judge(answer)

    async def _judge(self, answer: Response) -> str:
        state = answer.header("x-audio-proxy")
        if answer.status == 302 and state == "HIT":
            await answer.discard()
            return STORED
        if answer.status != 200:
            raise FetchFailed(await _explain(answer))
        drain = _Drain(self._came)
        try:
            await answer.stream(None, self._patience).send(drain)
        except TransportError as error:
            raise FetchFailed(f"broke off after {drain.size} bytes ({error})") from error
        return _STATES.get(state or "", OTHER)


@implementer(IConsumer)
class _Drain:
    """Takes whatever comes, and keeps only its size."""

    def __init__(self, came: Callable[[int], object]) -> None:
        self.size = 0
        self._came = came

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Let it produce."""

    def unregisterProducer(self) -> None:
        """Let it go."""

    def write(self, data: bytes) -> None:
        """Count."""
        self.size += len(data)
        self._came(len(data))


def show(url: str) -> str:
    """Return what stands behind the signature of a URL, which nobody must learn from a log."""
    try:
        return read_address(url).signed.decode("ascii").removeprefix("/")
    except UsageError:
        return "a line without a signed URL"


def _spell(url: str) -> str:
    """Return a URL as it goes out: what is not ASCII encoded, as browsers do, and no fragment."""
    match = _URL.fullmatch(url)
    if match is None:
        raise FetchFailed("no http or https URL; `audioproxy sign --base` writes whole ones")
    try:
        urlsplit(url).port  # noqa: B018
    except ValueError as error:
        raise FetchFailed(f"no host or no port ({error})") from None
    scheme, host, path, query = match[1].lower(), match[2], match[3] or "/", match[4] or ""
    return scheme + host + as_sent(path + query)


def _pause(answer: Response) -> float:
    text = answer.header("retry-after") or ""
    return min(float(text[:9]), _LONGEST_PAUSE) if _SECONDS.fullmatch(text) else _PAUSE


async def _explain(answer: Response) -> str:
    """Return the status of an answer, and what its error document says."""
    if 300 <= answer.status < 400:
        await answer.discard()
        return f"{answer.status}: a redirect that is not the service's; give the URL at its end"
    try:
        document = json.loads(await answer.read(_DOCUMENT))
        return f"{answer.status} {document['error']}: {document['message']}"
    except (LookupError, RecursionError, BodyTooLarge, TypeError, TransportError, ValueError):
        phrases = {status.value: status.phrase for status in HTTPStatus}
        return f"{answer.status} {phrases.get(answer.status, '')}".rstrip()
