"""Sources at https addresses: read by ffmpeg at the origin, or downloaded first."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from cachetools import LRUCache, TTLCache
from twisted.internet.defer import Deferred

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.errors import (
    Refusal,
    RenderFailed,
    SourceTooLarge,
    UndecodableSource,
    UpstreamUnavailable,
)
from audioproxy.grammar.sources import HttpsSource
from audioproxy.http_client.client import USER_AGENT
from audioproxy.media.command.inputs import Input, local_input, remote_input
from audioproxy.sources.download import Downloads
from audioproxy.sources.https_states import (
    CopiedSource,
    Disagreement,
    RangedSource,
    StatedSource,
)
from audioproxy.sources.origin import (
    WINDOW,
    OriginClient,
    OriginState,
    UnusableOrigin,
    request_url,
)

T = TypeVar("T")

# Sources that a node remembers, and the seconds for which it downloads those that cannot be read
# in place.
_REMEMBERED_SOURCES = 4096
_UNRELIABLE_SECONDS = 3600
# Seconds after which the target of a redirect is asked for again: it may be valid for a short time.
_TARGET_LIFETIME = 5

_CHANGED = "The source changed while it was read."


@dataclass(frozen=True, slots=True)
class HttpsSources:
    """Opens sources at the https hosts on the allowlist.

    :ivar downloads: takes the copies of sources that cannot be read safely at the origin.
    :ivar ca_file: PEM file of the certificates that ffmpeg trusts; None is the system's own.
    :ivar reliable: versions of sources whose origin has passed the test of `RangedSource`.
    :ivar unreliable: sources whose origin has failed it, or contradicted itself.
    """

    origins: OriginClient
    downloads: Downloads
    ca_file: str | None
    reliable: LRUCache[bytes, bool] = field(default_factory=partial(LRUCache, _REMEMBERED_SOURCES))
    unreliable: TTLCache[bytes, bool] = field(init=False)

    def __post_init__(self) -> None:
        clock = self.origins.clock
        memory = TTLCache[bytes, bool](_REMEMBERED_SOURCES, _UNRELIABLE_SECONDS, clock.seconds)
        object.__setattr__(self, "unreliable", memory)

    async def open(self, source: HttpsSource) -> OpenHttpsSource:
        """Request the start of a source from its origin.

        :raises NotFound, UpstreamUnavailable: as `OriginClient.look_up` does.
        """
        state, response = await self.origins.look_up(source, f"0-{WINDOW - 1}")
        if state.is_whole and not state.unreadable:
            return OpenHttpsSource(self, source, StatedSource(self, source, state, response))
        is_start = state.size is not None and state.serves(0, min(WINDOW, state.size) - 1)
        is_reliable = source.canonical not in self.unreliable and not state.has_interim
        if is_start and state.validator and is_reliable and not state.unreadable:
            return OpenHttpsSource(self, source, RangedSource(self.origins, state, response))
        response.discard()
        return OpenHttpsSource(self, source, StatedSource(self, source, state))


class OpenHttpsSource:
    """A source at an https address, in one of three states.

    It is *ranged* where ffmpeg may read it at the origin. ffmpeg must be able to distinguish its
    end from a lost connection, and all ranges must be of one version. So the length must be known,
    ranges must be served, and a validator must distinguish the versions.

    Any other source is *stated*, and is *copied* before it is read, since the HTTP client checks
    the framing of the body. A ranged source whose origin turns out to limit its ranges, or to
    contradict itself, is copied too: one response cannot mix versions.
    """

    file_identity = b""

    def __init__(
        self, sources: HttpsSources, source: HttpsSource, form: StatedSource | RangedSource
    ) -> None:
        self._sources = sources
        self._source = source
        self._form: StatedSource | RangedSource | CopiedSource = form
        # The requests that let a child look at the source, each of which may outlive `close`.
        self._looking = 0
        self._closed = False

    @property
    def size(self) -> int | None:
        """Bytes of the copy, or those that the origin states; None where neither is known."""
        return self._form.size

    @property
    def validator(self) -> bytes:
        """The entity tag or Last-Modified, and the size."""
        return self._form.state.validator

    @property
    def descriptors(self) -> Mapping[int, int]:
        """The descriptor of the copy, where there is one."""
        return self._form.descriptors

    async def inspect(
        self, deadline: Deadline, look: Callable[[Input], Coroutine[Any, Any, T]]
    ) -> T:
        """Let a child look at the source: at the origin, or at a copy.

        The origin is tested meanwhile. If it fails, the child looks again, at a copy.

        :raises Refusal: where the source cannot be read.
        """
        self._looking += 1
        try:
            if isinstance(self._form, RangedSource):
                seen = await self._look_while_testing(self._form, deadline, look)
                if seen is not None:
                    return seen[0]
                self._distrust()
            # A source that is too large or too slow to be downloaded for a probe is probed at the
            # origin. The download continues: a render needs it.
            half = Deadline(self._sources.origins.clock, deadline.left() / 2)
            try:
                await half.limit(self._copy())
            except (SourceTooLarge, TimeoutError):
                return await look(self._remote_input(self._form.state, ranges=False))
            return await look(local_input())
        finally:
            self._looking -= 1
            self._release_if_closed()

    async def input(self, deadline: Deadline) -> Input:
        """Return the URL as the input, or a copy where that is safer.

        :raises Refusal: where the source cannot be read, or not before the deadline.
        """
        await deadline.limit(self._settle())
        form = self._form
        if isinstance(form, RangedSource):
            return self._remote_input(form.state, ranges=True)
        return local_input()

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes of the copy, or request them from the origin.

        :raises Refusal: where they cannot be read.
        """
        form = self._form
        if isinstance(form, RangedSource):
            try:
                return await form.read(offset, count)
            except Disagreement:
                await self._copy_what_was_probed(form)
        return await (await self._copy()).read(offset, count)

    def fingerprint(self) -> bytes:
        """Return the validator; ``b""`` where the origin states none, or contradicts itself."""
        return self._form.fingerprint()

    async def unchanged(self) -> bool:
        """Return whether the origin still states the same version; a copy does not change."""
        form = self._form
        if isinstance(form, CopiedSource) or not form.state.validator:
            return True
        try:
            # The target of a redirect may be valid only for a short time, so the redirects are
            # followed again.
            later = await self._sources.origins.state(self._source)
        except UpstreamUnavailable as error:
            # ffmpeg has already read the source to its end, so a failure of the origin does no harm
            # now.
            return not isinstance(error, UnusableOrigin)
        except Refusal:
            return False
        if form.state.contradicts(later):
            # The origin may contradict itself for ever.
            self._distrust()
            return False
        return True

    def close(self) -> None:
        """Remove the copy; repeated calls are harmless."""
        self._closed = True
        self._release_if_closed()

    def _release_if_closed(self) -> None:
        # The request that opened the source may close it while others share its probe.
        if self._closed and not self._looking:
            self._form.close()

    async def _look_while_testing(
        self,
        form: RangedSource,
        deadline: Deadline,
        look: Callable[[Input], Coroutine[Any, Any, T]],
    ) -> tuple[T] | None:
        """Return what a child sees at the origin; None if the origin fails the test."""
        looked: SharedResult[T] = SharedResult()
        looking = Deferred.fromCoroutine(look(self._remote_input(form.state, ranges=True)))
        looking.addBoth(looked.fire)
        rejected = False

        async def test() -> None:
            nonlocal rejected
            rejected = not await deadline.limit(self._test(form))
            if rejected:
                # The child may wait for bytes in vain.
                looking.cancel()

        testing = Deferred.fromCoroutine(test())
        try:
            seen = await looked.wait()
        except Exception:
            if not looked.fired:
                # Nobody waits for the child any more. It may take some time to die.
                testing.addErrback(lambda _: None).cancel()
                if not rejected:
                    looking.cancel()
                await looked.wait()
                raise
            await testing
            if not rejected:
                raise
            return None
        await testing
        return None if rejected else (seen,)

    async def _test(self, form: RangedSource) -> bool:
        """Return whether the source can be read in place; tested once for each version."""
        key = self._source.canonical + b" " + form.state.validator
        if key not in self._sources.reliable:
            if not await form.passes_test():
                return False
            self._sources.reliable[key] = True
        return True

    async def _settle(self) -> None:
        """Prepare to read the whole source, which was probed."""
        form = self._form
        if isinstance(form, RangedSource):
            await self._follow_redirects_again(form)
            if not await self._test(form):
                await self._copy_what_was_probed(form)
        elif isinstance(form, StatedSource):
            copy = await self._copy()
            is_reliable = self._source.canonical not in self._sources.unreliable
            if is_reliable and copy.state.contradicts(copy.copied):
                self._refuse_changed()

    async def _follow_redirects_again(self, form: RangedSource) -> None:
        clock = self._sources.origins.clock
        if form.state.source == self._source or clock.seconds() - form.since < _TARGET_LIFETIME:
            return
        state = await self._sources.origins.state(self._source)
        if form.state.contradicts(state):
            self._refuse_changed()
        form.state = replace(form.state, source=state.source)
        form.since = clock.seconds()

    async def _copy_what_was_probed(self, form: RangedSource) -> None:
        """Download a source of which a probe has read a part at the origin."""
        self._distrust()
        start = await form.start.wait()
        copy = await self._copy()
        if copy.size != form.size or await copy.read(0, len(start)) != start:
            raise RenderFailed(_CHANGED)

    async def _copy(self) -> CopiedSource:
        """Download the source, unless that is done."""
        form = self._form
        if isinstance(form, CopiedSource):
            return form
        if form.state.unreadable:
            raise UndecodableSource(form.state.unreadable)
        if isinstance(form, RangedSource):
            form.close()
            form = self._form = StatedSource(self._sources, self._source, form.state)
        self._form = copy = await form.copy()
        return copy

    def _refuse_changed(self) -> None:
        """Refuse a source of which two responses disagree; the next request downloads it."""
        self._distrust()
        raise RenderFailed(_CHANGED)

    def _distrust(self) -> None:
        self._sources.unreliable[self._source.canonical] = True

    def _remote_input(self, state: OriginState, *, ranges: bool) -> Input:
        address = request_url(state.source)
        return remote_input(address, USER_AGENT, self._sources.ca_file, ranges=ranges)
