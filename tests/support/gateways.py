"""Base class that starts, stops and restarts the S3 servers of the tests."""

from __future__ import annotations

from contextlib import suppress

from urllib3.exceptions import HTTPError

from tests.support.s3 import Identity, Requests, Rights
from tests.support.servers import Server, free_port
from tests.support.service import until

#: How often to try a start: another process may take the port that was found to be free.
_TRIES = 5


class Gateway(Requests):
    """S3 server that runs as one program; its data outlives the program."""

    port = 0
    _server: Server | None = None

    def serve(self, port: int) -> Server:
        """Start the program."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Return whether the server is ready for tests."""
        # Only this server accepts its secret; another program at the same port would refuse it.
        return self.request("GET").status == 200

    def add_user(self, rights: Rights) -> Identity:
        """Create a user with the given rights to all existing buckets."""
        raise NotImplementedError

    def temporary_credentials(self, user: Identity) -> Identity:
        """Return temporary credentials with the rights of a user, who must not be the owner."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the server and wait until it responds; a restart keeps the port and the data."""
        if self._server is not None and self._server.running:
            return
        again = self.port
        for _ in range(_TRIES):
            self.port = again or free_port()
            self._server = server = self.serve(self.port)
            try:
                await until(self._responds_or_ended, "the S3 server to respond")
            except AssertionError:
                await self.stop()
            if server.running:
                return
        raise AssertionError(f"the S3 server did not start: {server.output_tail}")

    async def stop(self) -> None:
        """Stop the server at once; its data stays."""
        if self._server is not None:
            self._server.kill()

    def _responds_or_ended(self) -> bool:
        assert self._server is not None
        with suppress(HTTPError):
            return self.ready() or not self._server.running
        return not self._server.running
