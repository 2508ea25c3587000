"""Services that are started as systemd starts them: with sockets that are open already."""

from __future__ import annotations

import socket
import sys

from tests.support import service
from tests.support.preloaded import can_fork
from tests.support.service import WITHOUT_FFMPEG_CHECK, Process, ServiceCase

#: Program that imports twisted.internet.endpoints and then runs twistd. The import reads and
#: removes systemd's variables. twistd itself imports the module first if it cannot write its plugin
#: cache.
TWISTD = f"import twisted.internet.endpoints\n{WITHOUT_FFMPEG_CHECK}{service.TWISTD}"

#: Shell command that sets LISTEN_PID to the id of its own process, unless LISTEN_PID is set. `exec`
#: then replaces the shell with the service, which keeps this id. A fork sets it itself.
SET_LISTEN_PID = 'LISTEN_PID=${LISTEN_PID:-$$} exec "$@"'


class ActivationCase(ServiceCase):
    """Base class of tests whose services get their sockets."""

    def start_with_socket(
        self, clients: socket.socket, metrics: socket.socket | None = None, **variables: str
    ) -> Process:
        """Start a service with an open socket, and perhaps one for its metrics."""
        command = (sys.executable, "-c", TWISTD, "--nodaemon", "--pidfile=", "audioproxy")
        passed = {"LISTEN_FDS": "1"}
        descriptors = {0: "w", 1: "r", 2: "r", 3: clients.fileno()}
        if metrics is not None:
            passed = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "audioproxy.socket:metrics"}
            descriptors[4] = metrics.fileno()
        environ = self.environment(**{**passed, **variables})
        if not can_fork(command, environ):
            command = ("/bin/sh", "-c", SET_LISTEN_PID, "sh", *command)
        return self.spawn(*command, descriptors=descriptors, **environ)

    def open(self) -> socket.socket:
        """Open a listening socket; close it at the end of the test."""
        opened = socket.create_server(("", 0), backlog=1024)
        self.addCleanup(opened.close)
        return opened
