"""`python -m bench.quality`: measure the quality of conversions, and write docs/quality.md.

The service, SoX and ffmpeg with its defaults convert the same signals. All measures are computed
here from the decoded samples.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np

from bench import loudness, plots, voice
from bench.blocks import fill
from bench.machine import today
from bench.programs import FFMPEG, PROJECT, SYSTEM, Service, service
from bench.settings import Bench
from tests.support.audio import Sound, convert, read_wav, tone, write_wav
from tests.support.measures import (
    level,
    middle,
    residual,
    spectrum,
    strength,
    without_tone,
    worst_spur,
)
from tests.support.programs import write_ffmpeg_without_soxr

_PAGE = PROJECT / "docs" / "quality.md"
_PLOT = PROJECT / "docs" / "images" / "quality" / "sweep.svg"

# Amplitude of full-scale tones. SoX would clip what its filter adds to a tone of 1.
_AMPLITUDE = 0.98

#: A converter returns the wav file of a sound as 24-bit wav at another rate, or as 16-bit wav.
Convert = Callable[[bytes, int, str], bytes]


def _fetch(proxy: Service, root: Path, source: bytes, options: str) -> bytes:
    with tempfile.NamedTemporaryFile(dir=root, suffix=".wav") as file:
        file.write(source)
        file.flush()
        path = proxy.path(options, Path(file.name).name)
        with urlopen(f"http://127.0.0.1:{proxy.port}{path}") as response:
            content: bytes = response.read()
            return content


def _sox(source: bytes, rate: int, depth: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "in.wav"), Path(folder, "out.wav")
        before.write_bytes(source)
        words: list[str | Path] = ["sox", "-V1", before, "-b", depth, after]
        words += ["rate", "-v", str(rate)]
        subprocess.run(words, check=True)
        return after.read_bytes()


def _ffmpeg(source: bytes, rate: int, depth: str) -> bytes:
    return convert(source, f"-ar {rate} -c:a pcm_s{depth}le -f wav")


@contextmanager
def _converters(bench: Bench) -> Iterator[dict[str, Convert]]:
    """Run the services, and yield the programs that are compared, by their names on the page."""
    work = bench.folder("quality")
    programs, root = work / "bin", work / "root"
    for folder in (programs, root):
        folder.mkdir()
    write_ffmpeg_without_soxr(programs)
    settings = {"AP_LOCAL_ROOT": str(root)}
    with (
        service(work, settings) as ours,
        service(work, settings, path=f"{programs}:{SYSTEM}") as without,
    ):

        def through(proxy: Service) -> Convert:
            return lambda source, rate, depth: _fetch(
                proxy, root, source, f"f:wav/bd:{depth}/sr:{rate}"
            )

        yield {
            "audioproxy": through(ours),
            "SoX `rate -v`": _sox,
            "ffmpeg's defaults": _ffmpeg,
            "audioproxy without libsoxr": through(without),
        }


def _compared(converters: Mapping[str, Convert]) -> list[tuple[str, Convert]]:
    """Return the programs of the tables. The plot has the service without libsoxr too."""
    return list(converters.items())[:3]


# Sample rates

_RATES = ((96000, 44100), (44100, 48000), (192000, 48000))


def _rates(bench: Bench, converters: Mapping[str, Convert]) -> Iterator[str]:
    """Yield the rows of the table: the worst of all tones for each pair of rates."""
    yield "| Hz | Program | aliases, images | loss | residual |"
    yield "|---|---|---|---|---|"
    for rate, output in bench.some(_RATES):
        for name, converter in _compared(converters):
            figures = " | ".join(_rate_figures(bench, converter, rate, output))
            yield f"| {rate} to {output} | {name} | {figures} |"


def _rate_figures(bench: Bench, converter: Convert, rate: int, output: int) -> Iterator[str]:
    nyquist = min(rate, output) / 2
    passed = bench.some([997, 0.5 * nyquist, 0.8 * nyquist, 0.9 * nyquist])
    above = (x * nyquist for x in (1.05, 1.1, 1.2, 1.4, 1.8))
    stopped = bench.some(hertz for hertz in above if 2 * hertz < rate)
    spurs, losses = [], []
    for hertz in (*passed, *stopped):
        source = write_wav(tone(rate, rate, hertz, amplitude=_AMPLITUDE), "24")
        heard = middle(read_wav(converter(source, output, "24")))
        spurs.append(worst_spur(heard, output, *([hertz] if hertz in passed else [])))
        if hertz in passed:
            losses.append(20 * np.log10(_AMPLITUDE) - strength(heard, hertz, output))
        if hertz == passed[0]:
            rest = residual(heard, hertz, output)
    yield f"{max(spurs):.0f} dBFS"
    yield f"{max(map(abs, losses)):.2f} dB"
    yield f"{rest:.0f} dB"


def _sweeps(converters: Mapping[str, Convert], plot: Path) -> None:
    """Plot what remains of a sweep from 0 to 48 kHz at 44.1 kHz."""
    rate, output, seconds = 96000, 44100, 4
    times = np.arange(rate * seconds) / rate
    turns = rate / 4 / seconds * times**2
    sweep = Sound(rate, (0.9 * np.sin(2 * np.pi * turns)).astype(np.float32)[None])
    source = write_wav(sweep, "24")
    panels = {
        name: read_wav(converter(source, output, "24")).channels[0].astype(float)
        for name, converter in converters.items()
    }
    plots.spectrograms(panels, output, plot)


# Bit depths


def _dither(converters: Mapping[str, Convert]) -> Iterator[str]:
    """Yield the table of a tone of -90 dBFS in 16 bits."""
    rate, hertz = 44100, 997
    source = write_wav(tone(rate, 12 * rate, hertz, amplitude=10 ** (-90 / 20)), "24")
    yield "| Program | the tone | highest harmonic | noise | noise below 4 kHz |"
    yield "|---|---|---|---|---|"
    for name, converter in _compared(converters):
        heard = middle(read_wav(converter(source, rate, "16")))
        frequencies, levels = spectrum(heard, rate)
        harmonics = [
            levels[np.abs(frequencies - number * hertz) < 3].max() for number in range(2, 20)
        ]
        rest = without_tone(heard, hertz, rate)
        power = np.abs(np.fft.rfft(rest)) ** 2
        low = power[np.fft.rfftfreq(len(rest), 1 / rate) < 4000].sum() / power.sum()
        figures = (strength(heard, hertz, rate), max(harmonics), level(rest))
        shown = " | ".join(f"{figure:.1f} dBFS" for figure in figures)
        yield f"| {name} | {shown} | {level(rest) + 10 * np.log10(low):.1f} dBFS |"


def measure(bench: Bench, plot: Path) -> dict[str, str]:
    """Measure everything, draw the plot of the page, and return the contents of its blocks."""
    with _converters(bench) as converters:
        tables = {
            "rates": _rates(bench, converters),
            "dither": _dither(converters),
            **voice.tables(bench),
            "lossy": loudness.measure_formats(bench),
        }
        contents = {name: "\n".join(lines) for name, lines in tables.items()}
        _sweeps(converters, plot)
    sox, ffmpeg = _version("sox", "--version"), _version(FFMPEG, "-version")
    return {**contents, "run": f"Measured on {today()}, with SoX {sox} and ffmpeg {ffmpeg}."}


def main() -> int:
    """Write the tables and the plot of the page."""
    contents = measure(Bench(1), _PLOT)
    _PAGE.write_text(fill(_PAGE.read_text(), contents))
    print(f"{_PAGE.relative_to(PROJECT)} is written")
    return 0


def _version(*command: str) -> str:
    """Return the word after "version", "SoX" or "SoX_ng" in what a program prints."""
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(?:version|SoX|SoX_ng) v?(\S+)", printed)
    assert found is not None, printed
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
