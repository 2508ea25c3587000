"""The three states of an open https source: stated, ranged and copied."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedCalls, SharedResult
from audioproxy.concurrency.threads import read_in_thread
from audioproxy.errors import (
    Refusal,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.files.scratch_files import ScratchFile
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TransportError
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.diagnostics import redact
from audioproxy.observe.log_context import Logger
from audioproxy.sources.download import Downloads, LimitExceeded
from audioproxy.sources.origin import WINDOW, OriginClient, OriginState, UnusableOrigin

if TYPE_CHECKING:
    from audioproxy.sources.https import HttpsSources

# Responses with which an origin may return one range (RFC 9110, 15.3.7).
_MOST_PARTS = 8
# Seconds for which a response whose body is not read is kept: origins give up slow clients.
_KEPT_SECONDS = 10
# Seconds that the creation of a file for a copy may take.
_CREATION_TIMEOUT = 30

_log = Logger()


class Disagreement(Exception):
    """Responses of an origin are not of one version, or not what was requested."""


class StatedSource:
    """A source that is known by the headers of a response alone.

    :ivar state: what the headers say.
    """

    descriptors: Mapping[int, int] = {}

    def __init__(
        self,
        sources: HttpsSources,
        source: HttpsSource,
        state: OriginState,
        response: Response | None = None,
    ) -> None:
        """Keep a response.

        :param response: the one with the whole source; None if there is none.
        """
        self.state = state
        self._origins: OriginClient = sources.origins
        self._downloads: Downloads = sources.downloads
        self._source = source
        self._response = response
        self._since = sources.origins.clock.seconds()
        self._copied: SharedResult[CopiedSource] | None = None
        self._copying: Deferred[None] | None = None
        self._copy: CopiedSource | None = None
        self._closed = False

    @property
    def size(self) -> int | None:
        """Bytes, or None where the origin does not state them."""
        return self.state.size

    def copy(self) -> Deferred[CopiedSource]:
        """Download the source, once for all callers. A caller that is cancelled does not stop it.

        :raises Refusal: where the source cannot be downloaded.
        """
        if self._copied is None:
            self._copied = SharedResult()
            self._copying = Deferred.fromCoroutine(self._download()).addBoth(self._on_copied)
        return self._copied.wait()

    def fingerprint(self) -> bytes:
        """Return ``b""``: ffprobe reads another response than this one."""
        return b""

    def close(self) -> None:
        """Stop the download, remove the copy, and discard what is left of the response."""
        self._closed = True
        if self._copying is not None:
            self._copying.cancel()
        if self._copy is not None:
            self._copy.close()
        if self._response is not None:
            response, self._response = self._response, None
            response.abort()

    def _on_copied(self, outcome: CopiedSource | Failure) -> None:
        assert self._copied is not None
        if isinstance(outcome, CopiedSource):
            # All who waited for it may be gone.
            self._copy = outcome
            if self._closed:
                outcome.close()
        self._copied.fire(outcome)

    async def _download(self) -> CopiedSource:
        downloads = self._downloads
        state, response = await self._request()
        try:
            if state.unreadable:
                raise UndecodableSource(state.unreadable)
            if not state.is_whole:
                raise UpstreamUnavailable("The origin does not return the whole source.")
            SourceTooLarge.check(state.size, downloads.limit)
            copy = await downloads.create(_CREATION_TIMEOUT)
        except BaseException as error:
            response.abort()
            raise _translate(error, downloads.limit) from None
        try:
            await downloads.write(copy, response.stream(state.size))
        except BaseException as error:
            copy.close()
            raise _translate(error, downloads.limit) from None
        return CopiedSource(self._downloads, self.state, state, copy)

    async def _request(self) -> tuple[OriginState, Response]:
        """Return the response that was kept, or a new one."""
        response, self._response = self._response, None
        if response is not None:
            if self._origins.clock.seconds() - self._since <= _KEPT_SECONDS:
                return self.state, response
            response.abort()
        return await self._origins.look_up(self._source)


class RangedSource:
    """A source that ffmpeg may read at the origin.

    :ivar state: what the origin says. The address may be replaced.
    :ivar since: when it was said.
    :ivar start: the first bytes, as many as were requested; ``b""`` if they cannot be read.
    """

    descriptors: Mapping[int, int] = {}

    def __init__(self, origins: OriginClient, state: OriginState, response: Response) -> None:
        """Read the body of a response, which is the start of the source."""
        self.state = state
        self.since = origins.clock.seconds()
        self.start: SharedResult[bytes] = SharedResult()
        self._origins = origins
        self._size = state.size or 0
        self._testing: SharedCalls[str, bool] = SharedCalls()
        self._end: bytes | None = None
        reading = Deferred.fromCoroutine(_read_body(response, min(WINDOW, self._size)))
        self._reading = reading.addBoth(self._on_start)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def fingerprint(self) -> bytes:
        """Return the validator, which is strict enough: a recent date is none."""
        return self.state.validator

    def passes_test(self) -> Deferred[bool]:
        """Return whether the origin serves ranges as ffmpeg requests them.

        ffmpeg requests a range without an end, and waits for all of it. Some origins return less.

        :raises UnusableOrigin: where the origin is not trusted any more.
        """
        return self._testing.join("test", self._test)

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes from the start or the end that were read already, or request them.

        :raises Disagreement: where the origin returns something else.
        :raises Refusal: as `OriginClient.get` does.
        """
        if offset + count <= WINDOW:
            start = await self.start.wait()
            if offset + count <= len(start):
                return start[offset : offset + count]
        first = max(0, self._size - WINDOW)
        if offset < first:
            return await self._request(offset, count)
        if self._end is None:
            self._end = await self._request(first, self._size - first)
        return self._end[offset - first :][:count]

    def close(self) -> None:
        """Stop reading the start."""
        self._reading.cancel()

    def _on_start(self, outcome: bytes | Failure) -> None:
        self.start.fire(b"" if isinstance(outcome, Failure) else outcome)

    async def _test(self) -> bool:
        try:
            state, response = await self._origins.get(self.state.source, "0-")
        except UnusableOrigin:
            raise
        except Refusal:
            return False
        response.abort()
        is_whole = state.is_whole and state.size == self._size
        return is_whole and not state.has_interim and self.state.matches(state)

    async def _request(self, offset: int, count: int) -> bytes:
        """Request bytes from the origin, in as many ranges as it needs."""
        data = b""
        for _ in range(_MOST_PARTS):
            data += await self._request_part(offset + len(data), offset + count - 1)
            if len(data) == count:
                return data
        raise Disagreement

    async def _request_part(self, first: int, last: int) -> bytes:
        """Request a range and return its beginning, which has a byte or more."""
        state, response = await self._origins.get(self.state.source, f"{first}-{last}")
        is_served = state.first == first and state.last is not None and first <= state.last <= last
        if not (is_served and self.state.matches(state)):
            response.abort()
            raise Disagreement
        assert state.last is not None
        return await _read_body(response, state.last + 1 - first)


