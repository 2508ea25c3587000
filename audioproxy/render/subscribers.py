"""The clients of one render: they wait for its first bytes, read its output, and leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.render.output import RenderOutput


class Subscribers:
    """Any number of clients, which join and leave at any time.

    :param all_left: called whenever the last client has left.
    """

    def __init__(self, all_left: Callable[[], object]) -> None:
        self.count = 0
        self._all_left = all_left
        self._output: SharedResult[RenderOutput] = SharedResult()

    def join(self, started: bool) -> Subscription:
        self.count += 1
        return Subscription(started, self._output.wait(), self._leave)

    def fire(self, outcome: RenderOutput | Failure) -> None:
        """Give all clients the output or a refusal; only the first call counts."""
        self._output.fire(outcome)

    def _leave(self) -> None:
        self.count -= 1
        if not self.count:
            self._all_left()


@dataclass(frozen=True, slots=True)
class Subscription:
    """One client's subscription to a render.

    :ivar started: whether this request started the render, which others joined.
    :ivar output: fires when there are bytes, or fails with the refusal.
    :ivar leave: called once, when everything was read, or the client has disconnected.
    """

    started: bool
    output: Deferred[RenderOutput]
    leave: Callable[[], object]
