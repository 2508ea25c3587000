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
from tests.support.service import PATIENCE, TEST_PATIENCE, short_flac

RESOLVE = """
import json, socket, sys
answers = socket.getaddrinfo(sys.argv[1], 80, type=socket.SOCK_STREAM)
print(json.dumps(sorted({answer[4][0] for answer in answers})))
"""


class NamesTests(SynchronousTestCase):
    """`resolving` in Python"""

    def test_resolved(self) -> None:
        """Names resolve to 127.0.0.1 only in a process with the variables; others as before."""
        names = ["a.s3.test", "b.s3.test"]
        variables = resolving(Path(self.mktemp()).resolve(), names)

        def resolve(name: str) -> list[str]:
            command = [sys.executable, "-c", RESOLVE, name]
            done = subprocess.run(
                command, env=variables, check=True, capture_output=True, timeout=PATIENCE
            )
            return json.loads(done.stdout)

        for name in (*names, "127.0.0.1"):
            self.assertEqual(["127.0.0.1"], resolve(name))
        self.assertIn("127.0.0.1", resolve("localhost"))
        self.assertRaises(subprocess.CalledProcessError, resolve, "c.s3.test")
        for name in names:
            self.assertRaises(gaierror, getaddrinfo, name, 80)


class ChildrenTests(TestCase):
    """`resolving` in ffmpeg and ffprobe"""

    timeout = TEST_PATIENCE

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
