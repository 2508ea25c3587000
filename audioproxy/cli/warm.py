"""``audioproxy warm``: the command's words."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from audioproxy.cli.environment import add_command

_DESCRIPTION = """\
Fetch URLs ahead of those who will listen, so that the service renders and stores what they name.
Every answer is read to its end and dropped. A redirect to the store is not followed: it says that
the variant is stored. A service that is busy is asked again when it says so.

examples:
  audioproxy warm https://audio.example/Gx3k.../f:opus/plain/local://piece.wav
  audioproxy warm --concurrency 8 - < urls.txt
  find . -name '*.wav' -printf 'local://%P\\n' |
      audioproxy sign --options f:opus --base https://audio.example - | audioproxy warm -

What fails is told in a line each, without the signature, since whoever has that may use the URL.

exit status:
  0    all of them are rendered, or stored already
  1    some are not
  130  stopped by Ctrl-C
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "warm", "fetch URLs ahead of the listeners", _DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="a URL; - reads them from the standard input, one a line, without blank lines and"
        " those that begin with #",
    )
    parser.add_argument(
        "-c", "--concurrency", type=_count(256), default=4, metavar="N", help="at a time (4)"
    )
    parser.add_argument(
        "-t",
        "--timeout",
        type=_count(86_400),
        default=600,
        metavar="SECONDS",
        help="give up a URL that gives nothing for so long (600)",
    )
    parser.add_argument(
        "--tries",
        type=_count(1_000),
        default=5,
        metavar="N",
        help="how often a URL is asked for while the service is busy (5)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def _count(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= most:
            raise ArgumentTypeError(f"{text!r}; a whole number from 1 to {most} is required")
        return int(text)

    return read


def _run(asked: Namespace, environment: Mapping[str, str]) -> int:
    # It brings Twisted, which is not needed to sign.
    from audioproxy.cli.warming import warm

    return warm(
        asked.urls,
        environment,
        concurrency=asked.concurrency,
        timeout=asked.timeout,
        tries=asked.tries,
        quiet=asked.quiet,
    )
