"""`python -m bench.browsers`: measure how browsers play variants, and write docs/browsers.md."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from audioproxy.grammar.formats import FORMATS
from bench.blocks import fill
from bench.client import fetch
from bench.machine import ffmpeg_version, today
from bench.programs import PROJECT
from bench.settings import Bench
from tests.support.audio import Sound, convert, write_wav

PAGE = PROJECT / "docs" / "browsers.md"

#: The engines of tests/browser/engines.mjs, and their names on the page.
ENGINES = {"chromium": "Chromium", "firefox": "Firefox", "webkit": "WebKitGTK"}

#: Two sources: one whose length is known, and one whose length is not.
SOURCES = {"known": "known.wav", "unknown": "unknown.au"}

#: The formats that browsers play.
AUDIO_FORMATS = [token for token, form in FORMATS.items() if form.in_browsers]

_SECONDS, _RATE = 30, 44100

#: The ways of measure.mjs in which a response breaks off, and what happens on the page.
_TORN = {
    "torn": "The connection breaks off; the render goes on, and is stored",
    "failed": "The render fails, and the next request gets a 500",
    "again": "The render fails, and is started again by each request",
}

#: What measure.mjs prints about one engine.
Report = Mapping[str, Any]


def _write_sources(root: Path) -> None:
    """Write a sound whose pitch tells the position: 300 Hz, and 100 Hz more in each second."""
    times = np.arange(_RATE * _SECONDS) / _RATE
    # Noise in the second half: the bit rate changes, as that of most programmes does.
    noise = np.random.default_rng(1).normal(0, 0.02, len(times)) * (times > _SECONDS / 2)
    samples = 0.5 * np.sin(2 * np.pi * (300 * times + 50 * times**2)) + noise
    wav = write_wav(Sound(_RATE, np.array([samples, samples], np.float32)))
    (root / SOURCES["known"]).write_bytes(wav)
    # Larger than the sources of unknown length that are measured first.
    (root / SOURCES["unknown"]).write_bytes(convert(wav, "-c:a pcm_s32be -f au"))


def measure(bench: Bench, engine: str) -> Report:
    """Return what measure.mjs prints about an engine."""
    root, store = bench.folder("browsers-sources"), bench.folder("browsers-store")
    _write_sources(root)
    settings = {"AP_LOCAL_ROOT": str(root), "AP_ALLOW_ORIGIN": "*"}
    storing = {**settings, "AP_VARIANT_STORE": f"file://{store}"}
    rows = [
        (f"{token} {length}", f"f:{token}", source, ["held", "stored"])
        for length, source in SOURCES.items()
        for token in bench.some(AUDIO_FORMATS)
    ]
    rows.append(("torn", "f:mp3/gain:-1", SOURCES["known"], list(_TORN)))
    with (
        bench.service("browsers-rendering", **settings) as rendering,
        bench.service("browsers-storing", **storing) as service,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
    ):
        variants = []
        for name, options, source, ways in rows:
            path = rendering.path(options, source)
            size = fetch(rendering.port, path).size
            variants.append({"name": name, "path": path, "size": size, "ways": ways})
        script = PROJECT / "tests/browser/measure.mjs"
        ports = (str(service.port), str(rendering.port))
        # The script ends when its standard input does.
        process = subprocess.Popen(
            ["node", script, engine, *ports, json.dumps(variants)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home},
        )
        assert process.stdout is not None
        report: Report = json.loads(process.stdout.read())
        process.communicate()
        return report


# Tables


def _name(engine: str, report: Report) -> str:
    """Return the name of an engine with its version."""
    parts = report["version"].split(".")
    return f"{ENGINES[engine]} {'.'.join(parts[: 2 if engine == 'webkit' else 1])}"


def _played(seen: Mapping[str, Any]) -> str:
    """Return the cell of a duration and of seeks."""
    duration = seen["duration"]
    if not seen["plays"]:
        return "does not play"
    length = f"{duration:,.2f}" if isinstance(duration, float | int) else duration or "none"
    sought = [found is not None for found in seen["seeks"]]
    return f"{length}; {'seeks' if all(sought) else 'seeks at times' if any(sought) else 'no seek'}"


def _durations(reports: Mapping[str, Report], length: str, first: str) -> Iterator[str]:
    """Yield the table of a source; of unknown length, the rows that differ from the known one."""
    names = [_name(*row) for row in reports.items()]
    yield f"| {first} | " + " | ".join(f"{name}, stream | stored" for name in names) + " |"
    yield "|---" * (2 * len(names) + 1) + "|"
    for token in AUDIO_FORMATS:
        row, known = (_row(reports, f"{token} {each}") for each in (length, "known"))
        if length == "known" or row != known:
            yield f"| {token} | {row} |"


def _row(reports: Mapping[str, Report], variant: str) -> str:
    seen = [report["variants"][variant] for report in reports.values()]
    return " | ".join(_played(each[way]) for each in seen for way in ("held", "stored"))


def _decoded(reports: Mapping[str, Report]) -> Iterator[str]:
    names = [_name(*row) for row in reports.items()]
    yield f"| `decodeAudioData` | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for token in AUDIO_FORMATS:
        cells = []
        for report in reports.values():
            lengths = [report["variants"][f"{token} {length}"]["length"] for length in SOURCES]
            known, unknown = (f"{length:,}" if length else "fails" for length in lengths)
            cells.append(known if known == unknown else f"{known}; unknown: {unknown}")
        yield f"| {token} | {' | '.join(cells)} |"


def _end(seen: Mapping[str, Any]) -> str:
    """Return the cell of a response that has broken off."""
    count = len(seen["requests"])
    requests = f"{count} new requests" if count > 1 else "a new request" if count else "no request"
    after = f"after {seen['seconds']:.0f} s"
    if seen["error"]:
        return f"`error` {seen['error']} {after}; {requests}"
    if not seen["ended"]:
        return f"no event in {seen['seconds']:.0f} s; {requests}"
    whole = seen["seconds"] > _SECONDS - 2
    return f"plays to the end; {requests}" if whole else f"`ended` {after}; {requests}"


def _torn(reports: Mapping[str, Report]) -> Iterator[str]:
    names = [_name(*row) for row in reports.items()]
    yield f"| A stream breaks off | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for way, what in _TORN.items():
        cells = [_end(report["variants"]["torn"][way]) for report in reports.values()]
        yield f"| {what} | {' | '.join(cells)} |"


def contents(reports: Mapping[str, Report]) -> dict[str, str]:
    """Return the blocks of the page.

    :param reports: what measure.mjs prints, by the engine.
    """
    variants = [each for report in reports.values() for each in report["variants"].values()]
    seeks = [each[way]["seeks"] for each in variants for way in ("held", "stored") if way in each]
    worst = max(abs(found) for row in seeks for found in row if found is not None)
    names = " and ".join(", ".join(_name(*row) for row in reports.items()).rsplit(", ", 1))
    run = (
        f"Measured on {today()} with {names} of Debian, and ffmpeg\n{ffmpeg_version()}."
        f" Where a seek works, the sound is at most {worst:.2f} seconds from the shown position."
    )
    tables: dict[str, Iterable[str]] = {
        "known": _durations(reports, "known", "Format"),
        "unknown": _durations(reports, "unknown", "Unknown length"),
        "decoded": _decoded(reports),
        "torn": _torn(reports),
    }
    return {"run": run, **{name: "\n".join(lines) for name, lines in tables.items()}}


def main() -> None:
    """Measure all engines, and write the tables."""
    reports = {}
    for engine in ENGINES:
        reports[engine] = measure(Bench(1), engine)
        print(json.dumps(reports[engine]), flush=True)
    PAGE.write_text(fill(PAGE.read_text(), contents(reports)))


if __name__ == "__main__":
    main()
