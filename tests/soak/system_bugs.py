"""Bugs in child processes, threads, timers and the log, as `tests.soak.bugs` describes them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy import _twisted
from audioproxy.concurrency import threads
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.shared_result import SharedCalls
from audioproxy.media import diagnostics
from audioproxy.observe.log_writer import LogWriter
from audioproxy.process import child, prober, spawn
from audioproxy.process.child import Child, ChildTimeout
from audioproxy.process.prober import Prober
from audioproxy.process.slots import Slots
from audioproxy.process.spawn import ChildLimits, Launcher
from tests.soak.injection import Bugs, Patch, wrap

BUGS = Bugs()
detected_by = BUGS.detected_by


# process


@detected_by("slots")
def add_slot() -> Patch:
    """One more render runs than there are slots."""

    def create(original: Callable[..., None], self: Slots, clock: Any, n: int, *more: Any) -> None:
        original(self, clock, n + 1, *more)

    return wrap(Slots, "__init__", create)


@detected_by("counters")
def lose_slot() -> Patch:
    """A slot held for long is never released."""

    @asynccontextmanager
    async def hold(self: Slots) -> AsyncIterator[None]:
        await self._acquire()
        since = self._clock.seconds()
        try:
            yield
        finally:
            if self._clock.seconds() - since < 4:
                self._release()

    return Slots, "hold", hold


@detected_by("tests.process.test_child")
def release_slot_early() -> Patch:
    """A slot is released before its child is dead."""

    async def wait(original: Callable[..., Any], self: Child) -> Any:
        def expire() -> None:
            self.stop()
            self._reaped.fire(Failure(ChildTimeout(0.0)))

        expiry = self._clock.callLater(self._timeout, expire)
        try:
            return await original(self)
        finally:
            if expiry.active():
                expiry.cancel()

    return wrap(Child, "wait", wait)


@detected_by("other errors")
def never_kill() -> Patch:
    """No SIGKILL follows SIGTERM."""
    return Child, "kill", lambda self: None


@detected_by("other errors")
def orphan_children() -> Patch:
    """Children outlive the service."""

    def launch(original: Callable[..., Child], *words: Any, **more: Any) -> Child:
        return original(*words, **{**more, "parent_death_signal": False})

    return wrap(Launcher, "launch", launch)


@detected_by("tests.process.test_prober")
def probe_for_each_request() -> Patch:
    """Each request runs a probe of its own."""

    def probe(original: Callable[..., Any], self: Prober, *words: Any) -> Any:
        self._running = SharedCalls()
        return original(self, *words)

    return wrap(Prober, "probe", probe)


@detected_by("tests.media.test_diagnostics")
def log_query_strings() -> Patch:
    """A diagnostic is quoted with its query string."""
    return diagnostics, "_QUERY", re.compile("(?!)")


@detected_by("tests.process.test_prober")
def forget_expensive_probe() -> Patch:
    """An expensive probe is not remembered."""
    return prober, "_TIMEOUT_LIFETIME", 0


@detected_by("tests.process.test_spawn_live")
def lift_limits() -> Patch:
    """Children have no limits."""
    return ChildLimits, "prefix", lambda self, *words: []


@detected_by("tests.process.test_spawn_live")
def share_process_group() -> Patch:
    """Children are in the process group of the service."""
    return spawn, "own_process_group", nullcontext


@detected_by("tests.process.test_spawn_live")
def signal_child_alone() -> Patch:
    """A signal does not reach what a child has started."""
    return child, "_signal_group", lambda pid, name: False


# threads and blocking calls


@detected_by("tests.concurrency.test_blocking_calls")
def wait_for_hanging_disk() -> Patch:
    """Calls to a hanging disk have no timeout."""

    def run(original: Callable[..., Any], self: Any, work: Any, seconds: float, *more: Any) -> Any:
        return original(self, work, 1000 * seconds, *more)

    return wrap(BlockingCalls, "run", run)


@detected_by("tests.concurrency.test_blocking_calls")
def call_hanging_disk() -> Patch:
    """A hanging disk gets more and more calls."""

    def run(original: Callable[..., Any], self: BlockingCalls, *words: Any) -> Any:
        self._overdue = 0
        return original(self, *words)

    return wrap(BlockingCalls, "run", run)


@detected_by("tests.concurrency.test_blocking_calls")
def keep_late_file() -> Patch:
    """A file opened after the timeout stays behind."""
    return wrap(BlockingCalls, "run", lambda original, *words, **_: original(*words[:3]))


@detected_by("tests.concurrency.test_threads")
def leave_thread() -> Patch:
    """A cancelled call does not wait for its thread."""

    async def impatient(running: Deferred[Any]) -> Any:
        return await running

    return threads, "await_uncancelled", impatient


# log and timers


@detected_by("tests.observe.test_log_writer")
def wait_for_reader_of_log() -> Patch:
    """A log line waits for its reader."""
    return LogWriter, "start", lambda self: None


@detected_by("tests.test_clock_live")
def follow_wall_clock() -> Patch:
    """Timers follow the wall clock."""
    return _twisted, "use_monotonic_clock", lambda reactor: None
