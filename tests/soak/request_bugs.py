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
from audioproxy.render.subscribers import Subscription
from audioproxy.render.write_back import WriteBack
from audioproxy.server import channel, connections, listener
from audioproxy.server.channel import ProxyChannel
from audioproxy.server.connections import Connection, Connections, Phase
from audioproxy.server.fast_path import FastPath
from audioproxy.server.request import ProxyRequest
from audioproxy.web import exchange, response_plan
from audioproxy.web.exchange import Instrumentation
from audioproxy.web.variant import VariantHandler
from tests.soak.injection import Bugs

# The status in the log for a client that left before its response began.
CLIENT_GONE = 499

BUGS = Bugs()
constant, replace_, wrap = BUGS.constant, BUGS.replace, BUGS.wrap


def ignore(entry: object) -> None:
    """Log nothing."""


# web


@replace_(exchange, "abort", "responses")
def end_failed_stream(connection: Any) -> Any:
    """A failed stream ends as if it were complete."""
    return connection.requests[0].finish()


@wrap(Instrumentation, "complete", "log")
def skip_log_of_disconnect(
    original: Callable[..., None], self: Any, plan: Any, *words: Any
) -> None:
    """A request is logged only if its client stays."""
    gone = plan.status == CLIENT_GONE
    original(replace(self, access_log=ignore) if gone else self, plan, *words)


@wrap(response_plan, "read_range", "responses")
def shorten_range(original: Callable[..., Any], header: bytes | None, size: int) -> Any:
    """A range ends one byte early."""
    found = original(header, size)
    return found and (found[0], max(found[0] + 1, found[1] - 1))


# metrics


@wrap(Metrics, "request_ended", "counters")
def count_requests_twice(original: Callable[..., None], *words: Any) -> None:
    """Requests are counted twice."""
    original(*words)
    original(*words)


@wrap(Metrics, "render", "warm-up")
@contextmanager
def count_renders_twice(original: Callable[..., Any], *words: Any) -> Iterator[None]:
    """Renders are counted twice."""
    with original(*words), original(*words):
        yield


constant("A joined request is counted as a miss.", Metrics, "coalesced", Metrics.miss, "warm-up")


# render


@replace_(registry, "Render", "responses", "store")
class Storing(Render):
    """A failed render is stored."""

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
                output = await self.subscribe(started=False).output
                await self.write_back.commit(self.request, output, b"")
        return stored


@wrap(Render, "_all_left", "warm-up")
def keep_place_in_queue(original: Callable[..., None], self: Render) -> None:
    """A client that leaves the queue keeps its place."""
    if self.state is not State.QUEUED:
        original(self)


@wrap(Render, "subscribe", "responses")
def end_render_with_first_client(
    original: Callable[..., Subscription], self: Render, *, started: bool
) -> Subscription:
    """A client that leaves ends the render for all clients."""
    subscription = original(self, started=started)

    def leave() -> None:
        subscription.leave()
        self.cancel()

    return replace(subscription, leave=leave)


@wrap(Deadline, "left", "other errors")
def drop_deadline(original: Any, self: Any) -> Any:
    """A render has no deadline."""
    return original(self) + 1000


