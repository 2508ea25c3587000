"""``audioproxy sign`` and ``audioproxy verify``."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from audioproxy.cli.environment import add_command, make_signer
from audioproxy.cli.exit_status import (
    DONE,
    EXPIRED,
    NO,
    REFUSED,
    USAGE_ERROR,
    UsageError,
    complain,
    printable,
)
from audioproxy.cli.url_input import read_address, read_lines
from audioproxy.errors import Refusal
from audioproxy.grammar.expiry import expired
from audioproxy.grammar.parser import read_expiry, read_options, refuse_options
from audioproxy.grammar.segments import SignedPath, split_target
from audioproxy.grammar.signature import verify
from audioproxy.grammar.signature_diagnosis import diagnose_signature
from audioproxy.grammar.sources import read_source
from audioproxy.urls import Signer, Variant

_SIGN = """\
Print the signed URL of each source. The options are those of a URL, in any order; they are checked
as the service would check them, and written in their canonical order.

examples:
  audioproxy sign local://masters/piece.wav
  audioproxy sign --options f:opus/br:96/t:30:15 s3://masters/piece.wav
  audioproxy sign --options f:mp3 --expires-in 1h --base https://audio.example local://piece.wav
  audioproxy sign --info local://piece.wav
  find . -name '*.wav' -printf 'local://%P\\n' | audioproxy sign --options f:opus -
  audioproxy sign --path /f:mp3/plain/local://piece.wav
"""

_VERIFY = """\
Tell whether the service would take each URL: its signature, its end, its options and the spelling
of its source. Whether the source is there is not looked at. Of a wrong signature it says which of
the usual slips it was made with.

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

_DURATION = re.compile(r"([0-9]{1,10})([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def add(commands: Any) -> None:
    """Add both commands to the parser."""
    sign = add_command(commands, "sign", "make signed URLs", _SIGN)
    sign.set_defaults(run=_run_sign)
    sign.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="local://PATH, s3://BUCKET/KEY or an https URL, with nothing encoded that is not"
        " encoded in itself; - reads them from the standard input, one a line",
    )
    what = sign.add_mutually_exclusive_group()
    what.add_argument(
        "-o", "--options", default="", metavar="OPTIONS", help="such as f:opus/br:96 (f:mp3)"
    )
    what.add_argument("--info", action="store_true", help="sign the URL of the info document")
    what.add_argument(
        "--path",
        action="store_true",
        help="SOURCE is all that stands behind the signature; sign it as it is, unchecked",
    )
    sign.add_argument(
        "-e", "--expires-in", type=_duration, metavar="TIME", help="such as 90, 15m, 1h or 7d"
    )
    sign.add_argument(
        "-b", "--base", default="", metavar="URL", help="what stands ahead of the signature"
    )
    sign.add_argument(
        "--encoded", action="store_true", help="write the sources in base64url, as enc/..."
    )
    check = add_command(commands, "verify", "check signed URLs", _VERIFY)
    check.set_defaults(run=_run_verify)
    check.add_argument(
        "urls", nargs="+", metavar="URL", help="a URL or its path; - reads them, one a line"
    )


def _duration(text: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise ArgumentTypeError(f"{text!r} is no time; seconds, or a number with m, h or d")
    return int(match[1]) * _UNITS[match[2]]


def _run_sign(asked: Namespace, environment: Mapping[str, str]) -> int:
    signer = make_signer(environment, asked.base, asked.encoded)
    if asked.expires_in is not None and (asked.info or asked.path):
        raise UsageError(
            "--expires-in goes with the URL of a variant, which an info document is not"
        )
    variant = Variant.read(asked.options)
    status = DONE
    for source in read_lines(asked.sources):
        try:
            print(_sign_one(asked, signer, variant, source))
        # One bad line of a thousand is no reason to lose the others.
        except Refusal as refusal:
            complain(f"{source}: {refusal}")
            status = max(status, NO)
        except UsageError as error:
            complain(f"{source}: {error}")
            status = USAGE_ERROR
    return status


def _sign_one(asked: Namespace, signer: Signer, variant: Variant, source: str) -> str:
    if asked.path:
        try:
            return signer.sign(source)
        except ValueError as error:
            raise UsageError(f"--path: {error}") from None
    if asked.info:
        return signer.info_url(source)
    return signer.url(source, variant, expires_in=asked.expires_in)


def _run_verify(asked: Namespace, environment: Mapping[str, str]) -> int:
    signer = make_signer(environment)
    worst = DONE
    for url in read_lines(asked.urls):
        try:
            status, verdict = judge(signer.key, signer.salt, read_address(url), time.time())
        except UsageError as error:
            complain(str(error))
            status = USAGE_ERROR
        else:
            print(f"{verdict}: {printable(url)}")
        worst = max(worst, status)
    return worst


def judge(key: bytes, salt: bytes, path: SignedPath, now: float) -> tuple[int, str]:
    """Return the exit status that a URL deserves, and the verdict in words."""
    if not verify(key, salt, path.signed, path.signature):
        slip = diagnose_signature(key, salt, path.signed, path.signature)
        return NO, f"wrong signature ({slip})" if slip else "wrong signature"
    target = split_target(path.signed)
    if target is None:
        return REFUSED, "good signature of no source (plain/ or enc/ is expected)"
    exp = None if target.info else read_expiry(target.options)
    if expired(exp, now):
        return EXPIRED, f"good signature, but expired at {moment(exp or 0)}"
    try:
        if target.info:
            refuse_options(target.options)
        else:
            read_options(target.options)
        read_source(target.form, target.source)
    except Refusal as refusal:
        return REFUSED, f"good signature, but refused ({str(refusal).rstrip('.')})"
    return DONE, "good" if exp is None else f"good until {moment(exp)}"


def moment(seconds: int) -> str:
    """Return Unix seconds as a time of day that says of which zone it is."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
