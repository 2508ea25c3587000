"""An operator, who prunes, purges and verifies the stores while clients read from them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from itertools import count
from random import Random

from tests.soak.bucket import BucketNode
from tests.soak.lines import PATIENCE, wait_for
from tests.soak.rig import BOUND, Rig
from tests.soak.sounds import SPEECH, TONE
from tests.support.service import Process, start_process

_COMMANDS = (
    ("prune", "--max-bytes", "20M"),
    ("prune", "--unused-for", "2s"),
    ("purge", f"local://{TONE}"),
    ("purge", "--options", "f:mp3", f"local://{SPEECH}"),
    ("purge", "--prefix", "s3://"),
    ("purge", "--stale"),
    ("verify", "--delete"),
    ("stat",),
)
# Seconds between two commands, and after which one is killed.
_PAUSE, _KILLED_AFTER = (1, 4), (0.3, 2)


class Operator:
    """Runs commands on the folder of nodes A and B and on the bucket of node C, in turn."""

    def __init__(self, rig: Rig, bucket: BucketNode) -> None:
        self._rig = rig
        self._bucket = bucket

    async def work(self, over: list[bool], chance: Random) -> None:
        """Run commands until the run is over, and kill some of them at any moment."""
        for number in count():
            await wait_for(lambda: over, chance.uniform(*_PAUSE))
            if over:
                return
            words = chance.choice(_COMMANDS)
            in_bucket = number % 2 == 0
            if in_bucket and "--unused-for" in words:
                continue
            environment = self._bucket.environment if in_bucket else self._rig.environment
            is_killed = chance.random() < 0.3
            await self._run(words, environment, chance.uniform(*_KILLED_AFTER) * is_killed)

    async def check(self) -> list[str]:
        """Check that the usage is stated right after a last count, and never too low before."""
        store, usage = self._rig.store, self._rig.store / ".usage"
        wrong = []

        def difference() -> int:
            files = store.glob("[0-9a-f][0-9a-f]/*")
            return int(usage.read_text().split()[0]) - sum(path.stat().st_size for path in files)

        if difference() < 0:
            wrong.append(f"the usage of the store is {-difference()} bytes too low")
        await self._run(("prune", "--max-bytes", str(BOUND)), self._rig.environment, 0)
        if difference() != 0:
            wrong.append(f"the usage is wrong by {difference()} bytes after a count")
        return wrong

    async def _run(
        self, words: tuple[str, ...], environment: Mapping[str, str], killed_after: float
    ) -> None:
        """Run one command; with ``killed_after``, kill it after these seconds."""
        journal = self._rig.journal
        journal.disturbed += 1
        process = Process()
        command = (sys.executable, "-m", "audioproxy.cli.main", "store", *words)
        start_process(process, command, environment)
        if killed_after and not await wait_for(lambda: process.code is not None, killed_after):
            process.signal(signal.SIGKILL)
        await wait_for(lambda: process.code is not None, PATIENCE)
        journal.disturbed += 1
        # A command fails if the store is away, also at its start, or if it finds a damaged variant.
        is_away = process.code == 2 and "is not a directory" in process.stderr
        if process.code not in (0, 1) and not is_away and not killed_after:
            code, text = process.code, process.stderr[-500:]
            journal.errors.append(f"store {words} ended with {code}: {text}")
