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

    def _address(self, number: int) -> str:
        """Return the address of the n-th node, or an empty string if there are fewer."""
        ports = [*self._nodes.values()]
        return f"{self.hosts[number]}:{ports[number]}" if number < len(ports) else ""

    def _write(self, name: str, text: str) -> str:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return str(path)


class Caddy(Proxy):
    """Caddy, which checks its nodes."""

    program = "caddy"
    file = "caddy/Caddyfile"
    checking = ("validate", "--config")
    showing_version = ("version",)
    running = ("run", "--config")

    def _configuration(self) -> str:
        addresses = " ".join(filter(None, map(self._address, range(3))))
        nodes = "reverse_proxy 10.0.0.11:4000 10.0.0.12:4000 10.0.0.13:4000 {"
        scheme, enabled = "http", ()
        changes = {
            "{": "{\n\tadmin off\n\tauto_https off",
            "output file /var/log/caddy/audioproxy.log": f"output file {self._folder}/access.log",
            nodes: f"reverse_proxy {addresses} {{",
        }
        if self._certificate is not None:
            line = "tls /etc/caddy/audioproxy.crt /etc/caddy/audioproxy.key"
            scheme, enabled = "https", (f"#{line}",)
            changes[line] = f"tls {self._certificate.chain} {self._certificate.key}"
        changes["audio.example.com {"] = f"{scheme}://localhost:{self.port} {{"
        return self._write("Caddyfile", shipped(self.file, changes, enabled))

    def _spawn(self, *words: str, stdout: int | str = "r", **variables: str) -> Process:
        return super()._spawn(*words, stdout=stdout, HOME=str(self._folder), **variables)


class Apache(Proxy):
    """Apache httpd."""

    program = "apache2"
    file = "apache/audioproxy.conf"
    checking = ("-t", "-f")
    running = ("-D", "FOREGROUND", "-f")

    def _configuration(self) -> str:
        certificate, enabled = self._certificate, ()
        changes = {"<VirtualHost *:80>": f"<VirtualHost *:{self.port}>"}
        for number in range(3):
            line = (
                f'BalancerMember "http://10.0.0.{number + 11}:4000" connectiontimeout=2 timeout=630'
                " ttl=30 retry=2"
            )
            address = self._address(number)
            for suffix in ("", " status=+H"):
                own = line.replace(f"10.0.0.{number + 11}:4000", address) + suffix
                changes[line + suffix] = own if address else ""
        if certificate is not None:
            enabled = ("#Protocols h2 http/1.1",)
            name = "/etc/ssl/audioproxy.crt"
            changes[f"SSLCertificateFile {name}"] = f"SSLCertificateFile {certificate.chain}"
            name = "/etc/ssl/private/audioproxy.key"
            changes[f"SSLCertificateKeyFile {name}"] = f"SSLCertificateKeyFile {certificate.key}"
        own = self._write("audioproxy.conf", shipped(self.file, changes, enabled))
        return self._write(
            "apache2.conf",
            "\n".join(
                [
                    f"ServerRoot {self._folder}",
                    f"DefaultRuntimeDir {self._folder}",
                    "PidFile apache2.pid",
                    "ServerName localhost",
                    f"ErrorLog {self._folder}/error.log",
                    f"Listen 127.0.0.1:{self.port}",
                    *(
                        f"LoadModule {name}_module {_APACHE_MODULES}/mod_{name}.so"
                        for name in _MODULES
                    ),
                    # Only root can change to another user.
                    *([] if os.getuid() else ["User www-data", "Group www-data"]),
                    f"Define APACHE_LOG_DIR {self._folder}",
                    f"Include {own}",
                    "",
                ]
            ),
        )


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

    def _configuration(self) -> str:
        certificate, enabled = self._certificate, ()
        log = "/var/log/lighttpd/error.log"
        remover = 'server.errorlog := "|/bin/sed -uE s,/[A-Za-z0-9_-]{43}=?/,/-/,g >> '
        changes = {
            f'{remover}{log}"': f'{remover}{self._folder}/error.log"',
            '$HTTP["host"] == "audio.example.com" {': '$HTTP["host"] == "localhost" {',
            'server.feature-flags := ( "server.h2proto" => "disable" )': (
                f"server.feature-flags := ( {self.flags} )"
            ),
        }
        for number in range(3):
            rest = '"connect-timeout" => 2, "read-timeout" => 630, "disable-time" => 2 ),'
            host, _, port = self._address(number).partition(":")
            own = f'( "host" => "{host}", "port" => {port}, {rest}' if port else ""
            changes[f'( "host" => "10.0.0.{number + 11}", "port" => 4000, {rest}'] = own
        if certificate is not None:
            socket = '$SERVER["socket"] == ":443" {'
            enabled = (f"#{socket}", '#server.modules += ( "mod_openssl" )')
            changes[socket] = f'$SERVER["socket"] == "127.0.0.1:{self.port}" {{'
            for key, path in (("pemfile", certificate.chain), ("privkey", certificate.key)):
                ending = "crt" if key == "pemfile" else "key"
                changes[f'ssl.{key} = "/etc/lighttpd/audioproxy.{ending}"'] = (
                    f'ssl.{key} = "{path}"'
                )
        own = self._write("audioproxy.conf", shipped(self.file, changes, enabled))
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

    def _configuration(self) -> str:
        certificate, enabled = self._certificate, []
        changes = {
            'rule: "Host(`audio.example.com`)"': 'rule: "Host(`localhost`)"',
            **{
                f'- url: "http://10.0.0.{number + 11}:4000"': f'- url: "http://{address}"'
                if address
                else ""
                for number, address in enumerate(map(self._address, range(3)))
            },
        }
        if certificate is not None:
            enabled = ["#tls: {}", "#tls:"]
            changes["- certFile: /etc/traefik/audioproxy.crt"] = f"- certFile: {certificate.chain}"
            changes["keyFile: /etc/traefik/audioproxy.key"] = f"keyFile: {certificate.key}"
        self._write("conf.d/audioproxy.yml", shipped(self.file, changes, enabled))
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

    def _configuration(self) -> str:
        certificate, enabled = self._certificate, ()
        listener = "address: {socket_address: {address: %s, port_value: %s}}"
        node = "- {endpoint: {address: {socket_address: {address: %s, port_value: %s}}}}"
        changes = {listener % ("0.0.0.0", 80): listener % ("127.0.0.1", self.port)}
        for number in range(3):
            host, _, port = self._address(number).partition(":")
            changes[node % (f"10.0.0.{number + 11}", 4000)] = node % (host, port) if port else ""
        if certificate is not None:
            enabled = ("#transport_socket:",)
            line = "- certificate_chain: {filename: %s}"
            changes[line % "/etc/envoy/audioproxy.crt"] = line % certificate.chain
            line = "private_key: {filename: %s}"
            changes[line % "/etc/envoy/audioproxy.key"] = line % certificate.key
        return self._write("envoy.yaml", shipped(self.file, changes, enabled))


#: All proxies that have a test of their own.
PROXIES: tuple[type[Proxy], ...] = (Caddy, Apache, Lighttpd, Traefik, Envoy)
