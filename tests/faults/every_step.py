"""Each fault of each call, of all scenarios: `make faults` runs this module, and prints a table."""

from __future__ import annotations

import atexit
import sys
from typing import ClassVar

from tests.faults.cases import BucketFaultCase, FaultCase
from tests.faults.fitting import lasting, some


def _print_table() -> None:
    for report in FaultCase.reports:
        print(report, file=sys.stderr)


atexit.register(_print_table)


class LocalTests(FaultCase):
    """Sources and variants in folders."""

    async def test_hit(self) -> None:
        """A HIT with a fault has the right bytes, or is seen to have failed."""
        await self.fail_hit()

    async def test_second_hit(self) -> None:
        """A variant that the node remembers is no exception."""
        await self.fail_second_hit()

    async def test_prune(self) -> None:
        """A prune with a fault removes no more than it says, and the next one does the rest."""
        await self.fail_prune()

    async def test_start(self) -> None:
        """A node starts in spite of a fault, or says why it does not."""
        await self.fail_start()


class MissTests(FaultCase):
    """Renders with headers that are written at the start, and their write-back."""

    async def test_miss(self) -> None:
        """A MISS with a fault has right bytes, or is seen to have failed, and leaves nothing."""
        await self.fail_miss()


class LastingTests(FaultCase):
    """Disks that stay full or broken, and processes that stay without descriptors or memory."""

    async def test_miss(self) -> None:
        """A MISS whose calls fail from one on has right bytes, or is seen to have failed."""
        await self.fail_miss(lasting, ", lasting")


class FlacTests(MissTests):
    """Renders with headers that are changed when audio follows."""

    format = "f:flac"


class WaveformTests(MissTests):
    """Renders that this process computes."""

    format = "f:peaks"


class ExecutedTests(FaultCase):
    """Renders whose programs are executed anew"""

    variables: ClassVar[dict[str, str]] = {"AP_WARM_PROGRAMS": "0"}

    async def test_miss(self) -> None:
        """A MISS with one fault of each kind of call is as others."""
        await self.fail_miss(some, ", executed")


class LargeTests(FaultCase):
    """Variants that the system sends from the file"""

    format = "f:wav"

    async def test_hit(self) -> None:
        """A HIT with a fault has the right bytes, or is seen to have failed."""
        await self.fail_hit()


class BucketTests(BucketFaultCase):
    """Sources and variants in buckets."""

    async def test_miss(self) -> None:
        """A MISS with a fault has right bytes, or is seen to have failed, and leaves nothing."""
        await self.fail_miss()

    async def test_hit(self) -> None:
        """A HIT with a fault has the right bytes, or is seen to have failed."""
        await self.fail_hit()

    async def test_start(self) -> None:
        """A node starts in spite of a fault, or says why it does not: one of each kind of call."""
        await self.fail_start(some)
