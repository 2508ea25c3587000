"""Caddy, Apache, lighttpd, Traefik and Envoy with the files of ``deploy/``: ``make proxies``."""

from __future__ import annotations

from tests.deploy.proxies import Apache, Caddy, Envoy, Lighttpd, Traefik
from tests.deploy.test_proxies import ProxyCase, ProxyTests
from tests.deploy.torn_streams import Middleware
from tests.support.service import fetch, signed


class CaddyTests(ProxyTests, ProxyCase):
    """Caddy"""

    kind = Caddy


class ApacheTests(ProxyTests, ProxyCase):
    """Apache httpd"""

    kind = Apache


class LighttpdTests(ProxyTests, ProxyCase):
    """lighttpd"""

    kind = Lighttpd


class TraefikTests(ProxyTests, ProxyCase):
    """Traefik"""

    kind = Traefik


class EnvoyTests(ProxyTests, ProxyCase):
    """Envoy"""

    kind = Envoy


class MiddlewareTests(ProxyCase):
    """http-proxy-middleware of Node"""

    kind = Middleware

    async def test_encoded(self) -> None:
        """A source in ``enc/`` reaches the node; in ``plain/``, its slashes are merged."""
        proxy = await self.put_in_front()
        for source, is_same in (("enc/bG9jYWw6Ly9h", True), ("plain/local://a", False)):
            path = signed(f"/f:mp3/{source}")
            self.assertEqual(is_same, path == (await fetch(proxy.port, path)).body)
