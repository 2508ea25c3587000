"""`python -m bench.browsers`: measure how browsers play variants, and write docs/browsers.md."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.client import fetch
from bench.programs import PROJECT
from bench.settings import Bench
from tests.support.audio import Sound, convert, write_wav

_RATE, _SECONDS = 44100, 30
ENGINES = ("chromium", "firefox", "webkit")
FORMATS = ("mp3", "opus", "ogg", "aac", "m4a", "flac", "wav")


def make_sources(root: Path) -> None:
    """Write a sound whose pitch tells the position, with a known and an unknown length."""
    times = np.arange(_RATE * _SECONDS) / _RATE
    # Noise in the second half: a bit rate that changes, as that of most programmes.
    noise = np.random.default_rng(1).normal(0, 0.02, len(times)) * (times > _SECONDS / 2)
    samples = 0.5 * np.sin(2 * np.pi * (300 * times + 50 * times**2)) + noise
    wav = write_wav(Sound(_RATE, np.array([samples, samples], np.float32)))
    (root / "known.wav").write_bytes(wav)
    (root / "unknown.au").write_bytes(convert(wav, "-f au"))


def measure(bench: Bench, engine: str, names: list[str]) -> dict[str, Any]:
    root = bench.folder("browsers-sources")
    make_sources(root)
    cases = [(n, f"f:{n.split()[0]}" + ("/gain:-1" if "torn" in n else ""), "unknown.au" if "unknown" in n else "known.wav") for n in names]
    settings = {"AP_LOCAL_ROOT": str(root), "AP_ALLOW_ORIGIN": "*"}
    store = bench.folder("browsers-store")
    variants = []
    home = tempfile.mkdtemp(prefix="browsers-")
    with bench.service("browsers-sizes", **settings) as other, bench.service("browsers", **settings, AP_VARIANT_STORE=f"file://{store}") as service:
        for name, options, source in cases:
            path = other.path(options, source)
            variants.append({"name": name, "path": path, "size": fetch(other.port, path).size, "ways": ["torn","failed","again"] if "torn" in name else ["held","stored"]})
        words = ["node", PROJECT / "tests/browser/measure.mjs", engine, str(service.port), str(other.port), json.dumps(variants)]
        environ = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home}
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, start_new_session=True)
        return json.loads(process.stdout.read())


if __name__ == "__main__":
    print(json.dumps(measure(Bench(1), sys.argv[1], sys.argv[2:]), indent=None))
