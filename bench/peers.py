"""Servers for comparison, each configured as its own documentation recommends for production."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.client import read
from bench.programs import FOLDER, PROJECT, Program, free_port, started
from tests.support.juicefs import JuiceFS

#: The environment in which `make bench` installs the Python peers.
BIN = FOLDER / "peers" / "bin"
NGINX = PROJECT / "build" / "bin" / "nginx"

_SECRET = "bench"


class Missing(Exception):
    """A peer is not installed."""


def _required(path: Path) -> Path:
    if not path.exists():
        raise Missing(f"{path.name} is not installed")
    return path


# nginx writes its log in batches, as the service does.
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
{more}
}}
"""


def nginx(
    folder: Path, server: str, *, core: int | None = None, more: str = ""
) -> AbstractContextManager[Program]:
    """Run nginx with one worker.

    :param server: configuration inside its only server block.
    :param more: configuration before the server block.
    """
    port = free_port()
    listens = f"{more}\nserver {{ listen 127.0.0.1:{port} backlog=4096; {server} }}"
    # If nginx is started by root, its workers run as a user without access to the folders of the
    # run.
    user = "" if os.geteuid() else "user root;"
    path = folder / "nginx.conf"
    path.write_text(_NGINX.format(folder=folder, more=listens, user=user))
    return started([_required(NGINX), "-c", path, "-p", folder], port, core=core)


def hello(*, core: int) -> AbstractContextManager[Program]:
    """Run the 304 server on aiohttp and uvloop."""
    port = free_port()
    script = Path(__file__).with_name("hello.py")
    return started([_required(BIN / "python"), script, str(port)], port, core=core)


@contextmanager
def thumbor(folder: Path, *, core: int) -> Iterator[tuple[Program, list[str]]]:
    """Run thumbor with stored results, and return signed paths of a hundred of them too."""
    images, port, key = folder / "images", free_port(), "k" * 32
    images.mkdir(parents=True)
    # A small test card, which is 4 KB as JPEG.
    card = images / "card.png"
    draw = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc2=s=160x120:d=1:r=1"]
    subprocess.run([*draw, "-frames:v", "1", card], check=True)
    (folder / "thumbor.conf").write_text(
        f"SECURITY_KEY = {key!r}\n"
        "LOADER = 'thumbor.loaders.file_loader'\n"
        f"FILE_LOADER_ROOT_PATH = {str(images)!r}\n"
        "RESULT_STORAGE = 'thumbor.result_storages.file_storage'\n"
        f"RESULT_STORAGE_FILE_STORAGE_ROOT_PATH = {str(folder / 'results')!r}\n"
        "RESULT_STORAGE_STORES_UNSAFE = True\n"
        "STORAGE = 'thumbor.storages.no_storage'\n"
    )
    paths = []
    for number in range(100):
        (images / f"{number}.png").hardlink_to(card)
        what = f"160x120/filters:format(jpeg)/{number}.png"
        digest = hmac.new(key.encode(), what.encode(), hashlib.sha1).digest()
        paths.append(f"/{base64.urlsafe_b64encode(digest).decode()}/{what}")
    command = [_required(BIN / "thumbor"), "--conf", folder / "thumbor.conf"]
    command += ["--ip", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    with started(command, port, core=core) as program:
        yield program, paths


@contextmanager
def supysonic(folder: Path, music: Path, *, core: int | None) -> Iterator[tuple[Program, dict]]:
    """Run supysonic on a folder of music, and return the path of each file's mp3 stream too."""
    program, port = _required(BIN / "supysonic-cli"), free_port()
    cache = folder / "cache"
    cache.mkdir(parents=True)
    (folder / "supysonic.conf").write_text(
        "[base]\n"
        f"database_uri = sqlite:///{folder}/supysonic.db\n"
        "[webapp]\n"
        f"cache_dir = {cache}\n"
        "log_level = WARNING\n"
        "[daemon]\n"
        f"socket = {folder}/daemon.sock\n"
        "[transcoding]\n"
        "transcoder = ffmpeg -v error -i %srcpath -map 0:a:0 -vn -b:a %outratek -f %outfmt -\n"
    )
    environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)}
    for words in (
        ["user", "add", "bench", "--password", _SECRET],
        ["folder", "add", "music", music],
        ["folder", "scan", "--foreground", "music"],
    ):
        subprocess.run(
            [program, *words], cwd=folder, env=environment, check=True, capture_output=True
        )
    # supysonic's own server module, on a common WSGI server.
    command = [BIN / "supysonic-server", "--server", "gunicorn", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--threads", "4"]
    with started(command, port, core=core, cwd=folder, env=environment) as server:
        who = f"u=bench&p={_SECRET}&c=bench&v=1.12.0&f=json"
        _, body = read(server.base, f"/rest/search3.view?{who}&query=&songCount=500")
        songs = json.loads(body)["subsonic-response"]["searchResult3"]["song"]
        yield (
            server,
            {
                Path(song["path"]).name: f"/rest/stream.view?{who}&id={song['id']}&format=mp3"
                "&maxBitRate=128"
                for song in songs
            },
        )


@contextmanager
def gateway(
    folder: Path, *, core: int | None = None, tls: bool = False
) -> Iterator[tuple[JuiceFS, Program]]:
    """Run the S3 gateway that the tests use too."""
    folder.mkdir(parents=True)
    store = JuiceFS(folder, tls)
    store.port = free_port()
    server = store.serve(store.port)
    if core is not None:
        os.sched_setaffinity(server.pid, {core})
    deadline = time.monotonic() + 30
    try:
        while True:
            try:
                if store.ready():
                    break
            except OSError:
                pass
            if not server.running or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway does not start: {server.output_tail}")
            time.sleep(0.05)
        yield store, Program(server._process, store.port)
    finally:
        server.kill()


def relay(target: int, milliseconds: float) -> AbstractContextManager[Program]:
    """Run a relay to a port of this machine, which adds a round trip."""
    port = free_port()
    words = [sys.executable, "-m", "bench.relay", str(port), str(target), str(milliseconds)]
    return started(words, port, cwd=PROJECT)
