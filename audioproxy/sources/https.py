"""Sources at https addresses: read by ffmpeg at the origin, or downloaded first."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.grammar.sources import HttpsSource
from audioproxy.media.command.inputs import Input
from audioproxy.sources.https_origin import WINDOW
from audioproxy.sources.https_states import (
    CopiedSource,
    HttpsBackend,
    RangedSource,
    StateChanged,
    StatedSource,
)
from audioproxy.sources.interfaces import Look

T = TypeVar("T")


class HttpsSources(HttpsBackend):
    """Opens sources at the https hosts on the allowlist."""

    async def open(self, source: HttpsSource) -> OpenHttpsSource:
        """Request the start of a source from its origin.

        A source is ranged where ffmpeg may read it at the origin. ffmpeg must be able to
        distinguish its end from a lost connection, and all ranges must be of one version. So the
        length must be known, ranges must be served, and a validator must distinguish the versions.
        No source is ranged that the service itself has to read.

        :raises NotFound, UpstreamUnavailable: as `OriginClient.look_up` does.
        """
        origin, response = await self.origins.look_up(source, f"0-{WINDOW - 1}")
        if origin.is_whole and not origin.unreadable:
            return OpenHttpsSource(StatedSource(self, source, origin, response))
        size = origin.size
        is_start = size is not None and (origin.first, origin.last) == (0, min(WINDOW, size) - 1)
        is_reliable = source.canonical not in self.unreliable and not origin.has_interim
        is_readable = not (origin.unreadable or origin.service_only)
        if is_start and origin.validator and is_reliable and is_readable:
            return OpenHttpsSource(RangedSource(self, source, origin, response))
        response.discard()
        return OpenHttpsSource(StatedSource(self, source, origin))


class OpenHttpsSource:
    """A source at an https address, in one of three states.

    `RangedSource`
        ffmpeg may read it at the origin. It becomes a `StatedSource` where its origin turns out to
        limit its ranges, or to contradict itself: one response cannot mix versions.
    `StatedSource`
        It is known by the headers of a response alone. It becomes a `CopiedSource` before it is
        read, since the HTTP client checks the framing of the body.
    `CopiedSource`
        It was downloaded to a file.

    :ivar validator: the entity tag or Last-Modified, and the size.
    :ivar identity: the source and its validator.
    """

    def __init__(self, state: RangedSource | StatedSource) -> None:
        self._state: RangedSource | StatedSource | CopiedSource = state
        self.validator = state.origin.validator
        self.identity = state.identity
        # The requests that let a child look at the source, each of which may outlive `close`.
        self._looking = 0
        self._closed = False

    @property
    def size(self) -> int | None:
        """Bytes of the copy, or those that the origin states; None where neither is known."""
        return self._state.size

    @property
    def descriptors(self) -> Mapping[int, int]:
        """The descriptor of the copy, where there is one."""
        return self._state.descriptors

    def has_certain_identity(self) -> bool:
        """Return whether the bytes that are read are certainly those of the validator."""
        return self._state.is_certain

    async def inspect(self, deadline: Deadline, look: Look[T]) -> T:
        """Return what a child sees of the source: at the origin, or in a copy."""
        self._looking += 1
        try:
            return await self._in_last_state(lambda state: state.inspect(deadline, look))
        finally:
            self._looking -= 1
            self._release_if_closed()

    async def input(self, deadline: Deadline) -> Input:
        """Return the URL as the input, or a copy where that is safer."""
        return await deadline.limit(self._in_last_state(lambda state: state.input()))

    async def read(self, offset: int, count: int) -> bytes:
        """Return bytes of the copy, or request them from the origin."""
        return await self._in_last_state(lambda state: state.read(offset, count))

    async def unchanged(self) -> bool:
        """Return whether the origin still states the same version; a copy does not change."""
        return await self._state.unchanged()

    def close(self) -> None:
        """Remove the copy; repeated calls are harmless."""
        self._closed = True
        self._release_if_closed()

    async def _in_last_state(
        self, call: Callable[[RangedSource | StatedSource | CopiedSource], Coroutine[Any, Any, T]]
    ) -> T:
        """Return the result of a call, which is repeated in each state that the call leads to."""
        while True:
            state = self._state
            try:
                return await call(state)
            except StateChanged as change:
                # Another call may have led to a state of its own meanwhile.
                if self._state is state:
                    self._state = change.state

    def _release_if_closed(self) -> None:
        # The request that opened the source may close it while others share its probe.
        if self._closed and not self._looking:
            self._state.close()
