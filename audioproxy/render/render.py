"""One render from its request to the stored variant, as a state machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from audioproxy.errors import (
    NothingDecoded,
    OutputTooLarge,
    Refusal,
    RenderFailed,
    RenderTimeout,
    UndecodableSource,
)
from audioproxy.grammar.request import VariantRequest
from audioproxy.log_context import Logger
from audioproxy.media.encoding import ENCODERS
from audioproxy.render.context import RenderContext
from audioproxy.render.deadline import Deadline
from audioproxy.render.output import RenderOutput
from audioproxy.render.preparation import Preparation
from audioproxy.render.write_back import WriteBack
from audioproxy.shared_result import SharedResult

_log = Logger()


class State(Enum):
    """What a render is doing."""

    PROBING = "opens and probes the source"
    QUEUED = "waits for a slot"
    ENCODING = "has a slot, and no audio yet"
    STREAMING = "has audio that clients read, and more to come"
    FINISHED = "has all of the output; the write-back is under way, or failed, or there is no store"
    STORED = "the store has the variant"
    FAILED = "has no output, or not all of it, and never will"


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

    Nobody gets a byte before the encoder has put out more than container headers, so that
    every refusal that is known until then can still be a response with a status.

    :ivar state: what it is doing.
    """

    def __init__(
        self, context: RenderContext, request: VariantRequest, unregister: Callable[[], None]
    ) -> None:
        """Prepare a render.

        :param unregister: called, perhaps more than once, when nobody may join any more.
        """
        self.state = State.PROBING
        self._context = context
        self._request = request
        self._unregister = unregister
        self._write_back = WriteBack(context.storage)
        self._output: RenderOutput | None = None
        self._readable: SharedResult[RenderOutput] = SharedResult()
        self._subscribers = 0
        self._running: Deferred[bool] | None = None

    def start(self) -> Deferred[bool]:
        """Begin; the render is registered by now.

        :returns: fires, without a failure ever, when the child is dead and the write-back over,
            with whether the variant is stored. `close` has to follow.
        """
        self._running = Deferred.fromCoroutine(self._run())
        return self._running

    def subscribe(self) -> Deferred[RenderOutput]:
        """Wait for the first bytes; every call is followed by one `unsubscribe`.

        :returns: fires with the output, or fails with the refusal of the render.
        """
        self._subscribers += 1
        return self._readable.wait()

    def unsubscribe(self) -> None:
        """Leave. The last subscriber to leave may end the render (D36).

        A render that has its slot and can be stored runs on.
        """
        self._subscribers -= 1
        if not self._subscribers and self.state not in _ENDED and not self._runs_on:
            self.cancel()

    @property
    def _runs_on(self) -> bool:
        return self.state in _HAS_SLOT and self._write_back.possible

    def cancel(self) -> None:
        """Stop the render and drop its output; a finished one is stored all the same."""
        self._unregister()
        if self.state not in _ENDED and self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        """Release the output. Those who still read it keep it open."""
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

        Past it all subscribers are told at once. Whatever holds the render up, a child that does
        not die or a disk that hangs, keeps its slot for as long as that takes.
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
        try:
            command = await preparation.command(deadline)
            try:
                output = await self._run_encoder(command, preparation, deadline)
            except NothingDecoded:
                other = await preparation.command_after_nothing(deadline)
                if other == command or self.state is State.STREAMING:
                    raise
                output = await self._run_encoder(other, preparation, deadline)
            await preparation.check_unchanged()
        except UndecodableSource as refusal:
            if isinstance(refusal, NothingDecoded):
                _log.warn("the encoder put out no audio{why}", why=refusal.diagnostic)
            # A source that was replaced meanwhile may look broken.
            await preparation.check_unchanged()
            raise
        if self.state is State.FAILED:
            raise RenderTimeout
        # The end comes first: the last subscriber may leave when it hears of it.
        self._enter(State.FINISHED)
        output.end()
        self._readable.fire(output)

    async def _run_encoder(
        self, command: list[str], preparation: Preparation, deadline: Deadline
    ) -> RenderOutput:
        """Encode into a new output and return it.

        :raises NothingDecoded: where the output holds no audio.
        """
        output = await self._create_output(deadline)
        await self._context.encoder.encode(
            self._request.options, preparation, command, output, deadline, self._output_grown
        )
        return output

    async def _create_output(self, deadline: Deadline) -> RenderOutput:
        earlier, self._output = self._output, None
        if earlier is not None:
            earlier.release()
        # The other half is for a render beside a store that does not answer.
        scratch = await self._write_back.create_in_store(deadline.left() / 2)
        if scratch is None:
            if not self._subscribers:
                raise CancelledError
            scratch = await self._write_back.create_beside_store(deadline.left())
        self._output = RenderOutput(scratch, self._context.limits.max_variant)
        return self._output

    def _output_grown(self) -> bool:
        """Look at the output, and return whether its first audio has come (or never will)."""
        output = self._output
        assert output is not None
        size = output.grow()
        if size > output.limit:
            refusal = OutputTooLarge()
            # The child may take its time to die.
            self._fail(refusal)
            raise refusal
        if self.state is State.ENCODING and size > ENCODERS[self._request.options.f].empty:
            self._enter(State.STREAMING)
            self._readable.fire(output)
        return self.state is not State.ENCODING

    async def _store(self) -> bool:
        """Hand the finished output to the store, and return whether the store has it."""
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
        # A request that comes from now on starts another render.
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
