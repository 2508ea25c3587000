"""Files that a socket sends by ``sendfile``, past Twisted's transport."""

from __future__ import annotations

import os
from typing import Any

from twisted.web.server import Request

from audioproxy._twisted import pause_until_writable

# The fewest bytes for which sendfile is faster. A reader that keeps up with an encoder gets fewer
# bytes at a time. For those, a single write together with the chunk's framing is cheaper.
_MIN_SENDFILE = 32 * 1024
# Bytes that are sent before other connections get their turn: mostly more than a socket's buffer
# holds.
_MAX_SENDFILE = 1024 * 1024


class SendfileRequest(Request):
    channel: Any
    # Bytes of the current chunk that ``sendfile`` has not sent.
    _chunk_left = 0

    def take_file(self, descriptor: int, offset: int, count: int) -> int | None:
        """Send bytes of a file from ``offset`` on, of which it has ``count``, by ``sendfile``.

        This bypasses Twisted's transport, so it sends only while Twisted has nothing left to send.
        It sets the transport to the state of a full buffer. Then the transport resumes the producer
        when the socket is writable, and stops it when the connection is lost, as for any response.

        :returns: the number of bytes sent. It is less than ``count``, or 0, only if the producer is
            now paused. None if the bytes must be written instead.
        :raises EOFError: if the file has fewer bytes.
        """
        if not self.channel.is_plain_tcp:
            return None
        if not self.startedWriting:
            self.write(b"")  # type: ignore[no-untyped-call]
        if not self._chunk_left and count < _MIN_SENDFILE:
            return None
        moved = 0
        if self.channel.all_sent:
            if self.chunked and not self._chunk_left:
                self._chunk_left = min(count, _MAX_SENDFILE)
                self.channel.transport.write(b"%x\r\n" % self._chunk_left)
            else:
                most = min(self._chunk_left or count, _MAX_SENDFILE)
                moved = self._sendfile(descriptor, offset, most)
        self.channel.pauseProducing()
        pause_until_writable(self.channel.transport)
        self.sentLength += moved
        return moved

    def _sendfile(self, descriptor: int, offset: int, count: int) -> int:
        transport = self.channel.transport
        try:
            moved = os.sendfile(transport.fileno(), descriptor, offset, count)
        except BlockingIOError:
            return 0
        except OSError:
            # The file system may not support sendfile. Or the file or the socket is broken: then
            # the read fails, or the transport notices when it sends.
            data = os.pread(descriptor, min(count, _MIN_SENDFILE), offset)
            transport.write(data)
            moved = len(data)
        if not moved:
            raise EOFError(f"the file was shortened to {offset} bytes or less")
        if self.chunked:
            self._chunk_left -= moved
            if not self._chunk_left:
                transport.write(b"\r\n")
        return moved
