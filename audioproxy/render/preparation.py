"""What a render would run, up to the render itself."""

from __future__ import annotations

from dataclasses import dataclass

from audioproxy.errors import RenderTimeout, SourceTooLarge
from audioproxy.grammar.cache_key import source_identity
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.sources import Source
from audioproxy.media.encoding import encoder_arguments, measure_arguments
from audioproxy.media.inputs import Input
from audioproxy.media.probe import Probe, probe_arguments
from audioproxy.media.trim import needs_measuring
from audioproxy.render.context import RenderContext


@dataclass(frozen=True, slots=True)
class Plan:
    """The commands of one render, in the order in which they run.

    :ivar probe: what is known of the source in the end.
    :ivar measure: the decode pass that finds out how long the source is, where one is needed.
    :ivar ffmpeg: None for an info document, which takes none.
    """

    probe: Probe
    ffprobe: list[str]
    measure: list[str] | None = None
    ffmpeg: list[str] | None = None


async def make_plan(
    workshop: RenderContext, ffprobe: str, options: VariantOptions | None, source: Source
) -> Plan:
    """Look at a source, as a render of it would, and return what that would run.

    :param options: None for an info document.
    :raises Refusal: for all that a request for it would be refused for, up to the render.
    """
    opened = await workshop.sources.open(source)
    try:
        if options is not None:
            SourceTooLarge.check(opened.size, workshop.max_source)
        identity = source_identity(source.canonical, opened.validator)
        probe = await workshop.prober.probe(identity, opened)
        seen = await opened.input(workshop.timeout, whole=options is not None)
        measure = None
        if options is not None and needs_measuring(options, probe):
            measure = measure_arguments(workshop.ffmpeg, seen)
            length = await workshop.encoder.measure(measure, opened.descriptors, workshop.timeout)
            probe = probe.decoded(length)
        return arrange(ffprobe, workshop.ffmpeg, seen, options, probe, measure)
    except TimeoutError:
        raise RenderTimeout from None
    finally:
        opened.close()


def arrange(
    ffprobe: str,
    ffmpeg: str,
    source: Input,
    options: VariantOptions | None,
    probe: Probe,
    measure: list[str] | None = None,
) -> Plan:
    """Return the commands for a source of which this is known.

    :raises InvalidOptions: for options that it has no answer to.
    """
    render = None if options is None else encoder_arguments(ffmpeg, source, options, probe)
    return Plan(probe, probe_arguments(ffprobe, source), measure, render)
