"""ffprobe child processes; concurrent requests for one source share one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from cachetools import LRUCache

from audioproxy.errors import (
    NotFound,
    ProbeFailed,
    ProbeTimeout,
    RenderFailed,
    UpstreamUnavailable,
)
from audioproxy.log_context import Logger
from audioproxy.media.diagnostics import CUT_SHORT, classify, redact, was_cut_short
from audioproxy.media.inputs import Input
from audioproxy.media.probe import Probe, probe_arguments, read_probe
from audioproxy.media.source_length.padded import find_padding
from audioproxy.process.child import ChildTimeout, Exit, describe_exit
from audioproxy.process.slots import Slots
from audioproxy.process.spawn import Launcher, SpawnFailed
from audioproxy.shared_result import SharedCalls

# Bytes of ffprobe's output. A file may hold thousands of streams and very long tags. The needed
# fields come first.
_OUTPUT_LIMIT = 1024 * 1024

# Probe results in the cache. Each takes some kilobytes, most of it for tags, whose number and
# length `read_source_info` limits.
_CACHE_SIZE = 512

_log = Logger()


class ProbeSource(Protocol):
    """The part of an open source that a probe needs."""

    @property
    def descriptors(self) -> Mapping[int, int]: ...  # noqa: D102
    @property
    def size(self) -> int | None: ...  # noqa: D102

    async def input(self, seconds: float, *, whole: bool) -> Input: ...  # noqa: D102
    async def read(self, offset: int, count: int) -> bytes: ...  # noqa: D102
    def fingerprint(self) -> bytes: ...  # noqa: D102


class Prober:
    """Probes sources, in a slot pool of its own that has no queue."""

    def __init__(self, launcher: Launcher, ffprobe: str, slots: Slots, timeout: float) -> None:
        self._launcher = launcher
        self._ffprobe = ffprobe
        self._slots = slots
        self._timeout = timeout
        self._running: SharedCalls[bytes, Probe] = SharedCalls()
        self._cache: LRUCache[tuple[bytes, bytes], Probe] = LRUCache(_CACHE_SIZE)

    async def probe(self, identity: bytes, source: ProbeSource) -> Probe:
        """Return the probe of a source: cached, shared with a running probe, or new.

        A cached probe is used while the source's fingerprint is the same. Requests for a source
        that is being probed share the result. If one of them is cancelled, the others still get it.

        :param identity: equal for two sources only if their bytes are the same.
        :raises QueueFull: where no probe slot is free.
        :raises UndecodableSource, VideoSource: for a source that cannot be rendered.
        :raises ProbeFailed, ProbeTimeout: where the probe fails or takes too long.
        """
        probe = await self._probe_once(identity, source)
        if not probe.may_be_padded:
            return probe
        try:
            await source.input(self._timeout, whole=True)
            return await find_padding(source.read, source.size or 0, probe)
        except RenderFailed as error:
            raise ProbeFailed(error.message) from error
        except TimeoutError:
            raise ProbeTimeout from None

    async def _probe_once(self, identity: bytes, source: ProbeSource) -> Probe:
        """Return what ffprobe reports: cached, shared with a running probe, or new."""
        fingerprint = source.fingerprint()
        if fingerprint and (cached := self._cache.get((identity, fingerprint))) is not None:
            return cached
        return await self._running.join(
            identity, lambda: self._probe_and_cache(identity, fingerprint, source)
        )

    def arguments(self, opened: Input) -> list[str]:
        """Return the command line that probes an opened source."""
        return probe_arguments(self._ffprobe, opened)

    async def _probe_and_cache(
        self, identity: bytes, fingerprint: bytes, source: ProbeSource
    ) -> Probe:
        probe = await self._probe(source)
        # The source may have been modified during the probe.
        if fingerprint and source.fingerprint() == fingerprint:
            self._cache[identity, fingerprint] = probe
        return probe

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._launcher.clock.seconds())

    async def _run(self, opened: Input, source: ProbeSource, deadline: float) -> Exit:
        child = self._launcher.launch(
            self.arguments(opened),
            source.descriptors,
            stdout_limit=_OUTPUT_LIMIT,
            keep_pattern=CUT_SHORT,
            parent_death_signal=False,
        )
        return await child.wait(self._left(deadline))

    async def _probe(self, source: ProbeSource) -> Probe:
        async with self._slots.hold():
            deadline = self._launcher.clock.seconds() + self._timeout
            try:
                opened = await source.input(self._timeout, whole=False)
                ended = await self._run(opened, source, deadline)
                if opened.tentative:
                    assumed = replace(opened, tentative=False)
                    opened = await source.input(self._left(deadline), whole=False)
                    if opened != assumed:
                        ended = await self._run(opened, source, deadline)
            except RenderFailed as error:
                raise ProbeFailed(error.message) from error
            except SpawnFailed as error:
                _log.error("the probe cannot be started: {error}", error=error)
                raise ProbeFailed from error
            except (ChildTimeout, TimeoutError):
                raise ProbeTimeout from None
        cut_short = opened.seekable and was_cut_short(ended.stderr)
        if (ended.ok or ended.overflowed) and not cut_short:
            try:
                return read_probe(
                    ended.stdout,
                    ended.stderr,
                    cut_off=ended.overflowed,
                    seekable=opened.seekable,
                )
            except ValueError:
                _log.error("the output of ffprobe cannot be parsed")
                raise ProbeFailed from None
        if ended.code is not None and (refusal := classify(ended.stderr)) is not None:
            if refusal in (NotFound, UpstreamUnavailable):
                # The source was available a moment ago. Possible causes are a wrong clock, and
                # credentials that may request an object's headers but not read the object.
                _log.warn(
                    "ffprobe cannot read a source that exists: {diagnostic}",
                    diagnostic=redact(ended.stderr),
                )
            raise refusal
        log = _log.error if ended.never_ran else _log.warn
        log(
            "the probe failed ({how}): {diagnostic}",
            how=describe_exit(ended),
            diagnostic=redact(ended.stderr),
        )
        raise ProbeFailed
