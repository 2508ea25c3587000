"""Start audioproxy on a folder of sample audio and print signed URLs to try.

`make run` starts this program. All its files are in one folder: .run/, or the folder that is named
on the command line. They are the samples, the store of rendered variants, and a settings file with
a generated key. The key is kept, so the URLs of one run also work in the next.

All settings of the service apply, except those of its key and its store. AP_LOCAL_ROOT replaces the
folder of the samples.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

from samples import Home

from audioproxy.urls import Signer, Variant, local

HOME = Home(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent.parent / ".run").resolve())

# Settings that only this program sets: it neither prints URLs of the key of another service, nor
# writes into its store.
OWN = ("AP_KEY", "AP_SALT", "AP_VARIANT_STORE", "AP_SERVE_MODE")
# Without AWS_ACCESS_KEY_ID, these are for other programs: a region alone is refused at boot.
IDENTITY = ("AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN")
# Only this machine can reach the service. Any free port for the metrics, so that this program does
# not fail because a port is in use.
DEFAULTS = {"AP_BIND": "127.0.0.1", "AP_METRICS_PORT": "0"}

# The ports are in log lines of the level info. So the service always logs at that level, and lines
# below the requested level are hidden.
HIDDEN = {"warning": ("[info]",), "error": ("[info]", "[warning]")}

PORTS = re.compile(
    r"metrics on (?P<bind>\S+) port (?P<metrics>\d+)|listening on .*port (?P<main>\d+)"
)

TRIM = re.compile(r"\bt:[\d.]+:")
# URLs to print: title, options, sample.
TRY = (
    ("an mp3 preview", "f:mp3/br:128/t:2:5/fade:0.5:1", "melody.flac"),
    ("an opus trim with fades", "f:opus/br:96/t:3.5:6/fade:0.5:1.5", "melody.wav"),
    ("normalized loudness, for the web", "f:m4a/norm:ebu", "drone.ogg"),
    ("the voice preset, as a download", "f:flac/enhance:voice/dl:clean.flac", "drone.mp3"),
    ("a waveform", "f:peaks/pts:400/ch:2/pk_bits:8", "melody.flac"),
    ("a description of the file", "info", "melody.flac"),
)

# Files of the user for which URLs are printed, and the most folders in which one is looked for.
AUDIO = {".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".oga", ".ogg", ".opus", ".wav"}
MOST_FOLDERS = 1000


def main() -> int:
    """Create missing files, start the service and wait until it ends."""
    environ = read_environment()
    settings = HOME.settings()
    if root := environ.get("AP_LOCAL_ROOT"):
        settings["AP_LOCAL_ROOT"] = os.path.abspath(root)
    else:
        HOME.make_samples()
    if environ.get("AP_BIND", "").startswith("unix:"):
        sys.exit("quickstart: AP_BIND: an address is required, since a Unix socket has no URLs")
    hidden = HIDDEN.get(environ.get("AP_LOG_LEVEL", ""), ())
    if hidden:
        environ["AP_LOG_LEVEL"] = "info"
    twistd = Path(sys.executable).with_name("twistd")
    service = subprocess.Popen(
        [twistd, "--nodaemon", "--pidfile=", "audioproxy"],
        env={**DEFAULTS, **environ, **settings},
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
        found: dict[str, str] = {}
        for line in service.stdout:
            if not any(level in line for level in hidden):
                print(line, end="", flush=True)
            if opened := PORTS.search(line):
                found |= {name: text for name, text in opened.groupdict().items() if text}
                if "main" in found:
                    own = find_audio(root) if root else ""
                    print(invitation(found, settings, own), flush=True)
    finally:
        # Stop the service in every case, for example if stdout is closed.
        service.terminate()
    return service.wait()


def read_environment() -> dict[str, str]:
    """Return the environment of the service, and say which settings are ignored."""
    # Only an empty AP_SOURCE_ALLOWLIST is not the same as an unset one.
    environ = {k: v for k, v in os.environ.items() if v or k == "AP_SOURCE_ALLOWLIST"}
    ignored = dict.fromkeys(OWN, f"this program uses its own, in {HOME.path}")
    if "AWS_ACCESS_KEY_ID" not in environ:
        ignored |= dict.fromkeys(IDENTITY, "AWS_ACCESS_KEY_ID is not set")
    for name in sorted(ignored.keys() & environ):
        print(f"quickstart: {name}: ignored, since {ignored[name]}", file=sys.stderr)
        del environ[name]
    return environ


def find_audio(root: str) -> str:
    """Return the path of the first audio file below a folder, relative to it; empty for none."""
    for folder, folders, names in islice(os.walk(root), MOST_FOLDERS):
        folders.sort()
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if Path(name).suffix.lower() in AUDIO and path.isprintable():
                return path
    return ""


def invitation(found: dict[str, str], settings: dict[str, str], own: str) -> str:
    """Return the text with the URLs to try, each with a title.

    :param found: the ports, and the address of the metrics, from the log.
    :param own: the user's file to play in place of the samples, if any.
    """
    origin = f"http://{host(os.environ.get('AP_BIND') or '127.0.0.1')}:{found['main']}"
    signer = Signer.from_hex(settings["AP_KEY"], settings["AP_SALT"], origin)
    root, is_own = settings["AP_LOCAL_ROOT"], settings["AP_LOCAL_ROOT"] != str(HOME.samples)
    lines = ["", "Try these URLs, in a browser or with curl --output FILE URL:", ""]
    if is_own and not own:
        lines = ["", f"There is no audio file in {root}, so there is nothing to try yet.", ""]
    for title, options, sample in TRY if own or not is_own else ():
        source = local(own or sample)
        # A file of the user may be short.
        options = TRIM.sub("t:0:", options) if own else options
        info = options == "info"
        url = signer.info_url(source) if info else signer.url(source, Variant.read(options))
        lines += [f"  {title}", f"    {url}", ""]
    lines += ["  the metrics for Prometheus"]
    lines += [f"    http://{host(found['bind'])}:{found['metrics']}/metrics", ""]
    command = Path(sys.executable).with_name("audioproxy")
    lines += [
        f"To play your own files, put them into {root} and sign URLs:",
        "",
        f"    {command} sign --env-file {HOME.write_settings(settings)} \\",
        f"        --base {origin} --options f:opus {shlex.quote(f'local://{own or TRY[0][2]}')}",
        "",
        "Ctrl-C stops the service.",
        "",
    ]
    return "\n".join(lines)


def host(bind: str) -> str:
    """Return the host of URLs of a service that listens on an address."""
    if bind in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{bind}]" if ":" in bind else bind


if __name__ == "__main__":
    sys.exit(main())
