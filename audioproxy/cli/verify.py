"""``audioproxy verify``: tell whether the service would accept URLs."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from audioproxy.cli.environment import add_command, make_signer
from audioproxy.cli.exit_status import EXPIRED, FAILURE, REFUSED, SUCCESS, USAGE_ERROR, UsageError
from audioproxy.cli.formatting import format_time, print_errors, printable
from audioproxy.cli.url_input import parse_url, read_lines
from audioproxy.errors import Refusal
from audioproxy.grammar.expiry import expired
from audioproxy.grammar.parser import read_expiry, read_options, refuse_options
from audioproxy.grammar.segments import SignedPath, split_target
from audioproxy.grammar.signature import verify
from audioproxy.grammar.signature_diagnosis import diagnose_signature
from audioproxy.grammar.sources import read_source

_DESCRIPTION = """\
Tell whether the service would accept each URL: its signature, its expiry, its options and the
syntax of its source. The source itself is not read. For a wrong signature, the output names the
common signing mistake that it was made with.

examples:
  audioproxy verify https://audio.example/Gx3k.../f:opus/plain/local://piece.wav
  audioproxy verify --env-file /etc/audioproxy.env - < urls.txt

exit status, the highest of all URLs:
  0  good
  1  the signature is wrong
  2  it is no URL of the service
  3  the signature is good, and the URL has expired
  4  the signature is good, and the options or the source would be refused
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "verify", "check signed URLs", _DESCRIPTION)
    parser.set_defaults(run=_run)
    parser.add_argument(
        "urls", nargs="+", metavar="URL", help="a URL or its path; - reads them, one a line"
    )


def _run(arguments: Namespace, environment: Mapping[str, str]) -> int:
    signer = make_signer(environment)
    highest = SUCCESS
    for url in read_lines(arguments.urls):
        try:
            path = parse_url(url)
        except UsageError as error:
            print_errors(str(error))
            status = USAGE_ERROR
        else:
            status, verdict = verify_path(signer.key, signer.salt, path, time.time())
            print(f"{verdict}: {printable(url)}")
        highest = max(highest, status)
    return highest


def verify_path(key: bytes, salt: bytes, path: SignedPath, now: float) -> tuple[int, str]:
    """Return the exit status for a URL, and the verdict in words."""
    if not verify(key, salt, path.signed, path.signature):
        mistake = diagnose_signature(key, salt, path.signed, path.signature)
        return FAILURE, f"wrong signature ({mistake})" if mistake else "wrong signature"
    target = split_target(path.signed)
    if target is None:
        return REFUSED, "good signature of no source (plain/ or enc/ is expected)"
    exp = None if target.info else read_expiry(target.options)
    if expired(exp, now):
        return EXPIRED, f"good signature, but expired at {format_time(exp or 0)}"
    try:
        if target.info:
            refuse_options(target.options)
        else:
            read_options(target.options)
        read_source(target.form, target.source)
    except Refusal as refusal:
        return REFUSED, f"good signature, but refused ({str(refusal).rstrip('.')})"
    return SUCCESS, "good" if exp is None else f"good until {format_time(exp)}"
