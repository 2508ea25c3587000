"""The configurations of HAProxy and nginx; `tests.live.test_cluster` runs nodes behind them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from tests.support.authority import Authority, Certificate
from tests.support.balancer import Balancer, HAProxy, Nginx, installed, shipped
from tests.support.service import PROJECT

NODES = {"one": 80, "two": 81}


class BalancerTests(TestCase):
    """An operator's balancer starts with them."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        self.folder.mkdir()

    def certificate(self) -> Certificate:
        """Return a certificate with its key."""
        return Authority(self.folder).issue("audio.example.com")

    async def check(self, balancer: Balancer) -> str:
        """Return what a balancer says of its configuration, which it must accept."""
        self.addCleanup(lambda: Deferred.fromCoroutine(balancer.stop()))
        status, said = await balancer.check()
        self.assertEqual(0, status, said)
        return said

    async def test_haproxy(self) -> None:
        """HAProxy accepts the file as it is, and without a warning."""
        command = [installed("haproxy"), "-c", "-V", "-f", PROJECT / "deploy/haproxy/haproxy.cfg"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        self.assertEqual("Configuration file is valid\n", ended.stdout + ended.stderr)

    async def test_haproxy_tls(self) -> None:
        """The line for TLS, which is commented out, is right too, and so is what tests run with."""
        for certificate in (None, self.certificate()):
            said = await self.check(HAProxy(self.folder, NODES, certificate))
            self.assertEqual("Configuration file is valid\n", said)

    async def test_nginx(self) -> None:
        """nginx accepts the file, and with TLS too, without a warning.

        Its check opens what is listened on and logged to, so that is changed here.
        """
        for certificate in (None, self.certificate()):
            said = await self.check(Nginx(self.folder, NODES, certificate))
            self.assertIn("test is successful", said)
            for level in ("[warn]", "[error]"):
                self.assertNotIn(level, said)

    def test_shipped(self) -> None:
        """A test that would change what is not in a file any more fails."""
        text = shipped("haproxy/haproxy.cfg", {"bind :80": "bind :81"})
        self.assertIn("\nbind :81\n", text)
        self.assertNotIn("\nbind :80\n", text)
        with self.assertRaises(AssertionError):
            shipped("haproxy/haproxy.cfg", {"bind :81": "bind :82"})
