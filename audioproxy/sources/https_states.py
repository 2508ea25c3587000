"""The three states of an open https source: ranged, stated and copied.

Each method either does what it is called for, or raises `StateChanged` with the next state. The
source then calls the same method of that state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

from cachetools import LRUCache, TTLCache
from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.concurrency.threads import ThreadRunner, await_uncancelled, read_in_thread
from audioproxy.errors import (
    Refusal,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
    reason_of,
)
from audioproxy.files.scratch_files import ScratchFile, ScratchSpace
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.client import USER_AGENT, Response
from audioproxy.http_client.errors import TransportError
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR, Input, local_input, remote_input
from audioproxy.media.diagnostics import redact
from audioproxy.observe.log_context import Logger
from audioproxy.sources.download import FileConsumer, LimitExceeded
from audioproxy.sources.https_origin import (
    WINDOW,
    Disagreement,
    OriginClient,
    OriginState,
    UnusableOrigin,
    read_body,
    request_url,
)
from audioproxy.sources.interfaces import Look

# Sources that a node remembers, and the seconds for which it downloads those that cannot be read
# in place.
_REMEMBERED_SOURCES = 4096
_UNRELIABLE_SECONDS = 3600
# Seconds for which a response whose body is not read is kept: origins give up slow clients.
_KEPT_SECONDS = 10
# Seconds after which the target of a redirect is asked for again: it may be valid for a short time.
_TARGET_LIFETIME = 5
# Seconds that the creation of a file for a copy may take.
_CREATION_TIMEOUT = 30
#: Share of the probe's time limit for the download of a source that cannot be read in place.
DOWNLOAD_SHARE = 0.5

_CHANGED = "The source changed while it was read."

T = TypeVar("T")

_log = Logger()


@dataclass
class HttpsBackend:
    """What the https sources of a node share.

    :ivar space: takes the copies of sources that cannot be read safely at the origin.
    :ivar max_size: bytes of a copy.
    :ivar download_timeout: seconds for the copy of a source that only the service itself may read.
    :ivar ca_file: PEM file of the certificates that ffmpeg trusts; None is the system's own.
    :ivar reliable: identities of sources whose origin has passed the test of `RangedSource`.
    :ivar unreliable: sources whose origin has failed it, or contradicted itself.
    """

    origins: OriginClient
    space: ScratchSpace
    run_in_thread: ThreadRunner
    max_size: int
    download_timeout: float
    ca_file: str | None

    def __post_init__(self) -> None:
        self.reliable: LRUCache[bytes, bool] = LRUCache(_REMEMBERED_SOURCES)
        self.unreliable: TTLCache[bytes, bool] = TTLCache(
            _REMEMBERED_SOURCES, _UNRELIABLE_SECONDS, self.origins.clock.seconds
        )


class StateChanged(Exception):
    """A call has led to another state, in which it has to be repeated."""

    def __init__(self, state: StatedSource | CopiedSource) -> None:
        super().__init__()
        self.state = state


@dataclass(eq=False)
class _State:
    """What all states share.

    :ivar origin: what the origin stated when the source was opened.
    :ivar identity: the source and its validator.
    :ivar is_certain: whether what is read has certainly the validator that the origin stated.
    :ivar size: bytes, or None where the origin does not state them.
    :ivar descriptors: the descriptor of the copy, where there is one.
    """

    sources: HttpsBackend
    source: HttpsSource
    origin: OriginState
    is_certain = False

    def __post_init__(self) -> None:
        self.identity = self.source.canonical + b"\n" + self.origin.validator
        self.size = self.origin.size
        self.descriptors: Mapping[int, int] = {}
        self._since = self._now()

    async def unchanged(self) -> bool:
        """Return whether the origin still states the same version."""
        if not self.origin.validator:
            return True
        try:
            # The target of a redirect may be valid only for a short time, so the redirects are
            # followed again.
            later = await self.sources.origins.state(self.source)
        except UpstreamUnavailable as error:
            # ffmpeg has already read the source to its end, so a failure of the origin does no harm
            # now.
            return not isinstance(error, UnusableOrigin)
        except Refusal:
            return False
        if self.origin.contradicts(later):
            # The origin may contradict itself for ever.
            self._distrust()
            return False
        return True

    def _now(self) -> float:
        return self.sources.origins.clock.seconds()

    def _distrust(self) -> None:
        """Download the source at once when it is requested next."""
        self.sources.unreliable[self.source.canonical] = True

    def _remote_input(self, *, ranges: bool) -> Input:
        address = request_url(self.origin.source)
        return remote_input(address, USER_AGENT, self.sources.ca_file, ranges=ranges)


@dataclass(eq=False)
class RangedSource(_State):
    """A source that ffmpeg may read at the origin, until the origin contradicts itself.

    :ivar response: the one with the start of the source, which is read at once.
    """

    response: Response
    # A validator is required, and a recent date is none.
    is_certain = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._size = self.origin.size or 0
        # As many bytes as were requested; `b""` if they cannot be read.
        self._start: SharedResult[bytes] = SharedResult()
        self._end: bytes | None = None
        reading = Deferred.fromCoroutine(read_body(self.response, min(WINDOW, self._size)))
        self._reading = reading.addCallbacks(self._start.fire, lambda _: self._start.fire(b""))

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        """Return what a child sees at the origin, which is tested meanwhile.

        :raises StateChanged: where the origin fails the test. The child has ended then.
        """
        looking = Deferred.fromCoroutine(look(self._remote_input(ranges=True)))
        is_stopped = False

        def stop_looking() -> None:
            # The child may take some time to die, which a second cancellation would cut short.
            nonlocal is_stopped
            if not is_stopped:
                is_stopped = True
                looking.cancel()

        async def test() -> None:
            if not await deadline.limit(self.passes_test()):
                # The child may wait for bytes in vain.
                stop_looking()
                raise await self._distrusted(probed=False)

        def stop() -> None:
            testing.addErrback(lambda _: None).cancel()
            stop_looking()

        testing = Deferred.fromCoroutine(test())
        try:
            return await await_uncancelled(looking, stop)
        finally:
            await testing

    async def input(self) -> Input:
        """Return the address that ffmpeg reads.

        :raises StateChanged: where the origin fails the test.
        """
        if self.origin.source != self.source and self._now() - self._since >= _TARGET_LIFETIME:
            later = await self.sources.origins.state(self.source)
            # A redirect may lead to a host now that ffmpeg must not read.
            if self.origin.contradicts(later) or later.service_only:
                self._distrust()
                raise RenderFailed(_CHANGED)
            self.origin, self._since = replace(self.origin, source=later.source), self._now()
        if not await self.passes_test():
            raise await self._distrusted(probed=True)
        return self._remote_input(ranges=True)

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes from the start or the end that were read already, or request them.

        :raises StateChanged: where the origin returns something else.
        :raises Refusal: as `OriginClient.get` does.
        """
        origins = self.sources.origins
        try:
            if offset + count <= WINDOW:
                start = await self._start.wait()
                if offset + count <= len(start):
                    return start[offset : offset + count]
            first = max(0, self._size - WINDOW)
            if offset < first:
                return await origins.read(self.origin, offset, count)
            if self._end is None:
                self._end = await origins.read(self.origin, first, self._size - first)
            return self._end[offset - first :][:count]
        except Disagreement:
            raise await self._distrusted(probed=True) from None

    async def passes_test(self) -> bool:
        """Return whether the origin serves ranges as ffmpeg requests them.

        ffmpeg requests a range without an end, and waits for all of it. Some origins return less.
        Each version is tested once.

        :raises UnusableOrigin: where the origin is not trusted any more.
        """
        if self.identity not in self.sources.reliable:
            try:
                later, response = await self.sources.origins.get(self.origin.source, "0-")
            except UnusableOrigin:
                raise
            except Refusal:
                return False
            response.abort()
            is_whole = later.is_whole and later.size == self._size
            if not (is_whole and not later.has_interim and self.origin.matches(later)):
                return False
            self.sources.reliable[self.identity] = True
        return True

    def close(self) -> None:
        """Stop reading the start."""
        self._reading.cancel()

    async def _distrusted(self, *, probed: bool) -> StateChanged:
        """Return the change to a source that is downloaded: now, and when it is requested next.

        :param probed: a probe has read a part of the source, so the copy must have the same start.
        """
        self._distrust()
        start = await self._start.wait() if probed else None
        self.close()
        return StateChanged(StatedSource(self.sources, self.source, self.origin, start=start))


