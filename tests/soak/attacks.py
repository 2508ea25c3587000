"""Attacks on child processes: a client requests a variant, and its encoder or probe is killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
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
# Seconds between two attempts of the first attack.
_REST = 1.3

#: Programs to kill in turn, and whether that waits until the response has begun to arrive.
TARGETS = (("ffmpeg", True), ("ffprobe", False), ("ffmpeg", False))


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


class Attacks:
    """Attacks on the nodes' child processes."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._next = cycle(TARGETS)

    async def kill_encoder(self, chance: Random) -> None:
        """Kill an encoder of node A, however short the run is.

        An attempt fails if the node is busy, or if the child ends before it is found.
        """
        deadline = reactor.seconds() + PATIENCE
        while not await self._attack(self._rig.a, *TARGETS[0], chance):
            if reactor.seconds() > deadline:
                self._rig.journal.errors.append("no attempt to kill an encoder succeeded")
                return
            await pause(_REST)

    async def attack(self, rig: Rig, chance: Random) -> None:
        """Kill the next child."""
        await self._attack(rig.node(chance), *next(self._next), chance)

    async def _attack(self, node: Node, program: str, is_midway: bool, chance: Random) -> bool:
        """Request a variant of a new copy of its source, and kill the child that reads the copy.

        :returns: whether the child was killed.
        """
        rig = self._rig
        options, source = LONG_RENDER if is_midway else chance.choice(ATTACKED)
        name = rig.sounds.copy(source)
        request = rig.variant(options, source, place=f"local://{name}")
        causes: set[str] = set()
        over: list[bool] = []
        killing = self._find_and_kill(node, program, is_midway, rig.sounds.path(name), causes, over)
        attacking = Deferred.fromCoroutine(killing)
        clients = chance.choice([1, 1, 3])
        await gather(
            *(rig.request(node, request, "attacked render", causes=causes) for _ in range(clients))
        )
        over.append(True)
        attacked = await attacking
        # A second request must not be affected by the failure of the first.
        if causes and rig.a is node:
            await pause(0.5 if is_midway else 0)
            await rig.request(node, request, "after an attack")
        rig.sounds.remove(name)
        return attacked

    async def _find_and_kill(
        self,
        node: Node,
        program: str,
        is_midway: bool,
        source: Path,
        causes: set[str],
        over: list[bool],
    ) -> bool:
        handle = None
        life = node.process
        while handle is None:
            if over or not node.up or node.process is not life:
                return False
            handle = find_child(node, program, source)
            await pause(_LOOK)

        def begun() -> bool:
            running = self._rig.journal.running
            return bool(over) or any(v.begun for v in running if v.causes is causes)

        try:
            if is_midway:
                await wait_for(begun, PATIENCE, _LOOK)
            causes.add("child killed")
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True
