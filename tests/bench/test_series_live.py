"""Each benchmark in its smallest form: whether it runs, whatever it measures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from bench import deadlines, quality
from bench.__main__ import SERIES
from bench.blocks import BLOCK
from bench.machine import machine, versions
from bench.programs import FFMPEG, PROJECT
from bench.report import table
from bench.series.children import IncompleteCell
from bench.settings import Bench
from bench.sounds import make_sounds
from tests.deploy.balancer import installed

#: The share of lengths and numbers: sources are made of one second.
SCALE = 1 / 120

#: The programs of series beside the service and ffmpeg, which `make test-more` installs.
PROGRAMS = {
    "remote": ["nginx"],
    "far-renders": ["nginx", "wrk"],
    "large-hits": ["nginx", "wrk"],
    "small-hits": ["nginx", "wrk"],
    "beside-renders": ["wrk"],
    "redirects": ["nginx", "wrk"],
}


class SeriesTests(SynchronousTestCase):
    """`make bench`, `make deadlines` and `make quality`"""

    bench: Bench

    def setUp(self) -> None:
        if not Path(FFMPEG).exists():
            raise SkipTest(f"there is no {FFMPEG}")
        # The tests share the sources.
        self.bench = Bench(1, Path("bench").resolve(), SCALE)

    def check(self, name: str) -> None:
        """Run a series, and require a sample for each of its figures."""
        for program in PROGRAMS.get(name, ()):
            installed(program)
        make_sounds(self.bench)
        try:
            figures = SERIES[name](self.bench)
        except IncompleteCell as error:
            raise SkipTest(f"the cell is incomplete: {error}") from error
        self.assertTrue(figures)
        for figure in figures:
            # A difference may have any sign.
            self.assertTrue(figure.compared, figure)
        self.assertIn(f"| {figures[0].work} |", table(figures))

    def test_deadlines(self) -> None:
        """Deadlines follow from the speed of an encoder."""
        speeds = dict(deadlines.measure_all(self.bench))
        self.assertEqual([*deadlines.OPTIONS[:1]], [*speeds])
        self.assertRegex(deadlines.table(speeds, "here"), r"\| `f:wav` \| \S+ \| \d+ s \|")

    def test_quality(self) -> None:
        """All blocks of the page about quality have contents, and its plot is drawn."""
        installed("sox", "AUDIOPROXY_READERS")
        plot = Path(self.mktemp()).with_suffix(".svg")
        contents = quality.measure(self.bench, plot)
        page = (PROJECT / "docs" / "quality.md").read_text()
        self.assertEqual({block[2] for block in BLOCK.finditer(page)}, set(contents))
        self.assertNotIn("", contents.values())
        self.assertIn("<svg", plot.read_text())

    def test_machine(self) -> None:
        """The machine and the programs of a run are described."""
        for name, value in {**machine(), **versions()}.items():
            self.assertTrue(value, name)


def _test_of(name: str) -> Callable[[SeriesTests], None]:
    """Return the test of a series."""

    def test(case: SeriesTests) -> None:
        case.check(name)

    test.__doc__ = f"The series {name} yields its figures."
    return test


for _name in SERIES:
    setattr(SeriesTests, f"test_{_name.replace('-', '_')}", _test_of(_name))
