"""What the system knows of a connection, and the server does not: it reads and sends by buffers."""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Any

from twisted.internet.interfaces import ISystemHandle

# ``tcpi_last_data_sent`` in Linux's ``struct tcp_info``: 8 bytes and 9 numbers of 32 bits precede.
_LAST_DATA_SENT = 8 + 9 * 4


def has_unread(transport: Any) -> bool:
    if not ISystemHandle.providedBy(transport):
        return False
    handle: Any = transport.getHandle()
    try:
        return bool(handle.recv(1, socket.MSG_PEEK))
    except OSError:
        # Nothing has arrived, or the connection is lost.
        return False


def seconds_stalled(transport: Any) -> float | None:
    """Return the seconds for which a client has received nothing although bytes wait for it.

    :returns: 0 if the system accepts more bytes, so that it is the server's turn to send; None
        where the system does not provide the time.
    """
    if not ISystemHandle.providedBy(transport):
        return None
    handle: Any = transport.getHandle()
    writable = select.poll()
    writable.register(handle, select.POLLOUT)
    if writable.poll(0):
        return 0.0
    if sys.platform != "linux":
        return None
    try:
        info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_SENT + 4)
        # A probe of a full window carries no data, so it does not restart this time.
        return float(struct.unpack_from("I", info, _LAST_DATA_SENT)[0]) / 1000
    except (OSError, struct.error):
        return None
