"""Some faults of some calls of a request; `make faults` has all of all scenarios."""

from __future__ import annotations

from tests.faults.cases import FaultCase
from tests.faults.fitting import some


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
