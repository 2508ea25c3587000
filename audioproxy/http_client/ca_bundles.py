"""One HTTP client for each CA bundle.

The client module imports OpenSSL and Twisted's HTTP client. It is imported only when a client is
constructed: without it, a service that has only local files starts in half the time.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audioproxy.http_client.client import HttpClient

# Files with all CA certificates of the system, since ffmpeg needs one file: Debian, Fedora, SUSE,
# Alpine.
_SYSTEM_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class UnusableBundle(Exception):
    """A CA bundle cannot be read; the text names the setting."""


class ClientsByBundle:
    """One client for each CA bundle, constructed when it is first needed.

    Two stores with the same bundle share a client and its connection pool.

    :ivar ca_file: PEM file of the certificates that are trusted by default; None if the system has
        no such file.
    """

    def __init__(self, reactor: Any, ssl_cert_file: str | None) -> None:
        """Find the file of the system's certificates.

        :param ssl_cert_file: the value of SSL_CERT_FILE, which replaces the system's certificates.
        """
        self.ca_file = ssl_cert_file or next(filter(os.path.isfile, _SYSTEM_CA_FILES), None)
        self._reactor = reactor
        self._ssl_cert_file = ssl_cert_file
        self._clients: dict[str | None, HttpClient] = {}

    def client(self, bundle: str | None = None, variable: str = "") -> HttpClient:
        """Return the client that trusts a CA bundle; None is the default bundle.

        :param variable: the setting that names the bundle, for the error.
        :raises UnusableBundle: if the bundle cannot be read.
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
