"""Real Caddy, Apache, lighttpd, Traefik and Envoy, with the configurations from ``deploy/``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from tests.deploy.balancer import Balancer, shipped
from tests.support.service import Process

#: Folder of Apache's modules, and those of Debian and of the shipped file.
_APACHE_MODULES = Path("/usr/lib/apache2/modules")
_MODULES = (
    *("mpm_event", "authz_core", "proxy", "proxy_http", "proxy_balancer", "lbmethod_byrequests"),
    *("slotmem_shm", "rewrite", "ssl", "http2", "reqtimeout", "env", "setenvif"),
)


class Proxy(Balancer):
    """Proxy that ``make proxies`` installs, and that listens on a reserved port."""

    variable = "AUDIOPROXY_PROXIES"


class Caddy(Proxy):
    """Caddy, which checks its nodes."""

    program = "caddy"
    file = "caddy/Caddyfile"
    checking = ("validate", "--config")
    showing_version = ("version",)
    running = ("run", "--config")
    tls = ("#tls /etc/caddy/audioproxy.crt /etc/caddy/audioproxy.key",)

    def _configuration(self) -> str:
        addresses = " ".join(f"127.0.0.1:{port}" for port in self._nodes.values())
        scheme = "https" if self._certificate else "http"
        changes = {
            "servers {": "admin off\n\tauto_https off\n\tservers {",
            "/var/log/caddy/audioproxy.log": f"{self._folder}/access.log",
            "10.0.0.11:4000 10.0.0.12:4000 10.0.0.13:4000": addresses,
            "audio.example.com {": f"{scheme}://localhost:{self.port} {{",
        }
        return self._write("Caddyfile", self._shipped(changes))

    def _spawn(self, *words: str, stdout: int | str = "r", **variables: str) -> Process:
        return super()._spawn(*words, stdout=stdout, HOME=str(self._folder), **variables)


class Apache(Proxy):
    """Apache httpd."""

    program = "apache2"
    file = "apache/audioproxy.conf"
    checking = ("-t", "-f")
    running = ("-D", "FOREGROUND", "-f")
    tls = ("#Protocols h2 http/1.1",)

    def _configuration(self) -> str:
        changes = {"<VirtualHost *:80>": f"<VirtualHost *:{self.port}>"}
        loaded = (f"LoadModule {each}_module {_APACHE_MODULES}/mod_{each}.so" for each in _MODULES)
        lines = [
            f"ServerRoot {self._folder}",
            f"DefaultRuntimeDir {self._folder}",
            "PidFile apache2.pid",
            "ServerName localhost",
            f"ErrorLog {self._folder}/error.log",
            f"Listen 127.0.0.1:{self.port}",
            *loaded,
            # Only root can change to another user.
            *([] if os.getuid() else ["User www-data", "Group www-data"]),
            f"Define APACHE_LOG_DIR {self._folder}",
            f"Include {self._write('audioproxy.conf', self._shipped(changes))}",
            "",
        ]
        return self._write("apache2.conf", "\n".join(lines))


class Lighttpd(Proxy):
    """lighttpd.

    :cvar hosts: three, since its hash does not cover the port.
    :cvar flags: its feature flags, in place of the shipped ones.
    """

    program = "lighttpd"
    file = "lighttpd/audioproxy.conf"
    checking = ("-tt", "-f")
    running = ("-D", "-f")
    hosts = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    flags: ClassVar[str] = '"server.h2proto" => "disable"'
    tls = ('#$SERVER["socket"] == ":443" {', '#server.modules += ( "mod_openssl" )')

    def _configuration(self) -> str:
        socket = '$SERVER["socket"] == '
        changes = {
            "/var/log/lighttpd/error.log": f"{self._folder}/error.log",
            '$HTTP["host"] == "audio.example.com"': '$HTTP["host"] == "localhost"',
            '"server.h2proto" => "disable"': self.flags,
            f'{socket}":443"': f'{socket}"127.0.0.1:{self.port}"',
        }
        own = self._write("audioproxy.conf", self._shipped(changes))
        text = f'''server.port = {self.port}
server.bind = "127.0.0.1"
server.document-root = "{self._folder}"
include "{own}"
'''
        return self._write("lighttpd.conf", text)


class Traefik(Proxy):
    """Traefik, which checks its nodes."""

    program = "traefik"
    file = "traefik/audioproxy.yml"
    showing_version = ("version",)
    running = ("--configFile",)
    tls = ("#tls: {}", "#tls:")

    def _configuration(self) -> str:
        changes = {"Host(`audio.example.com`)": "Host(`localhost`)"}
        self._write("conf.d/audioproxy.yml", self._shipped(changes))
        static = {
            'address: ":80"': f'address: "127.0.0.1:{self.port}"',
            "directory: /etc/traefik/conf.d": f"directory: {self._folder}/conf.d",
        }
        return self._write("traefik.yml", shipped("traefik/traefik.yml", static))


class Envoy(Proxy):
    """Envoy, which checks its nodes."""

    program = "envoy"
    file = "envoy/envoy.yaml"
    showing_version = ("--version",)
    checking = ("--mode", "validate", "-c")
    running = ("--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning", "-c")
    tls = ("#transport_socket:",)

    def _configuration(self) -> str:
        listener = "address: %s, port_value: %s"
        changes = {listener % ("0.0.0.0", 80): listener % ("127.0.0.1", self.port)}
        return self._write("envoy.yaml", self._shipped(changes))


#: All proxies that have a test of their own.
PROXIES: tuple[type[Proxy], ...] = (Caddy, Apache, Lighttpd, Traefik, Envoy)
