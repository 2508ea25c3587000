"""``python -m tests.fuzz``: fuzz all targets for a bounded time, and print failing inputs.

The exit status is 1 if an input breaks a promise or an engine fails, and 0 otherwise.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

from twisted.logger import globalLogBeginner

from tests.fuzz.engines import ENGINES, breaks, has_atheris, run_atheris, run_hypothesis
from tests.fuzz.targets import TARGETS

_BUILD = Path("build")


def main() -> int:
    """Fuzz the chosen targets, print the results, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds for all targets together"
    )
    parser.add_argument("--engine", choices=ENGINES, help="engine to use; both by default")
    parser.add_argument("--seed", type=int, help="seed of both engines; default random")
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="target to fuzz; all by default"
    )
    given = parser.parse_args()
    # The targets examine what the service logs; do not print it.
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    engines = [given.engine] if given.engine else list(ENGINES)
    if "atheris" in engines and not has_atheris():
        print("atheris is not installed; coverage-guided fuzzing is skipped")
        engines.remove("atheris")
    names = given.target or list(TARGETS)
    first_seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    print(f"seed {first_seed}")
    broken = [
        _run(engine, name, given.seconds / len(engines) / len(names), first_seed)
        for engine in engines
        for name in names
    ]
    return int(any(broken))


def _run(engine: str, name: str, seconds: float, first_seed: int) -> bool:
    """Run one target with one engine; return whether it failed."""
    since = time.monotonic()
    if engine == "hypothesis":
        result = run_hypothesis(TARGETS[name], seconds, first_seed, _BUILD)
    else:
        result = run_atheris(name, round(seconds), first_seed, _BUILD)
    took = time.monotonic() - since
    unit = "examples" if engine == "hypothesis" else "executions"
    print(f"{name:12} {engine:10} {result.runs:>9} {unit} in {took:.0f} s", flush=True)
    if result.trouble:
        print(result.trouble)
    if result.broken is not None:
        # A seed to paste into tests/fuzz/corpus.py.
        print(f"{breaks(TARGETS[name].check, result.broken)}\n    {result.broken!r},")
    return bool(result.trouble) or result.broken is not None


if __name__ == "__main__":
    sys.exit(main())
