"""Ceph's S3 server radosgw, on a cluster of one monitor and one in-memory object store daemon.

Debian's packages are radosgw, ceph-mon, ceph-osd and ceph-common.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any, cast
from urllib.parse import urlencode
from uuid import uuid4

from tests.support.s3 import Gateway, Identity, Rights, S3Response, policy
from tests.support.servers import Server, free_port
from tests.support.service import PATIENCE

# The settings avoid waits. With the default Paxos intervals, a monitor waits a second before each
# change of its maps, and a dozen changes precede the first bucket. A gateway with a cache waits
# until all other gateways have seen its changes. If another gateway was killed, it waits half a
# minute. The default folder of the object store's classes is a relative path in Debian 13.
_CONFIGURATION = """\
[global]
fsid = {cluster}
keyring = {folder}/keyring
mon host = [v2:127.0.0.1:{port}]
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}
crash dir = {folder}
log file = {folder}/$name.log
admin socket =
ms bind ipv6 = false
paxos propose interval = 0.01
paxos min wait = 0.01
mon allow pool size one = true
mon max pg per osd = 1000
osd class dir = {classes}
osd objectstore = memstore
memstore device bytes = 4294967296
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
rgw dns name = {domain}
rgw run sync thread = false
rgw cache enabled = false
rgw s3 auth use sts = true
rgw sts key = {key}
[osd]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
"""

# Keys of the cluster's members, which all run on this machine.
_KEYS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
}


class Cluster:
    """Ceph cluster that holds the objects and users; it keeps running when a gateway stops."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner = Identity.new("owner")
        self._servers: list[Server] = []

    def start(self) -> None:
        """Start the cluster unless it runs already; it runs until this process ends."""
        if self._servers:
            return
        for folder in ("mon", "osd"):
            (self.folder / folder).mkdir(parents=True)
        cluster, osd, port = str(uuid4()), str(uuid4()), free_port()
        keyring, monmap = f"{self.folder}/keyring", f"{self.folder}/monmap"
        (self.folder / "ceph.conf").write_text(
            _CONFIGURATION.format(
                cluster=cluster,
                folder=self.folder,
                port=port,
                classes=f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/rados-classes",
                domain=Gateway.domain,
                key=token_hex(8),
            )
        )
        self.run("ceph-authtool", "--create-keyring", keyring)
        for name, rights in _KEYS.items():
            caps = [word for right in rights.items() for word in ("--cap", *right)]
            self.run("ceph-authtool", keyring, "--gen-key", "-n", name, *caps)
        address = f"[v2:127.0.0.1:{port}]"
        self.run("monmaptool", "--create", "--addv", "a", address, "--fsid", cluster, monmap)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._servers.append(self.serve("ceph-mon", "-i", "a"))
        self.run("ceph", "osd", "new", osd)
        self.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", osd)
        self._servers.append(self.serve("ceph-osd", "-i", "0"))
        # The owner may also set the policies of other users.
        self.add_user(self.owner, "--caps", "user-policy=*")

    def add_user(self, user: Identity, *words: str) -> None:
        """Create a user, named by the access key, without rights to other users' objects."""
        name = ("--uid", user.access_key, "--display-name", user.access_key)
        keys = ("--access-key", user.access_key, "--secret-key", user.secret_key)
        self.run("radosgw-admin", "user", "create", *name, *keys, *words)

    def add_role(self, name: str, trust: Mapping[str, Any], rights: Mapping[str, Any]) -> None:
        """Create a role from its trust policy and its rights."""
        role = ("--role-name", name)
        assume = ("--assume-role-policy-doc", json.dumps(trust))
        self.run("radosgw-admin", "role", "create", *role, *assume)
        given = ("--policy-name", name, "--policy-doc", json.dumps(rights))
        self.run("radosgw-admin", "role-policy", "put", *role, *given)

    def run(self, *words: str) -> None:
        """Run one of Ceph's programs until it exits."""
        done = subprocess.run(
            [*words, "-c", f"{self.folder}/ceph.conf"],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{words[0]}: {done.stderr[-2000:]}"

    def serve(self, program: str, *words: str) -> Server:
        """Start one of Ceph's servers."""
        command = [program, "-f", *words, "-c", f"{self.folder}/ceph.conf"]
        return Server(command, self._environment(), self.folder / f"{program}.out")

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C"}


@cache
def _cluster(folder: Path) -> Cluster:
    return Cluster(folder)


class Ceph(Gateway):
    """radosgw instance; all instances of a process share one cluster, its users and its buckets."""

    checks = frozenset({"session token"})

    def __init__(self, folder: Path, tls: bool) -> None:
        self._cluster = _cluster(folder.parent / "cluster")
        self.owner = self._cluster.owner
        self._certificate = self.certify(folder) if tls else None

    def serve(self, port: int) -> Server:
        """Start the gateway; start the cluster first if it does not run yet."""
        self._cluster.start()
        front = f"beast endpoint=127.0.0.1:{port}"
        if self._certificate is not None:
            chain, key = self._certificate.chain, self._certificate.key
            front = f"beast ssl_endpoint=127.0.0.1:{port}"
            front += f" ssl_certificate={chain} ssl_private_key={key}"
        return self._cluster.serve("radosgw", "-n", "client.admin", "--rgw-frontends", front)

    def add_user(self, rights: Rights) -> Identity:
        """Create a user with the given rights to all existing buckets."""
        user = Identity.new(rights)
        self._cluster.add_user(user)
        if rights != "nothing":
            self._act(
                self.owner,
                Action="PutUserPolicy",
                UserName=user.access_key,
                PolicyName=rights,
                PolicyDocument=json.dumps(policy(rights)),
            )
        return user

    def temporary_credentials(self, user: Identity) -> Identity:
        """Return temporary credentials with the rights that the user was created with."""
        name = f"role-{token_hex(4)}"
        principal = {"AWS": [f"arn:aws:iam:::user/{user.access_key}"]}
        trust = {"Effect": "Allow", "Principal": principal, "Action": ["sts:AssumeRole"]}
        rights = cast(Rights, user.access_key.partition("-")[0])
        trust_policy = {"Version": "2012-10-17", "Statement": [trust]}
        self._cluster.add_role(name, trust_policy, policy(rights))
        lent = self._act(
            user, Action="AssumeRole", RoleArn=f"arn:aws:iam:::role/{name}", RoleSessionName=name
        )
        (key,), (secret,), (token,) = map(
            lent.texts, ("AccessKeyId", "SecretAccessKey", "SessionToken")
        )
        return Identity(key, secret, token)

    def _act(self, who: Identity, **form: str) -> S3Response:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode(form).encode()
        return self.request("POST", body=body, headers=kind, identity=who).require_success()
