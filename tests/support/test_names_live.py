"""Host names of the tests resolve in a service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from socket import gaierror, getaddrinfo

from twisted.trial.unittest import SynchronousTestCase

from tests.support.names import resolving
from tests.support.service import PATIENCE

RESOLVE = """
import json, socket, sys
found = {}
for name in sys.argv[1:]:
    try:
        answers = socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)
    except socket.gaierror:
        answers = []
    found[name] = sorted({answer[4][0] for answer in answers})
print(json.dumps(found))
"""


class NamesTests(SynchronousTestCase):
    """`resolving` in Python; tests.sources.test_s3_live.AddressingTests uses it for ffmpeg"""

    def test_resolved(self) -> None:
        """Names resolve to 127.0.0.1 only in a process with the variables; others as before."""
        names = ["a.s3.test", "b.s3.test"]
        variables = resolving(Path(self.mktemp()).resolve(), names)
        command = [sys.executable, "-c", RESOLVE, *names, "127.0.0.1", "localhost", "c.s3.test"]
        done = subprocess.run(
            command, env=variables, check=True, capture_output=True, timeout=PATIENCE
        )
        found = json.loads(done.stdout)
        self.assertIn("127.0.0.1", found.pop("localhost"))
        loopback = [*names, "127.0.0.1"]
        expected = {**{name: ["127.0.0.1"] for name in loopback}, "c.s3.test": []}
        self.assertEqual(expected, found)
        for name in names:
            self.assertRaises(gaierror, getaddrinfo, name, 80)
