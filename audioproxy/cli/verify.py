"""``audioproxy verify``: print whether the service would accept URLs."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from audioproxy.cli.env_file import read_keys
from audioproxy.cli.exit_status import EXPIRED, FAILURE, REFUSED, SUCCESS, USAGE_ERROR, UsageError
from audioproxy.cli.output import Colour, Output, format_time
from audioproxy.cli.url_input import parse_url, percent_encode_typed, read_lines
from audioproxy.errors import Expired, InvalidSignature, Refusal
from audioproxy.grammar.option_parser import parse_expiry
from audioproxy.grammar.request import InfoRequest, SigningKeys, parse_request
from audioproxy.grammar.segments import SignedPath, split_target

DESCRIPTION = """\
Check whether the service would accept each URL: its signature, its expiry, its options and the
syntax of its source. The source itself is not read. If a common mistake made the signature wrong,
the output names it: one of the signer, or what a proxy or a client has changed. A URL is judged as
it stands: with a blank or a character outside ASCII, it is no URL, since a client may send that.

examples:
  audioproxy verify https://audio.example/Gx3k.../f:opus/plain/local://piece.wav
  audioproxy verify --env-file /etc/audioproxy.env - < urls.txt
  audioproxy verify --json - < urls.txt | jq -r 'select(.verdict == "expired") | .url'

exit status, the highest of all URLs:
  0  good
  1  the signature is wrong
  2  it is not a URL of the service
  3  the signature is good, and the URL has expired
  4  the signature is good, and the options or the source would be refused
"""


def add_arguments(parser: ArgumentParser) -> None:
    help_text = "a URL or its path; - reads one URL per line from stdin"
    parser.add_argument("urls", nargs="+", metavar="URL", help=help_text)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object for each URL, on one line: url, verdict (good, wrong signature,"
        " expired, refused or no URL), reason, expires in Unix seconds, and previous_pair, the"
        " number of the pair of AP_PREVIOUS_KEY that signed it",
    )


# The verdicts by exit status.
_VERDICTS = {
    SUCCESS: "good",
    FAILURE: "wrong signature",
    USAGE_ERROR: "no URL",
    EXPIRED: "expired",
    REFUSED: "refused",
}


@dataclass(frozen=True, slots=True)
class Verification:
    """The verdict on a URL, as an exit status.

    :ivar reason: the signing mistake, or why the service would refuse the URL; None if unknown.
    :ivar expires: Unix seconds.
    :ivar previous_pair: the number of the previous pair of key and salt that signed it.
    """

    status: int
    reason: str | None = None
    expires: int | None = None
    previous_pair: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        values = asdict(self)
        return {"verdict": _VERDICTS[values.pop("status")], **values}

    @property
    def text(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        date = "" if self.expires is None else format_time(self.expires)
        text = {
            SUCCESS: f"good until {date}" if date else "good",
            FAILURE: f"wrong signature{reason}",
            EXPIRED: f"good signature, but expired at {date}",
            REFUSED: f"good signature, but refused{reason}",
        }[self.status]
        if self.previous_pair:
            # Such a URL becomes wrong when the pair is removed from the settings.
            text += f" (signed with pair {self.previous_pair} of AP_PREVIOUS_KEY)"
        return text


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    keys = read_keys(environment)
    out = Output.of(arguments)
    highest = SUCCESS
    for url in read_lines(arguments.urls):
        try:
            found = verify_url(keys, url)
        except UsageError as error:
            out.error(str(error))
            found = Verification(USAGE_ERROR, str(error))
        else:
            out.line(f": {url}", found.text, Colour.RED if found.status else Colour.GREEN)
        out.row({"url": url, **found.values})
        highest = max(highest, found.status)
    return highest


def verify_url(keys: SigningKeys, url: str) -> Verification:
    """Return the verdict on a URL as users paste it."""
    found = verify_path(keys, parse_url(url))
    if found.status == FAILURE and found.reason is None:
        # A fragment, which is not sent, may have any character.
        escaped = parse_url(percent_encode_typed(url).replace("?", "%3F").replace("#", "%23"))
        raw = escaped.signed.replace(b"%3F", b"?").replace(b"%23", b"#")
        for path in (escaped, replace(escaped, signed=raw)):
            again = verify_path(keys, path)
            if again.status != FAILURE or again.reason is not None:
                why = "a ? or # of the source ends the path; sign and send %3F and %23"
                return replace(found, reason=why)
    return found


def verify_path(keys: SigningKeys, path: SignedPath) -> Verification:
    try:
        pair = keys.verify(path) or None
    except InvalidSignature as refusal:
        return Verification(FAILURE, refusal.diagnosis)
    try:
        request = parse_request(path.signed, time.time())
    except Expired:
        target = split_target(path.signed)
        assert target is not None
        return Verification(EXPIRED, None, parse_expiry(target.options), pair)
    except Refusal as refusal:
        return Verification(REFUSED, str(refusal).rstrip("."), None, pair)
    exp = None if isinstance(request, InfoRequest) else request.exp
    return Verification(SUCCESS, None, exp, pair)
