"""Bugs in requests, their renders and the metrics, as `tests.soak.bugs` describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.web.http import HTTPChannel

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.errors import Refusal, RenderFailed, RenderTimeout
from audioproxy.files.streams import FileProducer
from audioproxy.media.command import filters
from audioproxy.observe.metrics import Metrics
from audioproxy.render import registry
from audioproxy.render.job import Preparer, ProbedSource
from audioproxy.render.output import RenderOutput
from audioproxy.render.registry import RenderRegistry
from audioproxy.render.render import Render, RenderContext, State
from audioproxy.render.write_back import WriteBack
from audioproxy.server import channel, connections, listener
from audioproxy.server.channel import ProxyChannel
from audioproxy.server.connections import Connection, Connections, Phase
from audioproxy.server.fast_path import FastPath
from audioproxy.server.request import ProxyRequest
from audioproxy.web import exchange, response_plan
from audioproxy.web.exchange import Instrumentation
from audioproxy.web.variant import VariantHandler
from tests.soak.injection import Bugs, Patch, wrap

# The status in the log for a client that left before its response began.
CLIENT_GONE = 499

BUGS = Bugs()
detected_by = BUGS.detected_by


def ignore(entry: object) -> None:
    """Log nothing."""


# web


@detected_by("responses")
def end_failed_stream() -> Patch:
    """A failed stream ends as if it were complete."""
    return exchange, "abort", lambda connection: connection.requests[0].finish()


@detected_by("log")
def skip_log_of_disconnect() -> Patch:
    """A request is logged only if its client stays."""

    def complete(original: Callable[..., None], self: Any, plan: Any, *words: Any) -> None:
        gone = plan.status == CLIENT_GONE
        original(replace(self, access_log=ignore) if gone else self, plan, *words)

    return wrap(Instrumentation, "complete", complete)


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

    class Storing(Render):
        def __init__(self, context: RenderContext, request: Any, unregister: Any) -> None:
            super().__init__(context, request, unregister)
            self.write_back = WriteBack(context.storage, request.key)
            self.request = request

        def start(self) -> Deferred[bool]:
            return Deferred.fromCoroutine(self.store_after(super().start()))

        async def store_after(self, running: Deferred[bool]) -> bool:
            stored = await running
            if self.state is State.FAILED:
                with suppress(Refusal):
                    await self.write_back.commit(self.request, await self.subscribe())
            return stored

    return registry, "Render", Storing


@detected_by("warm-up")
def keep_place_in_queue() -> Patch:
    """A client that leaves the queue keeps its place."""

    def unsubscribe(original: Callable[..., None], self: Render) -> None:
        if self.state is not State.QUEUED:
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

    class Patient(Render):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            self.over: SharedResult[None] = SharedResult()

        def start(self) -> Deferred[bool]:
            return super().start().addBoth(self.end)

        def end(self, stored: bool) -> bool:
            self.over.fire(None)
            return stored

        def subscribe(self) -> Deferred[RenderOutput]:
            return Deferred.fromCoroutine(self.read(super().subscribe()))

        async def read(self, output: Deferred[RenderOutput]) -> RenderOutput:
            try:
                return await output
            except RenderTimeout:
                await self.over.wait()
                raise

    return registry, "Render", Patient


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

    def create(
        original: Callable[..., None], self: Any, file: Any, *ends: int, **more: Any
    ) -> None:
        # Without an offset, a producer sends a growing file from its start.
        late = not ends and file.size > 300_000
        original(self, file, *((file.size,) if late else ends), **more)

    return wrap(FileProducer, "__init__", create)


@detected_by("warm-up")
def render_for_each_request() -> Patch:
    """No request can join a render."""
    return RenderRegistry, "find", lambda self, key: None


@detected_by("responses")
def drain_at_once() -> Patch:
    """A shutdown does not wait for renders."""

    def drain(original: Callable[..., Any], self: RenderRegistry, _: Deadline) -> Any:
        # twistd chooses the reactor after this module is imported.
        from twisted.internet import reactor

        clock: Any = reactor
        return original(self, Deadline(clock, 0))

    return wrap(RenderRegistry, "drain", drain)


@detected_by("responses")
def fail_without_store() -> Patch:
    """Renders fail if the store accepts no file."""

    async def create(original: Callable[..., Any], self: WriteBack, seconds: float) -> Any:
        possible = self.possible
        created = await original(self, seconds)
        if possible and created is None:
            raise RenderFailed
        return created

    return wrap(WriteBack, "create_in_store", create)


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

    def chain(original: Callable[..., list[str]], *words: Any) -> list[str]:
        stages = original(*words)
        return stages[1:] if stages and stages[0].startswith("asetnsamples") else stages

    return wrap(filters, "filter_chain", chain)


# fast path


@detected_by("responses")
def ignore_conditions_on_fast_path() -> Patch:
    """The fast path ignores conditions."""

    def plan(original: Callable[..., Any], self: Any, wanted: Any, headers: Any, now: float) -> Any:
        return original(self, wanted, headers._replace(if_none_match=None), now)

    return wrap(VariantHandler, "plan_at_once", plan)


@detected_by("log")
def skip_log_on_fast_path() -> Patch:
    """The fast path logs nothing."""

    def create(original: Callable[..., None], self: FastPath, *words: Any) -> None:
        original(self, *words[:-1], replace(words[-1], access_log=ignore))

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
    return ProxyRequest, "handleContentChunk", lambda self, data: None


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

    def receive(self: ProxyChannel, data: bytes) -> None:
        if self.phase not in channel.IGNORING_INPUT:
            HTTPChannel.rawDataReceived(self, data)

    return ProxyChannel, "rawDataReceived", receive


@detected_by("tests.server.test_channel")
def handle_whole_packet() -> Patch:
    """All requests of one packet are handled at once."""

    def done(original: Callable[..., None], self: Any, request: object) -> None:
        self.paused = self.stalled_since is not None
        original(self, request)

    return wrap(HTTPChannel, "requestDone", done)


@detected_by("tests.server.test_connections")
def cut_response_for_new_client() -> Patch:
    """A response is cut off to make room for a connection."""

    class Careless(Connections):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            self.known: list[Connection] = []

        def opened(self, connection: Connection) -> None:
            super().opened(connection)
            self.known.append(connection)

        def closed(self, connection: Connection) -> None:
            self.known.remove(connection)
            super().closed(connection)

        def count_room(self) -> int:
            return super().count_room() or 1

        def make_room(self) -> None:
            if not super().count_room():
                self.known[0].abortConnection()
            super().make_room()

    return channel, "Connections", Careless


@detected_by("tests.server.test_connections")
def evict_new_client() -> Patch:
    """A connection is closed for a new one before its client had time to send a request."""
    return connections, "EVICTABLE_AFTER", 0.0


@detected_by("tests.server.test_listener")
def use_up_descriptors() -> Patch:
    """Clients use up all descriptors."""
    return wrap(listener, "max_clients", lambda original, children: original(0))


@detected_by("tests.server.test_request_headers")
def accept_any_host() -> Patch:
    """A request without a Host, or with two, is accepted."""
    return channel, "has_valid_host", lambda version, headers: True
