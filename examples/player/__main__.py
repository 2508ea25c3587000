"""Start the player: ``make demo``, or ``python -m examples.player [FOLDER]`` in the project.

All its files are in one folder: .run/, or the folder that is named on the command line. They are
the samples, the rendered variants and a key. AP_LOCAL_ROOT replaces the folder of the samples, and
AP_PORT the port 4001. AP_SOURCE_ALLOWLIST allows sources at https addresses, and the credentials of
an object store allow sources in buckets.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.task import react
from twisted.logger import globalLogBeginner

from audioproxy.config import Config, ConfigError, load
from audioproxy.loudness import LoudnessMeter
from audioproxy.observe.logs import LineObserver
from audioproxy.service import BootError, make_resource
from audioproxy.urls import Signer
from examples.player.site import LIBRARIES, Root, make_site
from examples.player.sources import Sources
from examples.player.uploads import Uploads
from examples.samples import Home

ADDRESS = "127.0.0.1"

# Settings that the user may set. This program sets all others.
KEPT = (
    "AP_PORT",
    "AP_LOG_LEVEL",
    "AP_LOCAL_ROOT",
    "AP_SOURCE_ALLOWLIST",
    "AP_MAX_SRC_BYTES",
    "AP_RENDER_TIMEOUT",
    "AP_PROBE_TIMEOUT",
    "AP_S3_ENDPOINT",
    "AP_S3_ADDRESSING",
    "AP_S3_CA_BUNDLE",
)
# Without the first of them, the others are for other programs: a region alone is refused at boot.
IDENTITY = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_SESSION_TOKEN",
)
# Not the port of the quick start, so that both can run at the same time.
DEFAULTS = {"AP_PORT": "4001"}
# Measurements of loudness at the same time: of the source, and of the result.
MEASUREMENTS = 2

INVITATION = """
Open the player in a browser:

  http://{address}:{port}/

It plays the files in {folder}.
Ctrl-C stops the player.
"""


def configure(home: Home, environ: Mapping[str, str]) -> tuple[Config, Path]:
    """Create missing files in a folder.

    :returns: the configuration of a service that uses the folder, and the file of its settings, for
        programs that sign URLs.
    :raises ConfigError: for settings that cannot be used.
    """
    # An empty AP_SOURCE_ALLOWLIST is refused. Every other empty variable counts as unset.
    kept = KEPT + IDENTITY if environ.get(IDENTITY[0]) else KEPT
    settings = {name: environ[name] for name in kept if name in environ}
    for name in sorted(environ):
        if name.startswith("AP_") and name not in KEPT and environ[name]:
            print(f"player: {name}: ignored", file=sys.stderr)
    if not settings.get("AP_LOCAL_ROOT"):
        home.make_samples()
    own = home.settings()
    for name, text in (DEFAULTS | own).items():
        settings[name] = settings.get(name) or text
    config, warnings = load(settings)
    for warning in warnings:
        print(f"player: {warning}", file=sys.stderr)
    own["AP_LOCAL_ROOT"] = os.path.abspath(settings["AP_LOCAL_ROOT"])
    return config, home.write_settings(own)


async def serve(reactor: Any, config: Config, env_file: Path) -> None:
    """Open the port, and serve until the process is stopped.

    :param env_file: a file with the key and the salt, for programs that sign URLs.
    """
    assert config.key and config.salt and config.local_root
    try:
        proxy = make_resource(config, reactor)
        await proxy.startService()
    except BootError as error:
        raise SystemExit(f"player: {error}") from error
    # Its renders are not those of the service, so a long measurement delays no playback.
    meter = LoudnessMeter(replace(config, max_concurrency=MEASUREMENTS), reactor)
    for stop in (lambda: Deferred.fromCoroutine(meter.close()), proxy.stopService):
        reactor.addSystemEventTrigger("before", "shutdown", stop)
    sources = Sources(Path(config.local_root).absolute(), config.source_allowlist)
    uploads = Uploads(sources.folder, config.max_src_bytes)
    reactor.addSystemEventTrigger("after", "shutdown", uploads.remove)
    # A terminal that is closed must not leave the files behind.
    signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(reactor.stop))
    signer = Signer(config.key, config.salt, "/audio")
    root = Root(proxy.resource, signer, sources, uploads, meter.measure, env_file)
    site = make_site(root)
    try:
        listening = reactor.listenTCP(config.port, site, interface=ADDRESS)
    except CannotListenError as error:
        reason = os.strerror(error.socketError.errno)
        raise SystemExit(
            f"player: AP_PORT: cannot listen on {ADDRESS} port {config.port} ({reason});"
            " set AP_PORT to a free port"
        ) from error
    port = listening.getHost().port
    print(INVITATION.format(address=ADDRESS, port=port, folder=sources.folder), flush=True)
    await Deferred()


def main(*words: str) -> None:
    """Start the player, or print in a line or two why it cannot start."""
    if not LIBRARIES.is_dir():
        sys.exit(f"player: {LIBRARIES} is missing; `make demo` installs it")
    home = Home(Path(words[0] if words else Path(__file__).parents[2] / ".run").resolve())
    try:
        config, env_file = configure(home, os.environ)
    except ConfigError as error:
        sys.exit("\n".join(f"player: {problem}" for problem in error.problems))
    observer = LineObserver(sys.stdout, config.log_level)
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
    react(serve, (config, env_file))


if __name__ == "__main__":
    main(*sys.argv[1:])
