"""Bugs that the tests have to detect.

Each bug replaces a named function or setting of the service, which breaks a promise. Its docstring
says what is then wrong. `inject` puts it into this process.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.python.monkey import MonkeyPatcher

from audioproxy import threads
from audioproxy.blocking_calls import BlockingCalls
from audioproxy.errors import UpstreamUnavailable
from audioproxy.media import diagnostics
from audioproxy.metrics import Metrics
from audioproxy.process.child import Child, ChildTimeout
from audioproxy.process.prober import Prober
from audioproxy.process.slots import Slots
from audioproxy.process.spawn import Launcher
from audioproxy.render.deadline import Deadline
from audioproxy.render.output import RenderOutput
from audioproxy.render.preparation import Preparation
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.render import Render, State
from audioproxy.render.write_back import WriteBack
from audioproxy.server import channel, connections, fast_path, listener, request
from audioproxy.server.connections import Connections, Phase
from audioproxy.server.fast_path import FastPath
from audioproxy.sources.https import OpenHttpsSource
from audioproxy.sources.https_states import RangedSource
from audioproxy.sources.origin import OriginClient
from audioproxy.streams import FileProducer
from audioproxy.variants import files, s3, stored_file
from audioproxy.variants.s3 import S3VariantStore, StoredObject
from audioproxy.variants.scratch_folder import ScratchFolder
from audioproxy.web import exchange, response_plan
from audioproxy.web.exchange import Exchange

#: What `MonkeyPatcher` takes: a module or class, the name of its attribute, and the new value.
Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Bug:
    """One bug.

    :ivar patch: returns the change that makes the bug.
    :ivar detected_by: names of checks of a soak run. At least one of them has to fail. If a short
        run cannot provoke the bug, this is the test module that has to fail.
    """

    name: str
    patch: Callable[[], Patch]
    detected_by: tuple[str, ...]


BUGS: list[Bug] = []


def inject(name: str) -> None:
    """Put the bug with this name into this process.

    :raises AttributeError: if the service has nothing of the name that the bug replaces.
    """
    (bug,) = (bug for bug in BUGS if bug.name == name)
    MonkeyPatcher(bug.patch()).patch()


def detected_by(*checks: str) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Add a function to the bugs; its docstring is the name of the bug."""

    def add(function: Callable[[], Patch]) -> Callable[[], Patch]:
        name = (function.__doc__ or "").removesuffix(".")
        BUGS.append(Bug(name[0].lower() + name[1:], function, checks))
        return function

    return add


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> Patch:
    """Return a patch that passes the original function to ``wrapper`` as its first argument."""
    original = getattr(owner, name)
    return owner, name, lambda *words, **more: wrapper(original, *words, **more)


# web


@detected_by("responses")
def end_failed_stream() -> Patch:
    """A failed stream ends as if it were complete."""
    return exchange, "abort", lambda connection: connection.requests[0].finish()


@detected_by("log")
def skip_log_of_disconnect() -> Patch:
    """A request is logged only if its client stays."""

    def close(original: Callable[..., None], self: Exchange, outcome: object) -> None:
        if isinstance(outcome, Failure):
            self._instrumentation = replace(self._instrumentation, access_log=lambda entry: None)
        original(self, outcome)

    return wrap(Exchange, "_close", close)


@detected_by("responses")
def shorten_range() -> Patch:
    """A range ends one byte early."""

    def read(original: Callable[..., Any], header: bytes | None, size: int) -> Any:
        found = original(header, size)
        return found and (found[0], max(found[0] + 1, found[1] - 1))

    return wrap(response_plan, "read_range", read)


# metrics


@detected_by("counters")
def count_requests_twice() -> Patch:
    """Requests are counted twice."""

    def ended(original: Callable[..., None], *words: Any) -> None:
        original(*words)
        original(*words)

    return wrap(Metrics, "request_ended", ended)


