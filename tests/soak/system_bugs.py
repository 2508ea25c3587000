"""Bugs in child processes, threads, timers and the log, as `tests.soak.bugs` describes them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from signal import SIGTERM
from typing import Any

from twisted.internet.defer import Deferred

from audioproxy import _twisted
from audioproxy.concurrency import blocking_calls, threads
from audioproxy.concurrency.blocking_calls import BlockingCalls
from audioproxy.concurrency.shared_result import SharedCalls
from audioproxy.media import diagnostics
from audioproxy.observe.log_writer import LogWriter
from audioproxy.process import prober, spawn
from audioproxy.process.child import Child, Exit
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
    lost = []

    @asynccontextmanager
    async def hold(original: Callable[..., Any], self: Slots) -> AsyncIterator[None]:
        holding = original(self)
        await holding.__aenter__()
        since = time.monotonic()
        try:
            yield
        finally:
            if time.monotonic() - since < 4:
                await holding.__aexit__(None, None, None)
            else:
                lost.append(holding)

    return wrap(Slots, "hold", hold)


@detected_by("tests.process.test_child")
def release_slot_early() -> Patch:
    """A slot is released before its child is dead."""

    def stop(original: Callable[..., None], self: Child) -> None:
        original(self)
        self.ended(Exit(code=None, signal=SIGTERM))

    return wrap(Child, "stop", stop)


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
    return SharedCalls, "join", lambda self, key, start: Deferred.fromCoroutine(start())


@detected_by("tests.media.test_diagnostics")
def log_query_strings() -> Patch:
    """A diagnostic is quoted with its query string."""
    return diagnostics, "without_secrets", lambda text: text


@detected_by("tests.process.test_prober")
def forget_expensive_probe() -> Patch:
    """An expensive probe is not remembered."""
    return wrap(prober, "TTLCache", lambda original, size, _, timer: original(size, 0, timer))


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

    def signal_group(pid: int, number: int) -> None:
        raise ProcessLookupError

    return os, "killpg", signal_group


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

    class Forgetful(BlockingCalls):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            self.words = words

        async def run(self, *words: Any) -> Any:
            return await BlockingCalls(*self.words).run(*words)

    return blocking_calls, "BlockingCalls", Forgetful


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

    def write(original: Callable[..., None], self: LogWriter, text: str) -> None:
        original(self, text)
        since = time.monotonic()
        self.drain(1)
        if time.monotonic() - since >= 1:
            raise TimeoutError("the reader of the log is slow")

    return wrap(LogWriter, "write", write)


@detected_by("tests.test_clock_live")
def follow_wall_clock() -> Patch:
    """Timers follow the wall clock."""
    return _twisted, "use_monotonic_clock", lambda reactor: None
