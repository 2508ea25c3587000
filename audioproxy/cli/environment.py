"""Where the settings of a command come from: the environment, or a file in its place."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import shtab

from audioproxy.cli.exit_status import UsageError
from audioproxy.urls import Signer

# What systemd, a shell and we read alike. They differ on comments behind a value, on backslashes,
# and on blanks and quotes within one.
_ASSIGNMENT = re.compile(
    r"""([A-Za-z_]\w*)=(?:'([^'\\]*)'|"([^"\\$`]*)"|([\w./:,@%+=*\[\]-]*))""", re.ASCII
)
# What the service reads of the environment besides its settings.
_ELSEWHERE = ("PATH", "SSL_CERT_FILE", "TMPDIR")


def add_command(commands: Any, name: str, summary: str, description: str) -> ArgumentParser:
    """Add a command that reads settings to the parser, and return its own.

    :param description: printed as it stands, examples and all.
    """
    parser: ArgumentParser = commands.add_parser(
        name, help=summary, description=description, formatter_class=RawDescriptionHelpFormatter
    )
    file = parser.add_argument(
        "--env-file",
        metavar="FILE",
        help="read the settings from FILE, in lines NAME=value, as the service's unit does; they go"
        " ahead of the environment",
    )
    file.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def read_environment(environ: Mapping[str, str], file: str | None) -> dict[str, str]:
    """Return the settings.

    :raises Misuse: for a file that cannot be read.
    """
    settings = dict(environ)
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--env-file: {file} cannot be read ({error})") from None
        for number, line in enumerate(map(str.strip, text.splitlines()), 1):
            if line and line[0] not in "#;":
                match = _ASSIGNMENT.fullmatch(line)
                if match is None:
                    raise UsageError(
                        f"--env-file: {file}, line {number}: NAME=value is expected, with the value"
                        " in '...' where it has more in it than letters, digits and -_./:,@%+=*[]"
                    )
                name, *values = match.groups()
                settings[name] = "".join(filter(None, values))
    return settings


def adopt(settings: Mapping[str, str]) -> None:
    """Take over what is not of the configuration, since a file is for all of an environment."""
    os.environ.update({name: settings[name] for name in _ELSEWHERE if name in settings})


def make_signer(environment: Mapping[str, str], base: str = "", encoded: bool = False) -> Signer:
    """Return the signer of the settings.

    :raises Misuse: where they have no key, or one that cannot be one.
    """
    for name in ("AP_KEY", "AP_SALT"):
        if not environment.get(name):
            raise UsageError(
                f"{name}: not set; export AP_KEY and AP_SALT as the service has them, or name its"
                " file of settings with --env-file"
            )
    try:
        return Signer.from_hex(environment["AP_KEY"], environment["AP_SALT"], base, encoded=encoded)
    except ValueError as error:
        raise UsageError(str(error)) from None
