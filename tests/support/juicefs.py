"""JuiceFS's S3 gateway on a local folder; it checks requests with MinIO's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minio import MinioAdmin
from minio.credentials import AssumeRoleProvider, StaticProvider
from minio.error import MinioAdminException
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from tests.support.s3 import Gateway, Identity, Rights, policy
from tests.support.servers import Server
from tests.support.service import PATIENCE


class JuiceFS(Gateway):
    """JuiceFS gateway with its own volume in a local folder."""

    checks = frozenset({"region", "session token"})

    def __init__(self, folder: Path, tls: bool) -> None:
        self.owner = Identity.new("owner")
        self._folder = folder
        self._meta = f"sqlite3://{folder}/meta.db"
        self._users: set[str] = set()
        # The gateway looks for its own certificate here.
        certificates = folder / "home/.minio/certs"
        certificates.mkdir(parents=True)
        if tls:
            self.certify(folder / "authority", certificates)

    def serve(self, port: int) -> Server:
        """Start the gateway."""
        environment = self._environment()
        program = (str(Path(sys.executable).parent / "juicefs"), "--no-agent")
        if not (self._folder / "meta.db").exists():
            data = ("--storage", "file", "--bucket", f"{self._folder}/data/")
            subprocess.run(
                [*program, "format", "--no-update", *data, self._meta, "tests"],
                env=environment,
                check=True,
                capture_output=True,
                timeout=PATIENCE,
            )
        command = (
            *(*program, "gateway", "--no-banner", "--multi-buckets", "--keep-etag"),
            *("--object-meta", "--hide-dir-object", "--domain", self.domain),
            # S3 only: no usage reports, no background jobs, no metrics on a fixed port.
            *("--no-usage-report", "--no-bgjob", "--backup-meta", "0"),
            *("--cache-size", "0", "--cache-dir", f"{self._folder}/cache"),
            *("--log", f"{self._folder}/juicefs.log", "--metrics", "127.0.0.1:0"),
            *(self._meta, f"127.0.0.1:{port}"),
        )
        return Server(command, environment, self._folder / "gateway.log")

    def ready(self) -> bool:
        """Return whether the gateway knows its users; it accepts requests a little earlier."""
        with suppress(HTTPError, MinioAdminException), self._admin() as admin:
            return super().ready() and self._users <= json.loads(admin.user_list()).keys()
        return False

    def add_user(self, rights: Rights) -> Identity:
        """Create a user with the given rights to all existing buckets."""
        user = Identity.new(rights)
        with self._admin() as admin:
            admin.user_add(user.access_key, user.secret_key)
            if rights != "nothing":
                admin.policy_add(user.access_key, policy=policy(rights))
                admin.policy_set(user.access_key, user=user.access_key)
        self._users.add(user.access_key)
        return user

    def temporary_credentials(self, user: Identity) -> Identity:
        """Return temporary credentials with the rights of a user, who must not be the owner."""
        with self._pool() as pool:
            lent = AssumeRoleProvider(
                sts_endpoint=self.endpoint,
                access_key=user.access_key,
                secret_key=user.secret_key,
                region=self.region,
                http_client=pool,
            ).retrieve()
        return Identity(lent.access_key, lent.secret_key, lent.session_token)

    @contextmanager
    def _admin(self) -> Iterator[MinioAdmin]:
        with self._pool() as pool:
            yield MinioAdmin(
                endpoint=self.endpoint.partition("//")[2],
                credentials=StaticProvider(self.owner.access_key, self.owner.secret_key),
                region=self.region,
                secure=self.ca_bundle is not None,
                http_client=pool,
            )

    def _pool(self) -> PoolManager:
        return PoolManager(ca_certs=self.ca_bundle, retries=False)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": f"{self._folder}/home",
            # The gateway serves one test at a time; with one thread it starts in a third of the
            # time.
            "GOMAXPROCS": "1",
            "MINIO_ROOT_USER": self.owner.access_key,
            "MINIO_ROOT_PASSWORD": self.owner.secret_key,
            "MINIO_REGION_NAME": self.region,
        }
