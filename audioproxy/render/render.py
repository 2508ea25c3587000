"""One render, from its request to the stored variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.concurrency.slots import Claim, Slots
from audioproxy.errors import (
    DiskFailed,
    IrregularSource,
    NothingDecoded,
    OutputDiffers,
    OutputTooLarge,
    Refusal,
    RenderFailed,
    RenderTimeout,
    Stopping,
)
from audioproxy.grammar.request import VariantRequest
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.encoding import StatedLength
from audioproxy.media.waveform_spec import WaveformSpec
from audioproxy.observe.log_context import Logger
from audioproxy.process.ffmpeg import Ffmpeg
from audioproxy.process.waveforms import Waveforms
from audioproxy.render.encoded_file import EncodedFile
from audioproxy.render.failures import RecentFailures
from audioproxy.render.job import RETRIABLE, Job, Preparer, ProbedSource
from audioproxy.render.output import RenderOutput
from audioproxy.render.subscribers import Subscribers, Subscription
from audioproxy.render.write_back import RenderStorage, WriteBack
from audioproxy.sources.interfaces import OpenSource, SourceFile
from audioproxy.variants.interfaces import NoRoom

if TYPE_CHECKING:
    from audioproxy.observe.metrics import Metrics

_log = Logger()


class State(Enum):
    PROBING = "opens and probes the source"
    QUEUED = "waits for a slot"
    ENCODING = "has a slot, and no audio yet"
    STREAMING = "has audio that clients read, and more to come"
    FINISHED = "has all of the output; the write-back is under way, or failed, or there is no store"
    STORED = "the store has the variant"
    FAILED = "has ended without an output, or with an incomplete one"


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
HAS_SLOT = (State.ENCODING, State.STREAMING)


@dataclass(frozen=True, slots=True)
class RenderContext:
    """What all renders share.

    :ivar timeout: seconds that a render may hold its slot.
    :ivar max_variant: bytes; a render that outputs more is stopped.
    :ivar cpus: on which decoders run; each slot that is held takes one.
    """

    clock: IReactorTime
    preparer: Preparer
    slots: Slots
    ffmpeg: Ffmpeg
    waveforms: Waveforms
    storage: RenderStorage
    metrics: Metrics
    timeout: float
    max_variant: int
    failures: RecentFailures
    cpus: int = 1


class Render:
    """One render and its subscribers.

    No client gets a byte before there is audio, so every refusal until then has a status.
    """

    def __init__(
        self, context: RenderContext, request: VariantRequest, unregister: Callable[[], None]
    ) -> None:
        """Create a render; it calls ``unregister``, perhaps repeatedly, once none may join."""
        self.state = State.PROBING
        self._context = context
        self._request = request
        self._claim = Claim(is_low=True)
        self._unregister = unregister
        # A waveform is written at its end, so subscribers get it when the source is checked.
        self._is_waveform = request.options.f == "peaks"
        self._write_back = WriteBack(context.storage, request.key)
        self._opened: OpenSource | None = None
        self._found_irregular = False
        self._output: RenderOutput | None = None
        self._subscribers = Subscribers(self._all_left)
        self._running: Deferred[bool] | None = None
        self._is_cancelled = False

    def start(self) -> Deferred[bool]:
        """Start the render, which is already registered; `close` has to follow.

        :returns: fires when the child is dead and the write-back is over, with whether the variant
            is stored. It never fails.
        """
        self._running = Deferred.fromCoroutine(self._run())
        return self._running

    def subscribe(self, *, started: bool) -> Subscription:
        return self._subscribers.join(started)

    def lift(self) -> None:
        """Move the render from the low lane, where each begins, to the normal one (D65)."""
        self._context.slots.lift(self._claim)

    def _all_left(self) -> None:
        """Cancel the render, unless it has its slot and can be stored (D36)."""
        continues = self.state in HAS_SLOT and self._write_back.possible
        if self.state not in _ENDED and not continues:
            self.cancel()

    @property
    def has_slot(self) -> bool:
        """Whether the render has got its slot, which it may have released again."""
        return self.state not in (State.PROBING, State.QUEUED)

    def stop(self) -> None:
        """Cancel the render because the service stops; requests without a response get none."""
        running = self._running
        if self.state not in _ENDED and running is not None:
            self._fail(Stopping())
            running.cancel()

    def cancel(self) -> None:
        """Stop the render and discard its output; a finished output is stored all the same."""
        self._unregister()
        if self.state not in _ENDED and self._running is not None:
            self._is_cancelled = True
            self._running.cancel()

    def close(self) -> None:
        if self._output is not None:
            self._output.release()

    async def _run(self) -> bool:
        key = self._request.key
        try:
            output, validator = await self._render()
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
            return await self._store(output, validator)
        return False

    async def _render(self) -> tuple[RenderOutput, bytes]:
        """Return the whole output, and the validator of its source."""
        context, request = self._context, self._request
        source = await context.preparer.prepare(
            request, claim=self._claim, on_open=self._refuse_repetition
        )
        try:
            self._enter(State.QUEUED)
            async with context.slots.hold(self._claim):
                self._enter(State.ENCODING)
                _log.debug("the render of {key} has a slot", key=request.key)
                with (
                    context.metrics.render(request.options.f, context.clock.seconds),
                    self._deadline() as deadline,
                ):
                    try:
                        output = await self._encode(source, deadline)
                    except Refusal as refusal:
                        if self._output is not None and self._output.has_audio:
                            raise
                        source = await context.preparer.prepare_again(
                            source, refusal, deadline, self._refuse_repetition
                        )
                        output = await self._encode(source, deadline)
                    if self.state is State.FAILED:
                        raise RenderTimeout
                    # The state changes first: the last subscriber may leave as soon as the output
                    # ends.
                    self._enter(State.FINISHED)
                    output.end()
                    self._subscribers.fire(output)
                size = output.size
                _log.debug(
                    "the render of {key} has ended: {size} bytes", key=request.key, size=size
                )
        finally:
            source.close()
        return output, source.opened.validator

    def _refuse_repetition(self, opened: OpenSource) -> None:
        """Refuse a source of which this variant could not be rendered a moment ago (D73)."""
        self._opened = opened
        self._context.failures.check(self._request.key, opened)

    async def _encode(self, source: ProbedSource, deadline: Deadline) -> RenderOutput:
        async with self._context.preparer.refuse_changed(source):
            return await self._run_jobs(source, deadline)

    async def _run_jobs(self, source: ProbedSource, deadline: Deadline) -> RenderOutput:
        """Return the whole output, after a second attempt where the first one was in vain."""
        preparer = self._context.preparer
        job = await preparer.resolve(source, deadline)
        while True:
            try:
                return await self._run_job(job, deadline)
            except RETRIABLE as refusal:
                if self.state is State.STREAMING:
                    if not isinstance(refusal, IrregularSource):
                        raise
                    _log.info(
                        "{key} begins anew behind what its clients have got: {why}",
                        key=self._request.key,
                        why=refusal.message,
                    )
                self._found_irregular |= isinstance(refusal, IrregularSource)
                job = await preparer.resolve_again(job, refusal, deadline)
            except OutputDiffers:
                _log.warn(
                    "{key} began anew and gave other bytes than its clients have got, so they are"
                    " cut off; its next render is whole",
                    key=self._request.key,
                )
                raise
            except DiskFailed as refusal:
                # Once more outside the store.
                if not self._write_back.leave_store(refusal):
                    raise

    async def _run_job(self, job: Job, deadline: Deadline) -> RenderOutput:
        """Run the child processes of a job, and return the whole output."""
        context, options = self._context, job.source.options
        encoder, tags = ENCODERS[options.f], job.source.probe.carried_tags
        header_bytes = encoder.tagged_header_bytes(tags)
        file = await self._create_file(header_bytes, job.stated_length, deadline)
        output = self._write_to(file)
        target = file.scratch.descriptor, output.limit, deadline
        async with context.preparer.open_input(job, deadline) as opened:
            if self._is_waveform:
                await self._write_waveform(job, opened, *target)
                await output.complete(context.clock)
                return output
            async with context.ffmpeg.encode(job.pipeline, opened, *target) as encoding:
                try:
                    await output.first_audio(encoding, context.clock)
                    self._stream(output)
                    stderr = await output.rest(encoding, context.clock)
                except OutputTooLarge as refusal:
                    # Clients learn of it at once. The encoder may take some time to die.
                    self._fail(refusal)
                    raise
        await output.complete(context.clock)
        self._stream(output)
        if encoder.encoded_nothing(output.encoded_bytes, tags):
            raise NothingDecoded
        job.check_length(stderr)
        return output

    async def _write_waveform(
        self, job: Job, opened: SourceFile, output: int, limit: int, deadline: Deadline
    ) -> None:
        """Write a waveform, with as many decoders as there are idle CPUs and free slots."""
        context, claim = self._context, self._claim
        spec = WaveformSpec.of(job.source.options, job.source.probe)
        idle = min(context.slots.spare(claim), context.cpus - context.slots.held)
        parts = job.parts(spec.pixels, 1 + max(0, idle))
        with context.slots.hold_spare(claim, max(0, len(parts) - 1)) as release_one:
            passes = await context.preparer.prepare_parts(job, parts, deadline)
            for _ in parts[len(passes) :]:
                release_one()
            await context.waveforms.write(
                job.waveform_pass(spec.pixels),
                opened,
                job.source.opened.descriptor,
                spec,
                output,
                limit,
                deadline,
                passes,
                release_one,
            )

    async def _store(self, output: RenderOutput, validator: bytes) -> bool:
        context = self._context
        if context.storage.store is None:
            return False
        try:
            stored = await self._write_back.commit(self._request, output, validator)
        except NoRoom:
            context.metrics.store_full()
            return False
        if stored:
            self._enter(State.STORED)
        else:
            context.metrics.write_failed()
        return stored

    async def _create_file(
        self, header_bytes: int, stated_length: StatedLength | None, deadline: Deadline
    ) -> EncodedFile:
        # Half of the time: if the store does not respond, the other half is left to create a file
        # that the store does not take over.
        scratch = await self._write_back.create_in_store(deadline.left() / 2)
        if scratch is None:
            if not self._subscribers.count:
                raise CancelledError
            scratch = await self._write_back.create_outside_store(deadline.left())
        try:
            # The start of the header is written at once.
            return EncodedFile(scratch, header_bytes, stated_length)
        except BaseException:
            scratch.close()
            raise

    def _write_to(self, file: EncodedFile) -> RenderOutput:
        """Return the output, whose bytes come from a new file from now on."""
        if self._output is None:
            self._output = RenderOutput(file, self._context.max_variant)
        else:
            self._output.begin_anew(file)
        return self._output

    @contextmanager
    def _deadline(self) -> Iterator[Deadline]:
        """Limit the time of a block.

        At the deadline, all subscribers get the refusal at once. The render keeps its slot until
        the child is dead and the disk has responded.
        """
        clock, timeout = self._context.clock, self._context.timeout
        timer = clock.callLater(timeout, lambda: self._fail(RenderTimeout()))
        try:
            yield Deadline(clock, timeout, RenderTimeout)
        except Refusal as refusal:
            if not timer.active():
                raise RenderTimeout from refusal
            raise
        finally:
            if timer.active():
                timer.cancel()

    def _stream(self, output: RenderOutput) -> None:
        """Give the output to the subscribers, if it has audio."""
        if self.state is State.ENCODING and output.has_audio:
            self._enter(State.STREAMING)
            self._subscribers.fire(output)
            # The last client may leave at its first byte, while this coroutine is not suspended.
            if self._is_cancelled:
                raise CancelledError

    def _fail(self, refusal: Refusal) -> None:
        # A request that arrives from now on starts another render, or is refused as a repetition.
        self._unregister()
        if self.state in _ENDED:
            return
        # The next render of a source that is known as irregular does not need the time of this one.
        is_longer = self._found_irregular and isinstance(refusal, RenderTimeout)
        if self.has_slot and self._opened is not None and not is_longer:
            self._context.failures.remember(self._request.key, self._opened, refusal)
        self._enter(State.FAILED)
        if self._output is not None:
            self._output.end(refusal)
        self._subscribers.fire(Failure(refusal))

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} is not followed by {state}"
        self.state = state
