"""``audioproxy completion``: what makes a shell complete the command's words."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from functools import partial
from typing import Any

import shtab

from audioproxy.cli.exit_status import DONE

_DESCRIPTION = """\
Print a script that makes a shell complete the words of this command.

examples:
  audioproxy completion bash > ~/.local/share/bash-completion/completions/audioproxy
  audioproxy completion zsh > /usr/local/share/zsh/site-functions/_audioproxy
"""


def add(commands: Any, whole: ArgumentParser) -> None:
    """Add the command to the parser.

    :param whole: the parser whose words are completed.
    """
    parser = commands.add_parser(
        "completion",
        help="complete the words of this command in a shell",
        description=_DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    parser.set_defaults(run=partial(_run, whole), env_file=None)


def _run(whole: ArgumentParser, asked: Namespace, _environment: Mapping[str, str]) -> int:
    print(shtab.complete(whole, shell=asked.shell))
    return DONE
