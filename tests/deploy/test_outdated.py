"""`make outdated`: pinned versions that are older than a year."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.programs import write_script
from tests.support.runs import output_of
from tests.support.service import PROJECT

TODAY = datetime.now(UTC).date().isoformat()

#: Files with pins, and stand-ins for pip and npm. pip fails if a package has no version that old.
FILES = {
    "deploy/compose/compose.yaml": (
        "    image: audioproxy:0.1.0\n    image: haproxy:2.0  # 2020-06-16\n"
        f"    image: grafana/grafana:99  # {TODAY}\n    image: prom/prometheus:v2\n"
    ),
    "deploy/container/Containerfile": "# It is of\n# 2021-02-03.\nARG FFMPEG_VERSION=7:4.3\n",
    "deploy/container/constraints.txt": "# Tested.\nnew==2.0\nold==1.0\n",
    "tests/browser/package.json": '{"dependencies": {"konva": "9.0.0", "peaks.js": "4.0.0"}}',
    "bin/pip": """#!/bin/sh
        [ $# = 4 ] || { echo "$3 (3.0)"; exit; }
        [ "$3 $4" = "--uploaded-prior-to=P365D old" ] && printf "\\nAvailable versions: 1.0, 0.9\\n"
    """,
    "bin/npm": f"""#!/bin/sh
        echo '{{"version": "10.0.0", "time": {{"9.0.0": "2021-04-05T01:02:03Z",'
        echo '"4.0.0": "{TODAY}T01:02:03Z"}}}}'
    """,
}


class OutdatedTests(SynchronousTestCase):
    """The program `tools/outdated.py`"""

    def test_list(self) -> None:
        """Pins that are older than a year are listed, and images without a date."""
        folder = Path(self.mktemp()).resolve()
        for name, text in FILES.items():
            write_script(folder / name, text)
        environ = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        program = PROJECT / "tools/outdated.py"
        output = output_of(sys.executable, program, folder, environment=environ)
        expected = "haproxy:2.0 of 2020-06-16", "prom/prometheus:v2 has no date"
        expected = *expected, "ffmpeg 7:4.3 of 2021-02-03", "old 1.0, and the newest is 3.0"
        self.assertEqual([*expected, "konva 9.0.0, and the newest is 10.0.0"], output.splitlines())
