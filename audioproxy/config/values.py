"""Parsers for the text of one environment variable: they return the value or raise `InvalidValue`.

The parts of an error are one line together, without a full stop. Text that can contain a secret
(keys, and URLs, since these can contain a password) is never quoted.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping

from audioproxy.errors import InvalidValue
from audioproxy.grammar.sources import format_ipv6

_QUOTE_LIMIT = 200
# unix(7): the path of a socket has 108 bytes at most, with the zero at its end.
_MAX_SOCKET_PATH = 107

# RFC 9110, 5.6.2. No header that caches read has a longer name.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~\w-]{1,64}", re.ASCII)
# Headers that this service, Twisted or a proxy in front sends or interprets. A test compares them
# with the responses of the service. nginx redirects inside the server for X-Accel-Redirect.
_TAKEN_HEADERS = re.compile(
    r"(access-control|content|cross-origin|proxy|sec|x-accel|(x-amz-meta-)?audioproxy)-.*"
    r"|accept-ranges|age|alt-svc|cache-control|cdn-cache-control|clear-site-data|connection|date"
    r"|etag|expires|keep-alive|last-modified|link|location|pragma|refresh|retry-after|server"
    r"|set-cookie|strict-transport-security|surrogate-control|te|trailer|transfer-encoding|upgrade"
    r"|vary|via|warning|www-authenticate|x-audio-proxy|x-request-id|x-sendfile"
)
_DIGITS = re.compile(r"[0-9]{1,18}")
_VISIBLE = re.compile(r"[!-~]+")
_REGION = re.compile(r"[A-Za-z0-9_-]{1,63}")
# The grammar of a bucket in a source; `audioproxy.grammar.sources` has the same for bytes.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# RFC 3986, 3: scheme, authority, path, query, fragment.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
_HOST_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::([0-9]{0,5}))?")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
#: A host that the URL standard takes for an IPv4 address: its last label is a number.
NUMBER_LAST = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")
_DEFAULT_PORTS = {"http": 80, "https": 443}

_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False}


def quote(text: str) -> str:
    """Return text in quotes as printable ASCII on one line, shortened if it is long."""
    return ascii(text if len(text) <= _QUOTE_LIMIT else text[:_QUOTE_LIMIT] + "...")


def listed(words: Iterable[str], last: str = "and") -> str:
    """Return words as an enumeration: ``a, b and c``."""
    *head, tail = words
    return f"{', '.join(head)} {last} {tail}" if head else tail


def choice(*accepted: str) -> Callable[[str], str]:
    """Return a parser of a few exact words."""

    def read(text: str) -> str:
        if text not in accepted:
            raise InvalidValue(quote(text), f"{listed(accepted, 'or')} is required")
        return text

    return read


def switch(text: str) -> bool:
    """Parse a switch, in any letter case (D31)."""
    if (value := _SWITCH.get(text.lower())) is None:
        raise InvalidValue(quote(text), f"{listed(_SWITCH, 'or')} is required")
    return value


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of plain digits, from ``low`` to ``high`` inclusive."""

    def read(text: str) -> int:
        if _DIGITS.fullmatch(text) is None or not low <= int(text) <= high:
            raise InvalidValue(quote(text), f"a whole number from {low} to {high} is required")
        return int(text)

    return read


def credential(text: str) -> str:
    """Parse a storage credential, which is sent in a header."""
    if _VISIBLE.fullmatch(text) is None:
        raise InvalidValue("white space or a character outside ASCII", "visible ASCII is required")
    return text


def region(text: str) -> str:
    """Parse a region, which can become part of a host name."""
    # It is not quoted, since users sometimes set the secret here by mistake.
    if _REGION.fullmatch(text) is None:
        raise InvalidValue(
            "not the name of a region",
            "letters, digits, hyphens and underscores such as us-east-1 are required",
        )
    return text


def cache_tag_header(text: str) -> str:
    """Parse the name of a response header that no other part of a response uses."""
    name = text.lower()
    if _TOKEN.fullmatch(name) is None:
        fault = f"{quote(text)} is not the name of a header"
    elif _TAKEN_HEADERS.fullmatch(name) is not None:
        fault = f"{quote(text)} has a meaning of its own in responses"
    else:
        return name
    raise InvalidValue(fault, "a name such as Cache-Tag, Surrogate-Key or xkey is required")


def ip_literal(text: str) -> str:
    """Parse an IPv4 or IPv6 address to bind to; a host name is refused."""
    try:
        ipaddress.ip_address(text)
        # `ipaddress` accepts any character in a zone (fe80::1%eth0).
        credential(text)
    except ValueError:
        wanted = "an IPv4 or IPv6 address without brackets is required, not a host name"
        raise InvalidValue(quote(text), wanted) from None
    return text


def bind_address(text: str) -> str:
    """Parse an IPv4 or IPv6 address to bind to, or ``unix:`` and the path of a socket."""
    path = text.removeprefix("unix:")
    if path == text:
        try:
            return ip_literal(text)
        except InvalidValue as error:
            raise InvalidValue(error.fault, f"{error.wanted}; or unix:/path/of/a/socket") from None
    if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        wanted = f"unix: and an absolute path of up to {_MAX_SOCKET_PATH} bytes is required"
        raise InvalidValue(quote(text), wanted)
    return text


