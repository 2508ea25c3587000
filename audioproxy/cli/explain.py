"""``audioproxy explain``: the command's words."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from audioproxy.cli.environment import add_command

_DESCRIPTION = """\
Take a URL apart: the verdict on its signature, each option with its meaning, the canonical options
and source, the cache key, and the commands that a render of it runs. For these the source is
probed, as the service would probe it, with the service's settings; nothing is rendered or stored.
Credentials are cut out of what is printed.

examples:
  audioproxy explain http://127.0.0.1:4000/insecure/f:opus/t:30:15/plain/local://piece.wav
  audioproxy explain --env-file /etc/audioproxy.env --json /Gx3k.../info/plain/local://piece.wav

The exit status is that of `audioproxy verify`.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "explain", "take a URL apart", _DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument("url", metavar="URL", help="a URL of the service, or its path")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--no-probe",
        action="store_true",
        help="do not look at the source; show the commands for a stereo file of 44.1 kHz",
    )


def _run(asked: Namespace, environment: Mapping[str, str]) -> int:
    # It brings Twisted, which is not needed to sign.
    from audioproxy.cli.explanation import explain

    return explain(asked.url, environment, probe=not asked.no_probe, as_json=asked.json)
