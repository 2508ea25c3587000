"""Some faults of some calls of a request; `make faults` has all of all scenarios."""

from __future__ import annotations

from collections.abc import Iterable

from tests.faults.cases import FaultCase
from tests.faults.fitting import Fault


def some(faults: Iterable[Fault]) -> list[Fault]:
    """Return each fault of each kind of call once: at the last call of the kind."""
    last = {(each.step.kind, each.step.object, each.number): each for each in faults}
    return list(last.values())


class StepTests(FaultCase):
    """What a fault leaves: nothing torn, nothing open, and a node that serves the next request."""

    at_a_time = 1
    format = "f:flac"

    async def test_miss(self) -> None:
        """A MISS with a fault has right bytes, or is seen to have failed, and leaves nothing."""
        await self.fail_miss(some)

    async def test_hit(self) -> None:
        """A HIT with a fault has the right bytes, or is seen to have failed."""
        await self.fail_hit(some)

    async def test_prune(self) -> None:
        """A prune with a fault removes no more than it says, and the next one does the rest."""
        await self.fail_prune(some)