def existing_path(
    exists: Callable[[str], bool], kind: str, mode: int, ability: str
) -> Callable[[str], str]:
    """Return a parser of paths; ``mode`` is for ``os.access``, and ``ability`` says the same."""
    wanted = f"an existing {kind}, {ability} by this process, is required"

    def read(text: str) -> str:
        # This comes first: os.access() raises on a NUL character.
        if not exists(text):
            raise InvalidValue(f"{quote(text)} is not a {kind}", wanted)
        if not os.access(text, mode):
            raise InvalidValue(f"{quote(text)} is not {ability}", wanted)
        return text

    return read


readable_directory = existing_path(os.path.isdir, "directory", os.R_OK | os.X_OK, "readable")
writable_directory = existing_path(
    os.path.isdir, "directory", os.R_OK | os.W_OK | os.X_OK, "writable"
)
readable_file = existing_path(os.path.isfile, "regular file", os.R_OK, "readable")


def bucket(text: str) -> str:
    """Parse the text after ``s3://`` where only a bucket is allowed."""
    userinfo, _, rest = text.rpartition("@")
    host_port, slash, _ = rest.partition("/")
    name, colon, _ = host_port.partition(":")
    extras = {"credentials": userinfo, "a port": colon, "a key prefix": slash}
    if found := _present(extras):
        raise InvalidValue(f"{listed(found)} after s3://", "s3://<bucket> alone is required")
    if _BUCKET.fullmatch(name) is None:
        raise InvalidValue(
            "no bucket name after s3://",
            "1 to 63 letters, digits, dots, hyphens and underscores are required, the first a"
            " letter or digit",
        )
    return name


def allowlist(text: str) -> tuple[str, ...]:
    """Parse comma-separated entries; blanks around each are ignored."""
    if not text.strip():
        raise InvalidValue(
            "set but empty, which would allow every bucket",
            "set names separated by commas, set * for everything, or unset the variable",
        )
    entries = tuple(entry.strip() for entry in text.split(","))
    if "" in entries:
        raise InvalidValue(
            f"entry {entries.index('') + 1} of {len(entries)} is empty",
            "names separated by single commas are required",
        )
    return entries


def allowed_origin(text: str) -> str:
    """Parse ``*`` or one origin, exactly as a browser sends it (CORS, 4)."""
    if text == "*":
        return text
    wanted = "* or exactly one origin such as https://app.example is required"
    origin, extras, spellings = parse_origin(text, wanted)
    if faults := extras + spellings:
        raise InvalidValue(listed(faults), f"the canonical spelling is {origin}")
    return origin


def endpoint(text: str) -> str:
    """Parse the origin of an object store; letter case and a default port are normalized."""
    wanted = "an origin such as https://s3.example or http://127.0.0.1:9000 is required"
    origin, extras, _ = parse_origin(text, wanted)
    if extras:
        raise InvalidValue(listed(extras), f"only {origin} is accepted")
    return origin


def parse_origin(text: str, wanted: str) -> tuple[str, list[str], list[str]]:
    """Return the origin of a URL as browsers spell it, other parts, and unusual spellings.

    :param wanted: what would be right, for a text that has no recognizable origin.
    """
    url = _URL.fullmatch(text)
    if url is None or (scheme := url[1].lower()) not in _DEFAULT_PORTS:
        raise InvalidValue("not an http:// or https:// origin", wanted)
    authority, path, query, fragment = url[2], url[3], url[4], url[5]
    if "@" in text[url.end(2) :]:
        # The text before the @ may be half of a password, which must not be shown as a host.
        raise InvalidValue("an @ after the host", wanted)
    _, at, host_port = authority.rpartition("@")
    parts = _HOST_PORT.fullmatch(host_port)
    if parts is None or not 1 <= int(parts[2] or 1) <= 65535:
        raise InvalidValue("no host, or a port that is not a number from 1 to 65535", wanted)
    written, port_text = parts[1], parts[2]
    try:
        host = _normalize_host(written)
    except ValueError as error:
        raise InvalidValue(str(error), wanted) from None
    port = "" if not port_text or int(port_text) == _DEFAULT_PORTS[scheme] else int(port_text)
    plain_host = written.lower().removesuffix(".")
    extras = {
        "credentials": at,
        "a trailing slash": path == "/",
        "a path": path not in ("", "/"),
        "a query": query is not None,
        "a fragment": fragment is not None,
        "a trailing dot": written.endswith("."),
    }
    spellings = {
        "an upper-case scheme": url[1] != scheme,
        "an upper-case host": written != written.lower(),
        "an address in an unusual spelling": plain_host != host,
        "an explicit default port": port_text and port == "",
        "an empty port": port_text == "",
        "a port with leading zeros": port != "" and port_text != str(port),
    }
    origin = f"{scheme}://{host}{'' if port == '' else f':{port}'}"
    return origin, _present(extras), _present(spellings)


def _present(parts: Mapping[str, object]) -> list[str]:
    return [what for what, present in parts.items() if present]


def _normalize_host(written: str) -> str:
    """Return a host as browsers spell it (URL standard, 3.5)."""
    if not written.isascii():
        raise ValueError("a host outside ASCII; its punycode spelling (xn--...) is required")
    if written.startswith("["):
        return f"[{_normalize_ipv6(written[1:-1])}]"
    host = written.lower().removesuffix(".")
    if _HOST.fullmatch(host) is None:
        raise ValueError("a host that is neither a name nor an address")
    if NUMBER_LAST.fullmatch(host) is None:
        return host
    try:
        # inet_aton is as lenient as browsers are: 127.1 is 127.0.0.1.
        return str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except OSError:
        raise ValueError("a host that ends in a number but is not an IPv4 address") from None


def _normalize_ipv6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("a host in brackets that is not an IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("an IPv6 zone, which an origin cannot have")
    return format_ipv6(address)
