"""The command: its words, and what each of them ends with."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from audioproxy import __version__
from audioproxy.cli import completion, doctor, explain, sign, warm
from audioproxy.cli.environment import adopt, read_environment
from audioproxy.cli.exit_status import NO, USAGE_ERROR, UsageError, complain
from audioproxy.config import ConfigError
from audioproxy.errors import Refusal

_DESCRIPTION = "Sign, explain and fetch the URLs of an audioproxy, and examine its set-up."
_EPILOG = """\
AP_KEY, AP_SALT and all other settings are read from the environment, as the service reads them, or
from a file with --env-file. None is ever taken from the command line, where every user of the
machine could see it.

exit status:
  0  done, or yes
  1  no, or not all of it
  2  a mistake in the command, or a setting that is missing
  3, 4  see `audioproxy verify --help`
  130  stopped by Ctrl-C

`audioproxy COMMAND --help` has examples of each command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    asked = build_parser().parse_args(arguments)
    try:
        if sys.stdout is None:
            raise UsageError("there is no standard output")
        environment = read_environment(os.environ, asked.env_file)
        adopt(environment)
        status = int(asked.run(asked, environment))
        sys.stdout.flush()
        return status
    except UsageError as error:
        complain(str(error))
        return USAGE_ERROR
    except ConfigError as error:
        complain(*error.warnings, *error.problems)
        return USAGE_ERROR
    except Refusal as refusal:
        complain(str(refusal))
        return NO
    except OSError as error:
        # Whoever read it has seen enough, or there is no room for more.
        if not isinstance(error, BrokenPipeError):
            complain(str(error))
        # Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    except KeyboardInterrupt:
        return 130


def build_parser() -> ArgumentParser:
    """Return the parser of the whole command."""
    parser = ArgumentParser(
        "audioproxy",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"audioproxy {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (sign, explain, warm, doctor):
        module.add(commands)
    completion.add(commands, parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
