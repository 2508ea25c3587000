"""The ``audioproxy`` command: its parser and its exit status."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module

from audioproxy import __version__
from audioproxy.cli.env_file import PROCESS_VARIABLES, read_environment
from audioproxy.cli.exit_status import FAILURE, INTERRUPTED, SUCCESS, USAGE_ERROR, UsageError
from audioproxy.cli.output import print_errors
from audioproxy.config import ConfigError
from audioproxy.errors import Refusal, reason_of

_DESCRIPTION = "URLs of audioproxy, its stored variants, and its set-up."
_EPILOG = """\
AP_KEY, AP_SALT and all other settings are read from the environment, as the service reads them, or
from a file with --env-file. None is ever taken from the command line, where every user of the
machine could see it.

exit status:
  0  success
  1  at least one item failed
  2  an invalid command line, or a missing setting
  3, 4  see `audioproxy verify --help`
  75  another process prunes the store
  130  stopped by Ctrl-C

`audioproxy COMMAND --help` has examples of each command.
"""
_COMPLETION = """\
Print a script with which a shell completes the words of this command.

examples:
  audioproxy completion bash > ~/.local/share/bash-completion/completions/audioproxy
  audioproxy completion zsh > /usr/local/share/zsh/site-functions/_audioproxy
"""

# The commands in the order of the help text. Each, except `completion`, has a module of its name
# in this package, with its description, its arguments and its function `execute`. `store` is a
# package, with a module for each of its own commands.
_COMMANDS = {
    "sign": "create signed URLs",
    "verify": "check signed URLs",
    "explain": "show what a URL means, and the commands of its render",
    "warm": "fetch URLs, so that they are stored before clients request them",
    "measure": "print the loudness of sources, and the gain to a target",
    "store": "list, remove and verify stored variants",
    "doctor": "check the settings and the machine",
    "completion": "print a shell completion script",
}


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    try:
        parser = build_parser(words[:1])
        if words and not words[0].startswith("-") and words[0] not in _COMMANDS:
            parser.error(_suggest_command(words[0]))
        arguments = parser.parse_args(words)
        if sys.stdout is None:
            raise UsageError("there is no standard output")
        environment = read_environment(os.environ, arguments.env_file)
        # A file of settings may contain these too.
        os.environ.update({n: environment[n] for n in PROCESS_VARIABLES if n in environment})
        status = int(arguments.execute(arguments, environment))
        sys.stdout.flush()
        return status
    except UsageError as error:
        print_errors(str(error))
        return USAGE_ERROR
    except ConfigError as error:
        print_errors(*map(str, (*error.warnings, *error.problems)))
        return USAGE_ERROR
    except Refusal as refusal:
        print_errors(str(refusal))
        return FAILURE
    except OSError as error:
        # The reader of a pipe may stop early, which needs no message. Any other error, such as a
        # full disk, is reported.
        if not isinstance(error, BrokenPipeError):
            print_errors(reason_of(error))
        # Python would report the error again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "audioproxy"):
            raise
        print_errors(
            f"audioproxy {words[0]} needs {package}, which is not installed; in a checkout of the"
            " project, `pip install .` installs the package and all that it needs"
        )
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def build_parser(
    wanted: Collection[str] = tuple(_COMMANDS), files: object = None
) -> ArgumentParser:
    """Return the parser of the command line.

    :param wanted: the commands whose arguments are parsed. Only their modules are imported, so that
        ``sign`` starts without importing Twisted. The help text lists every command.
    :param files: how the shells complete names of files, for shtab.
    """
    parser = ArgumentParser(
        "audioproxy",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"audioproxy {__version__}")
    for name, command in _add_parsers(parser, _COMMANDS):
        if name == "completion" and name in wanted:
            import shtab

            command.description = _COMPLETION
            command.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
            command.set_defaults(execute=_print_completion, env_file=None)
        elif name in wanted:
            _add_command(command, f"audioproxy.cli.{name}", files)
    return parser


def _add_parsers(
    parser: ArgumentParser, summaries: Mapping[str, str]
) -> Iterator[tuple[str, ArgumentParser]]:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in summaries.items():
        yield (
            name,
            commands.add_parser(name, help=summary, formatter_class=RawDescriptionHelpFormatter),
        )


def _add_command(command: ArgumentParser, module_name: str, files: object) -> None:
    module = import_module(module_name)
    command.description = module.DESCRIPTION
    if hasattr(module, "COMMANDS"):
        for name, inner in _add_parsers(command, module.COMMANDS):
            _add_command(inner, f"{module_name}.{name}", files)
        return
    command.set_defaults(execute=module.execute)
    option = command.add_argument(
        "--env-file",
        metavar="FILE",
        help="read the settings from FILE, in lines NAME=value, as the service's unit does;"
        " they override the environment",
    )
    # shtab completes this option with the names of files.
    option.complete = files  # type: ignore[attr-defined]
    module.add_arguments(command)


def _suggest_command(word: str) -> str:
    # The import takes some milliseconds, which no other start of the command should.
    from difflib import get_close_matches

    near = get_close_matches(word, _COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(_COMMANDS)}"
    return f"{word!r} is not a command; {hint}"


def _print_completion(arguments: Namespace, _environment: Mapping[str, str]) -> int:
    import shtab

    print(shtab.complete(build_parser(files=shtab.FILE), shell=arguments.shell))
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
