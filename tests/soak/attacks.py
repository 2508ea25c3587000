"""Faults that clients do not cause: attacked children, changed sources, damaged variants."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

from twisted.internet.defer import Deferred

from tests.soak.good_clients import any_short, together
from tests.soak.lines import pause, wait_for
from tests.soak.nodes import Node, alive
from tests.soak.rig import LONG_RENDER, WOUNDED, Rig
from tests.soak.visits import Asked, Visit
from tests.support.service import PATIENCE

Harm = Callable[[bytes, Random], bytes]

_SOURCE = "fd/3"
_LOOK = 0.01
# Seconds after which requests can no longer join a render whose variant is stored.
_LINGER = 1.3


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
class Sentence:
    """Attack on one child process.

    :ivar way: "kill", "stop" (for good) or "pause".
    :ivar midway: wait until the response has begun to arrive.
    """

    program: str
    way: str
    midway: bool = False


SENTENCES = [
    Sentence("ffmpeg", "kill", midway=True),
    Sentence("ffmpeg", "stop", midway=True),
    Sentence("ffprobe", "kill"),
    Sentence("ffmpeg", "pause", midway=True),
    Sentence("ffmpeg", "kill"),
    Sentence("ffprobe", "stop"),
    Sentence("ffmpeg", "stop"),
    Sentence("ffprobe", "pause"),
]


class Attacks:
    """Attacks on the nodes' child processes, on sources and on stored variants."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._sentences = cycle(SENTENCES)
        self._stopped = False
        self._version = 0

    async def attack(self, over: list[bool], chance: Random) -> None:
        """Run the attacks in a fixed order until the run is over.

        A random order could leave one of them out of a short run.
        """
        for act in cycle([self.hurt, self.change, self.hurt, self.damage, self.hurt]):
            if over:
                return
            await act(self._rig, chance)

    async def hurt(self, _rig: Rig, chance: Random) -> None:
        """Request a variant through a new link to its source, and attack the child that reads it.

        The child is killed, stopped or paused.
        """
        rig = self._rig
        sentence = next(self._sentences)
        # Only node A, which is never restarted, can show that it ends a stopped child in time.
        node = rig.a if sentence.way == "stop" else rig.node(chance)
        options, source = LONG_RENDER if sentence.midway else chance.choice(WOUNDED)
        name = rig.sounds.link(source)
        asked = rig.variant(options, source, name=name)
        causes: set[str] = set()
        over: list[bool] = []
        hunt = self._hunt(node, sentence, rig.sounds.path(name), causes, over)
        hunting = Deferred.fromCoroutine(hunt)
        count = chance.choice([1, 1, 3])
        await together(*(rig.attend(node, asked, "victim", causes=causes) for _ in range(count)))
        over.append(True)
        await hunting
        # A second request must not be affected by the failure of the first.
        if causes and rig.a is node:
            await pause(chance.choice([0, 0.5]))
            await rig.attend(node, asked, "after a victim")
        rig.sounds.unlink(name)

    async def _hunt(
        self, node: Node, sentence: Sentence, source: Path, causes: set[str], over: list[bool]
    ) -> None:
        handle = None
        life = node.process
        while handle is None:
            if over or not node.up or node.process is not life:
                return
            handle = find_child(node, sentence.program, source)
            await pause(_LOOK)

        def begun() -> bool:
            running = self._rig.journal.running
            return bool(over) or any(v.begun for v in running if v.causes is causes)

        try:
            if sentence.midway:
                await wait_for(begun, 60, _LOOK)
            await self._carry_out(sentence, handle, causes, over)
        finally:
            os.close(handle)

    async def _carry_out(
        self, sentence: Sentence, handle: int, causes: set[str], over: list[bool]
    ) -> None:
        faults = self._rig.journal.faults
        kind = "encoder" if sentence.program == "ffmpeg" else "probe"
        if sentence.way == "kill":
            causes.add("child killed")
            if _send(handle, signal.SIGKILL):
                faults[f"child: {kind} killed"] += 1
        elif sentence.way == "stop" and not self._stopped:
            self._stopped = True
            causes.add("child stopped")
            if _send(handle, signal.SIGSTOP):
                faults[f"child: {kind} stopped for good"] += 1
            await wait_for(lambda: over, 60)
            self._stopped = False
            if not await wait_for(lambda: not _send(handle, 0) or _ended(handle), 10):
                self._rig.journal.remarks.append(f"a stopped {kind} was not ended by the service")
                _send(handle, signal.SIGKILL)
        elif _send(handle, signal.SIGSTOP):
            # No cause is recorded: the render has to wait for the child and then succeed.
            faults[f"child: {kind} stopped and continued"] += 1
            await pause(0.4)
            _send(handle, signal.SIGCONT)

    async def change(self, _rig: Rig, chance: Random) -> None:
        """Rewrite a source while it is rendered."""
        rig = self._rig
        asked = rig.variant(*chance.choice(rig.terms.shifting))
        over: list[bool] = []
        rewriting = Deferred.fromCoroutine(self._rewrite(asked, over))
        await rig.attend(rig.a, asked, "changing source", causes={"source changed"})
        over.append(True)
        await rewriting

    async def _rewrite(self, asked: Asked, over: list[bool]) -> None:
        """Write the other version once a response with the current version has begun."""
        rig = self._rig

        def begun() -> bool:
            running = rig.journal.running
            return bool(over) or any(v.begun for v in running if v.asked is asked)

        # An encoder that has produced output has read part of the source, but far from all of it.
        await wait_for(begun, PATIENCE, _LOOK)
        version = self._version = 1 - self._version
        rig.journal.faults["source: rewritten while it is read"] += 1
        for half in (0, 1):
            rig.sounds.write_half(version, half)
            await pause(0.03)

    async def damage(self, _rig: Rig, chance: Random) -> None:
        """Damage several stored variants in different ways; the service must not serve them."""
        await together(*(self._damage(name, harm, chance) for name, harm in DAMAGES))

    async def _damage(self, name: str, harm: Harm, chance: Random) -> None:
        rig = self._rig
        asked = any_short(rig, chance, cold=True)
        path = rig.store / (asked.key or "")[:2] / (asked.key or "")
        if not await _stored(rig, asked):
            return
        # Before this wait ends, requests still join the finished render, and the service does not
        # read the file.
        await pause(_LINGER)
        disturbed = rig.journal.disturbed
        try:
            spoilt = harm(path.read_bytes(), chance)
            replacement = rig.base / "attic" / f"damaged-{asked.key}"
            replacement.write_bytes(spoilt)
            # Replace the file atomically: a response that reads the old file can still read all of
            # it.
            os.replace(replacement, path)
        except FileNotFoundError:
            return  # the store has been moved away for a while
        rig.journal.faults[f"store: variant {name}"] += 1
        visit = await rig.attend(rig.a, asked, f"{name} variant")
        if visit.state == "HIT" and disturbed == rig.journal.disturbed:
            rig.journal.flag(visit, f"a variant that was {name} was served")


