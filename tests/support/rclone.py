"""rclone's S3 server on a local folder; it forgets metadata, types and headers when it stops."""

from __future__ import annotations

import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest

from tests.support.s3 import Gateway, Identity
from tests.support.servers import Server


class Rclone(Gateway):
    """rclone server without TLS. It checks no digest of a body, and sends ranges with 200."""

    checks = frozenset()
    fails = frozenset({"digest", "digest of part", "presigned URL"})

    def __init__(self, folder: Path, tls: bool) -> None:
        if tls:
            raise SkipTest("This S3 server is started without TLS.")
        self.owner = Identity.new("owner")
        self._folder = folder

    def serve(self, port: int) -> Server:
        """Start the server."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        environment = {"HOME": str(self._folder), "RCLONE_CONFIG": ""}
        program = str(Path(sys.executable).parent / "rclone")
        key = f"{self.owner.access_key},{self.owner.secret_key}"
        options = ("--addr", f"127.0.0.1:{port}", "--auth-key", key)
        command = [program, "serve", "s3", str(data), *options]
        return Server(command, environment, self._folder / "rclone.log")
