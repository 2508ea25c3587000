"""Where the settings of a command come from: the environment, or a file in its place."""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from typing import Any

import shtab
from dotenv import dotenv_values

from audioproxy.cli.outcome import Misuse
from audioproxy.urls import Signer


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
        help="read the settings from FILE, in lines of NAME=value as systemd's EnvironmentFile has"
        " them; they go ahead of the environment",
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
            with open(file, encoding="utf-8") as stream:
                # A $ in a secret is only that.
                values = dotenv_values(stream=stream, interpolate=False)
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"--env-file: {file} cannot be read ({error})") from None
        settings.update((name, value) for name, value in values.items() if value is not None)
    return settings


def make_signer(environment: Mapping[str, str], base: str = "", encoded: bool = False) -> Signer:
    """Return the signer of the settings.

    :raises Misuse: where they have no key, or one that cannot be one.
    """
    for name in ("AP_KEY", "AP_SALT"):
        if not environment.get(name):
            raise Misuse(
                f"{name}: not set; export AP_KEY and AP_SALT as the service has them, or name its"
                " file of settings with --env-file"
            )
    try:
        return Signer.from_hex(environment["AP_KEY"], environment["AP_SALT"], base, encoded=encoded)
    except ValueError as error:
        raise Misuse(str(error)) from None
