"""Loudness of renders and sources: prepared as a render, and decoded in a slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from audioproxy.errors import InvalidOptions
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.request import VariantRequest
from audioproxy.grammar.sources import Source
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.command.encoding import loudness_arguments, source_loudness_arguments
from audioproxy.media.loudness import LoudnessParser, Measurement
from audioproxy.process.decoder import Decoder, DecoderPipe
from audioproxy.process.slots import Slots
from audioproxy.render.deadline import Deadline, RenderLimits
from audioproxy.render.job import Preparation, Preparer

# Bytes of a report in one read: half a minute of audio.
_CHUNK = 64 * 1024

# Options that neither change a sample nor depend on the length of the source.
_UNCHANGED = VariantOptions(f="peaks")


@dataclass(frozen=True, slots=True)
class RenderLoudnessMeter:
    """Measures loudness, with the limits of renders."""

    preparer: Preparer
    decoder: Decoder
    slots: Slots
    limits: RenderLimits

    async def measure(
        self,
        source: Source,
        options: VariantOptions | None,
        on_progress: Callable[[float], object],
    ) -> Measurement:
        """Measure what a render of ``options`` would encode, or the source itself.

        :param options: None for the source itself, with all its channels.
        :param on_progress: called with the seconds of audio that were measured so far, in a thread.
        :raises Refusal: where a render would be refused, and for waveforms.
        """
        if options is None:
            request = VariantRequest.of(_UNCHANGED, source)
            build_command = source_loudness_arguments
        elif options.f == "peaks":
            raise InvalidOptions('"f:peaks" is not accepted: a waveform has no loudness.')
        else:
            request = VariantRequest.of(options, source)
            build_command = loudness_arguments
        preparation = await self.preparer.prepare(request, build_command)
        try:
            async with self.slots.hold():
                return await self._measure(preparation, on_progress)
        finally:
            preparation.close()

    async def _measure(
        self, preparation: Preparation, on_progress: Callable[[float], object]
    ) -> Measurement:
        deadline = Deadline(self.limits.clock, self.limits.timeout)

        async def decode(pipeline: Pipeline) -> Measurement:
            read = partial(_read_report, on_progress)
            left = deadline.left()
            return await self.decoder.decode(pipeline, preparation.descriptors, left, read)

        try:
            return await preparation.run(deadline, decode)
        finally:
            deadline.cancel()


def _read_report(on_progress: Callable[[float], object], pipe: DecoderPipe) -> Measurement:
    parser = LoudnessParser()
    room = memoryview(bytearray(_CHUNK))
    while count := pipe.readinto(room):
        parser.add(bytes(room[:count]))
        on_progress(parser.seconds)
    return parser.finish()