@dataclass(eq=False)
class StatedSource(_State):
    """A source that is known by the headers of a response alone.

    :ivar response: the one with the whole source; None if there is none.
    :ivar start: what a probe has read of the source at the origin; None if nothing.
    """

    response: Response | None = None
    start: bytes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._copied: SharedResult[CopiedSource] = SharedResult()
        self._copying: Deferred[None] | None = None

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        """Download the source, if it is small enough and `DOWNLOAD_SHARE` of the time is enough.

        Any other source is probed at the origin. The download continues: a render needs it. A
        source that the service itself has to read is downloaded in any case, within a time of its
        own: the time of the probe is for sources that take long to understand.

        :raises StateChanged: where the source is downloaded.
        """
        if self.origin.service_only:
            copy = await deadline.exempt(self._copy(), self.sources.download_timeout)
            raise StateChanged(copy)
        share = Deadline(self.sources.origins.clock, deadline.left() * DOWNLOAD_SHARE)
        try:
            copy = await share.limit(self._copy())
        except (SourceTooLarge, TimeoutError):
            return await look(self._remote_input(ranges=False))
        raise StateChanged(copy)

    async def input(self) -> NoReturn:
        """Download the source.

        :raises RenderFailed: where it is not what was probed.
        :raises StateChanged: otherwise.
        """
        copy = await self._copy()
        if self.start is not None:
            start = await copy.read(0, len(self.start))
            is_changed = (copy.size, start) != (self.size, self.start)
        else:
            is_reliable = self.source.canonical not in self.sources.unreliable
            is_changed = is_reliable and self.origin.contradicts(copy.copied)
        if is_changed:
            self._distrust()
            raise RenderFailed(_CHANGED)
        raise StateChanged(copy)

    async def read(self, offset: int, count: int) -> NoReturn:
        """Download the source, as `input` does."""
        await self.input()

    def close(self) -> None:
        """Stop the download, remove the copy, and discard what is left of the response."""
        if self._copying is not None:
            self._copying.cancel()
            # All who waited for it may be gone.
            self._copied.wait().addCallbacks(CopiedSource.close, lambda _: None)
        if self.response is not None:
            response, self.response = self.response, None
            response.abort()

    def _copy(self) -> Deferred[CopiedSource]:
        """Download the source, once for all callers. A caller that is cancelled does not stop it.

        :raises Refusal: where the source cannot be downloaded.
        """
        if self._copying is None:
            downloading = Deferred.fromCoroutine(self._download())
            self._copying = downloading.addBoth(self._copied.fire)
        return self._copied.wait()

    async def _download(self) -> CopiedSource:
        limit = self.sources.max_size
        if self.origin.unreadable:
            raise UndecodableSource(self.origin.unreadable)
        stated, response = await self._request()
        file: ScratchFile | None = None
        try:
            if stated.unreadable:
                raise UndecodableSource(stated.unreadable)
            if not stated.is_whole:
                raise UpstreamUnavailable("The origin does not return the whole source.")
            SourceTooLarge.check(stated.size, limit)
            file = await self.sources.space.create(_CREATION_TIMEOUT)
            consumer = FileConsumer(file.descriptor, limit, self.sources.run_in_thread)
            await consumer.receive(response.stream(stated.size))
        except BaseException as error:
            if file is None:
                response.abort()
            else:
                file.close()
            raise _translate(error, limit) from None
        return CopiedSource(self.sources, self.source, self.origin, stated, file)

    async def _request(self) -> tuple[OriginState, Response]:
        """Return the response that was kept, or a new one."""
        response, self.response = self.response, None
        if response is not None:
            if self._now() - self._since <= _KEPT_SECONDS:
                return self.origin, response
            response.abort()
        return await self.sources.origins.look_up(self.source)


