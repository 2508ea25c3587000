"""Reference bodies of variants: made with the service's ffmpeg arguments, but not its pipeline."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from audioproxy.media.waveform import SAMPLE, Reduction, serialize
from audioproxy.media.waveform_spec import WaveformSpec
from tests.support import audio


def render(source: Path, segments: str) -> bytes:
    """Render a source with ffmpeg.

    :param segments: options as a URL spells them.
    """
    data, options = source.read_bytes(), audio.options_of(segments)
    output = audio.render(data, segments)
    if options.f != "peaks":
        return output
    spec = WaveformSpec.of(options, audio.probe(data))
    with TemporaryFile() as spool:
        reduction = Reduction(spec, spool)
        reduction.add(np.frombuffer(output, SAMPLE))
        return b"".join(serialize(reduction.finish(), spec))


def document(source: Path) -> dict[str, object]:
    """Return the info document of a source."""
    data = source.read_bytes()
    return audio.probe(data).description.document(len(data))
