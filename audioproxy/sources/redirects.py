"""Redirects of https origins: how many are followed, and where each may lead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urljoin

from audioproxy.errors import NotFound
from audioproxy.grammar.sources import HttpsSource, parse_https
from audioproxy.http_client.client import Response

MAX_REDIRECTS = 5
STATUSES = (301, 302, 303, 307, 308)
# Characters that a request target cannot have (RFC 3986, 2), though a source may be spelled with
# them. They are sent percent-encoded.
_UNSAFE = re.compile(r'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')
# Bytes, as Latin-1, that a URL cannot have, but that the Location of a careless server has.
_NO_URL = re.compile(r"[^!-~]")
# Replaces a semicolon, since `urljoin` drops an empty parameter after one.
_SEMICOLON = "\ue000"


def redirect_target(
    source: HttpsSource, response: Response, allowlist: Sequence[str]
) -> HttpsSource:
    """Return where a redirect leads: to an https address on the allowlist."""
    location = response.header("location")
    if location is None:
        raise NotFound("a redirect without a location")
    try:
        # As browsers and curl do, percent-encode the bytes that a URL cannot have.
        encoded = _NO_URL.sub(_percent_encode, location)
        target = parse_https(_resolve(source.url, encoded).encode("latin-1"))
    except ValueError as error:
        # The error may quote the address, whose query stays out of the log (D47).
        raise NotFound("a redirect to an address that is not https") from error
    if not target.is_allowed(allowlist):
        raise NotFound("a redirect to a host that is not on the allowlist")
    return target


def request_url(source: HttpsSource) -> str:
    return _UNSAFE.sub(_percent_encode, source.url)


def _percent_encode(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _resolve(base: str, location: str) -> str:
    """Return the target of a redirect (RFC 3986, 5.2)."""
    base, location = (text.replace(";", _SEMICOLON) for text in (base, location))
    return urljoin(base, location).replace(_SEMICOLON, ";")
