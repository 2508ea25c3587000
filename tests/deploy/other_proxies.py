"""Caddy, Apache, lighttpd, Traefik, Envoy and proxies in Node: ``make proxies``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.deploy.balancer import HAProxy
from tests.deploy.proxies import Apache, Caddy, Envoy, Lighttpd, Proxy, Traefik
from tests.deploy.test_proxies import ProxyCase, ProxyTests
from tests.deploy.torn_streams import TornStreamTests
from tests.support.service import fetch, signed

SCRIPTS = Path(__file__).parent / "node_proxies"


class CaddyTests(ProxyTests, ProxyCase):
    """Caddy"""

    kind, name = Caddy, "Caddy"


class ApacheTests(ProxyTests, ProxyCase):
    """Apache httpd"""

    kind, name = Apache, "Apache"


class LighttpdTests(ProxyTests, ProxyCase):
    """lighttpd"""

    kind, name = Lighttpd, "lighttpd"


class TraefikTests(ProxyTests, ProxyCase):
    """Traefik"""

    kind, name, setting = Traefik, "Traefik", "our files"


class EnvoyTests(ProxyTests, ProxyCase):
    """Envoy"""

    kind, name = Envoy, "Envoy"


class HAProxyWithH2(HAProxy):
    """HAProxy with HTTP/2."""

    alpn = "h2,http/1.1"


class HAProxyWithH2Tests(TornStreamTests, ProxyCase):
    """HAProxy with HTTP/2"""

    kind, name, setting, clear = HAProxyWithH2, "HAProxy", "our file, `alpn h2,http/1.1`", ()


class LighttpdWithH2(Lighttpd):
    """lighttpd with HTTP/2."""

    flags = '"server.h2proto" => "enable", "server.h2c" => "enable"'


class LighttpdWithH2Tests(TornStreamTests, ProxyCase):
    """lighttpd with HTTP/2"""

    kind, name, setting = LighttpdWithH2, "lighttpd", "our file, `server.h2proto` enabled"


def _package(name: str) -> tuple[str, ...]:
    return ("-p", f"require('{SCRIPTS}/node_modules/{name}/package.json').version")


class NodeProxy(Proxy):
    """Proxy in Node.

    :cvar script: its script.
    :cvar words: further arguments of the script.
    """

    program = "node"
    script: ClassVar[str]
    words: ClassVar[tuple[str, ...]] = ()

    async def start(self) -> None:
        """Run the script."""
        first, *_ = self._nodes.values()
        words = [str(SCRIPTS / self.script), str(self.port), str(first)]
        if self._certificate is not None:
            words += [str(self._certificate.chain), str(self._certificate.key)]
        self.log.touch()
        self._process = self._spawn(*words, *self.words)
        await self.until_started()


class Middleware(NodeProxy):
    """http-proxy-middleware with its event handler; it has no TLS here."""

    showing_version = _package("http-proxy-middleware")
    script = "middleware.mjs"


class UncuredMiddleware(Middleware):
    """http-proxy-middleware"""

    words = ("uncured",)


class Fastify(NodeProxy):
    """@fastify/http-proxy with its event handler"""

    showing_version = _package("@fastify/http-proxy")
    script = "fastify.mjs"


class UncuredFastify(Fastify):
    """@fastify/http-proxy"""

    words = ("uncured",)


class MiddlewareTests(TornStreamTests, ProxyCase):
    """http-proxy-middleware of Node"""

    kind, name, setting = Middleware, "http-proxy-middleware", "with the handler"
    secure, clear = (), ("HTTP/1.1",)

    async def test_encoded(self) -> None:
        """A source in ``enc/`` reaches the node; in ``plain/``, its slashes are merged."""
        proxy = await self.put_in_front()
        for source, is_same in (("enc/bG9jYWw6Ly9h", True), ("plain/local://a", False)):
            path = signed(f"/f:mp3/{source}")
            self.assertEqual(is_same, path == (await fetch(proxy.port, path)).body)


class UncuredMiddlewareTests(TornStreamTests, ProxyCase):
    """http-proxy-middleware without the handler"""

    kind, name, setting = UncuredMiddleware, "http-proxy-middleware", "defaults"
    secure, clear = (), ("HTTP/1.1",)


class FastifyTests(TornStreamTests, ProxyCase):
    """@fastify/http-proxy"""

    kind, name, setting, clear = Fastify, "@fastify/http-proxy", "with the handler", ()


class UncuredFastifyTests(TornStreamTests, ProxyCase):
    """@fastify/http-proxy without the handler"""

    kind, name, setting, clear = UncuredFastify, "@fastify/http-proxy", "defaults", ()
