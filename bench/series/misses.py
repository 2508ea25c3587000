"""New variants of local sources: the time to the first byte."""

from __future__ import annotations

import shutil
import time

from audioproxy.media.command.encoders import ENCODERS
from bench.bare import commands, first_byte, whole
from bench.client import fetch
from bench.figures import Figure
from bench.programs import Service, own_path, service, settled
from bench.settings import Bench

_FORMATS = ("mp3", "opus", "m4a", "wav")
# Seconds after which the times of a file show its changes. Before that, no probe result is cached.
_SETTLED = 4.0
_SEEKS = {
    "ogg": "ffmpeg's seeks in Vorbis are inexact, so the source is decoded from its start",
    "mp3": "to seek exactly, ffmpeg reads every frame up to the start of the preview",
}
_SOONER = "of the time of bare ffprobe and ffmpeg to the first byte, with the project's own ffmpeg"
_HELD = {
    "m4a": "the first fragment of an m4a is one second long and must be encoded before it is sent",
    "opus": "two pages must be encoded first",
}


def first_bytes(bench: Bench) -> list[Figure]:
    """Measure a MISS of three minutes, with a new source and with a source that was probed."""
    folder = bench.folder("misses")
    root, other = folder / "sources", folder / "own"
    root.mkdir()
    other.mkdir()
    # Links to one file would be one source to the service, which it probes once.
    for number in range(bench.many + 1):
        shutil.copy(bench.sounds / "three.flac", root / f"{number}.flac")
    time.sleep(_SETTLED)
    settings = {"AP_LOCAL_ROOT": str(root)}
    figures = []
    for name in _FORMATS:
        # New services, to which all sources are new again.
        with (
            service(folder, settings) as ours,
            service(other, settings, path=own_path()) as own,
        ):
            figures += _measure(bench, name, ours, own)
    return figures


def _measure(bench: Bench, name: str, ours: Service, own: Service) -> list[Figure]:
    work = f"MISS, first body byte, 3-minute FLAC to {name}"
    reason = _HELD.get(name, "")
    fresh = Figure(
        work,
        "over bare `ffprobe` then `ffmpeg`",
        "ms",
        target=1.05,
        peer="ffprobe and ffmpeg",
        remark="to the first byte after the container's headers, on both sides",
        reason=reason,
        in_short=name == "mp3",
    )
    known = Figure(
        f"{work}, source probed before",
        "over bare `ffmpeg`",
        "ms",
        target=1.15,
        peer="ffmpeg",
        reason=reason,
    )
    lean = Figure(
        f"{work}, with the project's own ffmpeg",
        "over Debian's bare pair",
        "ms",
        target=0.25,
        peer="ffprobe and ffmpeg",
        reason=reason,
        in_short=name == "mp3",
        headline=_SOONER if name == "mp3" else "",
    )
    # The service holds the container's headers back until there is audio.
    headers = ENCODERS[name].header_bytes
    root = bench.sounds
    bare = commands(root, ours.path(f"f:{name}", "three.flac"))
    other = commands(root, ours.path(f"f:{name}/gain:-1", "three.flac"))
    # The first round does not count: it fills caches and imports modules.
    for number in range(bench.many + 1):
        source = f"{number}.flac"
        new = _ask(ours, f"f:{name}", source)
        pair = whole(bare.ffprobe) + first_byte(bare.ffmpeg, headers)
        # Other options of the same source: the source is not probed again.
        again = _ask(ours, f"f:{name}/gain:-1", source)
        single = first_byte(other.ffmpeg, headers)
        quick = _ask(own, f"f:{name}", source)
        if number:
            fresh.add(1000 * new, 1000 * pair)
            known.add(1000 * again, 1000 * single)
            lean.add(1000 * quick, 1000 * pair)
    return [fresh, known, lean]


def _ask(program: Service, options: str, source: str) -> float:
    took = fetch(program.port, program.path(options, source), whole=False).first
    # Wait for the encoder, whose only client has left, so that it does not run beside the next one.
    settled(program)
    return took


def previews(bench: Bench) -> list[Figure]:
    """Measure a preview from the middle of an hour, beside a preview from its beginning."""
    figures = []
    with bench.service("previews") as ours:
        for name in ("flac", "wav", "ogg", "opus", "m4a", "mp3"):
            figure = Figure(
                f"a 30-second preview at 50 minutes into a 1-hour {name}",
                "first byte over the same preview at 0",
                "ms",
                target=1.3,
                peer="the preview at 0",
                reason=_SEEKS.get(name, ""),
                in_short=name == "flac",
            )
            source = f"hour.{name}"
            # The first rounds do not count: they probe the source.
            for number in range(bench.rounds + 1):
                deep = _ask(ours, "f:mp3/t:3000:30", source)
                early = _ask(ours, "f:mp3/t:0:30", source)
                if number:
                    figure.add(1000 * deep, 1000 * early)
            figures.append(figure)
    return figures
