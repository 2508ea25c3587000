"""ffprobe child processes; concurrent requests for one source share one process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

from cachetools import LRUCache, TTLCache

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import SharedCalls
from audioproxy.concurrency.slots import Claim, Slots
from audioproxy.errors import (
    EncryptedSource,
    MemoryExceeded,
    NothingDecoded,
    ProbeFailed,
    ProbeTimeout,
    Refusal,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UndecodableSource,
    VideoSource,
)
from audioproxy.media.command.decoding import measure_arguments, piece_arguments
from audioproxy.media.described import describe, is_doubtful
from audioproxy.media.diagnostics import classify, unsupported_container, verdict
from audioproxy.media.encryption import is_encrypted
from audioproxy.media.ffprobe import (
    ALL_TAGS,
    CONTAINER_TAGS,
    NAMED_TAGS,
    NOTICES,
    has_container,
    lacks_pictures,
    parse_probe,
    probe_arguments,
)
from audioproxy.media.inputs import Input
from audioproxy.media.lengths.containers import read_length, run_reader
from audioproxy.media.lengths.wav import MUCH_SPACE
from audioproxy.media.probe import Check, Probe
from audioproxy.media.reading import ReadRange, SourceLength
from audioproxy.media.samples import check_samples, examine_start, probe_samples
from audioproxy.media.signatures import TAG_DEMUXER, identify, may_be_misdetected
from audioproxy.media.streams import COUNTED_SECONDS
from audioproxy.observe.log_context import Logger
from audioproxy.process.child import ChildTimeout, Exit, log_failure
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.spawn import Launcher, SpawnFailed
from audioproxy.sources.interfaces import OpenSource

#: Bytes of ffprobe's output. A file may hold thousands of streams and very long tags. The needed
#: fields come first, apart from the tags of streams.
OUTPUT_LIMIT = 1024 * 1024

# Probe results in the cache. Each takes some kilobytes, most of it for tags, whose number and
# length `parse_source_info` limits.
_CACHE_SIZE = 512

# Seconds for which a timeout is remembered of a source that kept a CPU busy for more than half of
# its probe. A source that is read slowly may be faster next time.
_TIMEOUT_LIFETIME = 60
_MOST_TIMEOUTS = 4096

_log = Logger()


class _Expensive(ProbeTimeout):
    """The probe took too long because of the source's content."""


