"""ffprobe as a child, one for all who ask about one source at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cachetools import LRUCache
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

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
from audioproxy.process.child import ChildTimeout, describe_exit
from audioproxy.process.slots import Slots
from audioproxy.process.spawn import Launcher, SpawnFailed
from audioproxy.shared_result import SharedResult

# Bytes of an answer. A file may hold thousands of streams, and tags as long as a book; what is
# needed comes first.
_ANSWER_LIMIT = 1024 * 1024

# Sources that are remembered. Each takes some kilobytes, most of them tags, of which the info
# document has a limited number.
_KNOWN = 512

_log = Logger()


class Examined(Protocol):
    """The part of an open source that a probe needs."""

    @property
    def descriptors(self) -> Mapping[int, int]: ...  # noqa: D102

    async def input(self, seconds: float, *, whole: bool) -> Input: ...  # noqa: D102
    def fingerprint(self) -> bytes: ...  # noqa: D102


class Prober:
    """Examines sources, in a pool of slots of its own that has no queue."""

    def __init__(self, launcher: Launcher, ffprobe: str, slots: Slots, timeout: float) -> None:
        self._launcher = launcher
        self._ffprobe = ffprobe
        self._slots = slots
        self._timeout = timeout
        self._running: dict[bytes, SharedResult[Probe]] = {}
        self._known: LRUCache[tuple[bytes, bytes], Probe] = LRUCache(_KNOWN)

    async def probe(self, identity: bytes, source: Examined) -> Probe:
        """Return what ffprobe finds in a source, or found while the source was what it is now.

        Whoever asks while a probe of the same source runs shares its answer. One who is
        cancelled leaves the others theirs.

        :param identity: equal for two sources only where their bytes are the same.
        :raises QueueFull: with no free probe slot.
        :raises UndecodableSource, VideoSource: for what the source is.
        :raises ProbeFailed, ProbeTimeout: for what went wrong here.
        """
        fingerprint = source.fingerprint()
        if fingerprint and (known := self._known.get((identity, fingerprint))) is not None:
            return known
        shared = self._running.get(identity)
        if shared is None:
            shared = self._start(identity, fingerprint, source)
        return await shared.wait()

    def arguments(self, opened: Input) -> list[str]:
        """Return the command line that examines an opened source."""
        return probe_arguments(self._ffprobe, opened)

    def _start(self, identity: bytes, fingerprint: bytes, source: Examined) -> SharedResult[Probe]:
        """Start a probe that all who ask for it meanwhile share; the last one to leave ends it."""

        def unregister() -> None:
            if self._running.get(identity) is shared:
                del self._running[identity]

        def abandon() -> None:
            # A request that comes while the child dies starts another probe.
            unregister()
            running.cancel()

        def finish(outcome: Probe | Failure) -> None:
            unregister()
            shared.fire(outcome)

        shared: SharedResult[Probe] = SharedResult(abandon)
        self._running[identity] = shared
        running = Deferred.fromCoroutine(self._learn(identity, fingerprint, source))
        running.addBoth(finish)
        return shared

    async def _learn(self, identity: bytes, fingerprint: bytes, source: Examined) -> Probe:
        probe = await self._probe(source)
        # The source may have been written to meanwhile.
        if fingerprint and source.fingerprint() == fingerprint:
            self._known[identity, fingerprint] = probe
        return probe

    async def _probe(self, source: Examined) -> Probe:
        async with self._slots.hold():
            deadline = self._launcher.clock.seconds() + self._timeout
            try:
                try:
                    opened = await source.input(self._timeout, whole=False)
                except RenderFailed as error:
                    raise ProbeFailed(error.message) from error
                child = self._launcher.launch(
                    self.arguments(opened),
                    source.descriptors,
                    stdout_limit=_ANSWER_LIMIT,
                    keep_pattern=CUT_SHORT,
                    parent_death_signal=False,
                )
                ended = await child.wait(max(0.0, deadline - self._launcher.clock.seconds()))
            except SpawnFailed as error:
                _log.error("the probe cannot be started: {error}", error=error)
                raise ProbeFailed from error
            except (ChildTimeout, TimeoutError):
                raise ProbeTimeout from None
        cut_short = opened.bounded and was_cut_short(ended.stderr)
        if (ended.ok or ended.overflowed) and not cut_short:
            try:
                return read_probe(
                    ended.stdout,
                    ended.stderr,
                    cut_off=ended.overflowed,
                    seekable=opened.bounded,
                )
            except ValueError:
                _log.error("the probe's answer cannot be read")
                raise ProbeFailed from None
        if ended.code is not None and (refusal := classify(ended.stderr)) is not None:
            if refusal in (NotFound, UpstreamUnavailable):
                # It was there a moment ago. A clock that is wrong, or a right to ask for an object
                # and not to read it, look like that.
                _log.warn(
                    "a source that was found is not given to the probe: {diagnostic}",
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
