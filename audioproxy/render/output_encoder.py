"""The child process behind one output: an encoder, or the decoder for a waveform."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from audioproxy.errors import NothingDecoded
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.command.encoding import ENCODERS
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR
from audioproxy.media.pcm import UnusualSamples
from audioproxy.media.waveform_spec import WaveformSpec
from audioproxy.process.ffmpeg import Encoder
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.deadline import Deadline
from audioproxy.render.job import Preparation
from audioproxy.render.output import RenderOutput


@dataclass(frozen=True, slots=True)
class OutputEncoder:
    """Encodes prepared sources into outputs."""

    encoder: Encoder
    waveforms: Waveforms

    async def encode(
        self,
        options: VariantOptions,
        preparation: Preparation,
        pipeline: Pipeline,
        output: RenderOutput,
        deadline: Deadline,
        check_output: Callable[[], bool],
    ) -> None:
        """Run the processes of a render, and return when ``output`` is complete.

        :param check_output: see `Encoder.encode`; it is not called for waveforms, which are written
            at the end.
        :raises NothingDecoded: where the output holds no audio.
        :raises Refusal: for every other failure.
        """
        left, stderr = deadline.left(), b""
        if options.f == "peaks":
            await self._render_waveform(options, preparation, pipeline, output, left)
            output.update_size()
        else:
            stderr = await self.encoder.encode(
                pipeline,
                preparation.descriptors,
                output.descriptor,
                left,
                check_output,
                output.limit,
            )
            output.complete()
            check_output()
        if ENCODERS[options.f].encoded_nothing(output.encoded_bytes):
            raise NothingDecoded
        preparation.check_length(stderr)

    async def _render_waveform(
        self,
        options: VariantOptions,
        preparation: Preparation,
        pipeline: Pipeline,
        output: RenderOutput,
        left: float,
    ) -> None:
        """Render a waveform, with a decoder only where the samples need one."""
        spec = WaveformSpec.of(options, preparation.probe)
        rest = output.descriptor, left, spec, output.limit
        if (samples := preparation.samples) is not None:
            with suppress(UnusualSamples):
                descriptor = preparation.descriptors[SOURCE_DESCRIPTOR]
                await self.waveforms.read_waveform(samples, descriptor, *rest)
                return
        await self.waveforms.decode_waveform(pipeline, preparation.descriptors, *rest)
