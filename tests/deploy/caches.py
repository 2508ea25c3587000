"""Real caches in front of a node, with the configurations from ``deploy/caches``."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet import reactor as _reactor
from twisted.internet.error import ConnectError

from tests.deploy.balancer import installed, parent_death_prefix, shipped, temporary_paths
from tests.support.folders import short_folder
from tests.support.service import Process, ServiceCase, fetch, until

reactor: Any = _reactor


class Cache:
    """Cache in front of one node; it ends with the test.

    :cvar variable: the environment variable that requires the program, as in `installed`.
    :ivar folder: for its files, with a short path. Caches that root starts run as another user.
    :ivar port: where clients connect.
    """

    program: ClassVar[str]
    variable: ClassVar[str] = "AUDIOPROXY_CACHES"

    def __init__(self, case: ServiceCase, node: int) -> None:
        """Write the configuration.

        :param node: the port of the node.
        :raises SkipTest: if the program is not installed.
        """
        self.path = installed(self.program, self.variable)
        self.folder = short_folder(case)
        self.folder.chmod(0o777)
        self.port, self.node = case.reserve_port(), node
        self.configure()
        self.process = Process()
        case.addCleanup(self.stop)

    async def start(self) -> None:
        """Start the cache, and return when it forwards requests; it may print no warning."""
        self.spawn(self.process, *self.arguments())

        async def is_ready() -> bool:
            if self.process.code is not None:
                raise AssertionError(f"the cache ended: {self.process.stdout}{self.process.stderr}")
            # A cache that is starting refuses connections, or closes them without a response.
            try:
                return (await fetch(self.port, b"/health")).status == 200
            except (ConnectError, AssertionError):
                return False

        await until(is_ready, "the cache to start")
        printed = self.process.stdout + self.process.stderr
        if "warn" in printed.lower():
            raise AssertionError(printed)

    async def stop(self) -> None:
        """Stop the cache with its own children."""
        if self.process.transport is not None:
            self.process.signal(signal.SIGTERM)
            await self.process.end()

    def configure(self) -> None:
        """Write the configuration into the folder."""
        raise NotImplementedError

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of the program."""
        raise NotImplementedError

    def spawn(self, process: Process, *words: str) -> None:
        """Start the program."""
        command = (*parent_death_prefix(), self.path, *words)
        environ = {"PATH": os.environ["PATH"]}
        reactor.spawnProcess(process, command[0], command, env=environ)

    def write(self, name: str, text: str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_text(text)
        return path


class NginxCache(Cache):
    """nginx with ``proxy_cache``."""

    program = "nginx"
    variable = "AUDIOPROXY_NGINX"

    def configure(self) -> None:
        self.write(
            "cache.conf",
            shipped(
                "caches/nginx.conf",
                {
                    "listen 80;": f"listen 127.0.0.1:{self.port};",
                    "listen [::]:80;": "",
                    "server 127.0.0.1:4000;": f"server 127.0.0.1:{self.node};",
                    "access_log /var/log/nginx/audioproxy-cache.log audioproxy_cache;": (
                        f"access_log {self.folder}/access.log audioproxy_cache;"
                    ),
                    "error_log /var/log/nginx/audioproxy-cache.error.log emerg;": (
                        f"error_log {self.folder}/error.log emerg;"
                    ),
                    "proxy_cache_path /var/cache/audioproxy-nginx levels=1:2 "
                    "keys_zone=audioproxy_cache:10m": (
                        f"proxy_cache_path {self.folder}/cache levels=1:2 "
                        "keys_zone=audioproxy_cache:10m"
                    ),
                },
            ),
        )
        self.write(
            "nginx.conf",
            f"daemon off; pid {self.folder}/pid; error_log stderr;\nevents {{ }}\n"
            f"http {{\n{temporary_paths(self.folder)}\ninclude {self.folder}/cache.conf;\n}}\n",
        )

    def arguments(self) -> tuple[str, ...]:
        return ("-c", f"{self.folder}/nginx.conf")


class Varnish(Cache):
    """Varnish, which compiles its configuration."""

    program = "varnishd"

    def configure(self) -> None:
        node = {'.port = "4000";': f'.port = "{self.node}";'}
        self.write("audioproxy.vcl", shipped("caches/varnish.vcl", node))

    def arguments(self) -> tuple[str, ...]:
        # Without a jail, it needs no user of its own.
        return (
            *("-F", "-j", "none", "-n", f"{self.folder}/varnish", "-f"),
            *(f"{self.folder}/audioproxy.vcl", "-a", f"127.0.0.1:{self.port}"),
            *("-s", "malloc,64m"),
        )


class Squid(Cache):
    """Squid as a reverse proxy."""

    program = "squid"

    def configure(self) -> None:
        folder = self.folder
        text = shipped(
            "caches/squid.conf",
            {
                "http_port 80 accel defaultsite=audio.example.com no-vhost": (
                    f"http_port 127.0.0.1:{self.port} accel defaultsite=audio.example.com no-vhost"
                ),
                "cache_peer 127.0.0.1 parent 4000 0 no-query no-digest originserver name=node": (
                    f"cache_peer 127.0.0.1 parent {self.node} 0 no-query no-digest originserver "
                    "name=node"
                ),
                "cache_dir aufs /var/spool/squid 50000 16 256": (
                    f"cache_dir aufs {folder}/cache 64 1 1"
                ),
            },
        )
        more = f"pid_filename {folder}/pid\ncache_log {folder}/cache.log\ncoredump_dir {folder}\n"
        self.write("squid.conf", f"{text}\n{more}shutdown_lifetime 0 seconds\npinger_enable off\n")

    def arguments(self) -> tuple[str, ...]:
        return ("-N", "-f", f"{self.folder}/squid.conf")

    async def start(self) -> None:
        """Create the folders of the cache first."""
        creating = Process()
        self.spawn(creating, "-N", "-z", "-f", f"{self.folder}/squid.conf")
        await creating.end()
        await super().start()
