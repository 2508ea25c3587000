"""``audioproxy verify``: print whether the service would accept URLs."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from audioproxy.cli.env_file import read_keys
from audioproxy.cli.exit_status import EXPIRED, FAILURE, REFUSED, SUCCESS, USAGE_ERROR, UsageError
from audioproxy.cli.formatting import format_time, print_errors, printable
from audioproxy.cli.url_input import parse_url, read_lines
from audioproxy.errors import Expired, InvalidSignature, Refusal
from audioproxy.grammar.option_parser import parse_expiry
from audioproxy.grammar.request import InfoRequest, SigningKeys, parse_request
from audioproxy.grammar.segments import SignedPath, split_target

DESCRIPTION = """\
Check whether the service would accept each URL: its signature, its expiry, its options and the
syntax of its source. The source itself is not read. If a common signing mistake made the signature
wrong, the output names the mistake.

examples:
  audioproxy verify https://audio.example/Gx3k.../f:opus/plain/local://piece.wav
  audioproxy verify --env-file /etc/audioproxy.env - < urls.txt

exit status, the highest of all URLs:
  0  good
  1  the signature is wrong
  2  it is not a URL of the service
  3  the signature is good, and the URL has expired
  4  the signature is good, and the options or the source would be refused
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="a URL or its path; - reads one URL per line from stdin",
    )


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    """Run the command and return its exit status."""
    keys = read_keys(environment)
    highest = SUCCESS
    for url in read_lines(arguments.urls):
        try:
            path = parse_url(url)
        except UsageError as error:
            print_errors(str(error))
            status = USAGE_ERROR
        else:
            status, verdict = verify_path(keys, path)
            print(f"{verdict}: {printable(url)}")
        highest = max(highest, status)
    return highest


def verify_path(keys: SigningKeys, path: SignedPath) -> tuple[int, str]:
    """Return the exit status for a URL, and the verdict as text."""
    try:
        pair = keys.verify(path)
    except InvalidSignature as refusal:
        diagnosis = f" ({refusal.diagnosis})" if refusal.diagnosis else ""
        return FAILURE, f"wrong signature{diagnosis}"
    status, verdict = _check_request(path)
    # Such a URL becomes wrong when the pair is removed from the settings.
    return status, f"{verdict} (signed with pair {pair} of AP_PREVIOUS_KEY)" if pair else verdict


def _check_request(path: SignedPath) -> tuple[int, str]:
    """Return the exit status for a URL whose signature is good, and the verdict as text."""
    try:
        request = parse_request(path.signed, time.time())
    except Expired:
        target = split_target(path.signed)
        assert target is not None
        exp = parse_expiry(target.options)
        assert exp is not None
        return EXPIRED, f"good signature, but expired at {format_time(exp)}"
    except Refusal as refusal:
        return REFUSED, f"good signature, but refused ({str(refusal).rstrip('.')})"
    if isinstance(request, InfoRequest) or request.exp is None:
        return SUCCESS, "good"
    return SUCCESS, f"good until {format_time(request.exp)}"
