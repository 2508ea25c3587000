"""``audioproxy completion``: print a shell completion script."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import shtab

from audioproxy.cli.exit_status import SUCCESS

_DESCRIPTION = """\
Print a script with which a shell completes the words of this command.

examples:
  audioproxy completion bash > ~/.local/share/bash-completion/completions/audioproxy
  audioproxy completion zsh > /usr/local/share/zsh/site-functions/_audioproxy
"""


def configure(parser: ArgumentParser) -> None:
    """Set the description and the arguments of the command."""
    parser.description = _DESCRIPTION
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    parser.set_defaults(run=_run, env_file=None)


def _run(arguments: Namespace, _environment: Mapping[str, str]) -> int:
    # A circular import: `main` imports this module.
    from audioproxy.cli.main import build_parser

    print(shtab.complete(build_parser(), shell=arguments.shell))
    return SUCCESS
