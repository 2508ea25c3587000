"""Varnish, Squid and Traffic Server in front of a node: ``make caches``."""

from __future__ import annotations

from tests.deploy.caches import Squid, TrafficServer, Varnish
from tests.deploy.test_caches import CacheCase, CacheTests


class VarnishTests(CacheTests, CacheCase):
    """Varnish"""

    kind = Varnish


class SquidTests(CacheTests, CacheCase):
    """Squid"""

    kind = Squid


class TrafficServerTests(CacheTests, CacheCase):
    """Traffic Server"""

    kind = TrafficServer
