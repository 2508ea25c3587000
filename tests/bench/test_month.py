"""What example sites use in a month."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from bench.blocks import BLOCK
from bench.month import PAGE, SITES, Prices, measured, table
from bench.programs import PROJECT

#: Round figures of docs/benchmarks.md.
ROUND = "\n".join(
    (
        *(f"| FLAC to `{s.options}` | speed | 100 (9-200) x |" for s in SITES),
        "| HIT, proxy mode, 4 KB variants | requests/s over nginx | 0.4 | 10000 requests/s | |",
        "| HIT, proxy mode, 50 MB file, 16 connections | CPU over nginx with sendfile | 1 | 2 s |",
        "| HIT in redirect mode, 1000 URLs in turn | service's CPU for each request | 360 µs |",
    )
)


class MonthTests(SynchronousTestCase):
    """`python -m bench.month`"""

    def test_table(self) -> None:
        """Each row follows from the inputs of a site, the figures and the prices."""
        prices = Prices(cpu=1, storage=2, node_egress=0.1, bucket_egress=0.2, reads=10)
        lines = table(ROUND, prices).splitlines()
        podcast = dict(line[2:].split(" | ")[:2] for line in lines if not line.startswith("|-"))
        # 45 minutes at 96 kbps are 32.4 MB.
        expected = {
            "In a month": "Podcast",
            "new variants": "8 of 2700 s, `f:mp3/norm:ebu`, 96 kbps",
            "plays": "50000",
            "CPU of the encoders": "3.6 min",
            "CPU of the service, proxy mode with a folder": "54.1 min",
            "CPU of the service, redirect mode": "0.3 min",
            "store, after a year": "3.11 GB",
            "sent, by the node or by the bucket": "1620 GB",
            "reads of the bucket, redirect mode": "100000",
            "price, proxy mode with a folder": f"{0.06 + 6.2208 + 0.9014 + 162:.2f}",
            "price, redirect mode": f"{0.06 + 6.2208 + 1 + 0.005 + 324:.2f}",
        }
        self.assertEqual(expected, podcast)
        self.assertRaises(LookupError, measured, ROUND, "HIT", "speed")

    def test_page(self) -> None:
        """The page shows the table that follows from the figures of the benchmarks."""
        page = (PROJECT / "docs" / "scope.md").read_text()
        (block,) = BLOCK.finditer(page)
        self.assertEqual(("month", table(PAGE.read_text())), (block[2], block[3].strip()))
