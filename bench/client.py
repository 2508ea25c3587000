"""HTTP clients that measure the time to the first byte after the headers, and to the last byte."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.request import urlopen

_STATUS = re.compile(rb"HTTP/1\.[01] (\d+)")
_READ = 1 << 20

# Seconds after which a missing response is a failure.
_PATIENCE = 120.0


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


def _request(path: str) -> bytes:
    """Return a GET request that closes the connection after the response."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()


def fetch(port: int, path: str, *, whole: bool = True) -> Fetched:
    """Send a request on a new connection, and read to the end or to the first byte.

    :raises RuntimeError: for another status than 200, and for a response without a body.
    """
    with socket.create_connection(("127.0.0.1", port), _PATIENCE) as connection:
        words = _request(path)
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
        size += _read_to_end(connection)
        return Fetched(now - start, time.perf_counter() - start, size)


class Crowd:
    """Clients of one URL that send their requests before any of them reads."""

    def __init__(self, port: int, path: str, count: int) -> None:
        """Connect all clients, and send their requests."""
        address = ("127.0.0.1", port)
        self._sockets = [socket.create_connection(address, _PATIENCE) for _ in range(count)]
        for connection in self._sockets:
            connection.sendall(_request(path))

    def read_headers(self) -> None:
        """Wait for the status of each response, and read at most 100 bytes of it."""
        for connection in self._sockets:
            found = _STATUS.match(connection.recv(100))
            if not found or found[1] != b"200":
                raise RuntimeError(f"one of {len(self._sockets)} clients got the response {found}")

    def read_all(self) -> int:
        """Read all responses at once, and return the bytes of the shortest."""
        with ThreadPoolExecutor(len(self._sockets)) as pool:
            return min(pool.map(_read_to_end, self._sockets))

    def leave(self) -> None:
        """Close all connections."""
        for connection in self._sockets:
            connection.close()


def _read_to_end(connection: socket.socket) -> int:
    buffer, size = bytearray(_READ), 0
    while count := connection.recv_into(buffer):
        size += count
    return size


def read(base: str, path: str) -> tuple[dict[str, str], bytes]:
    """Return the headers of a response, with lower-case names, and its body."""
    with urlopen(base + path, timeout=_PATIENCE) as answer:
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return headers, answer.read()


def metric(port: int, name: str) -> float:
    """Return the sum of a metric of the service over its labels."""
    _, text = read(f"http://127.0.0.1:{port}", "/metrics")
    values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text.decode(), re.MULTILINE)
    if not values:
        raise RuntimeError(f"there is no metric {name}")
    return sum(map(float, values))
