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
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate.chain, certificate.key)
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(down, up, server_hostname=name),
            server.wrap_bio(up, down, server_side=True),
        )
        for _ in range(2):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        self.assertIsNotNone(ends[0].cipher())

    def test_bad(self) -> None:
        """Each invalid certificate is refused for its own reason; a valid one is accepted."""
        self.connect(self.authority.issue("a.test"), "a.test")
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