@detected_by("warm-up")
def count_renders_twice() -> Patch:
    """Renders are counted twice."""
    original = Metrics.render

    @contextmanager
    def render(*words: Any) -> Iterator[None]:
        with original(*words), original(*words):
            yield

    return Metrics, "render", render


@detected_by("warm-up")
def count_joined_as_miss() -> Patch:
    """A joined request is counted as a miss."""
    return Metrics, "coalesced", Metrics.miss


# render


@detected_by("responses", "store")
def store_failed_render() -> Patch:
    """A failed render is stored."""

    async def run(original: Callable[..., Awaitable[bool]], self: Render) -> bool:
        stored = await original(self)
        if self.state is State.FAILED and self._output is not None:
            await self._write_back.commit(self._request, self._output)
        return stored

    return wrap(Render, "_run", run)


@detected_by("warm-up")
def keep_place_in_queue() -> Patch:
    """A client that leaves the queue keeps its place."""
    continues: Any = Render._continues
    waits = property(lambda self: self.state is State.QUEUED or continues.fget(self))
    return Render, "_continues", waits


@detected_by("responses")
def end_render_with_first_client() -> Patch:
    """A client that leaves ends the render for all clients."""

    def unsubscribe(original: Callable[..., None], self: Render) -> None:
        original(self)
        self.cancel()

    return wrap(Render, "unsubscribe", unsubscribe)


@detected_by("other errors")
def drop_deadline() -> Patch:
    """A render has no deadline."""
    return wrap(Deadline, "left", lambda original, self: original(self) + 1000)


@detected_by("tests.render.test_render")
def wait_for_child_at_deadline() -> Patch:
    """Clients wait for a child that does not die."""

    def create(original: Callable[..., None], self: Deadline, *words: Any) -> None:
        original(self, *words[:2])

    return wrap(Deadline, "__init__", create)


@detected_by("responses")
def ignore_changed_source() -> Patch:
    """A changed source is not noticed."""

    async def check_unchanged(self: Preparation) -> None:
        pass

    return Preparation, "check_unchanged", check_unchanged


@detected_by("leaks")
def leak_source() -> Patch:
    """The source stays open."""
    return Preparation, "close", lambda self: None


@detected_by("leaks")
def leak_output() -> Patch:
    """The output stays open."""
    return Render, "close", lambda self: None


@detected_by("responses")
def skip_beginning_for_late_client() -> Patch:
    """A client that joins late misses the beginning."""

    def send(original: Callable[..., Any], self: FileProducer, consumer: Any) -> Any:
        if self._growing is not None and self._growing.size > 300_000:
            self.sent = self._growing.size
        return original(self, consumer)

    return wrap(FileProducer, "send", send)


@detected_by("warm-up")
def render_for_each_request() -> Patch:
    """No request can join a render."""
    return RenderRegistry, "find", lambda self, key: None


@detected_by("responses")
def drain_at_once() -> Patch:
    """A shutdown does not wait for renders."""
    return wrap(RenderRegistry, "drain", lambda original, self, seconds: original(self, 0))


@detected_by("responses")
def fail_without_store() -> Patch:
    """Renders fail if the store accepts no file."""

    async def create(self: WriteBack, seconds: float) -> Any:
        return None if self._store is None else await self._store.create(seconds)

    return WriteBack, "create_in_store", create


@detected_by("tests.render.test_render")
def drop_output_limit() -> Patch:
    """The size of an output is not limited."""

    def create(original: Callable[..., None], self: RenderOutput, scratch: Any, _: int) -> None:
        original(self, scratch, 1 << 60)

    return wrap(RenderOutput, "__init__", create)


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


@detected_by("other errors")
def release_slot_early() -> Patch:
    """A slot is released before its child is dead."""

    async def wait(original: Callable[..., Any], self: Child, timeout: float) -> Any:
        def expire() -> None:
            self.stop()
            self._reaped.fire(Failure(ChildTimeout()))

        expiry = self._clock.callLater(timeout, expire)
        try:
            return await original(self, timeout + 1)
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
        self._running.clear()
        return original(self, *words)

    return wrap(Prober, "probe", probe)


