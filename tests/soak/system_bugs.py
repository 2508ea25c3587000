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
from audioproxy.concurrency.slots import Slots
from audioproxy.http_client import errors
from audioproxy.observe.log_writer import LogWriter
from audioproxy.process import prober, starters
from audioproxy.process.cell import CellStarter
from audioproxy.process.child import Child, Exit
from audioproxy.process.child_limits import ChildLimits
from tests.soak.injection import Bugs

BUGS = Bugs()
constant, replace_, wrap = BUGS.constant, BUGS.replace, BUGS.wrap


# process


@wrap(Slots, "__init__", "slots")
def add_slot(
    original: Callable[..., None], self: Slots, clock: Any, n: int, *more: Any, **limits: Any
) -> None:
    """One more render runs than there are slots."""
    original(self, clock, n + 1, *more, **limits)


# A slot of each pool that is never released.
lost: dict[Slots, Any] = {}


@wrap(Slots, "hold", "counters")
@asynccontextmanager
async def lose_slot(original: Callable[..., Any], self: Slots, *claim: Any) -> AsyncIterator[None]:
    """A slot held for long is never released."""
    holding = original(self, *claim)
    await holding.__aenter__()
    since = time.monotonic()
    try:
        yield
    finally:
        # With its other slots, a run goes on.
        if self in lost or time.monotonic() - since < 4:
            await holding.__aexit__(None, None, None)
        else:
            lost[self] = holding


@wrap(Child, "stop", "tests.process.test_child")
def release_slot_early(original: Callable[..., None], self: Child) -> None:
    """A slot is released before its child is dead."""
    original(self)
    self.ended(Exit(code=None, signal=SIGTERM))


@replace_(Child, "kill", "other errors")
def never_kill(self: Any) -> None:
    """No SIGKILL follows SIGTERM."""


@wrap(CellStarter, "command_line", "other errors")
def orphan_children(original: Callable[..., list[str]], *words: Any) -> list[str]:
    """Children outlive the service."""
    return [word for word in original(*words) if word != "-k"]


@replace_(SharedCalls, "join", "tests.process.test_prober")
def probe_for_each_request(self: Any, key: Any, start: Any) -> Any:
    """Each request runs a probe of its own."""
    return Deferred.fromCoroutine(start())


@replace_(errors, "without_secrets", "tests.http_client.test_errors")
def log_query_strings(text: Any) -> Any:
    """An error is quoted with the query string of its URL."""
    return text


@wrap(prober, "TTLCache", "tests.process.test_prober")
def forget_expensive_probe(original: Any, size: Any, _: Any, timer: Any) -> Any:
    """An expensive probe is not remembered."""
    return original(size, 0, timer)


@replace_(ChildLimits, "of_child", "tests.process.test_spawn_live")
def lift_limits(self: Any, *words: Any) -> Any:
    """Children have no limits."""
    return {}


constant(
    "Children are in the process group of the service.",
    starters,
    "own_process_group",
    nullcontext,
    "tests.process.test_spawn_live",
)


@replace_(os, "killpg", "tests.process.test_spawn_live")
def signal_child_alone(pid: int, number: int) -> None:
    """A signal does not reach what a child has started."""
    raise ProcessLookupError


# threads and blocking calls


@wrap(BlockingCalls, "run", "tests.concurrency.test_blocking_calls")
def wait_for_hanging_disk(
    original: Callable[..., Any], self: Any, work: Any, seconds: float, *more: Any
) -> Any:
    """Calls to a hanging disk have no timeout."""
    return original(self, work, 1000 * seconds, *more)


@replace_(blocking_calls, "BlockingCalls", "tests.concurrency.test_blocking_calls")
class Forgetful(BlockingCalls):
    """A hanging disk gets more and more calls."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.words = words

    async def run(self, *words: Any) -> Any:
        return await BlockingCalls(*self.words).run(*words)


@wrap(BlockingCalls, "run", "tests.concurrency.test_blocking_calls")
def keep_late_file(original: Any, *words: Any, **_: Any) -> Any:
    """A file opened after the timeout stays behind."""
    return original(*words[:3])


@replace_(threads, "await_uncancelled", "tests.concurrency.test_threads")
async def leave_thread(running: Deferred[Any]) -> Any:
    """A cancelled call does not wait for its thread."""
    return await running


# log and timers


@wrap(LogWriter, "write", "tests.observe.test_log_writer")
def wait_for_reader_of_log(original: Callable[..., None], self: LogWriter, text: str) -> None:
    """A log line waits for its reader."""
    original(self, text)
    since = time.monotonic()
    self.drain(1)
    if time.monotonic() - since >= 1:
        raise TimeoutError("the reader of the log is slow")


@replace_(_twisted, "use_monotonic_clock", "tests.test_clock_live")
def follow_wall_clock(reactor: Any) -> None:
    """Timers follow the wall clock."""
