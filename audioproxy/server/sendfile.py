"""Response bodies sent from a file to a plain TCP connection by ``sendfile``."""

from __future__ import annotations

import os
from typing import Any

from audioproxy._twisted import pause_until_writable

# The fewest bytes for which sendfile is faster. A reader that keeps up with an encoder gets fewer
# bytes at a time. For those, a single write together with the chunk's framing is cheaper.
_MIN_SIZE = 32 * 1024
# Bytes that are sent before other connections get their turn: mostly more than a socket's buffer
# holds.
_MAX_SIZE = 1024 * 1024


class SendfileBody:
    """The part of one response's body that ``sendfile`` sends.

    It bypasses Twisted's transport, so it sends only while Twisted has nothing left to send. It
    sets the transport to the state of a full buffer. Then the transport resumes the producer when
    the socket is writable, and stops the producer when the connection is lost, as for any response.

    :param channel: a `ProxyChannel` with a transport that is plain TCP. The headers are written.
    """

    __slots__ = ("_channel", "_chunk_left", "_chunked")

    def __init__(self, channel: Any, chunked: bool) -> None:
        self._channel = channel
        self._chunked = chunked
        self._chunk_left = 0

    def take(self, descriptor: int, offset: int, count: int) -> int | None:
        """Send some of the ``count`` bytes from ``offset``.

        :returns: how many bytes were sent; the producer is paused. None where the bytes should be
            written instead.
        :raises EOFError: where the file has fewer bytes.
        """
        if not self._chunk_left and count < _MIN_SIZE:
            return None
        if not self._channel.all_sent:
            self._wait()
            return 0
        if self._chunked and not self._chunk_left:
            self._chunk_left = min(count, _MAX_SIZE)
            self._channel.transport.write(b"%x\r\n" % self._chunk_left)
            self._wait()
            return 0
        moved = self._sendfile(descriptor, offset, min(self._chunk_left or count, _MAX_SIZE))
        if self._chunked:
            self._chunk_left -= moved
            if not self._chunk_left:
                self._channel.transport.write(b"\r\n")
        self._wait()
        return moved

    def _sendfile(self, descriptor: int, offset: int, count: int) -> int:
        transport = self._channel.transport
        try:
            moved = os.sendfile(transport.fileno(), descriptor, offset, count)
        except BlockingIOError:
            return 0
        except OSError:
            # The file system may not support sendfile. Or the file or the socket is broken: then
            # the read fails, or the transport notices when it sends.
            data = os.pread(descriptor, min(count, _MIN_SIZE), offset)
            transport.write(data)
            moved = len(data)
        if not moved:
            raise EOFError(f"the file was shortened to {offset} bytes or less")
        return moved

    def _wait(self) -> None:
        self._channel.pauseProducing()
        pause_until_writable(self._channel.transport)
