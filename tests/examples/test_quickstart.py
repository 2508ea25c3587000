"""`make run`, as a new user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from twisted.trial.unittest import SynchronousTestCase

from tests.support.runs import output_of
from tests.support.service import PROJECT, TEST_PATIENCE, short_flac

QUICKSTART = PROJECT / "examples" / "quickstart.py"
README = PROJECT / "README.md"
USUAL = "http://127.0.0.1:4000"


def run_readme(folder: Path, origin: str) -> str:
    """Run the Python program of the README, for a service on another port than the usual one."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
    assert USUAL in example
    words = (sys.executable, "-c", example.replace(USUAL, origin))
    return output_of(*words, cwd=folder).strip()


class QuickstartTests(SynchronousTestCase):
    """`examples/quickstart.py`, which `make run` starts."""

    def run_service(self, home: Path, **variables: str) -> subprocess.Popen[str]:
        """Start the program, whose service must not outlive a test that fails."""
        running = subprocess.Popen(
            [sys.executable, QUICKSTART, home],
            env={**os.environ, "AP_PORT": "0", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # The signal of a test goes to the whole process group, like Ctrl-C in a terminal. This
            # group does not include the test.
            start_new_session=True,
        )
        watchdog = threading.Timer(TEST_PATIENCE, os.killpg, (running.pid, signal.SIGKILL))
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        self.addCleanup(running.wait)
        self.addCleanup(running.terminate)
        for stream in (running.stdout, running.stderr):
            assert stream is not None
            self.addCleanup(stream.close)
        return running

    def first_lines(self, running: subprocess.Popen[str]) -> tuple[str, str]:
        """Return what the program prints first, and the URL that its printed command signs."""
        assert running.stdout is not None
        text = "".join(iter(running.stdout.readline, "Ctrl-C stops the service.\n"))
        words = re.search(r"^    \S+/audioproxy sign.*\n.*$", text, re.MULTILINE)
        assert words is not None
        return text, output_of("sh", "-c", words[0]).strip()

    def test_settings(self) -> None:
        """Settings apply: with AP_LOCAL_ROOT, the URLs are those of an own file, however short.

        A setting that does not apply is said to be ignored.
        """
        root = Path(self.mktemp(), "Ann's")
        (root / "a").mkdir(parents=True)
        (root / "a" / "it's.flac").write_bytes(short_flac().read_bytes())
        environment = {"AP_LOCAL_ROOT": str(root), "AP_ALLOW_ORIGIN": "*", "AP_KEY": "00" * 32}
        running = self.run_service(Path(self.mktemp()), **environment, AWS_REGION="x")
        assert running.stderr is not None
        text, signed = self.first_lines(running)
        urls = re.findall(r"^    (http://\S+/plain/\S+)$", text, re.MULTILINE)
        self.assertEqual(6, len(urls))
        for url in (*urls, signed):
            with urllib.request.urlopen(url) as response:
                self.assertEqual("*", response.headers["access-control-allow-origin"])
                self.assertTrue(response.read())
        running.terminate()
        errors = running.stderr.read().splitlines()
        self.assertRegex(errors[0], "quickstart: AP_KEY: ignored, since this program uses its own,")
        self.assertEqual(
            ["quickstart: AWS_REGION: ignored, since AWS_ACCESS_KEY_ID is not set"], errors[1:]
        )

    def test_printed_urls_play(self) -> None:
        """Every URL that `make run` prints works as printed, and Ctrl-C ends it with status 0.

        The printed signing command works too, and the Python program of the README. AP_LOG_LEVEL
        does not suppress the printed text. Only this machine reaches the service, even if AP_BIND
        is set but empty.
        """
        home = Path(self.mktemp(), ".run")
        running = self.run_service(home, AP_BIND="", AP_LOG_LEVEL="warning")
        assert running.stdout is not None
        with running.stdout:
            text, signed = self.first_lines(running)
            urls = re.findall(r"^    (http://\S+)$", text, re.MULTILINE)
            self.assertEqual(7, len(urls))
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", urlsplit(urls[0]).port or 0))
            self.assertNotIn("[info]", text)
            of_readme = run_readme(home.parent, "/".join(urls[0].split("/")[:3]))
            for url in (signed, *urls, of_readme):
                with urllib.request.urlopen(url) as response:
                    kind, body = response.headers["content-type"], response.read()
                if url.endswith("/metrics"):
                    self.assertIn(
                        b'audio_proxy_renders_total{format="opus",outcome="success"} 2.0', body
                    )
                elif "/info/" in url:
                    self.assertEqual("flac", json.loads(body)["format"])
                elif "f:peaks" in url:
                    self.assertEqual(1600, len(json.loads(body)["data"]))
                    self.assertLess(50, max(json.loads(body)["data"]))
                else:
                    self.assertRegex(kind, r"^audio/")
                    self.assertGreater(len(body), 10_000)
            os.killpg(running.pid, signal.SIGINT)
            running.stdout.read()
        self.assertEqual(0, running.wait())
