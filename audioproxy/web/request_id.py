"""Request ids: those of clients, and new ones."""

from __future__ import annotations

import re
from random import Random

# The request ids of clients that are accepted (D27).
_REQUEST_ID = re.compile(rb"[!-~]{1,200}")
# traceparent (W3C Trace Context, 3.2): version, trace id, parent id and flags. Ids of zeros alone
# are invalid, as is the version ff. Versions after 00 may have further fields. With a comma, the
# header was sent twice.
_TRACEPARENT = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})"
    rb"-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<parent>[0-9a-f]{16})"
    rb"-[0-9a-f]{2}(?P<more>-[^,]*)?"
)
# Random bits in a generated request id: as many as in a UUID, so that no two requests share one.
# It is no secret, so a generator without a system call is enough.
_ID_BITS = 128
_random = Random()


def find_request_id(client_id: bytes, traceparent: bytes) -> bytes:
    """Return the request id that a client has sent; ``b""`` where it sent no valid one.

    The x-request-id goes first (D27), then the trace id and the parent id of traceparent (D67).
    """
    if _REQUEST_ID.fullmatch(client_id):
        return client_id
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or (match["version"] == b"00" and match["more"] is not None):
        return b""
    return b"%s-%s" % (match["trace"], match["parent"])


def new_request_id() -> bytes:
    return b"%032x" % _random.getrandbits(_ID_BITS)
