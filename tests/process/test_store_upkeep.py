"""The upkeep of a bounded store: when prunes begin, and how their failures are handled."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.process.spawn import Launcher
from audioproxy.process.store_upkeep import StoreUpkeep
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import NoRoom
from audioproxy.variants.prune import BUSY
from tests.support.http import Log
from tests.support.processes import FakeChild, FakeSpawner

BOUND = 1000
NOW = 1_800_000_000
KEY = "ab" * 32


class UpkeepCase(SynchronousTestCase):
    """An upkeep whose store has a size that a test sets, and whose first prune has begun."""

    def setUp(self) -> None:
        self.log = Log(self)
        self.root = Path(self.mktemp()).absolute()
        (self.root / KEY[:2]).mkdir(parents=True)
        self.clock, self.spawner = Clock(), FakeSpawner()
        self.evicted: list[int] = []
        calls = BlockingCalls(self.clock, execute)
        self.store = FileVariantStore(str(self.root), calls, calls, max_bytes=BOUND)
        self.upkeep = StoreUpkeep(
            self.store,
            BOUND,
            Launcher(self.spawner, self.clock, {}),
            execute,
            lambda: NOW + self.clock.seconds(),
            self.evicted.append,
        )
        self.set_size(500)
        self.upkeep.start()
        self.addCleanup(self.stop)

    def stop(self) -> None:
        """Stop the upkeep."""
        stopping = Deferred.fromCoroutine(self.upkeep.stop())
        self.spawner.kill_all()
        self.successResultOf(stopping)

    def set_size(self, size: int) -> None:
        """Change the ledger, as another node does."""
        (self.root / ".usage").write_bytes(b"%d 0\n" % size)
        self.store.usage.ensure()

    def commit(self, size: int, refused: int | None = None) -> None:
        """Report a commit after which the store has a size, or a refused variant."""
        self.set_size(size)
        self.store.on_commit(None if refused is None else NoRoom(refused, size, BOUND))

    def running(self) -> FakeChild | None:
        """Return the prune that runs, if there is one."""
        (child,) = self.spawner.alive or (None,)
        return child

    def target(self) -> int | None:
        """Return the bytes that the running prune leaves."""
        child = self.running()
        return None if child is None else int(child.arguments[-1])

    def end(self, size: int, removed: int = 0, stderr: bytes = b"") -> None:
        """End the running prune."""
        child = self.spawner.last
        self.set_size(size)
        summary = {"removed": {"variants": removed, "bytes": 7}, "remaining": {"bytes": size}}
        child.exit_and_end(stdout=json.dumps(summary).encode(), stderr=stderr)


class PruneTests(UpkeepCase):
    """When a prune begins, and what it leaves"""

    def test_command(self) -> None:
        """The first prune counts the variants; it runs this program, and no other one."""
        child = self.spawner.last
        program = [sys.executable, "-P", "-m", "audioproxy.variants.prune"]
        self.assertEqual([*program, str(self.root), "900"], child.arguments)
        self.end(500)
        self.assertEqual((None, [0]), (self.running(), self.evicted))

    def test_marks(self) -> None:
        """Past 95 % of the bound, one prune at a time makes the store 90 % full."""
        self.end(900)
        for size, target in ((950, None), (951, 900), (1000, 900)):
            self.commit(size)
            self.assertEqual(target, self.target(), size)
        self.end(900, removed=3)
        self.assertEqual((None, [0, 3]), (self.running(), self.evicted))
        self.commit(960)
        self.end(955, removed=9)
        self.assertEqual(900, self.target())

    def test_lost_ledger(self) -> None:
        """A prune that begins without a ledger counts for a new one."""
        self.end(900)
        (self.root / ".usage").unlink()
        self.store.on_commit(NoRoom(200, None, BOUND))
        self.assertEqual((800, True), (self.target(), (self.root / ".usage").exists()))

    def test_refused_variant(self) -> None:
        """A prune makes room for the largest variant that was refused, up to half of the bound."""
        self.end(900)
        for refused in (BOUND + 1, 501):
            self.commit(900, refused=refused)
            self.assertIsNone(self.running())
        self.commit(900, refused=150)
        self.assertEqual(850, self.target())
        self.commit(900, refused=30)
        self.end(850)
        self.assertIsNone(self.running())
        self.commit(850, refused=400)
        child = self.spawner.last
        child.exit_and_end(1)
        self.clock.advance(60)
        self.assertEqual(600, self.target())

    def test_refused_during_a_prune(self) -> None:
        """A refusal is forgotten once there is room: it makes no later prune remove more."""
        self.commit(500, refused=500)
        self.end(200, removed=9)
        self.commit(800)
        self.assertIsNone(self.running())

    def test_other_nodes(self) -> None:
        """What other nodes store is noticed within a minute."""
        self.end(900)
        self.set_size(951)
        self.clock.advance(60)
        self.assertEqual(900, self.target())

    def test_failure(self) -> None:
        """After a failure, or a prune that removes nothing, the next one begins a minute later."""
        self.spawner.last.exit_and_end(1, stderr=b"no such disk")
        self.assertEqual(1, len(self.log.warnings))
        for end in (lambda: self.end(980), lambda: self.spawner.last.exit_and_end(signal=9)):
            self.commit(960)
            self.clock.advance(59)
            self.assertIsNone(self.running())
            self.clock.advance(1)
            self.assertEqual(900, self.target())
            end()
        self.spawner.refusal = OSError(2, "No such file")
        self.clock.advance(60)
        self.spawner.refusal = None
        self.clock.advance(60)
        self.end(900)
        self.assertIsNone(self.running())

    def test_warning_of_a_prune(self) -> None:
        """What a prune warns of is logged; the store is pruned, and is not listed again."""
        self.end(500, stderr=b"audioproxy: the store: no sync\n")
        expected = ["the store is pruned with a warning: audioproxy: the store: no sync"]
        self.assertEqual(expected, self.log.warnings)
        self.clock.advance(120)
        self.assertIsNone(self.running())

    def test_other_prune(self) -> None:
        """A prune of another node is no failure; the next one here begins a minute later."""
        self.spawner.last.exit_and_end(BUSY)
        self.assertEqual(0, len(self.log.warnings))
        self.clock.advance(60)
        self.assertEqual(900, self.target())

    def test_stop(self) -> None:
        """A stop ends the prune, and starts no more."""
        child = self.spawner.last
        stopping = Deferred.fromCoroutine(self.upkeep.stop())
        self.assertEqual(["TERM"], child.signals)
        child.exit_and_end(signal=15)
        self.successResultOf(stopping)
        self.commit(1000)
        self.clock.advance(120)
        self.assertEqual((None, []), (self.running(), self.clock.getDelayedCalls()))

    def test_warnings(self) -> None:
        """Refused variants are logged at most once a minute."""
        for _ in range(3):
            self.commit(500, refused=BOUND + 1)
        self.assertEqual(1, len(self.log.warnings))
        self.clock.advance(60)
        self.commit(500, refused=600)
        self.assertEqual(2, len(self.log.warnings))
