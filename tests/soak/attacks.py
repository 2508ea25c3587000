"""Attacks on child processes: a client requests a variant, and its encoder or probe is attacked."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

from twisted.internet.defer import Deferred

from tests.soak.good_clients import gather
from tests.soak.lines import PATIENCE, pause, wait_for
from tests.soak.nodes import Node
from tests.soak.rig import ATTACKED, LONG_RENDER, Rig
from tests.support.service import reactor

_SOURCE = "fd/3"
# Seconds between two looks for a child. A probe in a forked child ends in some milliseconds.
_LOOK = 0.002
# Seconds of a pause, and between two attempts of the first attack.
_PAUSE, _REST = 0.4, 1.3


@dataclass(frozen=True)
class ChildAttack:
    """Attack on one child process.

    :ivar pauses: whether the child is stopped and continued; otherwise it is killed.
    :ivar midway: whether the attack waits until the response has begun to arrive.
    """

    program: str
    pauses: bool = False
    midway: bool = False


CHILD_ATTACKS = (
    ChildAttack("ffmpeg", midway=True),
    ChildAttack("ffprobe"),
    ChildAttack("ffmpeg", pauses=True, midway=True),
    ChildAttack("ffmpeg"),
    ChildAttack("ffprobe", pauses=True),
)


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


class Attacks:
    """Attacks on the nodes' child processes."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._next = cycle(CHILD_ATTACKS)

    async def kill_encoder(self, chance: Random) -> None:
        """Kill an encoder of node A, however short the run is.

        An attempt fails if the node is busy, or if the child ends before it is found.
        """
        deadline = reactor.seconds() + PATIENCE
        while not await self._attack(self._rig.a, CHILD_ATTACKS[0], chance):
            if reactor.seconds() > deadline:
                self._rig.journal.errors.append("no attempt to kill an encoder succeeded")
                return
            await pause(_REST)

    async def attack(self, rig: Rig, chance: Random) -> None:
        """Kill or pause the next child."""
        await self._attack(rig.node(chance), next(self._next), chance)

    async def _attack(self, node: Node, attack: ChildAttack, chance: Random) -> bool:
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
        # A second request must not be affected by the failure of the first.
        if causes and rig.a is node:
            await pause(0.5 if attack.midway else 0)
            await rig.request(node, request, "after an attack")
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
            return await self._carry_out(attack, handle, causes)
        finally:
            os.close(handle)

    async def _carry_out(self, attack: ChildAttack, handle: int, causes: set[str]) -> bool:
        """Attack a child; return False if it had already ended."""
        # A paused child is no cause: the render has to wait for it and then succeed.
        if not attack.pauses:
            causes.add("child killed")
        sent = _send(handle, signal.SIGSTOP if attack.pauses else signal.SIGKILL)
        if attack.pauses:
            await pause(_PAUSE)
            _send(handle, signal.SIGCONT)
        return sent
