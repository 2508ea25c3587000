"""One target under atheris: ``python -m tests.fuzz.guided TARGET CORPUS [libFuzzer options]``.

libFuzzer writes a failing input to a file, and ends the process.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["audioproxy"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    atheris.Setup([sys.argv[0], *arguments], TARGETS[name].check)
    atheris.Fuzz()
