"""HTTP clients that measure the time to the first byte after the headers, and to the last byte."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.request import urlopen

from bench.programs import Service, children, settled

_STATUS = re.compile(rb"HTTP/1\.[01] (\d+)")
_READ = 1 << 20

#: Seconds after which a missing response is a failure.
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """The measurements of one response.

    :ivar first: seconds from the first byte of the request to the first byte of the body.
    :ivar last: seconds to the end of the connection.
    :ivar size: bytes of the body with its chunk headers.
    """

    first: float
    last: float
    size: int


def request(path: str, **headers: str) -> bytes:
    """Return a GET request that closes the connection after the response."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def fetch(port: int, path: str, *, whole: bool = True) -> Fetched:
    """Send a request on a new connection, and read to the end or to the first byte.

    :raises RuntimeError: for another status than 200, and for a response without a body.
    """
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        words = request(path)
        start = time.perf_counter()
        connection.sendall(words)
        head = b""
        while True:
            chunk = connection.recv(_READ)
            now = time.perf_counter()
            head += chunk
            _, _, body = head.partition(b"\r\n\r\n")
            if body or not chunk:
                break
        found = _STATUS.match(head)
        if not found or found[1] != b"200" or not body:
            raise RuntimeError(f"{path}: {head[:300]!r}")
        size = len(body)
        if not whole:
            return Fetched(now - start, now - start, size)
        buffer = bytearray(_READ)
        while count := connection.recv_into(buffer):
            size += count
        return Fetched(now - start, time.perf_counter() - start, size)


class Crowd:
    """Many clients of one URL, in one thread."""

    def __init__(self, port: int, path: str, count: int) -> None:
        """Connect all clients."""
        self._words = request(path)
        self._sockets = [
            socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(count)
        ]

    def ask(self) -> None:
        """Send the request of each client."""
        for connection in self._sockets:
            connection.sendall(self._words)

    def read_headers(self) -> None:
        """Wait for the status of each response, and read at most 100 bytes of it."""
        for connection in self._sockets:
            found = _STATUS.match(connection.recv(100))
            if not found or found[1] != b"200":
                raise RuntimeError(f"one of {len(self._sockets)} clients got the response {found}")

    def read_all(self) -> list[int]:
        """Read every response to its end, and return the number of bytes of each."""
        sizes = dict.fromkeys(self._sockets, 0)
        deadline = time.monotonic() + PATIENCE
        buffer = bytearray(_READ)
        with selectors.DefaultSelector() as selector:
            for connection in self._sockets:
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            while selector.get_map():
                if time.monotonic() > deadline:
                    raise RuntimeError("clients did not receive whole responses in time")
                for key, _ in selector.select(1):
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    count = connection.recv_into(buffer)
                    sizes[connection] += count
                    if not count:
                        selector.unregister(connection)
        return list(sizes.values())

    def leave(self) -> None:
        """Close all connections."""
        for connection in self._sockets:
            connection.close()


class Listeners:
    """Context manager with clients of long renders, one client for each render."""

    def __init__(self, ours: Service, source: str, options: Sequence[str]) -> None:
        self._ours = ours
        self._crowds = [Crowd(ours.port, ours.path(words, source), 1) for words in options]

    def __enter__(self) -> None:
        """Wait until each client has received audio."""
        for crowd in self._crowds:
            crowd.ask()
        for crowd in self._crowds:
            crowd.read_headers()

    def __exit__(self, *_: object) -> None:
        """Disconnect, and kill the encoders.

        The service would let them finish, since their output is stored.
        """
        for crowd in self._crowds:
            crowd.leave()
        for pid in children(self._ours.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        settled(self._ours)


def read(base: str, path: str) -> tuple[dict[str, str], bytes]:
    """Return the headers of a response, with lower-case names, and its body."""
    with urlopen(base + path, timeout=PATIENCE) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return headers, answer.read()


def metric(port: int, name: str) -> float:
    """Return the sum of a metric of the service over its labels."""
    _, text = read(f"http://127.0.0.1:{port}", "/metrics")
    values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text.decode(), re.MULTILINE)
    if not values:
        raise RuntimeError(f"there is no metric {name}")
    return sum(map(float, values))
