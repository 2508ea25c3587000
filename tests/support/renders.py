"""Renders that a test controls, and their registry."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.errors import Refusal
from audioproxy.grammar.request import VariantRequest
from audioproxy.render.encoded_file import EncodedFile
from audioproxy.render.output import RenderOutput
from audioproxy.render.subscribers import Subscription
from tests.support.stores import Calls


class _NoFile:
    descriptor, path = -1, None
    closed = False

    def close(self) -> None:
        self.closed = True


class FakeOutput(RenderOutput):
    """In-memory output of a render: a test that does not close it leaks no descriptor."""

    def __init__(self) -> None:
        super().__init__(EncodedFile(_NoFile()), 1 << 30)
        self._data = b""

    def add(self, data: bytes) -> None:
        """Append bytes and notify the followers."""
        self._data += data
        self.size = len(self._data)
        self._notify()

    def read(self, offset: int, limit: int) -> bytes:
        """Return bytes from an offset."""
        return self._data[offset : offset + limit]


class FakeRender:
    """Render that a test controls; every caller may subscribe.

    :ivar subscribers: the number of subscriptions; ``left`` is the number of those that ended.
    :ivar waiting: the subscribers that wait for the first bytes.
    :ivar is_low: all of its requests were low.
    """

    def __init__(self, request: VariantRequest) -> None:
        self.request = request
        self.is_low = True
        self.subscribers = self.left = 0
        self.waiting: list[Deferred[RenderOutput]] = []
        self.output = FakeOutput()

    def write_output(self, data: bytes) -> None:
        """Append bytes to the output, as an encoder does."""
        self.output.add(data)
        self._fire(self.output)

    def end(self, failure: Refusal | None = None) -> None:
        """End the render; waiting subscribers receive a failure if there was no output yet."""
        if failure is not None and not self.output.size:
            self._fire(Failure(failure))
        else:
            self.output.end(failure)
            self._fire(self.output)

    def subscribe(self) -> Deferred[RenderOutput]:
        """Count a subscriber and return a Deferred of the output."""
        self.subscribers += 1
        waiter: Deferred[RenderOutput] = Deferred(self.waiting.remove)
        self.waiting.append(waiter)
        if self.output.size:
            self._fire(self.output)
        return waiter

    def unsubscribe(self) -> None:
        """Count a subscriber that left."""
        self.left += 1

    def _fire(self, outcome: RenderOutput | Failure) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.callback(outcome)


class FakeRenders:
    """Render registry.

    :ivar running: the renders by cache key.
    :ivar started: all renders in order.
    :ivar refusal: the failure with which every render ends at once, if set.
    """

    def __init__(self, calls: Calls) -> None:
        self.running: dict[str, FakeRender] = {}
        self.started: list[FakeRender] = []
        self.refusal: Refusal | None = None
        self._calls = calls

    def join(self, request: VariantRequest, *, is_low: bool = False) -> Subscription:
        """Join the render of the requested variant, or start one."""
        self._calls.append(("join", request.key))
        started = request.key not in self.running
        if started:
            self.running[request.key] = FakeRender(request)
            self.started.append(self.running[request.key])
        render: Any = self.running[request.key]
        render.is_low &= is_low
        subscription = Subscription(started, render.subscribe(), render.unsubscribe)
        if self.refusal is not None:
            render.end(self.refusal)
        return subscription
