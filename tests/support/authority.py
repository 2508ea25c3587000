"""Certificates of a private authority for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
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
        leaf = self._authority.issue_cert(*names)
        if folder is None:
            folder = self._folder / f"certificate-{len(list(self._folder.iterdir()))}"
        folder.mkdir(parents=True, exist_ok=True)
        certificate = Certificate(folder / CHAIN, folder / KEY)
        certificate.chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        certificate.key.touch(mode=0o600)
        private_key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        certificate.key.write_bytes(pem)
        return certificate