@replace_(registry, "Render", "tests.render.test_render")
class Patient(Render):
    """Clients wait for a child that does not die."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.over: SharedResult[None] = SharedResult()

    def start(self) -> Deferred[bool]:
        return super().start().addBoth(self.end)

    def end(self, stored: bool) -> bool:
        self.over.fire(None)
        return stored

    def subscribe(self, *, started: bool) -> Subscription:
        subscription = super().subscribe(started=started)
        output = Deferred.fromCoroutine(self.read(subscription.output))
        return replace(subscription, output=output)

    async def read(self, output: Deferred[RenderOutput]) -> RenderOutput:
        try:
            return await output
        except RenderTimeout:
            await self.over.wait()
            raise


@replace_(Preparer, "refuse_changed", "responses")
@asynccontextmanager
async def ignore_changed_source(self: Preparer, source: ProbedSource) -> AsyncIterator[None]:
    """A changed source is not noticed."""
    yield


@replace_(ProbedSource, "close", "leaks")
def leak_source(self: Any) -> None:
    """The source stays open."""


@replace_(Render, "close", "leaks")
def leak_output(self: Any) -> None:
    """The output stays open."""


@wrap(FileProducer, "__init__", "responses")
def skip_beginning_for_late_client(
    original: Callable[..., None], self: Any, file: Any, *ends: int, **more: Any
) -> None:
    """A client that joins late misses the beginning."""
    # Without an offset, a producer sends a growing file from its start.
    late = not ends and file.size > 100_000
    original(self, file, *((file.size,) if late else ends), **more)


@replace_(RenderRegistry, "find", "warm-up")
def render_for_each_request(self: Any, key: Any) -> None:
    """No request can join a render."""


@wrap(RenderRegistry, "drain", "responses")
def drain_at_once(original: Callable[..., Any], self: RenderRegistry, _: Deadline) -> Any:
    """A shutdown does not wait for renders."""
    # twistd chooses the reactor after this module is imported.
    from twisted.internet import reactor

    clock: Any = reactor
    return original(self, Deadline(clock, 0))


@wrap(WriteBack, "create_in_store", "responses")
async def fail_without_store(original: Callable[..., Any], self: WriteBack, seconds: float) -> Any:
    """Renders fail if the store accepts no file."""
    possible = self.possible
    created = await original(self, seconds)
    if possible and created is None:
        raise RenderFailed
    return created


@wrap(RenderOutput, "__init__", "tests.render.test_render")
def drop_output_limit(
    original: Callable[..., None], self: RenderOutput, scratch: Any, limit: int, *more: Any
) -> None:
    """The size of an output is not limited."""
    original(self, scratch, limit << 40, *more)


@wrap(filters, "filter_chain", "tests.media.command.test_filters")
def resample_whole_frames(original: Callable[..., list[str]], *words: Any) -> list[str]:
    """Low sample rates are resampled in frames of any length."""
    stages = original(*words)
    return stages[1:] if stages and stages[0].startswith("asetnsamples") else stages


# fast path


@wrap(VariantHandler, "plan_at_once", "responses")
def ignore_conditions_on_fast_path(
    original: Callable[..., Any], self: Any, wanted: Any, headers: Any, now: float
) -> Any:
    """The fast path ignores conditions."""
    return original(self, wanted, headers._replace(if_none_match=None), now)


@wrap(FastPath, "__init__", "log")
def skip_log_on_fast_path(original: Callable[..., None], self: FastPath, *words: Any) -> None:
    """The fast path logs nothing."""
    original(self, *words[:-1], replace(words[-1], access_log=ignore))


@wrap(VariantHandler, "plan_at_once", "tests.server.test_fast_path")
def serve_expired_on_fast_path(
    original: Callable[..., Any], self: Any, wanted: Any, headers: Any, now: float
) -> Any:
    """The fast path serves expired URLs."""
    return original(self, replace(wanted, exp=None), headers, now)


# server


@replace_(ProxyRequest, "handleContentChunk", "responses")
def read_endless_body(self: Any, data: Any) -> None:
    """The service keeps reading an endless request body."""


constant(
    "Reading a request has no timeout.",
    connections,
    "PHASE_TIMEOUTS",
    {**connections.PHASE_TIMEOUTS, Phase.READING: 60e9},
    "tests.server.test_channel",
)

constant(
    "A stalled response has no timeout.",
    connections,
    "STALL_TIMEOUT",
    600e9,
    "tests.server.test_channel",
)


@replace_(ProxyChannel, "rawDataReceived", "tests.server.test_channel")
def accept_all_pipelined_bytes(self: ProxyChannel, data: bytes) -> None:
    """Pipelined bytes are not limited."""
    if self.phase not in channel.IGNORING_INPUT:
        HTTPChannel.rawDataReceived(self, data)


@wrap(HTTPChannel, "requestDone", "tests.server.test_channel")
def handle_whole_packet(original: Callable[..., None], self: Any, request: object) -> None:
    """All requests of one packet are handled at once."""
    self.paused = self.stalled_since is not None
    original(self, request)


@replace_(channel, "Connections", "tests.server.test_connections")
class Careless(Connections):
    """A response is cut off to make room for a connection."""

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


constant(
    "A connection is closed for a new one before its client had time to send a request.",
    connections,
    "EVICTABLE_AFTER",
    0.0,
    "tests.server.test_connections",
)


@wrap(listener, "max_clients", "tests.server.test_listener")
def use_up_descriptors(original: Any, children: Any) -> Any:
    """Clients use up all descriptors."""
    return original(0)


@replace_(channel, "has_valid_host", "tests.server.test_request_headers")
def accept_any_host(version: Any, headers: Any) -> Any:
    """A request without a Host, or with two, is accepted."""
    return True
