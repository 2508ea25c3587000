"""`make outdated`: pinned versions that are older than a year."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.service import PATIENCE, PROJECT

TODAY = datetime.now(UTC).date().isoformat()

#: Files with pins, by path.
FILES = {
    "deploy/compose/compose.yaml": (
        "    image: audioproxy:0.1.0\n"
        "    image: haproxy:2.0  # 2020-06-16\n"
        f"    image: grafana/grafana:99  # {TODAY}\n"
        "    image: prom/prometheus:v2\n"
    ),
    "deploy/container/Containerfile": "# It is of\n# 2021-02-03.\nARG FFMPEG_VERSION=7:4.3\n",
    "deploy/container/constraints.txt": "# Tested.\nnew==2.0\nold==1.0\nlast==5\n",
    "tests/browser/package.json": '{"dependencies": {"konva": "9.0.0", "peaks.js": "4.0.0"}}',
}

#: Programs in place of those that ask a registry. pip fails if a package has no version that old.
PROGRAMS = {
    "pip": """
        case "$*" in
            "index versions new") echo "new (2.0)" ;;
            "index versions old") echo "old (3.0)" ;;
            "index versions last") echo "last (5)" ;;
            "index versions --uploaded-prior-to=P365D old")
                printf "old (1.0)\\nAvailable versions: 1.0, 0.9\\n" ;;
            "index versions --uploaded-prior-to=P365D last")
                printf "last (5)\\nAvailable versions: 5, 4\\n" ;;
            *) exit 1 ;;
        esac
    """,
    "npm": f"""
        case "$*" in
            "view konva version time --json")
                echo '{{"version": "10.0.0", "time": {{"9.0.0": "2021-04-05T01:02:03Z"}}}}' ;;
            "view peaks.js version time --json")
                echo '{{"version": "4.0.0", "time": {{"4.0.0": "{TODAY}T01:02:03Z"}}}}' ;;
            *) exit 1 ;;
        esac
    """,
}

EXPECTED = """\
haproxy:2.0 of 2020-06-16
prom/prometheus:v2 has no date
ffmpeg 7:4.3 of 2021-02-03
old 1.0, and the newest is 3.0
last 5, and the newest is 5
konva 9.0.0, and the newest is 10.0.0
"""


class OutdatedTests(SynchronousTestCase):
    """The program `tools/outdated.py`, and the dates that it reads."""

    def test_list(self) -> None:
        """Pins that are older than a year are listed, and images without a date."""
        folder = Path(self.mktemp()).resolve()
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        for name, program in PROGRAMS.items():
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{program}")
            path.chmod(0o755)
        ended = subprocess.run(
            [sys.executable, PROJECT / "tools/outdated.py", folder],
            env={"PATH": f"{folder}/bin:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        self.assertEqual(EXPECTED, ended.stdout)

    def test_dates(self) -> None:
        """Every image that is not built here, and ffmpeg, has its date beside its version."""
        compose = (PROJECT / "deploy/compose/compose.yaml").read_text()
        images = re.findall(r"image: (\S+)(.*)", compose)
        foreign = {name: rest for name, rest in images if not name.startswith("audioproxy:")}
        self.assertEqual(4, len(foreign))
        for name, rest in foreign.items():
            self.assertRegex(rest, r"^  # 20\d\d-\d\d-\d\d$", name)
        containerfile = (PROJECT / "deploy/container/Containerfile").read_text()
        self.assertRegex(containerfile, r"# 20\d\d-\d\d-\d\d\.\nARG FFMPEG_VERSION=")
