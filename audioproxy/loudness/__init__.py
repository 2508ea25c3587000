"""Measures loudness: the library for Twisted programs.

It reads sources as the service does, with the same settings::

    from audioproxy.config import load
    from audioproxy.loudness import LoudnessMeter, find_gain
    from audioproxy.urls import Variant

    config, _ = load(os.environ)
    meter = LoudnessMeter(config, reactor)
    measurement = await meter.measure("s3://masters/piece.wav", Variant(f="flac", t=(30, 15)))
    print(measurement.loudness.integrated, "LUFS")
    gain = find_gain(measurement, target=-16, ceiling=-1)
    await meter.close()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from twisted.internet.defer import DeferredSemaphore

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.config import Config
from audioproxy.engine import Engine, build
from audioproxy.errors import InvalidOptions, Refusal
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.request import VariantRequest
from audioproxy.media.command.encoding import loudness_arguments, source_loudness_arguments
from audioproxy.media.loudness import Gain, Loudness, LoudnessParser, Measurement, find_gain
from audioproxy.process.decoder import DecoderPipe
from audioproxy.render.job import RETRIABLE, ProbedSource
from audioproxy.urls import SourceLike, Variant, read_source

__all__ = ["Gain", "Loudness", "LoudnessMeter", "Measurement", "find_gain"]

# Bytes of a report in one read: half a minute of audio.
_CHUNK = 64 * 1024

# Options that neither change a sample nor depend on the length of the source.
_UNCHANGED = VariantOptions(f="peaks")


class LoudnessMeter:
    """Measures the loudness of sources and of their variants."""

    def __init__(self, config: Config, reactor: Any) -> None:
        """Create a meter that reads the sources of a configuration, within its limits of renders.

        At most ``max_concurrency`` sources are measured at the same time; the others wait.

        :raises BootError: of `audioproxy.engine`, for a configuration that cannot be used.
        """
        self._engine = Engine(build(replace(config, variant_store=None), reactor))
        # The engine itself would reject requests that find no free slot.
        self._slots = DeferredSemaphore(min(config.max_concurrency, config.max_probe_concurrency))

    async def measure(
        self,
        source: SourceLike,
        variant: Variant | None = None,
        on_progress: Callable[[float], object] = lambda seconds: None,
    ) -> Measurement:
        """Measure a variant of a source, before its encoder, or the source itself.

        :param variant: its options apply as in a render. None measures all channels of the source,
            as a broadcaster's meter does; a render has at most two.
        :param on_progress: called with the seconds of audio that were measured so far, in a thread.
        :raises Refusal: as a request for the variant would be refused, and for waveforms.
        """
        build_command = source_loudness_arguments if variant is None else loudness_arguments
        options = _UNCHANGED if variant is None else variant.options
        request = VariantRequest.of(options, read_source(source))
        if variant is not None and options.f == "peaks":
            raise InvalidOptions('"f:peaks" is not accepted: a waveform has no loudness.')
        await self._engine.starter.prepare()

        async def measure() -> Measurement:
            preparer = self._engine.preparer
            probed = await preparer.prepare(request, build_command)
            try:
                async with self._engine.slots.hold():
                    deadline = self._engine.deadline()
                    try:
                        return await self._decode(probed, on_progress, deadline)
                    except Refusal as refusal:
                        probed = await preparer.prepare_again(probed, refusal, deadline)
                        return await self._decode(probed, on_progress, deadline)
            finally:
                probed.close()

        return await self._slots.run(measure)

    async def close(self) -> None:
        """Close all connections; no measurement is possible any more."""
        await self._engine.close()

    async def _decode(
        self, probed: ProbedSource, on_progress: Callable[[float], object], deadline: Deadline
    ) -> Measurement:
        preparer, decoder = self._engine.preparer, self._engine.decoder
        read = partial(_read_report, on_progress)
        async with preparer.refuse_changed(probed):
            job = await preparer.resolve(probed, deadline)
            while True:
                try:
                    async with preparer.open_input(job, deadline) as opened:
                        return await decoder.decode(job.pipeline, opened, deadline, read)
                except RETRIABLE as refusal:
                    job = await preparer.resolve_again(job, refusal, deadline)


def _read_report(on_progress: Callable[[float], object], pipe: DecoderPipe) -> Measurement:
    parser = LoudnessParser()
    room = memoryview(bytearray(_CHUNK))
    while count := pipe.readinto(room):
        parser.add(bytes(room[:count]))
        on_progress(parser.seconds)
    return parser.finish()
