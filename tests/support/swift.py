"""OpenStack Swift with its S3 API: a proxy in front of one device, a local folder.

Debian's packages are swift-proxy, swift-account, swift-container, swift-object and memcached.
"""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

from tests.support.s3 import Gateway, Identity
from tests.support.servers import Server, free_port
from tests.support.service import PATIENCE

# The servers that keep the data. Without workers, a server is one process.
_KINDS = ("account", "container", "object")

_COMMON = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
user = {user}
workers = 0
swift_dir = {folder}
devices = {folder}
mount_check = false
"""

_STORAGE = """\
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

# The proxy adds what else it needs to the pipeline. Uploads in parts need slo.
_PROXY = """\
{tls}
cors_allow_origin = *
[pipeline:main]
pipeline = cache s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{cache}
[filter:s3api]
use = egg:swift#s3api
location = {region}
storage_domain = {domain}
[filter:tempauth]
use = egg:swift#tempauth
user_tests_owner = {secret} .admin
[filter:slo]
use = egg:swift#slo
"""


class Storage:
    """Swift's servers that keep the data; they keep running when a proxy stops."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache_port = folder, free_port()
        self._servers: list[Server] = []
        self._ports = [self.cache_port]

    def start(self) -> None:
        """Start the servers unless they run already; they run until this process ends."""
        if self._servers:
            return
        (self.folder / "device").mkdir(parents=True)
        # Swift 2.30 reads the packages' file in /etc/swift instead.
        (self.folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
        for kind in _KINDS:
            port, ring = free_port(), f"{self.folder}/{kind}.builder"
            for words in (
                # Two partitions, one replica, and no wait between changes.
                ("create", "1", "1", "0"),
                ("add", f"r1z1-127.0.0.1:{port}/device", "1"),
                ("rebalance",),
            ):
                command = ["swift-ring-builder", ring, *words]
                done = subprocess.run(
                    command, env=self._environment(), capture_output=True, timeout=PATIENCE
                )
                assert done.returncode == 0, f"{words}: {done.stdout[-2000:]!r}"
            self._servers.append(self.serve(kind, port, _STORAGE.format(kind=kind)))
            self._ports.append(port)
        cache = ("memcached", *("-l", "127.0.0.1"), *("-p", str(self.cache_port)))
        cache += ("-u", getpass.getuser())
        self._servers.append(self._run(cache, self.folder / "memcached.log"))

    def ready(self) -> bool:
        """Return whether all servers accept connections. A proxy avoids one that did not."""
        with suppress(OSError):
            for port in self._ports:
                socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    def serve(self, kind: str, port: int, configuration: str) -> Server:
        """Start one of Swift's servers."""
        file = self.folder / f"{kind}-{port}.conf"
        common = _COMMON.format(port=port, user=getpass.getuser(), folder=self.folder)
        file.write_text(common + configuration)
        return self._run((f"swift-{kind}-server", str(file), "--verbose"), file.with_suffix(".log"))

    def _run(self, command: Sequence[str], log: Path) -> Server:
        return Server(command, self._environment(), log)

    def _environment(self) -> dict[str, str]:
        # Trial's PYTHONPATH is for another Python than that of the system's packages.
        return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


@cache
def _storage(folder: Path) -> Storage:
    return Storage(folder)


class Swift(Gateway):
    """Swift proxy; all proxies of a process share the buckets."""

    checks = frozenset({"region"})

    def __init__(self, folder: Path, tls: bool) -> None:
        self._storage = _storage(folder.parent / "swift")
        self.owner = Identity("tests:owner", token_hex(20))
        self._tls = ""
        if tls:
            certificate = self.certify(folder)
            self._tls = f"cert_file = {certificate.chain}\nkey_file = {certificate.key}"

    def serve(self, port: int) -> Server:
        """Start the proxy; start the servers behind it first if they do not run yet."""
        self._storage.start()
        configuration = _PROXY.format(
            tls=self._tls,
            cache=self._storage.cache_port,
            region=self.region,
            domain=self.domain,
            secret=self.owner.secret_key,
        )
        return self._storage.serve("proxy", port, configuration)

    def ready(self) -> bool:
        """Return whether the proxy and the servers behind it are ready for tests."""
        return self._storage.ready() and super().ready()
