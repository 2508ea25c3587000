"""`make run`, as a newcomer sees it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"

# Seconds for everything: samples, start, four renders, stop.
PATIENCE = 60


class QuickstartTests(SynchronousTestCase):
    """The first minute."""

    def test_printed_urls_play(self) -> None:
        """Every URL that the quick start prints is audio as it stands; Ctrl-C ends it with 0."""
        environment = {**os.environ, "AP_PORT": "0"}
        running = subprocess.Popen(
            [sys.executable, QUICKSTART, self.mktemp()],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            # A group of its own, so that the signal below is a terminal's Ctrl-C.
            start_new_session=True,
        )
        watchdog = threading.Timer(PATIENCE, os.killpg, (running.pid, signal.SIGKILL))
        watchdog.start()
        self.addCleanup(watchdog.cancel)
        assert running.stdout is not None
        with running.stdout:
            urls = []
            for line in running.stdout:
                urls += re.findall(r"http://\S+", line)
                if "Ctrl-C" in line:
                    break
            self.assertEqual(4, len(urls))
            for url in urls:
                with urllib.request.urlopen(url) as response:
                    self.assertRegex(response.headers["content-type"], r"^audio/")
                    self.assertGreater(len(response.read()), 10_000)
            os.killpg(running.pid, signal.SIGINT)
            running.stdout.read()
        self.assertEqual(0, running.wait())
