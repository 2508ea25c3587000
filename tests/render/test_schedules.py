"""Renders under any order of events: no byte, slot or file is lost (D35 to D40).

Hypothesis draws the order. With ``SCHEDULES=5000`` in the environment, it draws so many schedules,
others in each run, and shrinks one that fails, which takes minutes.
"""

from __future__ import annotations

import errno
import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred
from twisted.logger import formatEvent
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.concurrency.deadlines import Deadline
from audioproxy.errors import Stopping, UpstreamUnavailable
from tests.render.harness import ENCODED, NOTHING_UNRELEASED, Client, DiskHarness, answer_probe
from tests.support.http import Log
from tests.support.processes import FakeChild, open_descriptors, opened_since
from tests.support.strategies import DETERMINISTIC
from tests.support.transfers import Transfers

_CAPACITY, _QUEUE = 2, 2
# The audio of an encoder, and that of another one, whose bytes differ.
_AUDIO = b"audio", b"other"
_PATHS = (b"a.wav", b"b.wav")
_Failure: TypeAlias = tuple[bytes, int, int | None]
# How an encoder or a probe may fail: what it prints, its status, and the signal that ends it.
_FAILURES: tuple[_Failure, ...] = (
    (b"", 1, None),
    (b"Invalid data found when processing input", 1, None),
    (b"av_interleaved_write_frame(): No space left on device", 1, None),
    (b"av_interleaved_write_frame(): Input/output error", 1, None),
    (b"[a @ 0x5] Changing audio frame properties on the fly is not supported.", 1, None),
    (b"", 0, 9),
)
# What may change, and to what: the bytes of one transfer, those that fail next, the bound of the
# store, a source whose variants are removed, and one to whose origin the connection is lost.
_CHANGES: tuple[tuple[str, Any], ...] = (
    ("most", 3),
    ("most", None),
    *product(("pread", "pwrite"), ((errno.EIO,), (errno.ENOSPC,), (None, errno.EIO))),
    ("bound", 1),
    ("bound", None),
    *product(("prune", "lose"), _PATHS),
)
_REQUEST: dict[str, st.SearchStrategy[Any]] = {
    "form": st.sampled_from(sorted(ENCODED)),
    "path": st.sampled_from(_PATHS),
    "window": st.sampled_from((None, 0, 40)),
    "is_low": st.booleans(),
    "is_probed": st.sampled_from((True, True, False)),
}
_PLACES = st.integers(0, 7)
# Of size checks, joinable renders, KILL behind TERM, the store's and the render's deadlines.
_SECONDS = st.sampled_from((0.001, 0.03, 1, 2, 10, 60, 100, 120, 600))

if _EXAMPLES := os.environ.get("SCHEDULES"):
    _SETTINGS = settings(DETERMINISTIC, max_examples=int(_EXAMPLES), derandomize=False)
else:
    _SETTINGS = settings(DETERMINISTIC, max_examples=50, phases=(Phase.explicit, Phase.generate))


