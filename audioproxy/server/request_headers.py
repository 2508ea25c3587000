"""Rules of RFC 9112 for the headers of a request, which Twisted 26.10 does not apply.

Another server in front may find the host or the end of a request by other rules. So a request that
is not plainly valid is refused, and never interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address

from twisted.web.http_headers import Headers

# A host and possibly a port (RFC 9112, 3.2; RFC 3986, 3.2.2). A name may be empty, and may have any
# characters of RFC 3986 except the comma, with which a server may have joined two values.
_HOST = re.compile(
    rb"(?:(?:[\w.~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*"
    rb"|\[(?P<ipv6>[0-9A-Fa-f:.]+)\]"
    rb"|\[[vV][0-9A-Fa-f]+\.[\w.~!$&'()*+,;=:-]+\])"
    rb"(?::[0-9]*)?"
)


# Most clients send the same Host. The cache takes half a megabyte at most.
@lru_cache(32)
def is_host(value: bytes) -> bool:
    """Return whether the value of a Host header is valid."""
    match = _HOST.fullmatch(value)
    if match is None:
        return False
    address = match["ipv6"]
    if address is not None:
        try:
            IPv6Address(address.decode("ascii"))
        except AddressValueError:
            return False
    return True


def has_valid_host(version: bytes, headers: Headers) -> bool:
    """Return whether a request has exactly one valid Host; HTTP/1.0 needs none (3.2)."""
    values = headers.getRawHeaders(b"host", [])
    return is_host(values[0]) if len(values) == 1 else not values and version == b"HTTP/1.0"


def has_valid_encoding(version: bytes, headers: Headers) -> bool:
    """Return whether a request has no Transfer-Encoding, or just ``chunked`` (6.1).

    HTTP/1.0 has no encodings. Twisted would ignore ``identity``, which RFC 9112 no longer has.
    """
    values = headers.getRawHeaders(b"transfer-encoding", [])
    return not values or (
        version == b"HTTP/1.1" and [value.lower() for value in values] == [b"chunked"]
    )


def connection_options(lines: Iterable[bytes]) -> set[bytes]:
    """Return the options in all lines of a Connection header, in lower case (9.1; 9.6)."""
    options = {option.strip(b" \t").lower() for line in lines for option in line.split(b",")}
    return options - {b""}
