"""How the tests' S3 servers are started, stopped and started again."""

from __future__ import annotations

from contextlib import suppress
from http.client import HTTPException

from tests.support.s3 import Requests
from tests.support.servers import Server, free_port
from tests.support.service import until

#: How often a start is tried: somebody else may take the port that was found to be free.
_TRIES = 5


class Gateway(Requests):
    """An `S3Server` that is one program, with its data out of that program's reach."""

    port = 0
    _server: Server | None = None

    def serve(self, port: int) -> Server:
        """Start the program."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Tell whether it does all that it should."""
        # A yes to our own secret is not that of somebody else at the same port.
        return self.request("GET").status == 200

    async def start(self) -> None:
        """Start it, and wait until it answers; later starts have the same port and data."""
        if self._server is not None and self._server.running:
            return
        again = self.port
        for _ in range(_TRIES):
            self.port = again or free_port()
            self._server = server = self.serve(self.port)
            try:
                await until(self._settled, "the S3 server to answer")
            except AssertionError:
                await self.stop()
            if server.running:
                return
        raise AssertionError(f"the S3 server does not start: {server.last_words}")

    async def stop(self) -> None:
        """End it at once; its data stays."""
        if self._server is not None:
            self._server.kill()

    def _settled(self) -> bool:
        assert self._server is not None
        with suppress(OSError, HTTPException):
            return self.ready() or not self._server.running
        return not self._server.running
