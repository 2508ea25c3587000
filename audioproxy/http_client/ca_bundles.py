"""HTTP clients by the CA bundle that they trust.

A client imports OpenSSL and Twisted's HTTP client, so this module imports it only when one is made:
a service of local files starts in half the time without them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audioproxy.http_client.client import HttpClient

# The system's certificates in one file, as ffmpeg needs them: Debian, Fedora, SUSE, Alpine.
_SYSTEM_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class UnusableBundle(Exception):
    """A CA bundle cannot be read; the text names the variable to change."""


class ClientsByBundle:
    """One client for each CA bundle, made when it is first needed.

    Two stores with one bundle share a client, and with it a connection pool.

    :ivar ca_file: PEM file of the certificates that are trusted by default; None where the system
        has none in one file.
    """

    def __init__(self, reactor: Any, ssl_cert_file: str | None) -> None:
        """Find the system's certificates.

        :param ssl_cert_file: the value of SSL_CERT_FILE, which replaces the system's certificates.
        """
        self.ca_file = ssl_cert_file or next(filter(os.path.isfile, _SYSTEM_CA_FILES), None)
        self._reactor = reactor
        self._ssl_cert_file = ssl_cert_file
        self._clients: dict[str | None, HttpClient] = {}

    def client(self, bundle: str | None = None, variable: str = "") -> HttpClient:
        """Return the client that trusts a CA bundle; None is the default bundle.

        :param variable: the environment variable that names the bundle.
        :raises UnusableBundle: where the bundle cannot be read.
        """
        from audioproxy.http_client.client import HttpClient, load_trust_root

        path = bundle or self._ssl_cert_file
        if path not in self._clients:
            try:
                self._clients[path] = HttpClient(self._reactor, load_trust_root(path))
            except (OSError, ValueError) as error:
                name = variable if bundle else "SSL_CERT_FILE"
                raise UnusableBundle(
                    f"{name}: no certificates could be read ({error}); a file of certificates in"
                    " PEM form is required"
                ) from error
        return self._clients[path]

    def open(self) -> None:
        """Allow requests again after `close`."""
        for client in self._clients.values():
            client.open()

    async def close(self) -> None:
        """Close all connections and refuse further requests."""
        for client in self._clients.values():
            await client.close()
