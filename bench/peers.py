"""Servers beside which, or in front of which, the service is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.programs import PROJECT, Program, free_port, started
from tests.support.juicefs import JuiceFS

#: The program that `make nginx` installs.
NGINX = PROJECT / "build" / "bin" / "nginx"

# As nginx's own documentation recommends. It writes its log in batches, as the service does.
_NGINX = """\
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
worker_rlimit_nofile 16384;
events {{ worker_connections 4096; }}
http {{
    access_log {folder}/access.log combined buffer=64k;
    log_format times "$msec $request_time";
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    types {{}}
    default_type audio/mpeg;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port} backlog=4096; {server} }}
}}
"""


def nginx(folder: Path, server: str, *, core: int | None = None) -> AbstractContextManager[Program]:
    """Run nginx with one worker.

    :param server: configuration inside its only server block.
    """
    port = free_port()
    # If nginx is started by root, its workers run as a user without access to the folders of the
    # run.
    user = "" if os.geteuid() else "user root;"
    path = folder / "nginx.conf"
    path.write_text(_NGINX.format(folder=folder, port=port, server=server, user=user))
    return started([NGINX, "-c", path, "-p", folder], folder, port, core=core)


@contextmanager
def gateway(folder: Path) -> Iterator[JuiceFS]:
    """Run the S3 gateway that the tests use too, without TLS."""
    folder.mkdir()
    store = JuiceFS(folder, False)
    store.port = free_port()
    server = store.serve(store.port)
    deadline = time.monotonic() + 30
    try:
        while not _is_ready(store):
            if not server.running or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway does not start: {server.output_tail}")
            time.sleep(0.05)
        yield store
    finally:
        server.kill()


def _is_ready(store: JuiceFS) -> bool:
    try:
        return store.ready()
    except OSError:
        return False
