"""Host names of the tests resolve in a service and in its child processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from socket import gaierror, getaddrinfo

from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.support.buckets import s3_server
from tests.support.names import resolving
from tests.support.service import PATIENCE, short_flac

RESOLVE = """
import json, socket, sys
answers = socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_STREAM)
print(json.dumps(sorted({answer[4][0] for answer in answers})))
"""


class NamesTests(SynchronousTestCase):
    """`resolving` in Python"""

    def setUp(self) -> None:
        self.variables = resolving(Path(self.mktemp()).resolve(), ["a.s3.test", "b.s3.test"])

    def resolve(self, name: str) -> list[str]:
        """Return the addresses of a name, as resolved by another Python process."""
        command = [sys.executable, "-c", RESOLVE, name]
        done = subprocess.run(
            command, env=self.variables, check=True, capture_output=True, timeout=PATIENCE
        )
        return json.loads(done.stdout)

    def test_names(self) -> None:
        """Names resolve to 127.0.0.1 in a process with the variables, and not in this one."""
        for name in ("a.s3.test", "b.s3.test"):
            self.assertEqual(["127.0.0.1"], self.resolve(name))
            self.assertRaises(gaierror, getaddrinfo, name, 80)

    def test_others(self) -> None:
        """Names that the system resolves still resolve, and unknown names still fail."""
        self.assertIn("127.0.0.1", self.resolve("localhost"))
        self.assertEqual(["127.0.0.1"], self.resolve("127.0.0.1"))
        self.assertRaises(subprocess.CalledProcessError, self.resolve, "c.s3.test")


class ChildrenTests(TestCase):
    """`resolving` in ffmpeg and ffprobe"""

    timeout = 2 * PATIENCE

    async def test_ffmpeg(self) -> None:
        """ffmpeg and ffprobe read a bucket by its host name with only PATH in the environment."""
        for tls in (False, True):
            server = await s3_server(tls)
            bucket = server.make_bucket()
            server.put(bucket, "a.flac", short_flac().read_bytes())
            name = f"{bucket}.{server.domain}"
            path = resolving(Path(self.mktemp()).resolve(), [name])["PATH"]
            trust = ("-tls_verify", "1", "-ca_file", str(server.ca_bundle)) if tls else ()
            url = server.presign(bucket, "a.flac", virtual=True)
            for words in (
                ("ffprobe", *trust, "-v", "error", "-show_format", url),
                ("ffmpeg", "-v", "error", *trust, "-i", url, "-f", "null", os.devnull),
            ):
                done = subprocess.run(
                    ["setpriv", "--pdeathsig", "KILL", "--", *words],
                    env={"PATH": path, "LC_ALL": "C"},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=PATIENCE,
                )
                self.assertEqual((0, b""), (done.returncode, done.stderr), words)
