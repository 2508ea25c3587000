"""Upkeep of a folder store with a bound: prunes in child processes, and times of use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import LoopingCall, deferLater

import audioproxy
from audioproxy.concurrency.threads import ThreadRunner
from audioproxy.media.diagnostics import one_line
from audioproxy.observe.log_context import Logger
from audioproxy.process.child import ChildTimeout, describe_exit
from audioproxy.process.spawn import Launcher, SpawnFailed
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import NoRoom
from audioproxy.variants.prune import BUSY, prune_command, read_summary

# Percent of the bound. A prune begins when the store has more than the first, and removes variants
# until it has no more than the second.
_HIGH, _LOW = 95, 90

# Percent of the bound up to which the store makes room for one variant. A larger one would replace
# most of the others.
_LARGEST = 50

# Seconds between two updates of the times of use, between two prunes if the first one was of no
# use, and between two warnings that renders are not stored.
_INTERVAL = 60.0

# Seconds for a prune. A network file system may take some milliseconds for each variant.
_PRUNE_TIMEOUT = 86_400.0
_SUMMARY_LIMIT = 64 * 1024

_log = Logger()


class StoreUpkeep:
    """Keeps the store of one node within its bound.

    The node itself counts and removes nothing. A child of low priority does both, and frees its
    memory when it ends. The first one, at the start, is needed to count the variants.
    """

    def __init__(
        self,
        store: FileVariantStore,
        max_bytes: int,
        launcher: Launcher,
        run_in_thread: ThreadRunner,
        now: Callable[[], float],
        evicted: Callable[[int], object],
    ) -> None:
        """Create an upkeep that is not started; ``now`` returns Unix seconds.

        :param evicted: called with the number of variants that a prune has removed.
        """
        self._store = store
        self._max_bytes = max_bytes
        # The limits are for ffmpeg. A prune is a part of this program, and reads no source.
        self._launcher = replace(
            launcher, environment={**launcher.environment, **_module_path()}, limits=None
        )
        self._clock = launcher.clock
        self._run_in_thread = run_in_thread
        self._now = now
        self._evicted = evicted
        self._updates = LoopingCall(lambda: Deferred.fromCoroutine(self._update()))
        self._updates.clock = self._clock
        self._pruning: Deferred[None] | None = None
        self._counted = False
        # Bytes of the largest variant that was refused since the last prune.
        self._refused = 0
        self._silent_until = self._clock.seconds()

    def start(self) -> None:
        self._store.on_commit = self._committed
        updating = self._updates.start(_INTERVAL, now=False)
        updating.addErrback(lambda failure: _log.failure("the updates have crashed", failure))
        self._check()

    async def stop(self) -> None:
        """End a running prune, and start no more."""
        if self._updates.running:
            self._updates.stop()
        if self._pruning is not None:
            self._pruning.cancel()
            await self._pruning

    def _committed(self, refusal: NoRoom | None) -> None:
        if refusal is not None:
            if refusal.needed <= self._max_bytes * _LARGEST // 100:
                self._refused = max(self._refused, refusal.needed)
            if self._clock.seconds() >= self._silent_until:
                self._silent_until = self._clock.seconds() + _INTERVAL
                _log.warn("a render is not stored: {refusal}", refusal=refusal)
        self._check()

    async def _update(self) -> None:
        """Set the times of use, and find out what other nodes have stored."""
        await self._run_on_disk(lambda: self._store.record_uses(self._now()))
        await self._run_on_disk(self._store.usage.ensure)
        self._check()

    async def _run_on_disk(self, work: Callable[[], object]) -> None:
        try:
            await self._run_in_thread(work)
        except OSError as error:
            _log.warn("the usage of the store is unknown: {error}", error=error)

    @property
    def _target(self) -> int | None:
        """The bytes to prune down to; None if no prune is needed."""
        size, most = self._store.usage.size, self._max_bytes
        is_full = size is None or size > most * _HIGH // 100 or size + self._refused > most
        if is_full or not self._counted:
            return min(most * _LOW // 100, most - self._refused)
        return None

    def _check(self) -> None:
        is_idle = self._pruning is None or self._pruning.called
        if self._updates.running and is_idle and self._target is not None:
            # An empty context: the log lines do not belong to the request whose variant was stored.
            self._pruning = Context().run(Deferred.fromCoroutine, self._prune_while_needed())

    async def _prune_while_needed(self) -> None:
        try:
            while (target := self._target) is not None:
                refused, self._refused = self._refused, 0
                removed = await self._prune(target)
                if removed is None:
                    self._refused = max(self._refused, refused)
                if not removed and self._target is not None:
                    await deferLater(self._clock, _INTERVAL)
            # What was refused while the last prune ran has room now.
            self._refused = 0
        except CancelledError:
            return
        except Exception:
            _log.failure("the prune of the store crashed")

    async def _prune(self, target: int) -> int | None:
        """Return the number of variants that a child has removed; None where it has failed."""
        command = prune_command(self._store.root, target)
        # A node without a bound may have removed the ledger, and then the child counts for none.
        await self._run_on_disk(self._store.usage.ensure)
        try:
            child = self._launcher.launch(command, {}, _PRUNE_TIMEOUT, stdout_limit=_SUMMARY_LIMIT)
            ended = await child.wait()
        except SpawnFailed as error:
            _log.warn("the store is not pruned: {error}", error=error)
            return None
        except ChildTimeout:
            _log.warn("the store is not pruned: that takes more than a day")
            return None
        await self._run_on_disk(self._store.usage.ensure)
        if ended.code == BUSY:
            _log.debug("another process prunes the store")
            return None
        # A prune that fails may have removed some variants.
        removed, remaining = read_summary(ended.stdout)
        self._evicted(removed)
        if not ended.ok:
            how = f"{describe_exit(ended)}: {one_line(ended.stderr)}"
            _log.warn("the store is not pruned: {how}", how=how)
            return None
        if ended.stderr:
            _log.warn("the store is pruned with a warning: {how}", how=one_line(ended.stderr))
        _log.info(
            "the store is pruned: {removed} variants removed, {bytes} bytes remain",
            removed=removed,
            bytes=remaining,
        )
        self._counted = True
        return removed


def _module_path() -> dict[str, str]:
    """Return the variable that says where modules are.

    Only PYTHONPATH or a wrapper of this process may lead there. An empty entry would be the working
    directory.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(audioproxy.__file__)))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (package, *sys.path)))}
