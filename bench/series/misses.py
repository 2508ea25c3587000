"""New variants: the time to the first byte."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from audioproxy.media.command.encoding import ENCODERS
from bench.bare import Commands, commands, first_byte, probe, whole
from bench.client import fetch
from bench.figures import Results
from bench.programs import FFMPEG, OWN_FFMPEG, Service, own_path, service, settled
from bench.settings import Bench

_FORMATS = ("mp3", "opus", "m4a", "wav")
# Seconds after which the times of a file show its changes. Before that, no probe result is cached.
_SETTLED = 4.0

# Previews of many sources: their number, the clients at a time, and the options.
_MANY, _CLIENTS = 100, 4
_SHORT = "f:mp3/t:10:2"

_SEEKS = {
    "ogg": "ffmpeg's seeks in Vorbis are inexact, so the source is decoded from its start",
    "mp3": "to seek exactly, ffmpeg reads every frame up to the start of the preview",
}
_HELD = {
    "m4a": "the first fragment of an m4a is one second long and must be encoded before it is sent",
    "opus": "two pages must be encoded first",
}
_OWN = "the project's own audio-only ffmpeg is not built (make ffmpeg)"


def first_bytes(bench: Bench) -> Results:
    """Measure a MISS of three minutes, with a new source and with a source that was probed."""
    results = Results()
    folder = bench.folder("misses")
    root = folder / "sources"
    root.mkdir()
    shutil.copy(bench.sounds / "three.flac", root / "first.flac")
    # Each link is a source that was not probed before.
    for name in _FORMATS:
        for number in range(bench.many + 1):
            (root / f"{name}{number}.flac").hardlink_to(root / "first.flac")
    with ExitStack() as stack:
        ours, own = _services(stack, folder, root)
        time.sleep(_SETTLED)
        for name in _FORMATS:
            _measure(bench, results, name, root, ours, own)
    if own is None:
        results.missing["MISS, first body byte, with the project's own ffmpeg"] = _OWN
    return results


def _services(stack: ExitStack, folder: Path, root: Path) -> tuple[Service, Service | None]:
    settings = {"AP_LOCAL_ROOT": str(root)}
    ours = stack.enter_context(service(folder, settings))
    if not (OWN_FFMPEG / "ffmpeg").exists():
        return ours, None
    (folder / "own").mkdir()
    return ours, stack.enter_context(service(folder / "own", settings, path=own_path()))


def _measure(
    bench: Bench, results: Results, name: str, root: Path, ours: Service, own: Service | None
) -> None:
    work = f"MISS, first body byte, 3-minute FLAC to {name}"
    reason = _HELD.get(name, "")
    fresh = results.figure(
        work,
        "over bare `ffprobe` then `ffmpeg`",
        "ms",
        target=1.05,
        peer="ffprobe and ffmpeg",
        remark="to the first byte after the container's headers, on both sides",
        reason=reason,
    )
    known = results.figure(
        f"{work}, source probed before",
        "over bare `ffmpeg`",
        "ms",
        target=1.15,
        peer="ffmpeg",
        reason=reason,
    )
    lean = own and results.figure(
        f"{work}, with the project's own ffmpeg",
        "over Debian's bare pair",
        "ms",
        target=0.25,
        peer="ffprobe and ffmpeg",
        reason=reason,
    )
    # The time ends at the first byte after the container's headers, on both sides. The service
    # holds the headers back until there is audio.
    headers = ENCODERS[name].header_bytes
    bare = commands(root, ours.path(f"f:{name}", "first.flac"))
    other = commands(root, ours.path(f"f:{name}/gain:-1", "first.flac"))
    # The first round does not count: it fills caches and imports modules.
    for number in range(bench.many + 1):
        source = f"{name}{number}.flac"
        new = _ask(ours, f"f:{name}", source)
        start = time.perf_counter()
        probe(bare.ffprobe)
        pair = time.perf_counter() - start
        alone = first_byte(bare.ffmpeg, headers)
        # Other options of the same source: the source is not probed again.
        again = _ask(ours, f"f:{name}/gain:-1", source)
        single = first_byte(other.ffmpeg, headers)
        if number:
            fresh.add(1000 * new, 1000 * (pair + alone))
            known.add(1000 * again, 1000 * single)
        if own is not None and lean is not None:
            quick = _ask(own, f"f:{name}", source)
            if number:
                lean.add(1000 * quick, 1000 * (pair + alone))


def _ask(program: Service, options: str, source: str) -> float:
    took = fetch(program.port, program.path(options, source), whole=False).first
    # Wait for the encoder, whose only client has left, so that it does not run beside the next one.
    settled(program)
    return took


def starts(bench: Bench) -> Results:
    """Measure the start of both builds of ffmpeg with minimal work."""
    results = Results()
    if not (OWN_FFMPEG / "ffmpeg").exists():
        results.missing["the start of the project's own ffmpeg"] = _OWN
        return results
    folder = bench.folder("starts")
    with service(folder, {"AP_LOCAL_ROOT": str(bench.sounds)}) as ours:
        for what, take, program, words in _first_things(ours, bench.sounds):
            figure = results.figure(
                f"{what}, the project's own ffmpeg",
                "over Debian's",
                "ms",
                target=0.1 if program == "ffmpeg" and words == ["-version"] else None,
                peer="Debian's",
            )
            for _ in range(bench.many):
                own, other = (
                    take([str(place / program), *words])
                    for place in (OWN_FFMPEG, Path(FFMPEG).parent)
                )
                figure.add(1000 * own, 1000 * other)
    return results


def _first_things(
    ours: Service, root: Path
) -> Iterator[tuple[str, Callable[[list[str]], float], str, list[str]]]:
    """Yield work, measure, program and arguments of each start."""
    yield "start, `ffmpeg -version`", _run, "ffmpeg", ["-version"]
    found = commands(root, ours.path("f:mp3", "short.wav"))
    yield "start, `ffprobe` of a source", _run, "ffprobe", found.ffprobe[1:]
    for name in _FORMATS:
        words = commands(root, ours.path(f"f:{name}", "short.wav")).ffmpeg[1:]
        yield f"start, first byte of {name}", first_byte, "ffmpeg", words


def _run(command: list[str]) -> float:
    return whole(command)[0]


def cold(bench: Bench) -> Results:
    """Measure a hundred short previews of as many new sources."""
    results = Results()
    folder = bench.folder("cold")
    root = folder / "sources"
    root.mkdir()
    shutil.copy(bench.sounds / "three.flac", root / "first.flac")
    with ExitStack() as stack:
        ours, own = _services(stack, folder, root)
        figures = [(ours, 1.05, "wall time"), (own, 0.25, "wall time, the project's own ffmpeg")]
        rows = [
            (
                program,
                results.figure(
                    "100 previews of 2 seconds, of 100 sources",
                    f"{measure}, over bare `ffprobe` and `ffmpeg`",
                    "s",
                    target=target,
                    peer="Debian's ffprobe and ffmpeg, run by `xargs -P 2`",
                    remark="all sources are new to the service, and four clients request them",
                    reason="each preview needs the service's own work too, on the two cores that"
                    " the programs keep busy",
                ),
            )
            for program, target, measure in figures
            if program is not None
        ]
        bare = commands(root, ours.path(_SHORT, "first.flac"))
        for number in range(bench.rounds + 1):
            peer = _run_by_xargs(bare, folder)
            for at, (program, figure) in enumerate(rows):
                took = _ask_for_all(program, root, f"{number}-{at}")
                if number:
                    figure.add(took, peer)
    if own is None:
        results.missing["100 previews with the project's own ffmpeg"] = _OWN
    return results


def _ask_for_all(program: Service, root: Path, name: str) -> float:
    """Return the seconds until all previews of new sources have arrived."""
    paths = []
    for number in range(_MANY):
        (root / f"{name}-{number}.flac").hardlink_to(root / "first.flac")
        paths.append(program.path(_SHORT, f"{name}-{number}.flac"))
    start = time.perf_counter()
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(lambda path: fetch(program.port, path), paths))
    took = time.perf_counter() - start
    settled(program)
    return took


def _run_by_xargs(bare: Commands, folder: Path) -> float:
    """Return the seconds for as many runs of ffprobe and ffmpeg, two at a time."""
    script = folder / "preview.sh"
    script.write_text(
        f"{shlex.join(bare.ffprobe)} >/dev/null\n{shlex.join(bare.ffmpeg)} >/dev/null\n"
    )
    numbers = "\n".join(map(str, range(_MANY)))
    start = time.perf_counter()
    words = ["xargs", "-P", "2", "-n", "1", "sh", str(script)]
    subprocess.run(words, input=numbers, text=True, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def previews(bench: Bench) -> Results:
    """Measure a preview from the middle of an hour, beside a preview from its beginning."""
    results = Results()
    folder = bench.folder("previews")
    with service(folder, {"AP_LOCAL_ROOT": str(bench.sounds)}) as ours:
        for name in ("flac", "wav", "ogg", "opus", "m4a", "mp3"):
            figure = results.figure(
                f"a 30-second preview at 50 minutes into a 1-hour {name}",
                "first byte over the same preview at 0",
                "ms",
                target=1.3,
                peer="the preview at 0",
                reason=_SEEKS.get(name, ""),
            )
            source = f"hour.{name}"
            for number in range(bench.rounds + 3):
                deep = _ask(ours, "f:mp3/t:3000:30", source)
                early = _ask(ours, "f:mp3/t:0:30", source)
                if number:
                    figure.add(1000 * deep, 1000 * early)
    return results
