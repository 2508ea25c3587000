"""``python -m tests.soak.failing_origin FOLDER CHAIN KEY``: an https origin that fails in turns.

It serves the files of a folder, whatever folder a URL names. It prints ``port N``, and a line for
each fault. A line on its stdin is the name of a mode; the origin repeats it when it is in force.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from twisted.internet.protocol import connectionDone
from twisted.internet.stdio import StandardIO
from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure

from tests.support.authority import Certificate
from tests.support.origins import (
    STALL,
    Behavior,
    File,
    Origin,
    PendingResponse,
    Raw,
    Status,
    reactor,
)

#: Modes in which every request fails for as long as they last.
AWAY: dict[str, Behavior] = {
    "busy for minutes": Status(503, ("Retry-After: 300",)),
    "reset": Raw(b"", "abort"),
    "broken": Status(500),
    "silent": STALL,
}
#: Modes with faults that requests survive: the second one serves no ranges.
FAILING, WHOLE = "failing in turns", "without ranges"

# Seconds between two faults of one file: an attempt that follows a fault succeeds. Fewer would let
# all attempts of one request fail.
_SPACING = 4.0
_STALL, _LINGER = 0.7, 0.02
# Shorter bodies are sent at once.
_SHORT = 4096


class _Slow(PendingResponse):
    """Response that stalls in the middle of its body."""

    def write(self, data: bytes) -> None:
        half = len(data) // 2 if len(data) > _SHORT else len(data)
        self.protocol.transport.write(data[:half])
        reactor.callLater(_STALL, self.protocol.transport.write, data[half:])


def _cut(then: str) -> Callable[[File, PendingResponse], None]:
    def respond(file: File, pending: PendingResponse) -> None:
        start, end = file.part(pending.request.headers) or (0, len(file.data))
        replace(file, sent=(end - start) // 2, then=then).respond(pending)

    return respond


def _refuse(code: int, *headers: str) -> Callable[[File, PendingResponse], None]:
    return lambda _, pending: Status(code, headers).respond(pending)


def _stall(file: File, pending: PendingResponse) -> None:
    file.respond(_Slow(pending.request, pending.protocol))


def _close_after(file: File, pending: PendingResponse) -> None:
    file.respond(pending)
    reactor.callLater(_LINGER, pending.close)


#: What happens to a request, in turns.
FAULTS: dict[str, Callable[[File, PendingResponse], None]] = {
    "cut": _cut("close_without_notify"),
    "503": _refuse(503),
    "stall": _stall,
    "429": _refuse(429, "Retry-After: 1"),
    "reset in a body": _cut("abort"),
    "503 with Retry-After": _refuse(503, "Retry-After: 1"),
    "kept connection closed": _close_after,
}


class FailingOrigin(Origin):
    """An https origin with the files of a folder.

    :ivar mode: what it does.
    """

    def __init__(self, folder: Path, certificate: Certificate) -> None:
        super().__init__(certificate)
        self.mode = FAILING
        self._folder = folder
        self._faults = cycle(FAULTS)
        self._next: dict[str, float] = {}

    def respond(self, pending: PendingResponse) -> None:
        """Respond to one request."""
        if self.mode in AWAY:
            AWAY[self.mode].respond(pending)
            return
        name = os.path.basename(pending.request.target)
        with open(self._folder / name, "rb") as source:
            status, data = os.fstat(source.fileno()), source.read()
        etag = f'"{status.st_ino}-{status.st_mtime_ns}"'
        file = File(data, ranges=self.mode != WHOLE, etag=etag, modified=None)
        now = reactor.seconds()
        if now < self._next.get(name, 0):
            file.respond(pending)
            return
        self._next[name] = now + _SPACING
        fault = next(self._faults)
        print(f"fault: {fault}", flush=True)
        FAULTS[fault](file, pending)

    def change(self, mode: str) -> None:
        """Enter another mode; responses that the last one has held back are given up."""
        self.mode = mode
        held, self.held = self.held, []
        for pending in held:
            pending.abort()


class _Control(LineReceiver):
    """The modes on stdin; its end is the end of the process."""

    delimiter = b"\n"

    def __init__(self, origin: FailingOrigin) -> None:
        self._origin = origin

    def lineReceived(self, line: bytes) -> None:
        self._origin.change(line.decode())
        print(f"mode: {line.decode()}", flush=True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if reactor.running:
            reactor.stop()


def main(folder: str, chain: str, key: str) -> None:
    """Serve until the end of stdin."""
    origin = FailingOrigin(Path(folder), Certificate(Path(chain), Path(key)))
    StandardIO(_Control(origin))
    print(f"port {origin.port}", flush=True)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
