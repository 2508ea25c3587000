"""HTTP clients, one for each CA bundle."""

from __future__ import annotations

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
        """Each CA bundle has one client, whether SSL_CERT_FILE or another variable names it.

        `ca_file`, which is passed to ffmpeg, is the path in SSL_CERT_FILE.
        """
        default, clients = self.make(), self.make(self.bundle)
        self.assertIs(clients.client(), clients.client())
        self.assertIs(clients.client(), clients.client(self.bundle, "AP_S3_CA_BUNDLE"))
        self.assertIsNot(default.client(), default.client(self.bundle, "AP_S3_CA_BUNDLE"))
        self.assertEqual(self.bundle, clients.ca_file)

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
