"""``audioproxy doctor``: the command's words."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from audioproxy.cli.environment import add_command

_DESCRIPTION = """\
Look at everything that the service needs, as the service would meet it: the settings, ffmpeg and
what it was built with, the sources, the variant store (something is written, found, fetched through
a presigned URL and removed again), certificates, the clock, open files, room for temporary files,
and the ports. One line for each, with what is wrong and what would be right. No secret is printed,
and nothing is changed.

Run it as the user that the service runs as, since much depends on who asks.

examples:
  audioproxy doctor
  sudo -u audioproxy audioproxy doctor --env-file /etc/audioproxy.env
  audioproxy doctor --json | jq '.checks[] | select(.verdict == "bad")'

marks and verdicts:
  ok  good
  --  worth a look, or not looked at ("note" with --json)
  !!  bad

exit status:
  0  nothing is bad
  1  something is
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "doctor", "examine settings and machine", _DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _run(asked: Namespace, environment: Mapping[str, str]) -> int:
    # It brings the whole service.
    from audioproxy.cli.run_checks import examine

    return examine(environment, as_json=asked.json)