@detected_by("tests.media.test_diagnostics")
def log_query_strings() -> Patch:
    """A diagnostic is quoted with its query string."""
    return diagnostics, "_QUERY", re.compile("(?!)")


# variants in a folder


@detected_by("responses")
def drop_checksum() -> Patch:
    """A damaged record is read."""
    return stored_file, "zlib", SimpleNamespace(crc32=lambda data: 0)


@detected_by("responses")
def accept_truncated_variant() -> Patch:
    """A truncated variant is read."""

    def parse(original: Callable[..., Any], tail: bytes, length: int) -> Any:
        footer = stored_file._FOOTER.size
        if len(tail) < footer:
            return None
        record_length = stored_file._FOOTER.unpack(tail[-footer:])[0]
        found = stored_file._read_record(tail[-footer - record_length : -footer])
        return found and original(tail, found[0] + record_length + footer)

    return wrap(stored_file, "_parse_trailer", parse)


@detected_by("end")
def keep_abandoned_scratch() -> Patch:
    """Scratch files of a dead node are never removed."""
    return ScratchFolder, "_remove_abandoned", lambda self: None


@detected_by("other errors")
def give_up_store() -> Patch:
    """A store that was away is not used again."""
    original = ScratchFolder.open

    def open_once(self: ScratchFolder) -> None:
        if self._is_open:
            raise FileNotFoundError("the store was away")
        original(self)

    return ScratchFolder, "open", open_once


@detected_by("tests.variants.test_files")
def fill_disk() -> Patch:
    """A full disk is not noticed."""
    return files, "_RESERVE", 0


# variants in a bucket


@detected_by("responses")
def take_outage_for_miss() -> Patch:
    """An outage of the bucket looks like a missing variant."""

    async def lookup(original: Callable[..., Any], self: S3VariantStore, key: str) -> Any:
        with suppress(UpstreamUnavailable):
            return await original(self, key)

    return wrap(S3VariantStore, "lookup", lookup)


@detected_by("responses")
def read_range_from_start() -> Patch:
    """A range of a stored object begins at its first byte."""

    def open_range(original: Callable[..., Any], self: Any, start: int, stop: int) -> Any:
        return original(self, 0, stop - start)

    return wrap(StoredObject, "open_range", open_range)


@detected_by("bucket")
def upload_with_wrong_key() -> Patch:
    """A variant is uploaded under another key."""

    def commit(original: Callable[..., Any], self: Any, key: str, *words: Any) -> Any:
        return original(self, key[::-1], *words)

    return wrap(S3VariantStore, "commit", commit)


@detected_by("tests.variants.test_s3")
def upload_once() -> Patch:
    """A failed upload is not repeated."""
    return s3, "Unavailable", ZeroDivisionError


# https sources


@detected_by("tests.sources.test_https")
def ignore_changed_origin() -> Patch:
    """A source that changes at its origin is not noticed."""

    async def unchanged(self: OpenHttpsSource) -> bool:
        return True

    return OpenHttpsSource, "unchanged", unchanged


@detected_by("tests.sources.test_https")
def follow_redirects_anywhere() -> Patch:
    """A redirect may lead to a host that is not on the allowlist."""

    def target(original: Callable[..., Any], self: OriginClient, *words: Any) -> Any:
        every_host: Any = SimpleNamespace(allows=lambda source: True)
        return original(replace(self, allowlist=every_host), *words)

    return wrap(OriginClient, "_redirect_target", target)


@detected_by("tests.sources.test_https")
def trust_any_range() -> Patch:
    """A source is read in place although its origin limits its ranges."""

    async def test(self: OpenHttpsSource, form: RangedSource) -> bool:
        return True

    return OpenHttpsSource, "_test", test