class Schedule(RuleBasedStateMachine):
    """A node with two slots and a file store, its clients, its children, and its disks.

    :ivar whole: the two outputs that each format may have, since two encoders may differ (D78).
    :ivar connected: the clients that have not left, with the format and the source that they have
        requested.
    :ivar left: what each encoder has still to write.
    :ivar draining: the shutdown that is under way or has ended; None for a node that runs.
    """

    def __init__(self, case: ScheduleTests) -> None:
        super().__init__()
        case.transfers.clear()
        self.case, self.whole = case, case.whole
        self.before = open_descriptors()
        self.log = Log()
        self.stop_log = self.log.start()
        self.root = Path(case.mktemp()).absolute()
        self.node = DiskHarness(self.root, capacity=_CAPACITY, queue=_QUEUE)
        self.node.fill_sources()
        self.connected: list[tuple[Client, tuple[str, bytes]]] = []
        self.left: dict[FakeChild, bytes] = {}
        self.draining: Deferred[Any] | None = None

    def child(self, place: int) -> FakeChild:
        """Return one of the children that run."""
        alive = self.node.spawner.alive
        return alive[place % len(alive)]

    def has_children(self) -> bool:
        return bool(self.node.spawner.alive)

    def has_clients(self) -> bool:
        return bool(self.connected)

    def find(self, form: str, path: bytes) -> bytes | None:
        """Look a variant up, on a disk that works."""
        with self.case.transfers.undisturbed():
            return self.node.found(f"f:{form}", path)

    @initialize(**_REQUEST)
    def start(self, **words: Any) -> None:
        """A client starts the first render."""
        self.request(**words)

    @rule(**_REQUEST)
    def request(
        self, form: str, path: bytes, window: int | None, is_low: bool, is_probed: bool
    ) -> None:
        """A client requests a variant: a HIT, or a render that it starts or joins."""
        found = self.find(form, path)
        if found is not None:
            assert found in self.whole[form], "the store has a torn variant"
            return
        try:
            client = self.node.start_client(f"f:{form}", path, window, is_low=is_low)
        except Stopping:
            assert self.draining is not None, "a node that runs has refused a client"
            return
        self.connected.append((client, (form, path)))
        if is_probed:
            for child in self.node.spawner.alive:
                if child.arguments[0] == "ffprobe":
                    self.end(child)
            self.node.disk.run()

    @precondition(has_clients)
    @rule(place=_PLACES)
    def leave(self, place: int) -> None:
        """A client disconnects."""
        client, _ = self.connected.pop(place % len(self.connected))
        client.disconnect()

    @precondition(has_clients)
    @rule(place=_PLACES)
    def read_on(self, place: int) -> None:
        """A client that has stalled reads on."""
        self.connected[place % len(self.connected)][0].consumer.drain()

    @precondition(has_children)
    @rule(
        place=_PLACES,
        count=st.integers(1, 200),
        seconds=st.sampled_from((0.03, 0.03, 0)),
        failure=st.none() | st.sampled_from(_FAILURES),
    )
    def work(self, place: int, count: int, seconds: float, failure: _Failure | None) -> None:
        """A child does some of its work, the size of its output may be checked, and it may fail."""
        child = self.child(place)
        data = self.left.setdefault(child, self.output(child))
        if failure is None and count >= len(data):
            self.end(child)
            return
        child.write_stdout(data[:count])
        self.left[child] = data[count:]
        self.node.clock.advance(seconds)
        if failure is not None and child.alive:
            stderr, code, number = failure
            child.exit_and_end(code, number, stderr=stderr)

    @precondition(lambda self: any(child.signals for child in self.node.spawner.alive))
    @rule()
    def die(self) -> None:
        """All children die that were asked to stop."""
        for child in self.node.spawner.alive:
            if child.signals:
                child.exit_and_end(signal=15)

    @rule(seconds=_SECONDS)
    def pass_time(self, seconds: float) -> None:
        """Time passes, up to which no disk responds."""
        self.node.clock.advance(seconds)

    @precondition(lambda self: self.node.disk.waiting)
    @rule()
    def respond(self) -> None:
        """The disk of the store responds to the call that has waited for longest."""
        self.node.disk.run_next()

    @precondition(lambda self: self.node.threads.waiting)
    @rule()
    def run_thread(self) -> None:
        """Another thread ends."""
        self.node.threads.run_next()

    @rule(change=st.sampled_from(_CHANGES))
    def change(self, change: tuple[str, Any]) -> None:
        """Something changes around the renders."""
        what, value = change
        if what == "most":
            self.case.transfers.most = value
        elif what == "bound":
            self.node.variants.usage.max_bytes = value
        elif what == "prune":
            for form in ENCODED:
                self.node.variant_path(f"f:{form}", value).unlink(missing_ok=True)
        elif what == "lose":
            for opened in self.node.sources.opened:
                if not opened.closed and value in opened.identity:
                    opened.failure = UpstreamUnavailable()
        else:
            self.case.transfers.failures[what] = list(value)

    @precondition(lambda self: self.draining is None and len(self.node.spawner.children) > 4)
    @rule(seconds=st.sampled_from((0, 30)))
    def drain(self, seconds: float) -> None:
        """The service stops; running renders have some time."""
        deadline = Deadline(self.node.clock, seconds)
        self.draining = Deferred.fromCoroutine(self.node.renders.drain(deadline))

    @precondition(lambda self: self.draining is not None and self.draining.called)
    @rule()
    def restart(self) -> None:
        """An application starts the service again that it has stopped."""
        self.node.renders.open()
        self.draining = None

    @invariant()
    def clients_have_right_bytes(self) -> None:
        """No client has a wrong byte, or a response that ends too early and looks whole."""
        for client, (form, _) in self.connected:
            starts = [each for each in self.whole[form] if each.startswith(client.data)]
            assert starts, f"wrong bytes of {form}"
            if client.outcome == "whole":
                assert client.data in starts, f"a short {form} that looks whole"

    @invariant()
    def slots_are_counted(self) -> None:
        """Each encoder has a slot; what waits has a client (D36), and no node that stops (D39)."""
        encoders = [each for each in self.node.spawner.alive if self.output(each)]
        wanted = {key for client, key in self.connected if client.outcome is None}
        slots, (with_slot, _) = self.node.slots, self.node.renders.count()
        assert max(len(encoders), with_slot) <= slots.held <= _CAPACITY, (encoders, slots.held)
        assert slots.depth <= _QUEUE and slots.low_depth <= _QUEUE // 2
        assert slots.depth + slots.low_depth <= (len(wanted) if self.draining is None else 0)

    @invariant()
    def nothing_crashes(self) -> None:
        """No error is logged but that of a child which takes long to die."""
        errors = [formatEvent(event) for event in self.log.errors]
        assert not [text for text in errors if "survived SIGKILL" not in text], errors

    def output(self, child: FakeChild) -> bytes:
        """Return what a child writes, if it is an encoder; every other one has the other audio."""
        words = child.arguments
        form = words[-words[::-1].index("-f")] if words[0] == "ffmpeg" else ""
        data = ENCODED.get(form, b"")
        is_other = self.node.spawner.children.index(child) % 2
        return data.replace(*_AUDIO) if is_other else data

    def end(self, child: FakeChild) -> None:
        """Let a child do what it should."""
        if child.arguments[0] == "ffprobe":
            answer_probe(child, "10")
        else:
            child.exit_and_end(stdout=self.left.pop(child, self.output(child)))

    def settle(self) -> None:
        """Inject no more faults, and run until nothing is under way."""
        node = self.node
        self.case.transfers.clear()
        for _ in range(50):
            for child in node.spawner.alive:
                self.end(child)
            node.disk.run()
            node.threads.run()
            for client, _ in self.connected:
                client.consumer.drain()
            node.clock.advance(1)
            outcomes = [client.outcome for client, _ in self.connected]
            if not node.spawner.alive and None not in outcomes and node.renders.count() == (0, 0):
                break
        # A failure is remembered for a minute, and a full disk for ten.
        node.clock.advance(600)
        # Files are removed in threads.
        node.disk.run()

    def teardown(self) -> None:
        """Everything that was begun ends, nothing is left, and the next request succeeds."""
        try:
            self.settle()
            outcomes = [client.outcome for client, _ in self.connected]
            assert None not in outcomes, "a client waits for ever"
            self.check_released()
            if self.draining is not None:
                assert self.draining.called, "the service does not stop"
                self.node.renders.open()
            self.node.variants.usage.max_bytes = None
            for form in ENCODED:
                self.change(("prune", b"a.wav"))
                self.request(form, b"a.wav", None, is_low=False, is_probed=True)
                self.settle()
                client, _ = self.connected[-1]
                assert client.outcome == "whole", client.outcome
                assert self.find(form, b"a.wav") == client.data
            self.clients_have_right_bytes()
            self.check_released()
            self.nothing_crashes()
        finally:
            self.stop_log()
            self.node.close()
            self.node.variants.close_now()
            shutil.rmtree(self.root)
        assert not opened_since(self.before), opened_since(self.before)

    def check_released(self) -> None:
        """Require that nothing of the renders is left."""
        assert self.node.unreleased_resources() == NOTHING_UNRELEASED
        assert self.node.renders.count() == (0, 0)
        assert self.node.scratch_files() == []


class ScheduleTests(SynchronousTestCase):
    """`Schedule`"""

    def setUp(self) -> None:
        self.transfers = Transfers(self)
        self.whole: dict[str, tuple[bytes, bytes]] = {}

    def test_schedules(self) -> None:
        """Whatever happens in whatever order, each client that stays gets all bytes, or an error.

        No slot, child, file, descriptor or timer is lost, and no torn variant is stored.
        """
        node = DiskHarness(Path(self.mktemp()).absolute())
        node.fill_sources()
        for form, data in ENCODED.items():
            client, _ = node.render(f"f:{form}")
            node.complete(data)
            self.whole[form] = client.data, client.data.replace(*_AUDIO)
        node.close()
        node.variants.close_now()
        run_state_machine_as_test(lambda: Schedule(self), settings=_SETTINGS)
