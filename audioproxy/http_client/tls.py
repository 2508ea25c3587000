"""TLS to servers whose names are valid in DNS and in certificates, but not in IDNA 2008."""

from __future__ import annotations

from typing import Any

from OpenSSL.SSL import VERIFY_FAIL_IF_NO_PEER_CERT, VERIFY_PEER, Connection
from service_identity import VerificationError
from service_identity.exceptions import DNSMismatch
from service_identity.hazmat import DNS_ID, DNSPattern
from service_identity.pyopenssl import extract_patterns
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import optionsForClientTLS
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

# The name in the options of Twisted, which are used for everything but the name.
_PLACEHOLDER = "host.invalid"


@implementer(IOpenSSLClientConnectionCreator)
class AsciiNameTls:
    """Creates connections to one server, whose name is sent and matched as it is.

    Twisted encodes every name as IDNA 2008 first, which rejects underscores, two hyphens at the
    third position, hyphens at an end, and A-labels of emoji. A wildcard matches an A-label here, as
    it does in browsers, curl and ffmpeg.

    :param host: an ASCII name, and no address.
    """

    def __init__(self, host: bytes, trust_root: Any) -> None:
        self._host = host.lower()
        self._options = optionsForClientTLS(_PLACEHOLDER, trust_root)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> Connection:
        """Return a connection that verifies its server's certificate."""
        connection = self._options.clientConnectionForTLS(tlsProtocol)
        connection.set_tlsext_host_name(self._host)

        def verify(_: object, certificate: Any, __: int, depth: int, trusted: int) -> bool:
            if not trusted or depth:
                return bool(trusted)
            try:
                self._verify_name(certificate)
            except VerificationError:
                tlsProtocol.failVerification(Failure())
                return False
            except Exception:
                # A certificate that cannot be parsed; an exception would be lost in OpenSSL.
                return False
            return True

        connection.set_verify(VERIFY_PEER | VERIFY_FAIL_IF_NO_PEER_CERT, verify)
        return connection

    def _verify_name(self, certificate: Any) -> None:
        """Raise ``VerificationError`` for a certificate of another name (RFC 6125, 6.4)."""
        patterns = extract_patterns(certificate)
        names = {each.pattern for each in patterns if isinstance(each, DNSPattern)}
        wildcard = b"*." + self._host.partition(b".")[2]
        if self._host not in names and wildcard not in names:
            mismatch = DNSMismatch(mismatched_id=DNS_ID(self._host.decode("ascii")))
            raise VerificationError(errors=[mismatch])
