"""HTTP clients, one for each CA bundle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.http_client.ca_bundles import ClientsByBundle, UnusableBundle
from tests.support.authority import Authority


class ClientsByBundleTests(SynchronousTestCase):
    """`ClientsByBundle`"""

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.bundle = str(Authority(folder).bundle)
        self.empty = str(folder / "empty.pem")
        Path(self.empty).touch()

    def make(self, ssl_cert_file: str | None = None) -> ClientsByBundle:
        """Return the clients of a service with this SSL_CERT_FILE."""
        return ClientsByBundle(MemoryReactorClock(), ssl_cert_file)

    def test_shared(self) -> None:
        """One bundle has one client, whether SSL_CERT_FILE or another variable names it."""
        clients = self.make(self.bundle)
        self.assertIs(clients.client(), clients.client())
        self.assertIs(clients.client(), clients.client(self.bundle, "AP_S3_CA_BUNDLE"))

    def test_separate(self) -> None:
        """A different CA bundle has a separate client, since a client trusts only one bundle."""
        clients = self.make()
        self.assertIsNot(clients.client(), clients.client(self.bundle, "AP_S3_CA_BUNDLE"))

    def test_ca_file(self) -> None:
        """`ca_file`, which is passed to ffmpeg, is the path in SSL_CERT_FILE."""
        self.assertEqual(self.bundle, self.make(self.bundle).ca_file)

    def test_unusable(self) -> None:
        """The error for an unusable CA bundle names its variable and the required form."""
        for clients, bundle, name in (
            (self.make(self.empty), None, "SSL_CERT_FILE"),
            (self.make(), self.empty, "AP_S3_CA_BUNDLE"),
            (self.make(), f"{self.empty}.none", "AP_S3_CA_BUNDLE"),
        ):
            error = self.assertRaises(UnusableBundle, clients.client, bundle, "AP_S3_CA_BUNDLE")
            self.assertTrue(str(error).startswith(f"{name}: no certificates could be read ("))
            self.assertTrue(str(error).endswith("a file of certificates in PEM form is required"))

    def test_lazy_imports(self) -> None:
        """Importing `audioproxy.backends` imports neither OpenSSL nor Twisted's HTTP client."""
        code = (
            "import sys, audioproxy.backends, audioproxy._twisted;"
            "print([name for name in ('OpenSSL', 'twisted.web.client') if name in sys.modules])"
        )
        # Import this working tree: an installed package could belong to another working tree.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env=environment
        )
        self.assertEqual(b"[]\n", ran.stdout)