@dataclass(eq=False)
class CopiedSource(_State):
    """A source that was downloaded to a file.

    :ivar copied: what the response stated whose body is the copy.
    """

    copied: OriginState
    file: ScratchFile

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_certain = bool(self.origin.validator) and self.origin.matches(self.copied)
        self.size = os.fstat(self.file.descriptor).st_size
        self.descriptors = {SOURCE_DESCRIPTOR: self.file.descriptor}

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        """Return what a child sees of the file."""
        return await look(local_input())

    async def input(self) -> Input:
        """Return the file as the input."""
        return local_input()

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes of the file.

        :raises RenderFailed: where the file cannot be read.
        """
        run_in_thread, descriptor = self.sources.run_in_thread, self.file.descriptor
        try:
            return await read_in_thread(run_in_thread, descriptor, offset, count)
        except OSError as error:
            raise _translate(error, self.sources.max_size) from error

    async def unchanged(self) -> bool:
        """Return True: a copy does not change."""
        return True

    def close(self) -> None:
        """Remove the file; repeated calls are harmless."""
        if self.descriptors:
            self.descriptors = {}
            self.file.close()


def _translate(error: BaseException, limit: int) -> BaseException:
    """Translate an error of a download or a read to the error for the client."""
    if isinstance(error, LimitExceeded):
        return SourceTooLarge(f"The source has more than {limit} bytes, and no more are accepted.")
    if isinstance(error, TransportError):
        return UpstreamUnavailable("The origin did not return the whole source.")
    if isinstance(error, OSError):
        why = redact(reason_of(error).encode())
        _log.warn("a source cannot be written to TMPDIR: {why}", why=why)
        return RenderFailed("The source could not be written to the disk.")
    return error
