"""The steps before the encoder: open, probe and measure the source, and build the commands.

``explain`` prepares a render with the same functions, and prints the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from cachetools import LRUCache

from audioproxy.errors import (
    EncryptedSource,
    IrregularSource,
    NothingDecoded,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UndecodableSource,
)
from audioproxy.grammar.cache_key import source_identity
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.request import InfoRequest, VariantRequest
from audioproxy.grammar.sources import Source
from audioproxy.media.command.conversion import SOXR
from audioproxy.media.command.decoding import (
    Pipeline,
    decoded_stream,
    measure_arguments,
    single_process,
)
from audioproxy.media.command.encoding import (
    CommandBuilder,
    StatedLength,
    decoder_command,
    encoder_arguments,
    expected_samples,
    stated_length,
    uses_length,
)
from audioproxy.media.command.exact_length import find_tolerance, length_warning
from audioproxy.media.command.filters import is_too_short, may_need_length, output_rate
from audioproxy.media.command.inputs import Input, local_input
from audioproxy.media.command.trim import may_seek, needs_measuring, starts_past_end
from audioproxy.media.encryption import is_encrypted
from audioproxy.media.lengths.find import find_length
from audioproxy.media.pcm import PcmSamples, find_samples, may_read_samples
from audioproxy.media.probe import Probe, probe_arguments
from audioproxy.observe.log_context import Logger
from audioproxy.process.ffmpeg import Encoder
from audioproxy.process.prober import Prober
from audioproxy.render.deadline import Deadline, RenderLimits
from audioproxy.sources.interfaces import OpenSource, SourceStore

T = TypeVar("T")

# Irregular sources that a node remembers; each takes some 200 bytes.
_IRREGULAR_SOURCES = 4096

_log = Logger()


@dataclass(frozen=True, slots=True)
class Preparer:
    """Prepares renders.

    :ivar encoder: measures sources whose headers do not state their exact length.
    :ivar ffmpeg: path of the program.
    :ivar find_resampler: returns the arguments that select ffmpeg's resampler.
    :ivar max_source: bytes; larger sources are refused.
    :ivar irregular: identities of sources that need a decoder of their own. It does not matter if
        one of them is forgotten, or no longer needs it.
    """

    sources: SourceStore
    prober: Prober
    encoder: Encoder
    ffmpeg: str
    find_resampler: Callable[[], Coroutine[Any, Any, tuple[str, ...]]]
    max_source: int
    irregular: LRUCache[bytes, bool] = field(default_factory=partial(LRUCache, _IRREGULAR_SOURCES))

    async def open(self, source: Source) -> OpenSource:
        """Open a source, and refuse one that is too large.

        :raises Refusal: where the source is missing or too large.
        """
        opened = await self.sources.open(source)
        try:
            SourceTooLarge.check(opened.size, self.max_source)
        except SourceTooLarge:
            opened.close()
            raise
        return opened

    async def prepare(
        self, request: VariantRequest, build_command: CommandBuilder = encoder_arguments
    ) -> Preparation:
        """Open and probe the source of a request.

        A refusal that follows from the probe alone is raised here, before the render takes a slot
        or measures the source.

        :param build_command: builds the command of the preparation.
        :raises Refusal: for a source, or options, that cannot be rendered.
        """
        opened = await self.open(request.source)
        try:
            identity = source_identity(request.source.canonical, opened.validator)
            probe = await self.prober.probe(identity, opened)
            if opened.descriptors and opened.size and starts_past_end(request.options, probe):
                # Where the end of the source confirms the length, the refusal needs no decoder.
                probe = probe.with_length(await find_length(opened.read, opened.size, probe))
            if not needs_measuring(request.options, probe):
                build_command(self.ffmpeg, local_input(), request.options, probe, SOXR)
        except BaseException:
            opened.close()
            raise
        return Preparation(self, request, opened, identity, probe, build_command)


class Preparation:
    """One open source, its probe, and the commands of one render.

    :ivar probe: what is known about the source so far.
    """

    def __init__(
        self,
        preparer: Preparer,
        request: VariantRequest,
        opened: OpenSource,
        identity: bytes,
        probe: Probe,
        build_command: CommandBuilder,
    ) -> None:
        self.probe = probe
        self._identity = identity
        self._build_command = build_command
        self._preparer = preparer
        self._key = request.key
        self._options = request.options
        self._opened = opened

    @property
    def descriptors(self) -> Mapping[int, int]:
        """The descriptors that a child inherits to open the source."""
        return self._opened.descriptors

    async def pipeline(self, deadline: Deadline) -> Pipeline:
        """Return the command lines of the render, after measuring the source where needed.

        :raises NothingDecoded: where a source that had to be measured holds no audio.
        :raises Refusal: for options that do not fit this source.
        """
        await self.input(deadline)
        await self._refuse_encrypted(deadline)
        await self._find_length(deadline)
        irregular = self._identity in self._preparer.irregular
        if needs_measuring(self._options, self.probe, irregular=irregular):
            await self._measure(deadline)
        opened = await self.input(deadline)
        resampler = await deadline.limit(self._preparer.find_resampler())
        ffmpeg, options, probe = self._preparer.ffmpeg, self._options, self.probe

        def build(source: Input) -> list[str]:
            return self._build_command(ffmpeg, source, options, probe, resampler)

        if not irregular:
            return single_process(build(opened), probe)
        decoder = decoder_command(ffmpeg, opened, options, probe)
        return Pipeline(build(decoded_stream(probe)), decoder)

    async def run(
        self,
        deadline: Deadline,
        run_pipeline: Callable[[Pipeline], Coroutine[Any, Any, T]],
        may_retry: Callable[[], bool] = lambda: True,
    ) -> T:
        """Run the processes, and return their result if the source has not changed meanwhile.

        :param may_retry: returns whether a further attempt is possible.
        :raises Refusal: where all attempts fail.
        """
        try:
            result = await self._run_or_retry(deadline, run_pipeline, may_retry)
        except UndecodableSource as refusal:
            if isinstance(refusal, NothingDecoded):
                _log.warn("the encoder output no audio{why}", why=refusal.diagnostic)
            # A source that was replaced meanwhile may look broken.
            await self.check_unchanged()
            raise
        await self.check_unchanged()
        return result

    async def _run_or_retry(
        self,
        deadline: Deadline,
        run_pipeline: Callable[[Pipeline], Coroutine[Any, Any, T]],
        may_retry: Callable[[], bool],
    ) -> T:
        pipeline = await self.pipeline(deadline)
        while True:
            try:
                return await run_pipeline(pipeline)
            except IrregularSource:
                # Remembered even if this render cannot be repeated: the next one begins with it.
                self._preparer.irregular[self._identity] = True
                if not may_retry():
                    _log.warn(
                        "the source of {key} is irregular, as was found after its output had"
                        " begun; its next render decodes it in a process of its own",
                        key=self._key,
                    )
                    raise
                pipeline = await self.pipeline(deadline)
            except NothingDecoded:
                padded = await self._find_padded_pipeline(deadline)
                if padded is None or not may_retry():
                    raise
                pipeline = padded

    async def _find_padded_pipeline(self, deadline: Deadline) -> Pipeline | None:
        """Return the second attempt for a source whose render gave no audio.

        The source is measured, unless that cannot change the outcome. None is returned where a
        second attempt gives no audio either.

        :raises InvalidOptions: where ``t`` starts at or past the end of the source.
        """
        if not may_need_length(self._options, self.probe):
            return None
        try:
            await self._measure(deadline)
        except (NothingDecoded, RenderTimeout, RenderFailed):
            return None
        await self.check_unchanged()
        pipeline = await self.pipeline(deadline)
        return pipeline if is_too_short(self._options, self.probe) else None

    async def measure_command(self, deadline: Deadline) -> list[str] | None:
        """Return the command line that measures the source; None where that is not needed."""
        await self.input(deadline)
        await self._find_length(deadline)
        if not needs_measuring(self._options, self.probe):
            return None
        return measure_arguments(self._preparer.ffmpeg, await self.input(deadline), self.probe)

    @property
    def samples(self) -> PcmSamples | None:
        """The samples that a waveform needs no decoder for; known after `pipeline`."""
        return find_samples(self._options, self.probe) if self.descriptors else None

    @property
    def stated_length(self) -> StatedLength | None:
        """The length that the header of the output states; known after `pipeline`."""
        return stated_length(self._options, self.probe)

    def check_length(self, stderr: bytes) -> None:
        """Log how an output differs from its expected length.

        :param stderr: what the encoder printed.
        :raises IrregularSource: where the source is shorter than its header made sure.
        """
        probe = self.probe
        samples = expected_samples(self._options, probe)
        if samples is None or probe.length is None:
            return
        rate = output_rate(self._options, probe)
        difference = length_warning(stderr, samples, rate, find_tolerance(probe, rate))
        if difference is None:
            return
        if not probe.length.exact:
            raise IrregularSource
        _log.warn("the length of {key}: {difference}", key=self._key, difference=difference)

    async def input(self, deadline: Deadline) -> Input:
        """Return the input with which ffmpeg opens the source."""
        try:
            opened = await self._opened.input(deadline.left())
            probe = self.probe
            return replace(opened, decoder=probe.decoder, ignore_length=probe.ignore_length)
        except TimeoutError:
            raise RenderTimeout from None

    async def check_unchanged(self) -> None:
        """Refuse, and log, a source that has changed since it was opened.

        The open descriptor protects against a replaced file, but not against a file that is still
        being written, such as an upload.

        :raises RenderFailed: where the source has changed.
        """
        if not await self._opened.unchanged():
            self._preparer.prober.forget(self._identity)
            _log.warn("a source changed while it was read; {key} is discarded", key=self._key)
            raise RenderFailed("The source changed while it was read.")

    def close(self) -> None:
        """Close the source."""
        self._opened.close()

    async def _refuse_encrypted(self, deadline: Deadline) -> None:
        """Refuse an encrypted source that could not be read before it was downloaded."""
        if not self.probe.may_be_encrypted:
            return
        size = self._opened.size or 0
        if await deadline.limit(is_encrypted(self._opened.read, size)):
            raise EncryptedSource
        self.probe = replace(self.probe, may_be_encrypted=False)

    async def _find_length(self, deadline: Deadline) -> None:
        """Record the length that the source's end confirms, where that is of use.

        :raises Refusal: where the source cannot be read.
        """
        options, probe, size = self._options, self.probe, self._opened.size
        if size is None or probe.length is not None or probe.seekable:
            return
        reads_samples = bool(self.descriptors) and may_read_samples(options, probe)
        is_used = uses_length(options, probe) or reads_samples or starts_past_end(options, probe)
        if not (is_used or may_seek(options, probe)):
            return
        length = await deadline.limit(find_length(self._opened.read, size, probe))
        self.probe = probe.with_length(length) if is_used else probe.with_seek_data(length)

    async def _measure(self, deadline: Deadline) -> None:
        """Decode the source to its end, and record its length.

        :raises NothingDecoded: where it holds no audio.
        """
        encoder, opened = self._preparer.encoder, await self.input(deadline)
        arguments = measure_arguments(self._preparer.ffmpeg, opened, self.probe)
        samples = await encoder.measure(arguments, self.descriptors, deadline.left())
        self.probe = self.probe.with_decoded_samples(samples)


@dataclass(frozen=True, slots=True)
class Commands:
    """The command lines of one render, in the order in which they run.

    :ivar probe: what is known about the source when all commands are known.
    :ivar measure: the decode pass that measures the source, where one is needed.
    :ivar ffmpeg: None for an info document, and where the render needs no decoder.
    :ivar samples: those that a waveform needs no decoder for.
    """

    probe: Probe
    ffprobe: list[str]
    measure: list[str] | None = None
    ffmpeg: list[str] | None = None
    samples: PcmSamples | None = None


async def find_commands(
    preparer: Preparer, request: VariantRequest | InfoRequest, limits: RenderLimits
) -> Commands:
    """Prepare a render, and return the commands that it would run.

    :raises Refusal: where the render would be refused before its encoder starts.
    """
    if isinstance(request, InfoRequest):
        return await _find_info_command(preparer, request.source, limits.timeout)
    preparation = await preparer.prepare(request)
    deadline = Deadline(limits.clock, limits.timeout)
    try:
        ffprobe = await preparer.prober.arguments(await preparation.input(deadline))
        measure = await preparation.measure_command(deadline)
        pipeline = await preparation.pipeline(deadline)
        samples = preparation.samples
        ffmpeg = None if samples else pipeline.encoder
        return Commands(preparation.probe, ffprobe, measure, ffmpeg, samples)
    finally:
        deadline.cancel()
        preparation.close()


async def _find_info_command(preparer: Preparer, source: Source, timeout: float) -> Commands:
    opened = await preparer.sources.open(source)
    try:
        identity = source_identity(source.canonical, opened.validator)
        probe = await preparer.prober.probe(identity, opened)
        return Commands(probe, await opened.inspect(timeout, preparer.prober.arguments))
    except TimeoutError:
        raise RenderTimeout from None
    finally:
        opened.close()


def assume_commands(opened: Input, options: VariantOptions | None, probe: Probe) -> Commands:
    """Return the commands for an assumed input and an assumed probe.

    :param options: None for an info document.
    :raises InvalidOptions: for options that do not fit the probe.
    """
    render = None if options is None else encoder_arguments("ffmpeg", opened, options, probe)
    return Commands(probe, probe_arguments("ffprobe", opened), None, render)
