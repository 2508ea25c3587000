"""The job of a render: what it runs, found by opening, probing and measuring the source.

``explain`` prints the job that a render would run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cachetools import LRUCache

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.slots import Claim
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.errors import (
    IrregularSource,
    NothingDecoded,
    Refusal,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UndecodableSource,
    WrongLength,
)
from audioproxy.files.scratch_files import AnonymousSpace
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.request import VariantRequest
from audioproxy.grammar.sources import Source
from audioproxy.media.command.decoding import Pipeline, measure_arguments
from audioproxy.media.command.encoding import (
    CommandBuilder,
    StatedLength,
    build_pipeline,
    encoder_arguments,
    stated_length,
)
from audioproxy.media.command.exact_length import length_tolerance, length_warning
from audioproxy.media.command.filters import output_samples
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.progress import read_share
from audioproxy.media.command.stages import output_rate
from audioproxy.media.conversion import SOXR
from audioproxy.media.inputs import Input, local_input
from audioproxy.media.lengths.containers import read_length
from audioproxy.media.probe import Probe
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import DEPENDING_ON_START, SeekPoint
from audioproxy.media.waveform_parts import Part, split_waveform
from audioproxy.media.waveform_spec import Pass, PcmSamples, expected_frames, readable_samples
from audioproxy.observe.log_context import Logger
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.prober import Prober
from audioproxy.render.seek_points import SeekPoints
from audioproxy.sources.anew import use_source
from audioproxy.sources.excerpt import open_excerpt
from audioproxy.sources.interfaces import OpenSource, SourceFile, SourceStore

# Irregular sources that a node remembers; each takes some 200 bytes.
_IRREGULAR_SOURCES = 4096

#: The refusals after which `Preparer.resolve_again` may find another job.
RETRIABLE = (IrregularSource, NothingDecoded)

_log = Logger()


@dataclass(frozen=True, slots=True)
class ProbedSource:
    """A source that is open and probed, for one request.

    :ivar is_last: the source is not opened anew if it fails.
    :ivar found: what renders have found out about an irregular source, as far as the probe has it.
    :ivar length: that the end of the source confirms, as far as it is known. The probe has it where
        the output depends on it.
    """

    request: VariantRequest
    opened: OpenSource
    probe: Probe
    build_command: CommandBuilder
    is_last: bool = False
    found: frozenset[type[IrregularSource]] = frozenset()
    length: SourceLength | None = None

    @property
    def options(self) -> VariantOptions:
        return self.request.options

    @property
    def needs(self) -> Needs:
        return Needs.of(self.options, self.probe)

    @property
    def is_complete(self) -> bool:
        """Whether all bytes of the source are in a file of this node."""
        return self.opened.descriptor is not None

    @property
    def known_length(self) -> SourceLength | None:
        return self.length if self.probe.length is None else self.probe.length

    def close(self) -> None:
        self.opened.close()


@dataclass(frozen=True, slots=True)
class Job:
    """The commands of one attempt of a render, and what its output states.

    :ivar point: where decoding starts; None for the start, and for a seek by ffmpeg.
    :ivar input: how ffmpeg opens the source.
    :ivar samples: those that a waveform needs no decoder for.
    :ivar measure: the decode pass that has measured the source, where one was needed.
    """

    source: ProbedSource
    point: SeekPoint | None
    input: Input
    pipeline: Pipeline
    samples: PcmSamples | None
    measure: list[str] | None

    @property
    def stated_length(self) -> StatedLength | None:
        return stated_length(self.source.options, self.source.probe)

    def waveform_pass(self, pixels: int) -> Pass:
        source = self.source
        frames = expected_frames(source.options, source.probe, source.known_length)
        return Pass(self.pipeline, self.samples, frames, pixels)

    def parts(self, pixels: int, most: int) -> list[Part]:
        """Return the parts of a waveform, at most so many; none where it takes one pass."""
        source, probe = self.source, self.source.probe
        # Filters that give the output an exact length would replace samples that a part has lost.
        has_filters = probe.length is not None and self.samples is None
        if has_filters or not source.is_complete:
            return []
        return split_waveform(source.options, probe, source.known_length, pixels, most)

    def check_length(self, stderr: bytes) -> None:
        """Log how an output differs from its expected length, by what the encoder printed.

        :raises WrongLength: where the source is shorter than its header made sure.
        """
        options, probe = self.source.options, self.source.probe
        samples = output_samples(options, probe)
        if samples is None or probe.length is None:
            return
        rate = output_rate(options, probe)
        difference = length_warning(stderr, samples, rate, length_tolerance(probe, rate))
        if difference is None:
            return
        if not probe.length.exact:
            raise WrongLength
        key = self.source.request.key
        _log.warn("the length of {key}: {difference}", key=key, difference=difference)


@dataclass(frozen=True, slots=True)
class Preparer:
    """Makes the jobs of renders.

    :ivar program: path of ffmpeg, for command lines.
    :ivar max_source: bytes; larger sources are refused.
    :ivar space: where parts of sources are copied.
    :ivar irregular: what renders have found out about irregular sources, by the identities of
        these. It does not matter if one of them is forgotten.
    """

    sources: SourceStore
    prober: Prober
    ffmpeg: Ffmpeg
    program: str
    probe_resampler: Callable[[], Coroutine[Any, Any, str]]
    max_source: int
    space: AnonymousSpace
    run_in_thread: ThreadRunner
    seek_points: SeekPoints
    irregular: LRUCache[bytes, frozenset[type[IrregularSource]]] = field(
        default_factory=partial(LRUCache, _IRREGULAR_SOURCES)
    )

    async def open(self, source: Source, *, reads: bool = True) -> OpenSource:
        """Open a source, whose bytes will be read or not, and refuse one that is too large."""
        opened = await self.sources.open(source, reads=reads)
        try:
            SourceTooLarge.check(opened.size, self.max_source)
        except SourceTooLarge:
            opened.close()
            raise
        return opened

    async def prepare(
        self,
        request: VariantRequest,
        build_command: CommandBuilder = encoder_arguments,
        claim: Claim | None = None,
        on_open: Callable[[OpenSource], object] = lambda opened: None,
        *,
        in_slot: bool = False,
    ) -> ProbedSource:
        """Open and probe the source of a request.

        A refusal that follows from the probe alone is raised here, before the render takes a slot
        or measures the source.

        :param claim: to a probe slot.
        :param on_open: called with the source before it is probed; it may raise a refusal.
        :param in_slot: the caller holds a slot, and the source was opened before.
        """

        async def examine(opened: OpenSource, is_last: bool) -> ProbedSource:
            on_open(opened)
            options = request.options
            probe = await self.prober.probe(opened, claim, pooled=not in_slot)
            if (choice := probe.audio.choice) is not None:
                _log.debug("{key} renders {choice}", key=request.key, choice=choice)
            needs = Needs.of(options, probe)
            if opened.size and probe.file.saw_end and needs.past_end:
                # Where the end of the source confirms the length, the refusal needs no decoder.
                length = await self.prober.read_length(opened, opened.size, probe)
                probe = probe.with_length(length)
                needs = Needs.of(options, probe)
            if not needs.end:
                build_command(self.program, local_input(), options, probe, SOXR)
            return ProbedSource(request, opened, probe, build_command, is_last)

        opening = partial(self.open, request.source)
        return await use_source(opening, examine, attempts=1 if in_slot else 2)

    async def prepare_again(
        self,
        source: ProbedSource,
        refusal: Refusal,
        deadline: Deadline,
        on_open: Callable[[OpenSource], object] = lambda opened: None,
    ) -> ProbedSource:
        """Return a source that has failed in a render, opened and probed anew.

        :raises Refusal: that of the render, where the source has not failed, or was opened anew.
        """
        if source.is_last or source.opened.failure is None:
            raise refusal
        deadline.left()
        source.close()
        request, build_command = source.request, source.build_command
        preparing = self.prepare(request, build_command, on_open=on_open, in_slot=True)
        return await deadline.limit(preparing)

    async def resolve(self, source: ProbedSource, deadline: Deadline) -> Job:
        if not source.probe.file.saw_end:
            # What a render has, and whether it is refused, must not depend on how fast the source
            # arrives.
            await source.opened.complete(deadline)
            probe = await deadline.limit(self.prober.probe(source.opened, pooled=False))
            source = replace(source, probe=probe)
        source = await deadline.limit(self._read(source))
        measure = None
        if source.needs.measure:
            source, measure = await self._measure(source, deadline)
        return await self._build(source, measure, deadline)

    async def _read(self, source: ProbedSource) -> ProbedSource:
        """Read of a source what is needed, and add what earlier renders have found out."""
        source = await _find_length(source)
        found = self.irregular.get(source.opened.identity, frozenset())
        probe, length = source.probe, source.length
        if IrregularSource in found:
            probe = replace(probe, irregular=True)
        if WrongLength in found:
            probe, length = probe.without_length(), None
        source = replace(source, probe=probe, found=found, length=length)
        # Frames that reach to the end of `t` spare a decoder that counts them.
        least = source.needs.least
        if found or least is None:
            return source
        if await self.seek_points.has_samples(source.opened, probe, least):
            source = replace(source, probe=probe.with_least_length(least))
        return source

    async def prepare_parts(
        self, job: Job, parts: Sequence[Part], deadline: Deadline
    ) -> list[Pass]:
        """Return the passes over parts of a waveform; none where decoding cannot start at each."""
        passes = []
        probe = replace(job.source.probe.with_time_stamps(job.source.known_length), in_parts=True)
        for part in parts:
            options = replace(job.source.options, t=part.t)
            request = replace(job.source.request, options=options)
            source = replace(job.source, request=request, probe=probe)
            taken = await self._build(source, None, deadline)
            if source.needs.point and taken.point is None:
                return []
            passes.append(Pass(taken.pipeline, taken.samples, part.frames, part.pixels))
        return passes

    async def resolve_again(self, job: Job, refusal: Refusal, deadline: Deadline) -> Job:
        """Return the job of another attempt, or raise the refusal of the first one.

        An irregular source gets a decoder of its own, and a source of another length than it states
        gets none. A source that gave no audio is measured, and padded if it is too short.
        """
        if isinstance(refusal, IrregularSource):
            if type(refusal) in job.source.found:
                raise RenderFailed(f"Two attempts had the same end. {refusal.message}") from refusal
            # Another render may have found out more meanwhile.
            identity = job.source.opened.identity
            known = self.irregular.get(identity, frozenset())
            self.irregular[identity] = known | {type(refusal)}
            return await self.resolve(job.source, deadline)
        if not job.source.needs.recount:
            raise refusal
        try:
            source, measure = await self._measure(job.source, deadline)
        except (NothingDecoded, RenderTimeout, RenderFailed):
            raise refusal from None
        await self._check_unchanged(source)
        padded = await self._build(source, measure, deadline)
        if not source.needs.padding:
            raise refusal
        return padded

    @asynccontextmanager
    async def refuse_changed(self, source: ProbedSource) -> AsyncIterator[None]:
        """Refuse a source that has changed by the end of a block, which reads it.

        The open descriptor protects against a replaced file, but not against a file that is still
        being written, such as an upload.
        """
        try:
            yield
        except UndecodableSource as refusal:
            if isinstance(refusal, NothingDecoded):
                _log.warn("the encoder output no audio{why}", why=refusal.diagnostic)
            # A source that was replaced meanwhile may look broken.
            await self._check_unchanged(source)
            raise
        await self._check_unchanged(source)

    async def _check_unchanged(self, source: ProbedSource) -> None:
        if not await source.opened.unchanged():
            if source.opened.failure is not None:
                raise source.opened.failure
            self.prober.forget(source.opened.identity)
            key = source.request.key
            _log.warn("a source changed while it was read; {key} is discarded", key=key)
            raise RenderFailed("The source changed while it was read.")

    async def _measure(
        self, source: ProbedSource, deadline: Deadline
    ) -> tuple[ProbedSource, list[str]]:
        """Decode the source to its end; return it with its length, and the command."""
        probe = source.probe
        opened = await _input(source.opened, probe, deadline)
        command = measure_arguments(self.program, opened, probe)
        samples = await self.ffmpeg.measure(command, source.opened, deadline)
        return replace(source, probe=probe.with_decoded_samples(samples)), command

    async def _build(
        self, source: ProbedSource, measure: list[str] | None, deadline: Deadline
    ) -> Job:
        options, probe, point = source.options, source.probe, None
        # Of most codecs, a decode from the start gives the same bytes, and it is exact behind a
        # change, too. What differs must not depend on what this node knows (D78).
        if IrregularSource not in source.found or probe.codec in DEPENDING_ON_START:
            point = await deadline.limit(self.seek_points.find(source.opened, options, probe))
        # What is known about the source is the same for all renders. The place is that of this one.
        placed = replace(probe, seek_point=point)
        opened = await _input(source.opened, placed, deadline, read_share(options, probe))
        resampler = await deadline.limit(self.probe_resampler())
        pipeline = build_pipeline(
            source.build_command, self.program, opened, options, placed, resampler
        )
        samples = readable_samples(options, probe) if source.is_complete else None
        return Job(source, point, opened, pipeline, samples, measure)

    @asynccontextmanager
    async def open_input(self, job: Job, deadline: Deadline) -> AsyncIterator[SourceFile]:
        """Return what the child processes of a job read: the source, or a copy of a part of it."""
        opened, point, probe = job.source.opened, job.point, job.source.probe
        if point is None or not point.head:
            async with self.seek_points.index_meanwhile(opened, job.source.options, probe):
                yield opened
            return
        async with open_excerpt(
            opened, point, probe.skipped, self.space, self.run_in_thread, deadline
        ) as excerpt:
            yield excerpt


async def _find_length(source: ProbedSource) -> ProbedSource:
    """Find the length that the source's end confirms, where that is of use."""
    probe, size, needs = source.probe, source.opened.size, source.needs
    if size is None or probe.length is not None or probe.stamps.seekable:
        return source
    is_used = needs.length or (source.is_complete and needs.samples)
    # A waveform takes one pass if the number of its frames is expected, or several decoders.
    is_of_use = source.is_complete and (needs.frames or needs.parts)
    if not (is_used or needs.seek or is_of_use):
        return source
    length = await read_length(source.opened.read, size, probe)
    if is_used:
        probe = probe.with_length(length)
    elif needs.seek:
        probe = probe.with_time_stamps(length)
    return replace(source, probe=probe, length=length)


async def _input(opened: OpenSource, probe: Probe, deadline: Deadline, share: float = 1.0) -> Input:
    """Return the input with which ffmpeg opens a source, or a copy from a place on."""
    is_copied = probe.seek_point is not None and bool(probe.seek_point.head)
    return probe.open_with(local_input() if is_copied else await opened.input(deadline, share))
