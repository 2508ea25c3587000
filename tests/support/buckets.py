"""Real S3 servers: one for each test process, with or without TLS, started when first asked for.

`s3_server` returns JuiceFS's, which installs as a Python package and in seconds; with
``AUDIOPROXY_S3=ceph`` in the environment it returns Ceph's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.ceph import Ceph
from tests.support.juicefs import JuiceFS
from tests.support.s3 import S3Server

_KINDS: dict[str, Callable[[Path, bool], S3Server]] = {"ceph": Ceph, "juicefs": JuiceFS}
_servers: dict[bool, S3Server] = {}


async def s3_server(tls: bool = False) -> S3Server:
    """Return the server of this process, which runs: a test that stopped it is forgiven."""
    if tls not in _servers:
        # Trial's working folder, which is removed before the next run.
        folder = Path(f"s3/{'https' if tls else 'http'}").resolve()
        _servers[tls] = _KINDS[os.environ.get("AUDIOPROXY_S3") or "juicefs"](folder, tls)
    await _servers[tls].start()
    return _servers[tls]
