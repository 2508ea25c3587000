"""The life of one render: open, probe, wait for a slot, encode, store."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred

from audioproxy.errors import (
    NothingDecoded,
    OutputTooLarge,
    Refusal,
    RenderFailed,
    RenderTimeout,
    SourceTooLarge,
    UndecodableSource,
)
from audioproxy.grammar.cache_key import source_identity
from audioproxy.log_context import Logger
from audioproxy.media.encoding import ENCODERS, encoder_arguments, measure_arguments
from audioproxy.media.filters import may_need_length
from audioproxy.media.inputs import Input, local_input
from audioproxy.media.probe import Probe
from audioproxy.media.trim import needs_measuring
from audioproxy.media.waveform_spec import WaveformSpec
from audioproxy.render.context import Order, RenderContext
from audioproxy.render.output import RenderOutput
from audioproxy.scratch import ScratchFile
from audioproxy.sources.interfaces import OpenSource
from audioproxy.variants.interfaces import VariantStore

# Seconds for which a stored render can still be joined (D37).
_LINGER = 1.0

_log = Logger()


class Job:
    """One render and all who wait for it.

    Nobody gets a byte before the encoder has put out more than container headers, so that
    every refusal that is known until then can still be an answer with a status.
    """

    def __init__(self, workshop: RenderContext, order: Order, retire: Callable[[], None]) -> None:
        """Prepare a render.

        :param retire: called, perhaps more than once, when nobody may join any more.
        """
        self._workshop = workshop
        self._order = order
        self._retire = retire
        self._backlog: RenderOutput | None = None
        self._ready = False
        self._has_slot = False
        self._finished = False
        self._hurried = False
        self._storable = workshop.store is not None
        self._subscribers = 0
        self._waiting: list[Deferred[RenderOutput]] = []
        self._running: Deferred[None] | None = None
        self._linger: Deferred[None] | None = None

    def start(self) -> Deferred[None]:
        """Begin; the job is in its table by now.

        :returns: fires, without a failure ever, when the child is dead and the file let go.
        """
        self._running = Deferred.fromCoroutine(self._run())
        return self._running

    def subscribe(self) -> Deferred[RenderOutput]:
        """Wait for the first bytes; every call is answered by one `unsubscribe`.

        :returns: fires with the backlog, or fails with the refusal of the whole job.
        """
        self._subscribers += 1
        waiter: Deferred[RenderOutput] = Deferred(self._waiting.remove)
        if self._ready and self._backlog is not None:
            waiter.callback(self._backlog)
        else:
            self._waiting.append(waiter)
        return waiter

    def unsubscribe(self) -> None:
        """Leave. The last one to leave may end the job (D36).

        A render that has its slot and can be stored runs on.
        """
        self._subscribers -= 1
        if not self._subscribers and not self._finished and not self._runs_on:
            self.cancel()

    @property
    def _runs_on(self) -> bool:
        return self._has_slot and self._storable

    def cancel(self) -> None:
        """Stop the render and drop what it put out; a finished one is stored all the same."""
        self._retire()
        if not self._finished and self._running is not None:
            self._running.cancel()

    def skip_linger(self) -> None:
        """Do not wait for more clients after the end, be it past or to come."""
        self._hurried = True
        linger, self._linger = self._linger, None
        if linger is not None:
            linger.callback(None)

    async def _run(self) -> None:
        key = self._order.key
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
            await self._store()
        finally:
            self._retire()
            if self._backlog is not None:
                self._backlog.release()

    async def _render(self) -> None:
        workshop, order = self._workshop, self._order
        source = await workshop.sources.open(order.source)
        try:
            SourceTooLarge.check(source.size, workshop.max_source)
            identity = source_identity(order.source.canonical, source.validator)
            probe = await workshop.prober.probe(identity, source)
            if not needs_measuring(order.options, probe):
                # A refusal that the probe alone decides costs no slot, and no look at the source.
                encoder_arguments(workshop.ffmpeg, local_input(), order.options, probe)
            async with workshop.slots.hold():
                self._has_slot = True
                _log.debug("the render of {key} has a slot", key=order.key)
                with workshop.metrics.render(order.options.f, workshop.clock.seconds):
                    await self._encode(source, probe)
                size = self._backlog.size if self._backlog else 0
                _log.debug("the render of {key} has ended: {size} bytes", key=order.key, size=size)
        finally:
            source.close()

    async def _encode(self, source: OpenSource, probe: Probe) -> None:
        """Render within the time that there is.

        Past it everyone is told at once. Whatever holds the render up, a child that does not die
        or a disk that hangs, keeps its slot for as long as that takes.
        """
        clock, timeout = self._workshop.clock, self._workshop.timeout
        deadline = clock.callLater(timeout, self._fail, RenderTimeout())
        try:
            await self._encode_until(clock.seconds() + timeout, source, probe)
        except Refusal as refusal:
            if deadline.active():
                raise
            raise RenderTimeout from refusal
        finally:
            if deadline.active():
                deadline.cancel()

    async def _encode_until(self, deadline: float, source: OpenSource, probe: Probe) -> None:
        try:
            if needs_measuring(self._order.options, probe):
                probe = await self._measure(source, probe, deadline)
            arguments = await self._arguments(source, probe, self._time_left(deadline))
            try:
                backlog = await self._run_encoder(arguments, source, probe, deadline)
            except NothingDecoded:
                probe = await self._measure_nothing(source, probe, deadline)
                again = await self._arguments(source, probe, self._time_left(deadline))
                if again == arguments or self._ready:
                    raise
                backlog = await self._run_encoder(again, source, probe, deadline)
            await self._check_unchanged(source)
        except UndecodableSource as refusal:
            if isinstance(refusal, NothingDecoded):
                _log.warn("the encoder put out no audio{why}", why=refusal.diagnostic)
            # A source that was replaced meanwhile may look broken.
            await self._check_unchanged(source)
            raise
        if self._finished:
            raise RenderTimeout
        # The end comes first: the last client may leave on being told of it.
        self._finished = True
        backlog.end()
        self._be_ready(backlog)

    async def _run_encoder(
        self, arguments: list[str], source: OpenSource, probe: Probe, deadline: float
    ) -> RenderOutput:
        """Encode into a new backlog and return it.

        :raises NothingDecoded: where the output holds no audio.
        """
        workshop, options = self._workshop, self._order.options
        backlog = await self._open_backlog(self._time_left(deadline))
        left, limit = self._time_left(deadline), workshop.max_variant
        if options.f == "peaks":
            shape = WaveformSpec.of(options, probe)
            await workshop.waveforms.render_waveform(
                arguments, source.descriptors, backlog.descriptor, left, shape, limit
            )
            backlog.grow()
        else:
            await workshop.encoder.encode(
                arguments, source.descriptors, backlog.descriptor, left, self._grown, limit
            )
        if ENCODERS[options.f].put_nothing(backlog.size):
            raise NothingDecoded
        return backlog

    async def _measure(self, source: OpenSource, probe: Probe, deadline: float) -> Probe:
        """Decode the source to its end and return the probe with the length that it has.

        :raises NothingDecoded: where it has none.
        """
        workshop = self._workshop
        opened = await self._input(source, self._time_left(deadline))
        arguments, left = measure_arguments(workshop.ffmpeg, opened), self._time_left(deadline)
        length = await workshop.encoder.measure(arguments, source.descriptors, left)
        return probe.decoded(length)

    async def _measure_nothing(self, source: OpenSource, probe: Probe, deadline: float) -> Probe:
        """Measure a source whose render gave no audio, where that may help.

        :raises NothingDecoded: where the source is not known to hold audio.
        """
        if not may_need_length(self._order.options, probe):
            raise NothingDecoded
        try:
            measured = await self._measure(source, probe, deadline)
        except (RenderTimeout, RenderFailed):
            raise NothingDecoded from None
        await self._check_unchanged(source)
        return measured

    async def _input(self, source: OpenSource, seconds: float) -> Input:
        try:
            return await source.input(seconds, whole=True)
        except TimeoutError:
            raise RenderTimeout from None

    async def _arguments(self, source: OpenSource, probe: Probe, seconds: float) -> list[str]:
        opened = await self._input(source, seconds)
        return encoder_arguments(self._workshop.ffmpeg, opened, self._order.options, probe)

    async def _check_unchanged(self, source: OpenSource) -> None:
        # The descriptor is held against a swap, but not against a writer: an upload that still
        # goes on, say.
        if not await source.unchanged():
            _log.warn("a source changed while it was read; {key} is dropped", key=self._order.key)
            raise RenderFailed("The source changed while it was read.")

    def _time_left(self, deadline: float) -> float:
        left = deadline - self._workshop.clock.seconds()
        if left <= 0:
            raise RenderTimeout
        return left

    async def _open_backlog(self, left: float) -> RenderOutput:
        earlier, self._backlog = self._backlog, None
        if earlier is not None:
            earlier.release()
        self._backlog = RenderOutput(await self._create_scratch(left), self._workshop.max_variant)
        return self._backlog

    async def _create_scratch(self, left: float) -> ScratchFile:
        workshop = self._workshop
        if workshop.store is not None:
            try:
                # The other half is for a render beside a store that does not answer.
                return await workshop.store.create(left / 2)
            except OSError as error:
                _log.warn("the store takes nothing, rendering beside it: {error}", error=error)
                self._storable = False
                if not self._subscribers:
                    raise CancelledError from error
        try:
            return await workshop.space.create(left)
        except OSError as error:
            _log.warn("no scratch file: {error}", error=error)
            raise RenderFailed("There is no place for the output.") from error

    def _grown(self) -> bool:
        backlog = self._backlog
        assert backlog is not None
        size = backlog.grow()
        if size > self._workshop.max_variant:
            refusal = OutputTooLarge()
            # The child may take its time to die.
            self._fail(refusal)
            raise refusal
        if size > ENCODERS[self._order.options.f].empty:
            self._be_ready(backlog)
        return self._ready

    def _be_ready(self, backlog: RenderOutput) -> None:
        self._ready = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(backlog)

    def _fail(self, refusal: Refusal) -> None:
        # Whoever comes from now on starts anew.
        self._finished = True
        self._retire()
        if self._backlog is not None:
            self._backlog.end(refusal)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.errback(refusal)

    async def _store(self) -> None:
        """Hand the finished bytes to the store; once stored, stay joinable a little longer.

        A request whose lookup began just before the write-back ended joins here just after it.
        Where nothing is stored, each later request renders anew (D37).
        """
        workshop = self._workshop
        if workshop.store is None:
            return
        if not await self._commit(workshop.store):
            workshop.metrics.write_failed()
            return
        if self._hurried:
            return
        self._linger = Deferred()
        timer = workshop.clock.callLater(_LINGER, self.skip_linger)
        await self._linger
        if timer.active():
            timer.cancel()

    async def _commit(self, store: VariantStore) -> bool:
        """Write the finished bytes back; false where the store does not have them now."""
        order, backlog = self._order, self._backlog
        if not self._storable or backlog is None:
            return False
        try:
            await store.commit(order.key, backlog.scratch, backlog.size, order.headers)
        except Exception as error:
            _log.warn("write-back of {key} failed: {error}", key=order.key, error=error)
            return False
        _log.debug("the render of {key} is stored", key=order.key)
        return True