# fast path


@detected_by("responses")
def ignore_conditions_on_fast_path() -> Patch:
    """The fast path ignores conditions."""

    def read(original: Callable[..., Any], lines: bytes) -> Any:
        found = original(lines)
        return found and {k: v for k, v in found.items() if k != b"if-none-match"}

    return wrap(fast_path, "_read_headers", read)


@detected_by("log")
def skip_log_on_fast_path() -> Patch:
    """The fast path logs nothing."""

    def create(original: Callable[..., None], self: FastPath, *words: Any) -> None:
        original(self, *words)
        self._access_log = lambda entry: None

    return wrap(FastPath, "__init__", create)


@detected_by("tests.server.test_fast_path")
def serve_expired_on_fast_path() -> Patch:
    """The fast path serves expired URLs."""

    def plan(original: Callable[..., Any], self: Any, wanted: Any, headers: Any, now: float) -> Any:
        return original(self, replace(wanted, exp=None), headers, now)

    return wrap(FastPath, "_plan", plan)


# threads and blocking calls


@detected_by("tests.test_blocking_calls")
def wait_for_hanging_disk() -> Patch:
    """Calls to a hanging disk have no timeout."""

    def run(original: Callable[..., Any], self: Any, work: Any, seconds: float, *more: Any) -> Any:
        return original(self, work, 1000 * seconds, *more)

    return wrap(BlockingCalls, "run", run)


@detected_by("tests.test_blocking_calls")
def call_hanging_disk() -> Patch:
    """A hanging disk gets more and more calls."""

    def run(original: Callable[..., Any], self: BlockingCalls, *words: Any) -> Any:
        self._overdue = 0
        return original(self, *words)

    return wrap(BlockingCalls, "run", run)


@detected_by("tests.test_blocking_calls")
def keep_late_file() -> Patch:
    """A file opened after the timeout stays behind."""
    return wrap(BlockingCalls, "run", lambda original, *words, **_: original(*words[:3]))


@detected_by("tests.test_threads")
def leave_thread() -> Patch:
    """A cancelled call does not wait for its thread."""

    async def impatient(running: Deferred[Any]) -> Any:
        return await running

    return threads, "await_uncancelled", impatient


# server


@detected_by("responses")
def read_endless_body() -> Patch:
    """The service keeps reading an endless request body."""
    return request, "_LONGEST_BODY", 1 << 40


@detected_by("tests.server.test_channel")
def wait_for_request() -> Patch:
    """Reading a request has no timeout."""
    return connections, "PHASE_TIMEOUTS", {**connections.PHASE_TIMEOUTS, Phase.READING: 60e9}


@detected_by("tests.server.test_channel")
def wait_for_stalled_client() -> Patch:
    """A stalled response has no timeout."""
    return connections, "STALL_TIMEOUT", 600e9


@detected_by("tests.server.test_channel")
def accept_all_pipelined_bytes() -> Patch:
    """Pipelined bytes are not limited."""
    return channel, "_MOST_PIPELINED", 1 << 30


@detected_by("tests.server.test_channel")
def handle_whole_packet() -> Patch:
    """All requests of one packet are handled at once."""
    return channel, "_MOST_IN_A_ROW", 4000


@detected_by("tests.server.test_connections")
def cut_response_for_new_client() -> Patch:
    """A response is cut off to make room for a connection."""

    def find(self: Connections) -> Any:
        return iter(list(self._waiting))

    return Connections, "_find_evictable", find


@detected_by("tests.server.test_connections")
def evict_new_client() -> Patch:
    """A connection is closed for a new one before its client had time to send a request."""
    return connections, "EVICTABLE_AFTER", 0.0


@detected_by("tests.server.test_listener")
def use_up_descriptors() -> Patch:
    """Clients use up all descriptors."""
    return listener, "_PER_CHILD", 0
