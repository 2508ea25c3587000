"""Reference bodies of variants: made with the service's ffmpeg arguments, but not its pipeline."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.media.command.encoding import (
    StatedLength,
    encoder_arguments,
    stated_length,
    uses_length,
)
from audioproxy.media.command.inputs import SOURCE_DESCRIPTOR, local_input
from audioproxy.media.command.trim import may_seek, needs_measuring
from audioproxy.media.probe import Probe, parse_probe, probe_arguments
from audioproxy.media.waveform import SAMPLE, Reduction, serialize
from audioproxy.media.waveform_spec import WaveformSpec
from tests.support.audio import find_length_of
from tests.support.service import PATIENCE

# Opens the source under the descriptor number that the service's children use.
_OPEN = f'exec "$@" {SOURCE_DESCRIPTOR}<"$0"'
_ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
_FFMPEG = shutil.which("ffmpeg") or "ffmpeg"
_FFPROBE = shutil.which("ffprobe") or "ffprobe"


@dataclass(frozen=True)
class Reference:
    """Expected body of a variant, and its options."""

    options: VariantOptions
    body: bytes


@cache
def probe(source: Path) -> Probe:
    """Probe a source with ffprobe."""
    ended = _run(source, probe_arguments(_FFPROBE, local_input()))
    return parse_probe(ended.stdout, ended.stderr)


def render(source: Path, segments: str) -> Reference:
    """Render a source with ffmpeg.

    :param segments: options as a URL spells them.
    :raises ValueError: if the options need more than one pass.
    """
    options, _ = parse_options(segments.encode().split(b"/"))
    known = probe(source)
    if uses_length(options, known):
        known = known.with_length(find_length_of(source.read_bytes(), known))
    elif may_seek(options, known):
        known = known.with_seek_data(find_length_of(source.read_bytes(), known))
    if needs_measuring(options, known):
        raise ValueError(f"{segments} of {source} takes more than one pass")
    output = _run(source, encoder_arguments(_FFMPEG, local_input(), options, known)).stdout
    if options.f == "peaks":
        output = _render_waveform(output, WaveformSpec.of(options, known))
    if (stated := stated_length(options, known)) is not None:
        output = _state_length(output, stated)
    return Reference(options, output)


def document(source: Path) -> dict[str, object]:
    """Return the info document of a source."""
    return probe(source).description.document(source.stat().st_size)


def _render_waveform(samples: bytes, spec: WaveformSpec) -> bytes:
    with TemporaryFile() as spool:
        reduction = Reduction(spec, spool)
        reduction.add(np.frombuffer(samples, SAMPLE))
        return b"".join(serialize(reduction.finish(), spec))


def _state_length(output: bytes, stated: StatedLength) -> bytes:
    changed = bytearray(stated.header.prefix(stated.form) + output)
    for offset, data in stated.header.patches(stated.form, bytes(changed)):
        changed[offset : offset + len(data)] = data
    return bytes(changed) + stated.header.suffix(stated.form, len(changed))


def _run(source: Path, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", _OPEN, str(source), *arguments],
        env=_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