async def _stored(rig: Rig, asked: Asked) -> bool:
    """Request a variant until it is a HIT; return False after 20 requests without one."""
    for _ in range(20):
        visit: Visit = await rig.attend(rig.a, asked, "to be damaged")
        if visit.state == "HIT":
            return True
        await pause(0.1)
    return False


def _ended(handle: int) -> bool:
    # A zombie (dead, but not yet reaped) still accepts signals, so look at its state.
    for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines():
        if line.startswith("Pid:"):
            pid = int(line.split()[1])
            return pid < 0 or not alive(pid)
    return True


def _truncated(data: bytes, chance: Random) -> bytes:
    return data[: -chance.randrange(1, len(data))]


def _overwritten(data: bytes, chance: Random) -> bytes:
    return data[:-8] + chance.randbytes(8)


def _relabelled(data: bytes, chance: Random) -> bytes:
    at = data.rindex(b'"content_type": "') + len(b'"content_type": "')
    return data[:at] + b"x" + data[at + 1 :]


def _shortened(data: bytes, chance: Random) -> bytes:
    return data[chance.randrange(1, 400) :]


DAMAGES: list[tuple[str, Harm]] = [
    ("truncated", _truncated),
    ("overwritten at its end", _overwritten),
    ("damaged in its record", _relabelled),
    ("shortened at its start", _shortened),
]
