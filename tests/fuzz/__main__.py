"""``python -m tests.fuzz``: fuzz all targets for a bounded time, and print failing inputs.

It begins with the inputs that failed in earlier runs. The exit status is 1 if an input breaks a
promise, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
from twisted.logger import globalLogBeginner

from tests.fuzz.targets import SETTINGS, TARGETS

# Examples in one run of Hypothesis. A run has to be short, because the deadline is checked only
# between runs.
BATCH = settings(
    SETTINGS,
    max_examples=300,
    derandomize=False,
    database=DirectoryBasedExampleDatabase("build/hypothesis"),
)


def main() -> int:
    """Fuzz the chosen targets, print the results, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds for all targets together"
    )
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="target to fuzz; all by default"
    )
    given = parser.parse_args()
    # The targets examine what the service logs; do not print it.
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    names = given.target or list(TARGETS)
    broken = 0
    for name in names:
        until, batches = time.monotonic() + given.seconds / len(names), 0
        try:
            while time.monotonic() < until:
                TARGETS[name].fuzz(BATCH)
                batches += 1
        except Exception:
            traceback.print_exc()
            broken += 1
        print(f"{name:12} {batches:>6} batches of {BATCH.max_examples} examples", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