class _SourceFailed(Exception):
    """A source could not be read while it was probed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal


async def _refuse_encrypted(read: ReadRange, size: int, probe: Probe) -> Probe:
    if await is_encrypted(read, size):
        raise EncryptedSource
    return probe.checked(Check.ENCRYPTION)


async def _refuse_joined(read: ReadRange, size: int, probe: Probe) -> Probe:
    """Refuse joined files of which ffmpeg plays a part.

    The search for the length shows the join, so a render does not search again.
    """
    length = await read_length(read, size, probe)
    return probe.with_length(length).checked(Check.JOINED_FILES)


_Examine: TypeAlias = Callable[[ReadRange, int, Probe], Coroutine[Any, Any, Probe]]
_BY_READING: dict[Check, _Examine] = {
    Check.ENCRYPTION: _refuse_encrypted,
    Check.JOINED_FILES: _refuse_joined,
}


class Prober:
    """Probes sources, in a slot pool of its own that has no queue."""

    def __init__(
        self,
        launcher: Launcher,
        ffprobe: str,
        slots: Slots,
        timeout: float,
        timed: Callable[[], AbstractContextManager[None]] = nullcontext,
        ffmpeg: str = "ffmpeg",
    ) -> None:
        """Create a prober, whose new probes are timed by a context manager."""
        self._launcher = launcher
        self._ffprobe = ffprobe
        self._program = ffmpeg
        self._ffmpeg = Ffmpeg(launcher)
        self._slots = slots
        self._timeout = timeout
        self._timed = timed
        # A source that is complete is not probed together with one that may still arrive.
        self._running: SharedCalls[tuple[bytes, bool], Probe] = SharedCalls()
        # By identity, where that is certain.
        self._cache: LRUCache[bytes, Probe] = LRUCache(_CACHE_SIZE)
        self._expensive: TTLCache[bytes, bool] = TTLCache(
            _MOST_TIMEOUTS, _TIMEOUT_LIFETIME, timer=launcher.clock.seconds
        )

    async def probe(
        self, source: OpenSource, claim: Claim | None = None, *, pooled: bool = True
    ) -> Probe:
        """Return the probe of a source: cached, shared with a running probe, or new.

        Requests for a source that is being probed share the result. If one of them is cancelled,
        the others still get it.

        :param claim: to the slot of a new probe; by default, a normal one.
        :param pooled: a new probe needs a slot; a render that holds a slot itself has none.
        """
        probe = await self._probe_once(source, claim, pooled=pooled)
        for check, examine in _BY_READING.items():
            if check in probe.pending:
                probe = await self._read(source, probe, examine)
        if Check.SAMPLES in probe.pending:
            probe = await self._check_samples(source, probe, claim, pooled=pooled)
        return probe

    async def describe(self, source: OpenSource) -> Probe:
        """Return the probe of a source for an info document, which is the same on each ffprobe."""
        probe = await self.probe(source)
        if Check.DECODER in probe.pending:
            probe = await self._refuse_undecodable(source, probe)
        return await self._read(source, probe, describe) if is_doubtful(probe) else probe

    async def _probe_once(self, source: OpenSource, claim: Claim | None, *, pooled: bool) -> Probe:
        identity, is_certain = source.identity, source.has_certain_identity()
        if is_certain and (cached := self._cache.get(identity)) is not None:
            return cached
        if is_certain and identity in self._expensive:
            raise ProbeTimeout
        for is_last in (False, True):
            try:
                return await self._running.join(
                    (identity, source.descriptor is not None),
                    lambda: self._probe_and_cache(
                        source, claim, is_certain=is_certain, pooled=pooled
                    ),
                )
            except _SourceFailed as error:
                # That of another request may be the one that could not be read.
                if is_last or source.failure is not None:
                    raise error.refusal from error
        raise AssertionError

    async def _read(self, source: OpenSource, probe: Probe, examine: _Examine) -> Probe:
        """Return a probe that reading the source has refined, if its end can be read.

        Each request reads its own source: the one that was probed may be closed.
        """
        if source.size is None or not probe.file.saw_end:
            return probe
        with _failures_of_probe():
            refined = await self._deadline().limit(examine(source.read, source.size, probe))
        return self._refine(source, probe, refined)

    async def _refuse_undecodable(self, source: OpenSource, probe: Probe) -> Probe:
        """Refuse a source of which nothing can be decoded, as each of its renders does.

        Decoding ends with the first frame. So only sources that are refused are read any further.
        """
        if not probe.file.saw_end:
            return probe
        deadline = self._deadline()
        with _failures_of_probe():
            async with self._slots.hold():
                opened = probe.open_with(await source.input(deadline))
                command = measure_arguments(self._program, opened, probe, frames=1)
                if not await self._ffmpeg.measure(command, source, deadline):
                    raise NothingDecoded
        return self._refine(source, probe, probe.checked(Check.DECODER))

    async def _check_samples(
        self, source: OpenSource, probe: Probe, claim: Claim | None, *, pooled: bool
    ) -> Probe:
        """Return a probe that knows what the samples of an uncompressed or flac source are."""
        deadline = self._deadline()

        async def decode(start: int) -> bytes:
            async with self._slots.hold(claim) if pooled else nullcontext():
                opened = probe.open_with(await source.input(deadline))
                command = piece_arguments(self._program, opened, probe, start)
                return await self._ffmpeg.read_piece(command, source, deadline)

        with _failures_of_probe():
            if not probe.file.saw_end:
                if Check.PADDED_SAMPLES not in probe.pending:
                    return probe
                try:
                    await source.complete(deadline)
                except (ProbeTimeout, SourceTooLarge):
                    # A render has more time, and refuses what is too large.
                    return probe
            if source.size is None:
                return probe
            checking = check_samples(source.read, source.size, probe, decode)
            checked = await deadline.limit(checking)
        return self._refine(source, probe, checked)

    def _refine(self, source: OpenSource, probe: Probe, refined: Probe) -> Probe:
        """Return a probe that reading the source has refined; it replaces the cached one."""
        if source.has_certain_identity() and self._cache.get(source.identity) is probe:
            self._cache[source.identity] = refined
        return refined

    async def read_length(self, source: OpenSource, size: int, probe: Probe) -> SourceLength | None:
        """Return the length of a source; None where its end does not confirm it."""
        with _failures_of_probe():
            return await self._deadline().limit(read_length(source.read, size, probe))

    def forget(self, identity: bytes) -> None:
        self._cache.pop(identity, None)

    async def _probe_and_cache(
        self, source: OpenSource, claim: Claim | None, *, is_certain: bool, pooled: bool
    ) -> Probe:
        try:
            async with self._slots.hold(claim) if pooled else nullcontext():
                with self._timed():
                    probe = await self._probe(source)
        except _Expensive:
            if is_certain:
                self._expensive[source.identity] = True
            raise
        except Refusal as refusal:
            if source.failure is not None:
                raise _SourceFailed(refusal) from refusal
            raise
        # The source may have been modified during the probe.
        if probe.file.saw_end and is_certain and source.has_certain_identity():
            self._cache[source.identity] = probe
        return probe

    def _deadline(self) -> Deadline:
        return Deadline(self._launcher.clock, self._timeout, ProbeTimeout)

    async def _run(
        self,
        opened: Input,
        source: OpenSource,
        deadline: Deadline,
        tags: str = ALL_TAGS,
        seconds: int | None = None,
    ) -> Exit:
        child = self._launcher.launch(
            probe_arguments(self._ffprobe, opened, tags=tags, seconds=seconds),
            {},
            deadline.left(),
            source=source,
            stdout_limit=OUTPUT_LIMIT,
            keep_pattern=NOTICES,
        )
        return await child.wait()

    async def _detect(
        self, opened: Input, source: OpenSource, deadline: Deadline
    ) -> tuple[Input, Exit, bytes]:
        """Return what ffprobe finds, with the demuxer that the signature of the source proves.

        The third value is an output with the tags ahead of the container.
        """
        size = source.size or 0
        if opened.seekable and size > MUCH_SPACE:
            reading = run_reader(source.read, size, examine_start(size))
            if (start := await deadline.limit(reading)) is not None:
                opened = replace(opened, is_pcm=start.is_pcm, forward=start.has_space)
        ended = await self._run(opened, source, deadline)
        failed = not ended.ok and classify(ended.stderr) is UndecodableSource
        if may_be_misdetected(ended.stdout, failed=failed) and opened.seekable and source.size:
            found = await deadline.limit(identify(source.read, source.size, ended.stdout))
            if found is not None:
                tagged = b""
                if found.start:
                    tags = replace(opened, demuxer=TAG_DEMUXER)
                    tagged = (await self._run(tags, source, deadline)).stdout
                opened = replace(opened, demuxer=found.demuxer, skipped=found.start)
                return opened, await self._run(opened, source, deadline), tagged
        return opened, ended, b""

    async def _probe(self, source: OpenSource) -> Probe:
        deadline = self._deadline()

        async def look(opened: Input) -> tuple[Input, Exit, bytes, Probe | None]:
            opened, ended, tagged = await run(opened)
            return opened, ended, tagged, await self._read_samples(opened, ended, source, deadline)

        async def run(opened: Input) -> tuple[Input, Exit, bytes]:
            opened, first, tagged = await self._detect(opened, source, deadline)
            if lacks_pictures(first.stdout):
                first = await self._run(opened, source, deadline, seconds=COUNTED_SECONDS)
                if first.overflowed:
                    # No audio book has so many packets in ten seconds.
                    raise VideoSource
            if not first.overflowed:
                return opened, first, tagged
            # The tags of outputs may be behind the cut (D61).
            ended = await self._run(opened, source, deadline, NAMED_TAGS)
            if ended.overflowed and not has_container(ended.stdout):
                ended = await self._run(opened, source, deadline, CONTAINER_TAGS)
            return opened, ended, first.stdout

        try:
            with _failures_of_probe():
                opened, ended, tagged, samples = await source.inspect(deadline, look)
        except SpawnFailed as error:
            _log.error("the probe cannot be started: {error}", error=error)
            raise ProbeFailed from error
        except ChildTimeout as error:
            if error.cpu_seconds > self._timeout / 2:
                raise _Expensive from None
            raise ProbeTimeout from None
        if ended.ok or ended.overflowed:
            try:
                probe = parse_probe(
                    ended.stdout,
                    ended.stderr,
                    cut_off=ended.overflowed,
                    seekable=opened.seekable,
                    tagged=tagged,
                )
            except ValueError:
                _log.error("the output of ffprobe cannot be parsed")
                raise ProbeFailed from None
            if source.size is None:
                # ffprobe takes the most bytes that the source may have for its size.
                probe = probe.described(size=None, bitrate=probe.audio.bitrate)
            return probe.with_file(
                demuxer=opened.demuxer, skipped=opened.skipped, is_pcm=opened.is_pcm
            )
        cause = verdict(ended.signal_name, ended.stderr, writes=False)
        if cause is RenderTimeout:
            raise _Expensive
        if ended.code is not None and cause is not None and issubclass(cause, UndecodableSource):
            if cause is MemoryExceeded:
                log_failure("probe", ended, cause)
            if samples is not None:
                return samples
            if (name := unsupported_container(ended.stderr)) is not None:
                raise UndecodableSource(f'The container "{name}" is not supported.')
            raise cause
        log_failure("probe", ended)
        raise ProbeFailed

    async def _read_samples(
        self, opened: Input, ended: Exit, source: OpenSource, deadline: Deadline
    ) -> Probe | None:
        """Return the probe of uncompressed samples that ffprobe does not find; None for others."""
        refusal = None if ended.ok or ended.code is None else classify(ended.stderr)
        is_undecodable = refusal is not None and issubclass(refusal, UndecodableSource)
        if not (is_undecodable and opened.seekable and source.size):
            return None
        return await deadline.limit(probe_samples(source.read, source.size))


@contextmanager
def _failures_of_probe() -> Iterator[None]:
    """Translate failures to read a source, which are those of a render."""
    try:
        yield
    except RenderFailed as error:
        raise ProbeFailed(error.message) from error
    except RenderTimeout as error:
        raise ProbeTimeout from error
