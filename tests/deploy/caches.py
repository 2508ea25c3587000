"""Real caches in front of a node, with the configurations from ``deploy/caches``."""

from __future__ import annotations

import os

from tests.deploy.balancer import shipped, temporary_paths
from tests.deploy.proxies import Proxy
from tests.support.folders import short_folder
from tests.support.service import Process, ServiceCase


class Cache(Proxy):
    """Cache in front of one node; it ends with the test.

    Its folder has a short path. Caches that root starts run as another user.
    """

    variable = "AUDIOPROXY_CACHES"

    def __init__(self, case: ServiceCase, node: int) -> None:
        """Reserve its port.

        :param node: the port of the node.
        :raises SkipTest: if the program is not installed.
        """
        folder = short_folder(case)
        folder.chmod(0o777)
        super().__init__(folder, {"node": node})
        self.node = node
        case.addCleanup(self.stop)

    async def start(self) -> None:
        """Start the cache, which may print no warning."""
        await super().start()
        printed = self.stderr + self.log.read_text()
        if "warn" in printed.lower():
            raise AssertionError(printed)

    def _spawn(self, *words: str, stdout: int | str = "r", **variables: str) -> Process:
        return super()._spawn(*words, stdout=stdout, PATH=os.environ["PATH"], **variables)


class NginxCache(Cache):
    """nginx with ``proxy_cache``."""

    program = "nginx"
    variable = "AUDIOPROXY_NGINX"
    running = ("-c",)

    def _configuration(self) -> str:
        changes = {
            "listen 80;": f"listen 127.0.0.1:{self.port};",
            "listen [::]:80;": "",
            "127.0.0.1:4000": f"127.0.0.1:{self.node}",
            "/var/log/nginx/audioproxy-cache": f"{self._folder}/audioproxy-cache",
            "/var/cache/audioproxy-nginx": f"{self._folder}/cache",
        }
        self._write("cache.conf", shipped("caches/nginx.conf", changes))
        return self._write(
            "nginx.conf",
            f"daemon off; pid {self._folder}/pid; error_log stderr;\nevents {{ }}\n"
            f"http {{\n{temporary_paths(self._folder)}\ninclude {self._folder}/cache.conf;\n}}\n",
        )


class Varnish(Cache):
    """Varnish, which compiles its configuration."""

    program = "varnishd"

    @property
    def running(self) -> tuple[str, ...]:  # type: ignore[override]
        # Without a jail, it needs no user of its own.
        words = ("-F", "-j", "none", "-n", f"{self._folder}/varnish", "-s", "malloc,64m")
        return (*words, "-a", f"127.0.0.1:{self.port}", "-f")

    def _configuration(self) -> str:
        node = {'.port = "4000";': f'.port = "{self.node}";'}
        return self._write("audioproxy.vcl", shipped("caches/varnish.vcl", node))


class Squid(Cache):
    """Squid as a reverse proxy."""

    program = "squid"
    running = ("-N", "-f")

    def _configuration(self) -> str:
        folder = self._folder
        changes = {
            "http_port 80": f"http_port 127.0.0.1:{self.port}",
            "127.0.0.1 parent 4000": f"127.0.0.1 parent {self.node}",
            "/var/spool/squid 50000 16 256": f"{folder}/cache 64 1 1",
        }
        text = shipped("caches/squid.conf", changes)
        more = f"pid_filename {folder}/pid\ncache_log {folder}/cache.log\ncoredump_dir {folder}\n"
        more += "shutdown_lifetime 0 seconds\npinger_enable off\n"
        return self._write("squid.conf", f"{text}\n{more}")

    async def start(self) -> None:
        """Create the folders of the cache first."""
        await self._spawn("-N", "-z", "-f", self._configuration()).end()
        await super().start()
