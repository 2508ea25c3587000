"""Sources at https addresses: read by ffmpeg at the origin, or downloaded first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from twisted.internet.defer import Deferred

from audioproxy.errors import (
    Refusal,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.bodies import BodyTooLarge
from audioproxy.http_client.client import USER_AGENT, Response
from audioproxy.http_client.errors import TransportError
from audioproxy.http_client.timeouts import with_timeout
from audioproxy.log_context import Logger
from audioproxy.media.diagnostics import redact
from audioproxy.media.inputs import SOURCE_DESCRIPTOR, Input, local_input, remote_input
from audioproxy.scratch_files import ScratchFile
from audioproxy.sources.download import Downloads, LimitExceeded
from audioproxy.sources.origin import (
    WHOLE,
    OriginClient,
    OriginState,
    UnusableOrigin,
    content_range,
    is_unsized,
    read_state,
    request_url,
)
from audioproxy.threads import read_in_thread

# Responses with which an origin may return one range (RFC 9110, 15.3.7).
_MOST_PARTS = 8
# Bytes of the start and of the end of a source. Most lengths are confirmed by these.
_WINDOW = 64 * 1024

_CHANGED = "The source changed while it was read."

_log = Logger()


@dataclass(frozen=True, slots=True)
class HttpsSources:
    """Opens sources at the https hosts on the allowlist.

    :ivar downloads: takes the copies of sources that cannot be read safely at the origin.
    :ivar ca_file: PEM file of the certificates that ffmpeg trusts; None is the system's own.
    """

    origins: OriginClient
    downloads: Downloads
    ca_file: str | None

    async def open(self, source: HttpsSource) -> OpenHttpsSource:
        """Request the state of a source from its origin.

        :raises NotFound, UpstreamUnavailable: as `OriginClient.state` does.
        """
        return OpenHttpsSource(self, source, await self.origins.state(source))


class OpenHttpsSource:
    """A source at an https address.

    ffmpeg reads it at the origin on two conditions. ffmpeg must be able to distinguish its end from
    a lost connection, and all ranges must be of one version. So the length must be known, ranges
    must be served, and a validator must distinguish the versions. Any other source is downloaded
    first, since the HTTP client checks the framing of the body.
    """

    def __init__(self, sources: HttpsSources, source: HttpsSource, state: OriginState) -> None:
        self._origins = sources.origins
        self._downloads = sources.downloads
        self._ca_file = sources.ca_file
        self._source = source
        self._state = state
        self._ranges = state.ranges
        self._unsized = state.unsized
        self._copy: ScratchFile | None = None
        # Bytes of the source by their offset, and the request for those of its start.
        self._windows: dict[int, bytes] = {}
        self._starting: Deferred[bytes] | None = None
        # The test for ranges that a probe does not wait for.
        self._testing: Deferred[None] | None = None
        self._probed_at_origin = False
        self._closed = False

    @property
    def size(self) -> int | None:
        """Bytes of the copy, or those that the origin states; None where neither is known."""
        return self._state.size if self._copy is None else os.fstat(self._copy.descriptor).st_size

    @property
    def validator(self) -> bytes:
        """The entity tag or Last-Modified, and the size."""
        return self._state.validator

    @property
    def descriptors(self) -> Mapping[int, int]:
        """The descriptor of the copy, where there is one."""
        return {} if self._copy is None else {SOURCE_DESCRIPTOR: self._copy.descriptor}

    async def input(self, seconds: float, *, whole: bool) -> Input:
        """Return the URL as the input, or a copy where that is safer.

        :raises Refusal: where the source cannot be read.
        :raises TimeoutError: where it cannot be read in time.
        """
        if self._state.unreadable:
            raise UndecodableSource(self._state.unreadable)
        tentative = self._copy is None and not whole and self._begin_test()
        if self._copy is None and not tentative:
            await with_timeout(self._origins.clock, seconds, self._prepare(seconds, whole))
        if self._copy is not None:
            if self._closed:
                # The request that opened the source has closed it, but other requests share its
                # probe. The probe opens the copy in this turn of the reactor, so the copy is closed
                # in the next one.
                self._origins.clock.callLater(0, self.close)
            return local_input()
        ranges = tentative or bool(self._ranges)
        address = request_url(self._state.source)
        return replace(
            remote_input(address, USER_AGENT, self._ca_file, ranges=ranges), tentative=tentative
        )

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes of the copy, or request them from the origin.

        :raises Refusal: as `OriginClient.get` does, or for another version of the source.
        """
        if self._copy is not None:
            try:
                run_in_thread = self._downloads.run_in_thread
                return await read_in_thread(run_in_thread, self._copy.descriptor, offset, count)
            except OSError as error:
                raise _translate(error, self._downloads.limit) from error
        if self._starting is not None:
            starting, self._starting = self._starting, None
            self._windows[0] = await starting
        for start, window in self._windows.items():
            if start <= offset and offset + count <= start + len(window):
                return window[offset - start :][:count]
        return await self._request(offset, count)

    async def _request(self, offset: int, count: int) -> bytes:
        """Request bytes from the origin, in as many ranges as it needs."""
        data = b""
        for _ in range(_MOST_PARTS):
            data += await self._read_part(offset + len(data), offset + count - 1)
            if len(data) == count:
                return data
        raise UpstreamUnavailable("The origin returns very short ranges.")

    async def _read_part(self, first: int, last: int) -> bytes:
        """Request a range and return its beginning, which has a byte or more."""
        response = await self._origins.get(self._state.source, f"{first}-{last}")
        try:
            if not self._state.matches(read_state(self._state.source, response)):
                raise RenderFailed(_CHANGED)
            served = content_range(response)
            if response.status != 206 or served is None or served[0] != first or served[1] > last:
                raise UpstreamUnavailable("The origin did not return the requested range.")
        except Refusal:
            await response.discard()
            raise
        return await self._read_body(response, served[1] + 1 - first)

    async def _read_body(self, response: Response, count: int) -> bytes:
        """Return the body of a response that has a range of ``count`` bytes."""
        try:
            data = await response.read(count, extend_timeout=True)
        except (BodyTooLarge, TransportError) as error:
            raise _translate(error, self._downloads.limit) from error
        if len(data) != count:
            raise UpstreamUnavailable("The origin did not return the requested range.")
        return data

    def fingerprint(self) -> bytes:
        """Return ``b""``: ffmpeg may read another version than the one that was opened.

        Some origins have several entity tags for one version, so reads cannot require one of them.
        """
        return b""

    async def unchanged(self) -> bool:
        """Return whether the origin still states the same version; a copy does not change."""
        if self._copy is not None or not self.validator:
            return True
        try:
            # The target of a redirect may be valid only for a short time, so the redirects are
            # followed again.
            return self._state.matches(await self._origins.state(self._source))
        except UnusableOrigin:
            return False
        except UpstreamUnavailable:
            # ffmpeg has already read the source to its end, so a failure of the origin does no harm
            # now.
            return True
        except Refusal:
            return False

    def close(self) -> None:
        """Remove the copy; repeated calls are harmless."""
        self._closed = True
        if self._testing is not None:
            # Nobody waits for it, so nobody needs its failure.
            self._testing.addErrback(lambda _: None)
            self._testing.cancel()
        if self._starting is not None:
            self._starting.cancel()
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.close()

    async def _prepare(self, seconds: float, whole: bool) -> None:
        """Download the source where it cannot be read safely at the origin."""
        if whole and self._state.source != self._source:
            # The target of a redirect may be valid only for a short time, and the wait for a slot
            # may be long.
            self._update(await self._origins.state(self._source))
        ranges = await self._serves_ranges()
        if whole:
            # Without a validator, several ranges may be of two versions.
            if not (ranges and self.validator):
                await self._download(seconds)
        elif not (ranges or self._probed_at_origin) and (self._unsized or self.size is None):
            # Only the end of the body shows whether the source is complete, so a probe needs it too
            # (D48). A source that is too large or too slow to be downloaded for a probe is probed
            # at the origin.
            half = seconds / 2
            try:
                await with_timeout(self._origins.clock, half, self._download(half))
            except (SourceTooLarge, TimeoutError):
                self._probed_at_origin = True

    def _update(self, state: OriginState) -> None:
        if not self._state.matches(state):
            raise RenderFailed(_CHANGED)
        if state.source != self._state.source:
            self._ranges, self._unsized = state.ranges, state.unsized
        self._state = state

    def _begin_test(self) -> bool:
        """Begin to test the origin for ranges, if a probe need not wait for the result.

        That is so for the first probe of a source whose origin claims to serve ranges.
        """
        known = self._ranges is not None or self._testing is not None
        if known or not self._state.claims_ranges or self._state.size is None:
            return False
        self._testing = Deferred.fromCoroutine(self._test_ranges())
        return True

    async def _serves_ranges(self) -> bool:
        """Return whether a range request returns that range; Accept-Ranges is no proof."""
        if self._testing is not None:
            testing, self._testing = self._testing, None
            await testing
        if self._ranges is None:
            await self._test_ranges()
        return bool(self._ranges)

    async def _test_ranges(self) -> None:
        """Request the end of the source as a range, and keep its bytes.

        Those of the start are requested too, but not awaited: meanwhile, the source is probed.
        """
        size = self._state.size or 1
        first = max(0, size - _WINDOW)
        response = await self._origins.get(self._state.source, f"{first}-{size - 1}")
        start, last, total = content_range(response) or (-1, -1, None)
        self._unsized = is_unsized(response)
        self._ranges = (
            response.status == 206
            and (start, total) == (first, self._state.size)
            and first <= last < size
        )
        if self._ranges and self._state.matches(read_state(self._state.source, response)):
            # Bytes that cannot be read now are requested again when they are needed.
            with suppress(Refusal):
                self._windows[first] = await self._read_body(response, last + 1 - first)
            if first and not self._closed:
                self._starting = Deferred.fromCoroutine(self._request(0, min(first, _WINDOW)))
                self._starting.addErrback(lambda _: b"")
        else:
            await response.discard()

    async def _download(self, seconds: float) -> None:
        downloads = self._downloads
        response = await self._origins.get(self._state.source)
        try:
            self._check(response)
            copy = await downloads.create(seconds)
        except (Refusal, OSError) as error:
            await response.discard()
            raise _translate(error, downloads.limit) from None
        size = self._state.size if response.length is None else response.length
        try:
            await downloads.write(copy, response.stream(size))
        except BaseException as error:
            copy.close()
            raise _translate(error, downloads.limit) from None
        self._copy = copy

    def _check(self, response: Response) -> None:
        """Raise a `Refusal` for a response that is not the source that was opened."""
        state = read_state(self._state.source, response)
        if state.unreadable:
            raise UndecodableSource(state.unreadable)
        if response.status not in WHOLE:
            raise UpstreamUnavailable("The origin no longer returns the source.")
        if not self._state.matches(state):
            raise RenderFailed(_CHANGED)
        SourceTooLarge.check(state.size, self._downloads.limit)


def _translate(error: BaseException, limit: int) -> BaseException:
    """Translate an error of a download or a read to the error for the client."""
    if isinstance(error, LimitExceeded):
        return SourceTooLarge(f"The source has more than {limit} bytes, and no more are accepted.")
    if isinstance(error, (BodyTooLarge, TransportError)):
        return UpstreamUnavailable("The origin did not return the whole source.")
    if isinstance(error, OSError):
        _log.warn("a source cannot be downloaded: {why}", why=redact(str(error).encode()))
        return RenderFailed("The source could not be written to the disk.")
    return error
