"""One render as a state machine, from its request to the stored variant."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.errors import (
    DiskFull,
    OutputTooLarge,
    Refusal,
    RenderFailed,
    RenderTimeout,
)
from audioproxy.grammar.request import VariantRequest
from audioproxy.media.command.decoding import Pipeline
from audioproxy.media.command.encoding import ENCODERS, StatedLength
from audioproxy.observe.log_context import Logger
from audioproxy.render.context import RenderContext
from audioproxy.render.deadline import Deadline
from audioproxy.render.job import Preparation
from audioproxy.render.output import RenderOutput
from audioproxy.render.write_back import WriteBack

_log = Logger()


class State(Enum):
    """The state of a render."""

    PROBING = "opens and probes the source"
    QUEUED = "waits for a slot"
    ENCODING = "has a slot, and no audio yet"
    STREAMING = "has audio that clients read, and more to come"
    FINISHED = "has all of the output; the write-back is under way, or failed, or there is no store"
    STORED = "the store has the variant"
    FAILED = "has ended without an output, or with an incomplete one"


#: The states that may follow each state.
TRANSITIONS = {
    State.PROBING: {State.QUEUED, State.FAILED},
    State.QUEUED: {State.ENCODING, State.FAILED},
    State.ENCODING: {State.STREAMING, State.FINISHED, State.FAILED},
    State.STREAMING: {State.FINISHED, State.FAILED},
    State.FINISHED: {State.STORED},
    State.STORED: set(),
    State.FAILED: set(),
}

_ENDED = (State.FINISHED, State.STORED, State.FAILED)
_HAS_SLOT = (State.ENCODING, State.STREAMING)


class Render:
    """One render and its subscribers.

    No client gets a byte before the encoder has output more than container headers. So every
    refusal until then can still be a response with a status.

    :ivar state: its current state.
    """

    def __init__(
        self, context: RenderContext, request: VariantRequest, unregister: Callable[[], None]
    ) -> None:
        """Create a render that is not started.

        :param unregister: called, perhaps more than once, when no more requests may join.
        """
        self.state = State.PROBING
        self._context = context
        self._request = request
        self._unregister = unregister
        self._write_back = WriteBack(context.storage, request.key)
        self._output: RenderOutput | None = None
        self._readable: SharedResult[RenderOutput] = SharedResult()
        self._subscribers = 0
        self._running: Deferred[bool] | None = None

    def start(self) -> Deferred[bool]:
        """Start the render; it is already registered.

        :returns: fires when the child is dead and the write-back is over. Its result is whether the
            variant is stored. It never fails. `close` has to follow.
        """
        self._running = Deferred.fromCoroutine(self._run())
        return self._running

    def subscribe(self) -> Deferred[RenderOutput]:
        """Subscribe to the output; every call is followed by one `unsubscribe`.

        :returns: fires with the output when there are bytes, or fails with the refusal of the
            render.
        """
        self._subscribers += 1
        return self._readable.wait()

    def unsubscribe(self) -> None:
        """End one subscription; without subscribers, the render may be cancelled (D36).

        A render that has its slot and can be stored continues.
        """
        self._subscribers -= 1
        if not self._subscribers and self.state not in _ENDED and not self._continues:
            self.cancel()

    @property
    def _continues(self) -> bool:
        return self.state in _HAS_SLOT and self._write_back.possible

    def cancel(self) -> None:
        """Stop the render and discard its output; a finished output is stored all the same."""
        self._unregister()
        if self.state not in _ENDED and self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        """Release the output. Clients that still read it keep it open."""
        if self._output is not None:
            self._output.release()

    async def _run(self) -> bool:
        key = self._request.key
        try:
            await self._render()
        except CancelledError:
            _log.debug("the render of {key} is stopped", key=key)
            self._fail(RenderFailed("The render was stopped."))
        except Refusal as refusal:
            _log.debug("the render of {key} has failed: {why}", key=key, why=refusal.message)
            self._fail(refusal)
        except Exception:
            _log.failure("a render crashed")
            self._fail(RenderFailed())
        else:
            return await self._store()
        return False

    async def _render(self) -> None:
        context, request = self._context, self._request
        preparation = await context.preparer.prepare(request)
        try:
            self._enter(State.QUEUED)
            async with context.slots.hold():
                self._enter(State.ENCODING)
                _log.debug("the render of {key} has a slot", key=request.key)
                with context.metrics.render(request.options.f, context.limits.clock.seconds):
                    await self._encode_in_time(preparation)
                size = self._output.size if self._output else 0
                _log.debug(
                    "the render of {key} has ended: {size} bytes", key=request.key, size=size
                )
        finally:
            preparation.close()

    async def _encode_in_time(self, preparation: Preparation) -> None:
        """Encode before the deadline.

        At the deadline, all subscribers get the refusal at once. The render keeps its slot until
        the child is dead and the disk has responded.
        """
        limits = self._context.limits
        deadline = Deadline(limits.clock, limits.timeout, lambda: self._fail(RenderTimeout()))
        try:
            await self._encode(preparation, deadline)
        except Refusal as refusal:
            if deadline.expired:
                raise RenderTimeout from refusal
            raise
        finally:
            deadline.cancel()

    async def _encode(self, preparation: Preparation, deadline: Deadline) -> None:
        output = await preparation.run(
            deadline,
            lambda pipeline: self._run_encoder(pipeline, preparation, deadline),
            lambda: self.state is not State.STREAMING,
        )
        if self.state is State.FAILED:
            raise RenderTimeout
        # The state changes first: the last subscriber may leave as soon as the output ends.
        self._enter(State.FINISHED)
        output.end()
        self._readable.fire(output)

    async def _run_encoder(
        self, pipeline: Pipeline, preparation: Preparation, deadline: Deadline
    ) -> RenderOutput:
        """Encode into a new output and return it.

        :raises NothingDecoded: where the output holds no audio.
        """
        try:
            # The start of the header is written at once.
            output = await self._create_output(preparation.stated_length, deadline)
            await self._context.encoder.encode(
                self._request.options, preparation, pipeline, output, deadline, self._check_output
            )
        except DiskFull:
            if not self._write_back.disk_filled():
                raise
            self._context.metrics.write_failed()
            if self.state is not State.ENCODING:
                raise
            return await self._run_encoder(pipeline, preparation, deadline)
        return output

    async def _create_output(
        self, stated_length: StatedLength | None, deadline: Deadline
    ) -> RenderOutput:
        earlier, self._output = self._output, None
        if earlier is not None:
            earlier.release()
        # Half of the time: if the store does not respond, the other half is left to create a file
        # that the store does not take over.
        scratch = await self._write_back.create_in_store(deadline.left() / 2)
        if scratch is None:
            if not self._subscribers:
                raise CancelledError
            scratch = await self._write_back.create_outside_store(deadline.left())
        header_bytes = ENCODERS[self._request.options.f].header_bytes
        limit = self._context.limits.max_variant
        try:
            self._output = RenderOutput(scratch, limit, header_bytes, stated_length)
        except BaseException:
            scratch.close()
            raise
        return self._output

    def _check_output(self) -> bool:
        """Check the output, and return whether it has audio or the render has ended."""
        output = self._output
        assert output is not None
        size = output.update_size()
        if size > output.limit:
            refusal = OutputTooLarge()
            # The refusal does not wait for the child, which may take some time to die.
            self._fail(refusal)
            raise refusal
        if self.state is State.ENCODING and output.has_audio:
            self._enter(State.STREAMING)
            self._readable.fire(output)
        return self.state is not State.ENCODING

    async def _store(self) -> bool:
        """Write the finished output back, and return whether the store has it."""
        context = self._context
        if context.storage.store is None:
            return False
        assert self._output is not None
        stored = await self._write_back.commit(self._request, self._output)
        if stored:
            self._enter(State.STORED)
        else:
            context.metrics.write_failed()
        return stored

    def _fail(self, refusal: Refusal) -> None:
        # A request that arrives from now on starts another render.
        self._unregister()
        if self.state in _ENDED:
            return
        self._enter(State.FAILED)
        if self._output is not None:
            self._output.end(refusal)
        self._readable.fire(Failure(refusal))

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} is not followed by {state}"
        self.state = state
