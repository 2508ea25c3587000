"""Report of the benchmark: figures, targets and the generated page."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from bench.figures import Curve, Figure, Panel, Results
from bench.load import read_report
from bench.report import Record, number, page

WRK_OUTPUT = """\
Running 2s test @ http://127.0.0.1:4000
  2 threads and 64 connections
  60123 requests in {took}, {size} read
{errors}Requests/sec:  30061.50
"""


def figure(**rest: Any) -> Figure:
    """Return a figure with three rounds."""
    row = Figure("a HIT", "over nginx", "requests/s", peer="nginx", **rest)
    for ours, theirs in ((40.0, 100.0), (10.0, 20.0), (90.0, 300.0)):
        row.add(ours, theirs)
    return row


def record(**rest: Any) -> Record:
    """Return the record of a run with one series."""
    panel = Panel("seconds", {"the service": [[1.0, 2.0], [3.0, 4.0]]})
    results = Results(
        [figure(target=0.35, at_least=True), figure(remark="on one core")],
        [Curve("lengths", "Render length", "minutes", [1.0, 240.0], [panel], remark="It grows.")],
        {"peaks over audiowaveform": "audiowaveform is not installed"},
        {"speed of mp3": 112.34},
    )
    return Record("2026-11-21", 600.0, 3, {"cores": "2"}, {"nginx": "1.22"}, {"x": results}, **rest)


class FigureTests(SynchronousTestCase):
    """Figures computed from rounds."""

    def test_ratio(self) -> None:
        """A figure's ratio is computed per round, since conditions differ between rounds.

        More rounds of one side than of the other raise ValueError. A figure without a peer is
        compared with its target directly.
        """
        row = figure()
        self.assertEqual([0.4, 0.5, 0.3], row.compared)
        row.ours.append(1.0)
        self.assertRaises(ValueError, lambda: row.compared)
        alone = Figure("idle service", "resident memory", "MB", [61.0, 59.0, 58.0], target=60)
        self.assertEqual(([61.0, 59.0, 58.0], True), (alone.compared, alone.target_met))

    def test_target(self) -> None:
        """A figure's median is compared with its target as a lower or an upper bound."""
        for target, at_least, met in (
            *((0.4, True, True), (0.41, True, False), (0.4, False, True)),
            *((0.39, False, False), (None, False, None)),
        ):
            self.assertIs(met, figure(target=target, at_least=at_least).target_met)


class PageTests(SynchronousTestCase):
    """Generated page."""

    def test_rows(self) -> None:
        """A row shows target, median, range, the medians of both sides, and the verdict.

        A figure without a target is in a separate table; its remark follows the table.
        """
        self.assertIn(
            "| a HIT | over nginx | at least 0.35 | 0.4 (0.3-0.5) | 40 requests/s"
            " | 100 requests/s (nginx) | yes |",
            page("{{ targets }}", record()),
        )
        text = page("{{ stated }}\n{{ remarks }}", record())
        self.assertIn("| a HIT | over nginx | 0.4 (0.3-0.5) |", text)
        self.assertIn("- a HIT: on one core.", text)
        self.assertNotIn("at least", text)

    def test_missing_results(self) -> None:
        """A missing peer and a failed series are listed with the reason."""
        text = page("{{ missing }}", record(failed={"nodes": "RuntimeError: no\nport"}))
        self.assertIn("peaks over audiowaveform; audiowaveform is not installed.", text)
        self.assertIn("nodes; RuntimeError: no port.", text)

    def test_facts(self) -> None:
        """Numbers in the prose come from the run.

        A missing number is a question mark if a series failed; otherwise it raises KeyError.
        """
        self.assertEqual("mp3 112", page("mp3 {{ speed of mp3 }}", record()))
        self.assertEqual("aac ?", page("aac {{ speed of aac }}", record(failed={"speeds": "no"})))
        self.assertRaises(KeyError, page, "{{ speed of aac }}", record())

    def test_plots(self) -> None:
        """Each curve has a heading, an image and a remark."""
        text = page("{{ plots }}", record())
        for part in ("### Render length", "](images/performance/lengths.svg)", "It grows."):
            self.assertIn(part, text)

    def test_page_from_samples(self) -> None:
        """The stored samples generate the same page as the run itself."""
        template = "{{ targets }}{{ stated }}{{ missing }}{{ plots }}{{ machine }}{{ summary }}"
        kept = json.loads(json.dumps(record().document()))
        self.assertEqual(page(template, record()), page(template, Record.read(kept)))

    def test_numbers(self) -> None:
        """A number is rounded to three significant digits; from 100 on, to a whole number."""
        for value, text in ((0.0, "0"), (0.01234, "0.0123"), (1.0, "1"), (30061.5, "30062")):
            self.assertEqual(text, number(value))


class LoadTests(SynchronousTestCase):
    """Output of wrk, parsed."""

    def test_units(self) -> None:
        """Requests, bytes and CPU time are converted to rates per second, from any unit of wrk."""
        for took, seconds, size, megabytes in (
            ("2.00s", 2.0, "1.00GB", 536.870912),
            ("500.00ms", 0.5, "4KB", 0.008192),
        ):
            load = read_report(WRK_OUTPUT.format(took=took, size=size, errors=""), 0.5)
            self.assertEqual(60123 / seconds, load.requests)
            self.assertAlmostEqual(megabytes, load.megabytes)
            self.assertEqual(0.5 / seconds, load.cpu)

    def test_errors(self) -> None:
        """A wrk report with socket errors, bad statuses or no figures raises RuntimeError."""
        for errors in (
            "  Non-2xx or 3xx responses: 12\n",
            "  Socket errors: connect 0, read 7, write 0, timeout 0\n",
        ):
            output = WRK_OUTPUT.format(took="2.00s", size="1.00GB", errors=errors)
            self.assertRaisesRegex(RuntimeError, "wrk says", read_report, output, 0.5)
        self.assertRaises(RuntimeError, read_report, "unable to connect", 0.5)
