"""Faults that clients do not cause: attacks on child processes, sources and stored variants."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from random import Random
from select import select

from twisted.internet.defer import Deferred

from tests.soak.good_clients import gather, random_variant
from tests.soak.lines import PATIENCE, pause, wait_for
from tests.soak.nodes import Node
from tests.soak.records import ExpectedRequest
from tests.soak.rig import ATTACKED, LONG_RENDER, Rig, stored_path
from tests.support.service import reactor

Damage = Callable[[bytes, Random], bytes]

_PAST = {"kill": "killed", "stop": "stopped for good", "pause": "stopped and continued"}
_SOURCE = "fd/3"
# Seconds between two looks for a child. A probe in a forked child ends in some milliseconds.
_LOOK = 0.002
# Seconds to wait after a render was stored. Requests can then certainly no longer join it.
_LINGER = 1.3
# Attempts before an attack counts as impossible, if they also take `PATIENCE`.
_TRIES = 20


def find_child(node: Node, program: str, source: Path) -> int | None:
    """Return a pidfd of a child that runs a program on a source; None if there is no such child.

    Before ``exec``, a child still holds all descriptors of the node, so the program is checked
    first. A pidfd refers to the same process even if its process id is reused.
    """
    for pid in node.children():
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            with suppress(OSError):
                runs = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
                reads = os.readlink(f"/proc/{pid}/{_SOURCE}")
                if (runs, reads) == (program, str(source)):
                    return handle
            os.close(handle)
    return None


def _send(handle: int, number: int) -> bool:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True)
class ChildAttack:
    """Attack on one child process.

    :ivar way: "kill" (SIGKILL), "stop" (SIGSTOP) or "pause" (SIGSTOP, then SIGCONT).
    :ivar midway: whether the attack waits until the response has begun to arrive.
    """

    program: str
    way: str
    midway: bool = False


CHILD_ATTACKS = [
    ChildAttack("ffmpeg", "kill", midway=True),
    ChildAttack("ffprobe", "kill"),
    ChildAttack("ffmpeg", "pause", midway=True),
    ChildAttack("ffmpeg", "kill"),
    ChildAttack("ffprobe", "pause"),
]


class Attacks:
    """Attacks on the nodes' child processes, on sources and on stored variants."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._child_attacks = cycle(CHILD_ATTACKS)
        self._version = 0

    async def attack(self, over: list[bool], chance: Random) -> None:
        """Run the attacks in a fixed order until the run is over.

        A random order could leave one of them out of a short run. In every run, however busy the
        machine is, an encoder of node A is killed and a source is rewritten while it is rendered.
        A run of 10 seconds or more also damages stored variants.
        """
        kill = CHILD_ATTACKS[0]
        await self._repeat(lambda: self._attack_child(self._rig.a, kill, chance), "kill an encoder")
        await self._repeat(lambda: self.change(self._rig, chance), "rewrite a source")
        if self._rig.parameters.faults:
            await self.damage(self._rig, chance)
        for act in cycle(
            [self.attack_child, self.damage, self.attack_child, self.attack_child, self.change]
        ):
            if over:
                return
            await act(self._rig, chance)

    async def stop_children(self, over: list[bool], program: str, chance: Random) -> None:
        """Stop one child after another for good until the run is over; the service has to end it.

        At least one child is stopped. Only node A can show this, because it is never restarted.
        """
        attack = ChildAttack(program, "stop", midway=program == "ffmpeg")
        for number in count():
            if over and number:
                return
            await self._repeat(
                lambda: self._attack_child(self._rig.a, attack, chance), f"stop {program}"
            )

    async def _repeat(self, attack: Callable[[], Awaitable[bool]], what: str) -> None:
        """Repeat an attack until it is carried out; a node that never allows it has an error.

        An attempt fails if the node is busy, or if the child ends before it is found.
        """
        deadline = reactor.seconds() + PATIENCE
        for attempts in count(1):
            if await attack():
                return
            if attempts >= _TRIES and reactor.seconds() > deadline:
                self._rig.journal.errors.append(f"{attempts} attempts to {what} failed")
                return
            await pause(_LINGER)

    async def attack_child(self, _rig: Rig, chance: Random) -> None:
        """Kill or pause the next child."""
        attack = next(self._child_attacks)
        await self._attack_child(self._rig.node(chance), attack, chance)

    async def _attack_child(self, node: Node, attack: ChildAttack, chance: Random) -> bool:
        """Request a variant of a new copy of its source, and attack the child that reads the copy.

        :returns: whether the attack was carried out.
        """
        rig = self._rig
        options, source = LONG_RENDER if attack.midway else chance.choice(ATTACKED)
        name = rig.sounds.copy(source)
        request = rig.variant(options, source, place=f"local://{name}")
        causes: set[str] = set()
        over: list[bool] = []
        attack_run = self._find_and_attack(node, attack, rig.sounds.path(name), causes, over)
        attacking = Deferred.fromCoroutine(attack_run)
        clients = chance.choice([1, 1, 3])
        await gather(
            *(rig.request(node, request, "attacked render", causes=causes) for _ in range(clients))
        )
        over.append(True)
        attacked = await attacking
        # A second request must not be affected by the failure of the first, unless that was at the
        # deadline of the render (D73).
        if causes and rig.a is node:
            await pause(0.5 if attack.midway else 0)
            remembered = causes & {"child stopped"} if attack.program == "ffmpeg" else None
            await rig.request(node, request, "after an attack", causes=remembered)
        rig.sounds.remove(name)
        return attacked

    async def _find_and_attack(
        self, node: Node, attack: ChildAttack, source: Path, causes: set[str], over: list[bool]
    ) -> bool:
        handle = None
        life = node.process
        while handle is None:
            if over or not node.up or node.process is not life:
                return False
            handle = find_child(node, attack.program, source)
            await pause(_LOOK)

        def begun() -> bool:
            running = self._rig.journal.running
            return bool(over) or any(v.begun for v in running if v.causes is causes)

        try:
            if attack.midway:
                await wait_for(begun, PATIENCE, _LOOK)
            return await self._carry_out(attack, handle, causes, over)
        finally:
            os.close(handle)

    async def _carry_out(
        self, attack: ChildAttack, handle: int, causes: set[str], over: list[bool]
    ) -> bool:
        """Attack a child; return False if it had already ended."""
        faults = self._rig.journal.faults
        kind = "encoder" if attack.program == "ffmpeg" else "probe"
        # A paused child is no cause: the render has to wait for it and then succeed.
        if attack.way != "pause":
            causes.add("child killed" if attack.way == "kill" else "child stopped")
        sent = _send(handle, signal.SIGKILL if attack.way == "kill" else signal.SIGSTOP)
        faults[f"child: {kind} {_PAST[attack.way]}"] += sent
        if attack.way == "pause":
            await pause(0.4)
            _send(handle, signal.SIGCONT)
        elif attack.way == "stop" and sent:
            await wait_for(lambda: over, PATIENCE)
            # A pidfd becomes readable at the end of its process.
            if not await wait_for(lambda: select([handle], [], [], 0)[0], PATIENCE):
                self._rig.journal.errors.append(f"a stopped {kind} was not ended by the service")
                _send(handle, signal.SIGKILL)
        return sent

    async def change(self, _rig: Rig, chance: Random) -> bool:
        """Rewrite a source; return whether it was still being rendered then."""
        rig = self._rig
        request = rig.variant(*chance.choice(rig.parameters.changing))
        over: list[bool] = []
        rewriting = Deferred.fromCoroutine(self._rewrite(request, over))
        await rig.request(rig.a, request, "changing source", causes={"source changed"})
        over.append(True)
        return await rewriting

    async def _rewrite(self, request: ExpectedRequest, over: list[bool]) -> bool:
        """Write the other version of the source once the response has begun to arrive."""
        rig = self._rig

        def begun() -> bool:
            running = rig.journal.running
            return bool(over) or any(v.begun for v in running if v.request is request)

        # An encoder that has produced output has read part of the source, but far from all of it.
        await wait_for(begun, PATIENCE, _LOOK)
        version = self._version = 1 - self._version
        rig.journal.faults["source: rewritten while it is read"] += 1
        for half in (0, 1):
            rig.sounds.write_half(version, half)
            await pause(0.03)
        return not over

    async def damage(self, _rig: Rig, chance: Random) -> None:
        """Damage several stored variants in different ways; the service must not serve them."""
        await gather(*(self._damage(name, damage, chance) for name, damage in DAMAGES))

    async def _damage(self, name: str, damage: Damage, chance: Random) -> None:
        rig = self._rig
        request = random_variant(rig, chance, cold=True)
        path = stored_path(rig.store, request)
        if not await _stored(rig, request):
            return
        # Requests may still join the finished render until this wait ends. Such a request does not
        # read the stored file.
        await pause(_LINGER)
        disturbed = rig.journal.disturbed
        try:
            damaged = damage(path.read_bytes(), chance)
            replacement = rig.base / "attic" / f"damaged-{request.key}"
            replacement.write_bytes(damaged)
            # Replace the file atomically: a response that reads the old file can still read all of
            # it.
            os.replace(replacement, path)
        except FileNotFoundError:
            return  # the store was moved away or cleared
        rig.journal.faults[f"store: variant {name}"] += 1
        record = await rig.request(rig.a, request, f"variant {name}")
        if record.state == "HIT" and disturbed == rig.journal.disturbed:
            record.problems.append(f"a variant that was {name} was served")


async def _stored(rig: Rig, request: ExpectedRequest) -> bool:
    """Request a variant until it is a HIT; return False after 20 requests without one."""
    for _ in range(20):
        record = await rig.request(rig.a, request, "before damage")
        if record.state == "HIT":
            return True
        await pause(0.1)
    return False


def _truncated(data: bytes, chance: Random) -> bytes:
    return data[: -chance.randrange(1, len(data))]


def _overwritten(data: bytes, chance: Random) -> bytes:
    return data[:-8] + chance.randbytes(8)


def _relabelled(data: bytes, chance: Random) -> bytes:
    at = data.rindex(b'"content_type": "') + len(b'"content_type": "')
    return data[:at] + b"x" + data[at + 1 :]


def _shortened(data: bytes, chance: Random) -> bytes:
    return data[chance.randrange(1, 400) :]


DAMAGES: list[tuple[str, Damage]] = [
    ("truncated", _truncated),
    ("overwritten at its end", _overwritten),
    ("damaged in its record", _relabelled),
    ("shortened at its start", _shortened),
]
