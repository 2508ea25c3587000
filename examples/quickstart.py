"""Start audioproxy on a folder of sample audio and print signed URLs to try.

`make run` runs this. Everything it makes lies in one folder, .run/ or the one that is named on
the command line: the samples, the store of rendered variants, and a key of its own, so that the
URLs of one run are still good in the next.
"""

from __future__ import annotations

import array
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

from audioproxy.grammar.signature import sign

HOME = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent.parent / ".run").resolve()
SAMPLES = HOME / "samples"
VARIANTS = HOME / "variants"
RATE = 44100

# What the user may choose; every other setting of this demonstration is its own.
KEPT = ("AP_PORT", "AP_LOG_LEVEL", "AP_METRICS_PORT")
# A demonstration should not fail for a port that nobody asked for.
DEFAULTS = {"AP_METRICS_PORT": "0"}

PORTS = re.compile(r"metrics on \S+ port (?P<metrics>\d+)|listening on port (?P<main>\d+)")

# What to fetch: a title, options, a sample.
TRY = (
    ("an mp3 preview", "f:mp3/br:128/t:2:5/fade:0.5:1", "melody.flac"),
    ("an opus trim with fades", "f:opus/br:96/t:3.5:6/fade:0.5:1.5", "melody.wav"),
    ("an even loudness, for the web", "f:m4a/norm:ebu", "drone.ogg"),
    ("the voice preset, as a download", "f:flac/enhance:voice/dl:clean.flac", "drone.mp3"),
    ("a waveform to draw", "f:peaks/pts:400/ch:2/pk_bits:8", "melody.flac"),
    ("what the file is", "info", "melody.flac"),
)

# A minor pentatonic tune: semitones above A3 and beats, at 200 beats a minute.
TUNE = [(0, 2), (3, 1), (5, 1), (7, 2), (10, 1), (7, 1), (5, 2), (3, 1), (0, 1), (-2, 2), (0, 4)]
BEAT = 0.3
ROUNDS = 2


def main() -> int:
    """Make what is missing, start the service and stay with it to its end."""
    make_samples()
    VARIANTS.mkdir(parents=True, exist_ok=True)
    key, salt = read_secret("key", 32), read_secret("salt", 16)
    settings = {
        "AP_KEY": key.hex(),
        "AP_SALT": salt.hex(),
        "AP_LOCAL_ROOT": str(SAMPLES),
        "AP_VARIANT_STORE": f"file://{VARIANTS}",
        "AP_SERVE_MODE": "proxy",
    }
    others = {k: v for k, v in os.environ.items() if not k.startswith("AP_") or k in KEPT}
    twistd = Path(sys.executable).with_name("twistd")
    service = subprocess.Popen(
        [twistd, "--nodaemon", "--pidfile=", "audioproxy"],
        env={**DEFAULTS, **others, **settings},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The service has a session of its own, where Ctrl-C would end its encoders in the middle of
    # what they do. It is asked to stop in its own time, and this follows it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: service.terminate())
    assert service.stdout is not None
    try:
        ports: dict[str, int] = {}
        for line in service.stdout:
            print(line, end="", flush=True)
            if opened := PORTS.search(line):
                ports[str(opened.lastgroup)] = int(opened[opened.lastgroup or 0])
                if "main" in ports:
                    print(invitation(ports, key, salt), flush=True)
    finally:
        # Where nobody reads what is printed, say, the service must not stay behind.
        service.terminate()
    return service.wait()


def invitation(ports: dict[str, int], key: bytes, salt: bytes) -> str:
    """Return the URLs to try, each with what it is."""
    lines = ["", "Try these, in a browser or with curl --output FILE URL:", ""]
    for title, options, sample in TRY:
        path = f"/{options}/plain/local://{sample}"
        signature = sign(key, salt, path.encode("ascii")).decode("ascii")
        lines += [f"  {title}", f"    http://127.0.0.1:{ports['main']}/{signature}{path}", ""]
    lines += ["  what Prometheus sees of all that"]
    lines += [f"    http://127.0.0.1:{ports['metrics']}/metrics", ""]
    lines += [f"Your own files play too: put them into {SAMPLES}.", "Ctrl-C stops the service.", ""]
    return "\n".join(lines)


def read_secret(name: str, size: int) -> bytes:
    """Return a secret of ``size`` bytes that is made once."""
    path = HOME / name
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(size))
    return bytes.fromhex(path.read_text())


def make_samples() -> None:
    """Synthesise a tune and a drone, and keep each in two formats."""
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for name, samples, copy in (
        ("melody", melody(), "melody.flac"),
        ("drone", drone(8.0), "drone.mp3"),
    ):
        if not (SAMPLES / copy).exists():
            write_wav(SAMPLES / f"{name}.wav", samples)
            convert(f"{name}.wav", copy)
    if not (SAMPLES / "drone.ogg").exists():
        convert("drone.wav", "drone.ogg")
        (SAMPLES / "drone.wav").unlink()


def melody() -> Iterator[float]:
    """Yield the tune, each note plucked and dying away."""
    for semitones, beats in TUNE * ROUNDS:
        frequency = 220 * 2 ** (semitones / 12)
        for n in range(round(beats * BEAT * RATE)):
            t = n / RATE
            tone = sum(math.sin(math.tau * frequency * k * t) / k**2 for k in (1, 2, 3))
            yield 0.5 * tone * math.exp(-3 * t) * min(1, n / 200)


def drone(seconds: float) -> Iterator[float]:
    """Yield a fifth that swells and ebbs."""
    for n in range(round(seconds * RATE)):
        t = n / RATE
        swell = 0.5 - 0.5 * math.cos(math.tau * t / seconds)
        yield 0.2 * swell * (math.sin(math.tau * 110 * t) + math.sin(math.tau * 165 * t))


def write_wav(path: Path, samples: Iterator[float]) -> None:
    """Write samples from -1 to 1 as one channel of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(array.array("h", (round(s * 32767) for s in samples)).tobytes())


def convert(source: str, target: str) -> None:
    """Encode one sample from another."""
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", "-i", SAMPLES / source, SAMPLES / target]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
