"""The tests' certificates are valid, or invalid for exactly one reason."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.authority import Authority, Certificate


class AuthorityTests(SynchronousTestCase):
    """`Authority`"""

    def setUp(self) -> None:
        self.authority = Authority(Path(self.mktemp()).resolve())

    def connect(self, certificate: Certificate, name: str) -> None:
        """Do a TLS handshake in memory between a server and a client that trusts the authority."""
        client = ssl.create_default_context(cafile=str(self.authority.bundle))
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(down, up, server_hostname=name),
            certificate.server_context().wrap_bio(up, down, server_side=True),
        )
        for _ in range(2):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        self.assertIsNotNone(ends[0].cipher())

    def test_good(self) -> None:
        """A certificate is valid for all its names and addresses, also through an intermediate."""
        for issue in (self.authority.issue, self.authority.issue_through_another):
            certificate = issue("a.test", "*.s3.test", "127.0.0.1")
            for name in ("a.test", "bucket.s3.test", "127.0.0.1"):
                self.connect(certificate, name)

    def test_bad(self) -> None:
        """Each invalid certificate is refused for its own reason."""
        stranger = Authority(Path(self.mktemp()).resolve())
        for certificate, reason in (
            (self.authority.issue_expired("a.test"), "expired"),
            (self.authority.issue("another.test"), "Hostname mismatch"),
            (self.authority.make_self_signed("a.test"), "self-signed"),
            (stranger.issue("a.test"), "unable to get local issuer"),
        ):
            error = self.assertRaises(
                ssl.SSLCertVerificationError, self.connect, certificate, "a.test"
            )
            self.assertIn(reason, error.verify_message)

    def test_files(self) -> None:
        """Key and chain are files in the given folder; only the owner can read the key."""
        folder = Path(self.mktemp()).resolve()
        certificate = self.authority.issue("a.test", folder=folder)
        self.assertEqual([folder] * 2, [certificate.chain.parent, certificate.key.parent])
        self.assertEqual(0o600, certificate.key.stat().st_mode & 0o777)
        self.assertTrue(certificate.key.read_text().startswith("-----BEGIN PRIVATE KEY-----"))
        self.assertIn(certificate.key.read_text(), certificate.both().read_text())
