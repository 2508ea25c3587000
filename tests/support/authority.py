"""Certificates for tests: a private authority, and certificates that a client must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

#: Default names of the two files of a certificate.
CHAIN, KEY = "public.crt", "private.key"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate with its chain and its key, as files.

    :ivar chain: PEM; the certificate itself comes first.
    :ivar key: PEM in PKCS8, which is the only format that some servers accept.
    """

    chain: Path
    key: Path

    def both(self) -> Path:
        """Return one file with key and chain, as some servers require."""
        path = self.key.with_suffix(".pem")
        path.write_bytes(self.key.read_bytes() + self.chain.read_bytes())
        return path


class Authority:
    """Private certificate authority.

    :ivar bundle: PEM file with the authority's own certificate, which clients should trust.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name="audioproxy tests")
        folder.mkdir(parents=True, exist_ok=True)
        self.bundle = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.bundle))

    def issue(self, *names: str, folder: Path | None = None) -> Certificate:
        """Issue a certificate for IP addresses and for names, also wildcards like ``*.a.test``."""
        return self._write_leaf(self._authority.issue_cert(*names), folder)

    def issue_expired(self, *names: str) -> Certificate:
        """Issue a certificate that expired yesterday."""
        now = datetime.now(UTC)
        leaf = self._authority.issue_cert(
            *names, not_before=now - timedelta(days=9), not_after=now - timedelta(days=1)
        )
        return self._write_leaf(leaf)

    def make_self_signed(self, name: str) -> Certificate:
        """Create a self-signed certificate for a name."""
        key = generate_private_key(SECP256R1())
        me = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        start = datetime.now(UTC) - timedelta(days=1)
        builder = x509.CertificateBuilder(
            me, me, key.public_key(), x509.random_serial_number(), start, start + timedelta(days=9)
        ).add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        chain = [builder.sign(key, SHA256()).public_bytes(Encoding.PEM)]
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return self._write(chain, pem)

    def _write_leaf(self, leaf: trustme.LeafCert, folder: Path | None = None) -> Certificate:
        chain = [pem.bytes() for pem in leaf.cert_chain_pems]
        return self._write(chain, leaf.private_key_pem.bytes(), folder)

    def _write(self, chain: Sequence[bytes], key: bytes, folder: Path | None = None) -> Certificate:
        if folder is None:
            folder = self._folder / f"certificate-{len(list(self._folder.iterdir()))}"
        folder.mkdir(parents=True, exist_ok=True)
        certificate = Certificate(folder / CHAIN, folder / KEY)
        certificate.chain.write_bytes(b"".join(chain))
        certificate.key.touch(mode=0o600)
        private_key = load_pem_private_key(key, None)
        pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        certificate.key.write_bytes(pem)
        return certificate