class CopiedSource:
    """A source that was downloaded to a file.

    :ivar state: what the origin said when the source was opened.
    :ivar copied: what the response said whose body is the copy.
    """

    def __init__(
        self, downloads: Downloads, state: OriginState, copied: OriginState, file: ScratchFile
    ) -> None:
        self.state = state
        self.copied = copied
        self._downloads = downloads
        self._file = file
        self.descriptors: Mapping[int, int] = {SOURCE_DESCRIPTOR: file.descriptor}
        self.size = os.fstat(file.descriptor).st_size

    def fingerprint(self) -> bytes:
        """Return the validator; ``b""`` where the two responses disagree."""
        return self.state.validator if self.state.matches(self.copied) else b""

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes of the file.

        :raises RenderFailed: where the file cannot be read.
        """
        try:
            run_in_thread = self._downloads.run_in_thread
            return await read_in_thread(run_in_thread, self._file.descriptor, offset, count)
        except OSError as error:
            raise _translate(error, self._downloads.limit) from error

    def close(self) -> None:
        """Remove the file; repeated calls are harmless."""
        if self.descriptors:
            self.descriptors = {}
            self._file.close()


async def _read_body(response: Response, count: int) -> bytes:
    """Return the body of a response that has a range of ``count`` bytes.

    :raises Disagreement: where the body has another length.
    """
    try:
        data = await response.read(count, extend_timeout=True)
    except BodyTooLarge as error:
        raise Disagreement from error
    except TransportError as error:
        raise UpstreamUnavailable("The origin did not return the whole range.") from error
    if len(data) != count:
        raise Disagreement
    return data


def _translate(error: BaseException, limit: int) -> BaseException:
    """Translate an error of a download or a read to the error for the client."""
    if isinstance(error, LimitExceeded):
        return SourceTooLarge(f"The source has more than {limit} bytes, and no more are accepted.")
    if isinstance(error, (BodyTooLarge, TransportError)):
        return UpstreamUnavailable("The origin did not return the whole source.")
    if isinstance(error, OSError):
        _log.warn("a source cannot be written to TMPDIR: {why}", why=redact(str(error).encode()))
        return RenderFailed("The source could not be written to the disk.")
    return error
