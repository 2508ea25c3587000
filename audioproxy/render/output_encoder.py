"""The child process behind one output: an encoder, or the decoder for a waveform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from audioproxy.errors import NothingDecoded
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.encoding import ENCODERS
from audioproxy.media.waveform_spec import WaveformSpec
from audioproxy.process.encoder import Encoder
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.deadline import Deadline
from audioproxy.render.output import RenderOutput
from audioproxy.render.preparation import Preparation


@dataclass(frozen=True, slots=True)
class OutputEncoder:
    """Encodes prepared sources into outputs."""

    encoder: Encoder
    waveforms: Waveforms

    async def encode(
        self,
        options: VariantOptions,
        preparation: Preparation,
        command: list[str],
        output: RenderOutput,
        deadline: Deadline,
        check_output: Callable[[], bool],
    ) -> None:
        """Run a command, and return when ``output`` is complete.

        :param check_output: see `Encoder.encode`; it is not called for waveforms, which are written
            at the end.
        :raises NothingDecoded: where the output holds no audio.
        :raises Refusal: for every other failure.
        """
        left, limit = deadline.left(), output.limit
        if options.f == "peaks":
            await self.waveforms.render_waveform(
                command,
                preparation.descriptors,
                output.descriptor,
                left,
                WaveformSpec.of(options, preparation.probe),
                limit,
            )
            output.update_size()
        else:
            stderr = await self.encoder.encode(
                command, preparation.descriptors, output.descriptor, left, check_output, limit
            )
            output.complete()
            check_output()
            preparation.report_length(stderr)
        if ENCODERS[options.f].encoded_nothing(output.encoded_bytes):
            raise NothingDecoded
