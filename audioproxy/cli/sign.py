"""``audioproxy sign``: print signed URLs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time
from functools import partial
from typing import Any

from audioproxy.cli.arguments import duration
from audioproxy.cli.env_file import make_signer
from audioproxy.cli.exit_status import FAILURE, SUCCESS, USAGE_ERROR, UsageError
from audioproxy.cli.output import Output
from audioproxy.cli.url_input import describe_presigned, read_lines
from audioproxy.errors import Refusal
from audioproxy.grammar.sources import FORMS, Source
from audioproxy.urls import Variant, read_source
from audioproxy.urls.signer import encode_file_name

DESCRIPTION = """\
Print the signed URL of each source. The options are those of a URL, in any order; they are checked
as the service would check them, and written in their canonical order. A warning tells of sources
whose query is presigned: each new query is rendered and stored again.

examples:
  audioproxy sign local://masters/piece.wav
  audioproxy sign --options f:opus/br:96/t:30:15 s3://masters/piece.wav
  audioproxy sign --options f:mp3 --expires-in 1h --base https://audio.example local://piece.wav
  audioproxy sign --expires-in 1d --round 6h local://piece.wav
  audioproxy sign --expires-at 2030-12-31T18:00+01:00 local://piece.wav
  audioproxy sign --options f:mp3 --file-name 'Episode 1.mp3' local://episode-1.wav
  audioproxy sign --info local://piece.wav
  find . -name '*.wav' -printf 'local://%P\\n' | audioproxy sign --options f:opus -
  audioproxy sign --path /f:mp3/plain/local://piece.wav
  audioproxy sign --json - < sources.txt | jq -r .url
"""


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help=f"{FORMS}, without added percent-encoding; - reads sources from the standard input,"
        " one per line",
    )
    kind = parser.add_mutually_exclusive_group()
    add_options_option(kind)
    kind.add_argument("--info", action="store_true", help="sign the URL of the info document")
    kind.add_argument(
        "--path",
        action="store_true",
        help="SOURCE is the whole path after the signature; sign it unchanged and unchecked",
    )
    add(
        "--file-name",
        metavar="NAME",
        help="put /media before the signature and end the URL in this name, as podcast directories"
        " require; the balancers' configurations in deploy/ remove both",
    )
    add_url_options(parser)
    add(
        "--json",
        action="store_true",
        help="print a JSON object for each source, on one line: source, url and error",
    )


def add_options_option(parser: _ActionsContainer) -> None:
    parser.add_argument(
        "-o", "--options", default="", metavar="OPTIONS", help="such as f:opus/br:96 (f:mp3)"
    )


def add_url_options(parser: ArgumentParser) -> None:
    end = parser.add_mutually_exclusive_group()
    end.add_argument(
        "-e", "--expires-in", type=duration, metavar="TIME", help="such as 90, 15m, 1h or 7d"
    )
    end.add_argument(
        "--expires-at",
        type=_end,
        metavar="DATE",
        help="such as 2030-12-31 (its first second in UTC), 2030-12-31T18:00+01:00, or Unix"
        " seconds",
    )
    add = parser.add_argument
    add(
        "--round",
        type=duration,
        metavar="TIME",
        help="expire later than --expires-in, at the next multiple of this time (UTC), so that many"
        " URLs are the same for caches; 1d is midnight",
    )
    add("-b", "--base", default="", metavar="URL", help="the URL before the signature")
    add("--encoded", action="store_true", help="write the sources in base64url, as enc/...")


def _end(text: str) -> int | datetime:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a date; use one such as 2030-12-31 or 2030-12-31T18:00Z"
        ) from None
    with suppress(ValueError):
        # A date alone begins in UTC.
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    if moment.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} has no time zone; add one, such as Z or +01:00")
    return moment


def expiry(arguments: Namespace) -> dict[str, Any]:
    """Return the arguments of `Signer.url` that set the end of a URL."""
    if arguments.round is not None and arguments.expires_in is None:
        raise UsageError("--round goes with --expires-in")
    return {
        "expires_in": arguments.expires_in,
        "expires_at": arguments.expires_at,
        "round_to": arguments.round,
    }


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    signer = make_signer(environment, arguments.base, arguments.encoded)
    variant = Variant.read(arguments.options)
    of_variant = {**expiry(arguments), "file_name": arguments.file_name}
    for name, value in of_variant.items():
        if value is not None and (arguments.info or arguments.path):
            option = name.replace("_", "-").removesuffix("-to")
            raise UsageError(f"--{option} works with variants only, not with --info or --path")
    if arguments.file_name is not None:
        try:
            encode_file_name(arguments.file_name, variant)
        except ValueError as error:
            raise UsageError(f"--file-name: {error}") from None
    sign: Callable[[Any], str] = signer.sign if arguments.path else signer.info_url
    if not (arguments.path or arguments.info):
        sign = partial(signer.url, variant=variant, **of_variant)
    out = Output.of(arguments)
    status = SUCCESS
    for source in read_lines(arguments.sources):
        url = fault = None
        try:
            parsed = source if arguments.path else read_source(source)
            url = sign(parsed)
            if isinstance(parsed, Source) and (warning := describe_presigned(parsed)) is not None:
                out.error(f"warning: {warning}")
        # An invalid line in a list must not prevent the others from being signed.
        except Refusal as refusal:
            fault = str(refusal)
            status = max(status, FAILURE)
        except ValueError as error:
            # Of a path: the sources of other URLs are refused.
            fault = f"--path: {error}"
            status = USAGE_ERROR
        if fault is not None:
            out.error(f"{source}: {fault}")
        out.row({"source": source, "url": url, "error": fault}, *filter(None, [url]))
    return status
