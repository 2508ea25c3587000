"""What the response of an https origin says about a source, by its status and headers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from audioproxy.errors import NoSuchSource, NotFound
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.client import Response
from audioproxy.sources.fetch import Busy

# Statuses of responses with the whole source.
_WHOLE = (200, 203)
# Statuses which say that there is no such source; the others refuse it.
_GONE = (404, 410)
# Statuses of temporary errors, which do not tell whether the source exists.
_TEMPORARY = (408, 425, 429)
# What differs between entity tags of the same bytes: the prefix of weak ones, and the suffixes of
# servers that compress some responses.
_TAG_VARIATION = re.compile(r'^W/|[-;]{1,2}(?:gzip|br|zstd|deflate|df)(?="?$)')
# Seconds before the response within which a modification may go unnoticed (RFC 9110, 8.8.2.2).
# Servers that generate a source state the time of the response.
_MODIFIED_MARGIN = 2


class Temporary(Busy):
    """The origin is busy, or cannot be reached now.

    :ivar message: for the client.
    :ivar is_repeated: whether another attempt may have another end at once.
    """

    def __init__(
        self, text: str, message: str, retry_after: float | None = None, *, is_repeated: bool
    ) -> None:
        super().__init__(text, retry_after)
        self.message = message
        self.is_repeated = is_repeated


@dataclass(frozen=True, slots=True)
class OriginState:
    """A source as its origin's response headers describe it.

    :ivar modified: Last-Modified; empty where it is missing, or too recent to distinguish versions.
    """

    source: HttpsSource
    size: int | None
    etag: str = ""
    modified: str = ""
    first: int | None = None
    last: int | None = None
    unreadable: str = ""

    @property
    def validator(self) -> bytes:
        """A value that changes with the source; empty where the origin states none."""
        version = _comparable(self.etag) or self.modified
        return f"{version} {self.size}".encode("latin-1") if version else b""

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.last == (None if self.size is None else self.size - 1)

    def matches(self, later: OriginState) -> bool:
        """Return whether a later state is of the same bytes, as far as the headers tell.

        One equal validator is enough: the servers of one origin may give one file different tags.
        """
        if self.unreadable != later.unreadable:
            return False
        if self.size is not None and later.size is not None and self.size != later.size:
            return False
        if not (self.etag or self.modified):
            return True
        has_same_tag = bool(self.etag) and _comparable(self.etag) == _comparable(later.etag)
        return has_same_tag or (bool(self.modified) and self.modified == later.modified)


def read_state(source: HttpsSource, response: Response) -> OriginState:
    """Return the state of a source from the response to a GET, which is discarded where refused."""
    status = response.status
    if status >= 400 and status != 416:
        response.discard()
        if status < 500 and status not in _TEMPORARY:
            refusal = NoSuchSource if status in _GONE else NotFound
            raise refusal(f"the origin responds with {status}")
        raise Temporary(
            f"responds with {status}",
            "The origin is broken or busy.",
            response.retry_after,
            is_repeated=True,
        )
    first, last, size = None, None, response.total
    if (found := response.range) is not None:
        first, last = found.first, found.last
    elif status in _WHOLE:
        first, last = 0, None if size is None else size - 1
    return OriginState(
        source,
        size,
        response.header("etag") or "",
        _modified(response),
        first,
        last,
        _unreadable(response),
    )


def _modified(response: Response) -> str:
    modified = response.header("last-modified") or ""
    sent, changed = response.date("date"), response.date("last-modified")
    if sent is None or changed is None:
        return modified
    return modified if (sent - changed).total_seconds() >= _MODIFIED_MARGIN else ""


def _comparable(etag: str) -> str:
    """Return what the weak and the compressed forms of an entity tag share (RFC 9110, 8.8.3.2)."""
    return _TAG_VARIATION.sub("", etag)


def is_empty(response: Response) -> bool:
    return response.status == 416 and response.total == 0


def _unreadable(response: Response) -> str:
    """Return why the body of a response cannot be read as a source; empty where it can.

    The source is opened all the same: a client's `HEAD` needs no body, and gets a 200 (D48).
    """
    if response.status == 416:
        return "The source is empty."
    if response.status not in (*_WHOLE, 206):
        return "The origin returns neither the source nor a redirect."
    if response.is_encoded:
        return "The origin sends the source with a Content-Encoding, which was not requested."
    return ""
