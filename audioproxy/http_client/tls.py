"""TLS to one host, whose certificate must be for its name or its address."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName
from OpenSSL.SSL import VERIFY_FAIL_IF_NO_PEER_CERT, VERIFY_PEER, Connection
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.ssl import optionsForClientTLS
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from audioproxy.http_client.errors import NameMismatch

# The name in the options of Twisted, which are used for everything but the name.
_PLACEHOLDER = "host.invalid"


def is_address(host: str) -> bool:
    """Return whether a host is an IP address; another spelling, such as ``127.1``, is a name."""
    return isIPAddress(host) or isIPv6Address(host)


@implementer(IOpenSSLClientConnectionCreator)
class HostTls:
    """Creates connections to one host, whose name is sent and matched as it is.

    Twisted 26.10 encodes names as IDNA 2008 first, which rejects underscores, two hyphens at the
    third position, hyphens at an end, and A-labels of emoji. It raises ``ValueError`` in the
    reactor for a name that is a number, and its check of names is not strict enough. A wildcard
    matches an A-label here, as it does in browsers, curl and ffmpeg.
    """

    def __init__(self, host: str, trust_root: Any) -> None:
        self._name = host.lower()
        self._address = ip_address(host) if is_address(host) else None
        self._options = optionsForClientTLS(_PLACEHOLDER, trust_root, sendServerName=False)

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> Connection:
        connection = self._options.clientConnectionForTLS(tlsProtocol)
        if self._address is None:
            connection.set_tlsext_host_name(self._name.encode("ascii"))

        def verify(_: object, certificate: Any, __: int, depth: int, trusted: int) -> bool:
            if not trusted or depth:
                return bool(trusted)
            try:
                matches = self._matches(certificate)
            except Exception:
                # A certificate that cannot be parsed; an exception would be lost in OpenSSL.
                return False
            if not matches:
                error = NameMismatch("the certificate is for another name")
                tlsProtocol.failVerification(Failure(error))
            return matches

        connection.set_verify(VERIFY_PEER | VERIFY_FAIL_IF_NO_PEER_CERT, verify)
        return connection

    def _matches(self, certificate: Any) -> bool:
        """Return whether a certificate is for the host (RFC 6125, 6.4)."""
        extensions = certificate.to_cryptography().extensions
        try:
            names = extensions.get_extension_for_class(SubjectAlternativeName).value
        except ExtensionNotFound:
            return False
        if self._address is not None:
            return self._address in names.get_values_for_type(IPAddress)
        parent = self._name.partition(".")[2]
        # A wildcard of all hosts below one label, such as *.com, matches none, as in OpenSSL.
        accepted = {self._name, f"*.{parent}"} if "." in parent else {self._name}
        return not accepted.isdisjoint(map(str.lower, names.get_values_for_type(DNSName)))
