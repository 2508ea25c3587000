"""A body's way from a file to a plain TCP connection without passing through this process."""

from __future__ import annotations

import os
from typing import Any

from audioproxy._twisted import pause_until_writable

# Bytes for which it is worth the while. Fewer are what an encoder has just put out: one write with
# its chunk's frame around it is cheaper for those.
_LEAST = 32 * 1024
# Bytes that are moved before others have their turn: more than a connection has room for, mostly.
_MOST = 1024 * 1024


class SendfileBody:
    """The body of one answer, as far as it is moved by ``sendfile``.

    It speaks to the transport behind Twisted's back, so it does so only while Twisted has nothing
    left to send, and makes it believe that its buffer is full: then the producer is asked for more
    when there is room, and is stopped when the connection is lost, as ever.
    """

    __slots__ = ("_channel", "_chunk_left", "_chunked")

    def __init__(self, channel: Any, chunked: bool) -> None:
        """Take over after the headers.

        :param channel: a `ProxyChannel` with a transport that is plain TCP.
        """
        self._channel = channel
        self._chunked = chunked
        self._chunk_left = 0

    def take(self, descriptor: int, offset: int, count: int) -> int | None:
        """Move some of the bytes from ``offset`` on, of which there are ``count``.

        :returns: how many were moved; the producer is paused. None for bytes that are better
            written.
        :raises EOFError: where the file has fewer.
        """
        if not self._chunk_left and count < _LEAST:
            return None
        if not self._channel.all_sent:
            self._wait()
            return 0
        if self._chunked and not self._chunk_left:
            self._chunk_left = min(count, _MOST)
            self._channel.transport.write(b"%x\r\n" % self._chunk_left)
            self._wait()
            return 0
        moved = self._move(descriptor, offset, min(self._chunk_left or count, _MOST))
        if self._chunked:
            self._chunk_left -= moved
            if not self._chunk_left:
                self._channel.transport.write(b"\r\n")
        self._wait()
        return moved

    def _move(self, descriptor: int, offset: int, count: int) -> int:
        transport = self._channel.transport
        try:
            moved = os.sendfile(transport.fileno(), descriptor, offset, count)
        except BlockingIOError:
            return 0
        except OSError:
            # The file system may be without it. Or one of the two is broken: then a read fails as
            # it should, or the transport finds out when it sends.
            data = os.pread(descriptor, min(count, _LEAST), offset)
            transport.write(data)
            moved = len(data)
        if not moved:
            raise EOFError("the file ended early")
        return moved

    def _wait(self) -> None:
        self._channel.pauseProducing()
        pause_until_writable(self._channel.transport)
