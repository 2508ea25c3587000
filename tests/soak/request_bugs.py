"""Bugs in requests, their renders and the metrics, as `tests.soak.bugs` describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from twisted.python.failure import Failure

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import RenderTimeout
from audioproxy.files.streams import FileProducer
from audioproxy.media.command import filters
from audioproxy.observe.metrics import Metrics
from audioproxy.render.job import Preparer, ProbedSource
from audioproxy.render.output import RenderOutput
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.render import Render, State
from audioproxy.render.write_back import WriteBack
from audioproxy.server import channel, connections, fast_path, listener, request
from audioproxy.server.connections import Connections, Phase
from audioproxy.server.fast_path import FastPath
from audioproxy.web import exchange, response_plan
from audioproxy.web.exchange import Exchange
from audioproxy.web.variant import VariantHandler
from tests.soak.injection import Bugs, Patch, wrap

BUGS = Bugs()
detected_by = BUGS.detected_by


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

    def unsubscribe(original: Callable[..., None], self: Render) -> None:
        if self.state is State.QUEUED:
            self._subscribers -= 1
        else:
            original(self)

    return wrap(Render, "unsubscribe", unsubscribe)


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

    @contextmanager
    def limit(self: Any) -> Iterator[Deadline]:
        yield Deadline(self._context.clock, self._context.timeout, RenderTimeout)

    return Render, "_deadline", limit


@detected_by("responses")
def ignore_changed_source() -> Patch:
    """A changed source is not noticed."""

    @asynccontextmanager
    async def refuse_changed(self: Preparer, source: ProbedSource) -> AsyncIterator[None]:
        yield

    return Preparer, "refuse_changed", refuse_changed


@detected_by("leaks")
def leak_source() -> Patch:
    """The source stays open."""
    return ProbedSource, "close", lambda self: None


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

    def drain(original: Callable[..., Any], self: RenderRegistry, _: Deadline) -> Any:
        return original(self, Deadline(self._context.clock, 0))

    return wrap(RenderRegistry, "drain", drain)


@detected_by("responses")
def fail_without_store() -> Patch:
    """Renders fail if the store accepts no file."""

    async def create(self: WriteBack, seconds: float) -> Any:
        return None if self._store is None else await self._store.create(seconds)

    return WriteBack, "create_in_store", create


@detected_by("tests.render.test_render")
def drop_output_limit() -> Patch:
    """The size of an output is not limited."""

    def create(
        original: Callable[..., None], self: RenderOutput, scratch: Any, limit: int, *more: Any
    ) -> None:
        original(self, scratch, limit << 40, *more)

    return wrap(RenderOutput, "__init__", create)


@detected_by("tests.media.command.test_filters")
def resample_whole_frames() -> Patch:
    """Low sample rates are resampled in frames of any length."""
    return filters, "_MOST_FOLD", 1 << 30


# fast path


@detected_by("responses")
def ignore_conditions_on_fast_path() -> Patch:
    """The fast path ignores conditions."""

    def read(original: Callable[..., Any], lines: bytes) -> Any:
        found = original(lines)
        return found and (found[0]._replace(if_none_match=None), found[1])

    return wrap(fast_path, "_read_headers", read)


@detected_by("log")
def skip_log_on_fast_path() -> Patch:
    """The fast path logs nothing."""

    def create(original: Callable[..., None], self: FastPath, *words: Any) -> None:
        original(self, *words)
        self._complete = replace(words[-1], access_log=lambda entry: None).complete

    return wrap(FastPath, "__init__", create)


@detected_by("tests.server.test_fast_path")
def serve_expired_on_fast_path() -> Patch:
    """The fast path serves expired URLs."""

    def plan(original: Callable[..., Any], self: Any, wanted: Any, headers: Any, now: float) -> Any:
        return original(self, replace(wanted, exp=None), headers, now)

    return wrap(VariantHandler, "plan_at_once", plan)


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


@detected_by("tests.server.test_request_headers")
def accept_any_host() -> Patch:
    """A request without a Host, or with two, is accepted."""
    return channel, "has_valid_host", lambda version, headers: True
