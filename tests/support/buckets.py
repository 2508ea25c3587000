"""Real S3 servers: one per test process with TLS and one without, started at the first use.

`s3_server` returns JuiceFS's server, which installs as a Python package in seconds. With
``AUDIOPROXY_S3`` in the environment, such as ``ceph``, it returns another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.ceph import Ceph
from tests.support.juicefs import JuiceFS
from tests.support.rclone import Rclone
from tests.support.s3 import Gateway
from tests.support.swift import Swift

_KINDS: dict[str, Callable[[Path, bool], Gateway]] = {
    "ceph": Ceph,
    "juicefs": JuiceFS,
    "rclone": Rclone,
    "swift": Swift,
}
_servers: dict[bool, Gateway] = {}


async def s3_server(tls: bool = False) -> Gateway:
    """Return the running S3 server of this process; restart it if a test stopped it."""
    if tls not in _servers:
        # Relative to trial's working folder, which trial removes before the next run.
        folder = Path(f"s3/{'https' if tls else 'http'}").resolve()
        _servers[tls] = _KINDS[os.environ.get("AUDIOPROXY_S3") or "juicefs"](folder, tls)
    await _servers[tls].start()
    return _servers[tls]
