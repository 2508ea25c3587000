"""Caddy, Apache, lighttpd, Traefik and Envoy with the files of ``deploy/``: ``make proxies``."""

from __future__ import annotations

from tests.deploy.proxies import Apache, Caddy, Envoy, Lighttpd, Traefik
from tests.deploy.test_proxies import ProxyCase, ProxyTests


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
