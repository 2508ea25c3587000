"""Start audioproxy on a folder of sample audio and print signed URLs to try.

`make run` starts this program. All its files are in one folder: .run/, or the folder that is named
on the command line. They are the samples, the store of rendered variants, and a settings file with
a generated key. The key is kept, so the URLs of one run also work in the next.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from samples import Home

from audioproxy.urls import Signer, Variant

HOME = Home(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent.parent / ".run").resolve())

# Settings that the user may set. This program sets all others.
KEPT = ("AP_BIND", "AP_PORT", "AP_LOG_LEVEL", "AP_METRICS_PORT", "AP_ALLOW_INSECURE")
# Only this machine can reach the service. Any free port for the metrics, so that this program does
# not fail because a port is in use.
DEFAULTS = {"AP_BIND": "127.0.0.1", "AP_METRICS_PORT": "0"}

# The ports are in log lines of the level info. So the service always logs at that level, and lines
# below the requested level are hidden.
HIDDEN = {"warning": ("[info]",), "error": ("[info]", "[warning]")}

PORTS = re.compile(r"metrics on \S+ port (?P<metrics>\d+)|listening on .*port (?P<main>\d+)")

# URLs to print: title, options, sample.
TRY = (
    ("an mp3 preview", "f:mp3/br:128/t:2:5/fade:0.5:1", "melody.flac"),
    ("an opus trim with fades", "f:opus/br:96/t:3.5:6/fade:0.5:1.5", "melody.wav"),
    ("normalized loudness, for the web", "f:m4a/norm:ebu", "drone.ogg"),
    ("the voice preset, as a download", "f:flac/enhance:voice/dl:clean.flac", "drone.mp3"),
    ("a waveform", "f:peaks/pts:400/ch:2/pk_bits:8", "melody.flac"),
    ("a description of the file", "info", "melody.flac"),
)


def main() -> int:
    """Create missing files, start the service and wait until it ends."""
    HOME.make_samples()
    settings = HOME.settings()
    # An empty value counts as unset.
    environ = {k: v for k, v in os.environ.items() if v}
    others = {k: v for k, v in environ.items() if not k.startswith("AP_") or k in KEPT}
    if others.get("AP_BIND", "").startswith("unix:"):
        sys.exit("quickstart: AP_BIND: an address is required, since a Unix socket has no URLs")
    hidden = HIDDEN.get(others.get("AP_LOG_LEVEL", ""), ())
    if hidden:
        others["AP_LOG_LEVEL"] = "info"
    twistd = Path(sys.executable).with_name("twistd")
    service = subprocess.Popen(
        [twistd, "--nodaemon", "--pidfile=", "audioproxy"],
        env={**DEFAULTS, **others, **settings},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The service has its own session, so Ctrl-C does not kill its running encoders. Signals are
    # passed on as SIGTERM, and the service stops gracefully.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: service.terminate())
    assert service.stdout is not None
    try:
        ports: dict[str, int] = {}
        for line in service.stdout:
            if not any(level in line for level in hidden):
                print(line, end="", flush=True)
            if opened := PORTS.search(line):
                ports[str(opened.lastgroup)] = int(opened[opened.lastgroup or 0])
                if "main" in ports:
                    print(invitation(ports, settings), flush=True)
    finally:
        # Stop the service in every case, for example if stdout is closed.
        service.terminate()
    return service.wait()


def invitation(ports: dict[str, int], settings: dict[str, str]) -> str:
    """Return the text with the URLs to try, each with a title."""
    bind = os.environ.get("AP_BIND") or "127.0.0.1"
    host = "127.0.0.1" if bind in ("0.0.0.0", "::") else f"[{bind}]" if ":" in bind else bind
    origin = f"http://{host}:{ports['main']}"
    signer = Signer.from_hex(settings["AP_KEY"], settings["AP_SALT"], origin)
    lines = ["", "Try these URLs, in a browser or with curl --output FILE URL:", ""]
    for title, options, sample in TRY:
        source = f"local://{sample}"
        info = options == "info"
        url = signer.info_url(source) if info else signer.url(source, Variant.read(options))
        lines += [f"  {title}", f"    {url}", ""]
    lines += ["  the metrics for Prometheus"]
    lines += [f"    http://127.0.0.1:{ports['metrics']}/metrics", ""]
    command = Path(sys.executable).with_name("audioproxy")
    lines += [
        f"To play your own files, put them into {HOME.samples} and sign URLs:",
        "",
        f"    {command} sign --env-file {HOME.write_settings()} \\",
        f"        --base {origin} --options f:opus local://melody.flac",
        "",
        "Ctrl-C stops the service.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
