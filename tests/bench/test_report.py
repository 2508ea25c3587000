"""Report of the benchmark: figures, targets, and the blocks that it fills in documents."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from bench import browsers
from bench.__main__ import CONTENTS, SERIES
from bench.blocks import BLOCK, fill
from bench.figures import Figure
from bench.load import read_report
from bench.programs import PROJECT
from bench.report import (
    SECTIONS,
    Run,
    all_contents,
    headline_contents,
    number,
    short_contents,
    table,
)


def figure(**rest: Any) -> Figure:
    """Return a figure with three rounds."""
    row = Figure("a HIT", "over nginx", "requests/s", **rest)
    for ours, theirs in ((40.0, 100.0), (10.0, 20.0), (90.0, 300.0)):
        row.add(ours, theirs)
    return row


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


class TableTests(SynchronousTestCase):
    """Tables of the report."""

    def test_rows(self) -> None:
        """A row shows median, range, the medians of both sides, and the target, bold if missed."""
        row = "| a HIT | over nginx | 0.4 (0.3-0.5) | 40, 100 requests/s"
        self.assertIn(f"{row} | ≥ 0.35 |", table([figure(target=0.35, at_least=True)]))
        self.assertIn(f"{row} | **≤ 0.35** |", table([figure(target=0.35)]))
        self.assertIn(f"{row} |  |", table([figure()]))
        self.assertNotIn(row, table([figure(on_page=False)], whole=False))

    def test_notes(self) -> None:
        """Remarks follow the table, and reasons if a target is missed, each of them once."""
        late = {"reason": "it is late", "remark": "on one core"}
        text = table([figure(target=0.35, **late), figure(target=1, **late)])
        self.assertTrue(text.endswith("\n\n- Missed: it is late.\n- on one core."), text)
        self.assertNotIn("late", table([figure(target=1, **late)]))

    def test_numbers(self) -> None:
        """A number is rounded to three significant digits; from 100 on, to a whole number."""
        for value, text in ((0.0, "0"), (0.01234, "0.0123"), (1.0, "1"), (30061.5, "30062")):
            self.assertEqual(text, number(value))


class BlockTests(SynchronousTestCase):
    """Blocks of documents."""

    def test_contents(self) -> None:
        """One page gets every series, another some rows without targets, the home page ranges."""
        series = {
            "large-hits": [figure(target=1, in_short=True), figure(target=0.1, headline="of it")]
        }
        series["idle"] = [Figure("idle", "memory", "MB", [3.0, 3.0], headline="of memory")]
        run = Run("2026-11-21", 3, {"cores": "2"}, {"nginx": "1.22"}, series)
        contents = all_contents(run)
        self.assertIn("2026-11-21, with 3 rounds", contents["run"])
        self.assertIn("1 of 2 targets are met", contents["run"])
        self.assertEqual(table(series["large-hits"]), contents["hits"])
        self.assertIn("cores 2; nginx 1.22.", contents["machine"])
        *_, row = short_contents(run)["claims"].splitlines()
        self.assertEqual(1, contents["hits"].count(row.rstrip("|") + "| ≤ 1 |"))
        self.assertEqual(
            {"headlines": "- **30-50 %** of it\n- **3 MB** of memory"}, headline_contents(run)
        )

    def test_documents(self) -> None:
        """Each block of each document has contents, in the benchmark's order."""
        run = Run("2026-11-21", 3, {}, {}, {name: [figure(in_short=True)] for name in SERIES})
        texts = {name: (PROJECT / name).read_text() for name in CONTENTS}
        for name, contents in CONTENTS.items():
            fill(texts[name], contents(run))
        blocks = [match[2] for match in BLOCK.finditer(texts["docs/benchmarks.md"])]
        self.assertEqual(["run", *SECTIONS, "machine"], blocks)
        self.assertEqual([*SERIES], [name for group in SECTIONS.values() for name in group])

    def test_fill(self) -> None:
        """Only the text between the marks of a block changes, each time."""
        page = "# Page\n<!-- measured: a -->\nold\n<!-- end -->\ntext\n"
        filled = "# Page\n<!-- measured: a -->\n\nnew\n\n<!-- end -->\ntext\n"
        self.assertEqual(filled, fill(page, {"a": "new"}))
        self.assertEqual(filled, fill(filled, {"a": "new\n"}))

    def test_fill_everything(self) -> None:
        """A block without contents and contents without a block raise KeyError."""
        page = "<!-- measured: a -->\n<!-- end -->\n"
        for contents in ({}, {"b": "x"}, {"a": "x", "b": "x"}):
            self.assertRaises(KeyError, fill, page, contents)


class LoadTests(SynchronousTestCase):
    """Output of wrk, parsed."""

    def test_rates(self) -> None:
        """Requests, bytes and CPU time are converted to rates per second, and times to ms."""
        load = read_report("Running 1s test\nsummary: 500000 60123 1000000000 0 1500\n", 0.5)
        self.assertEqual((120246, 2000, 1), (load.requests, load.megabytes, load.cpu))
        self.assertEqual(1.5, load.p99)

    def test_errors(self) -> None:
        """Errors of wrk, no requests and no summary raise RuntimeError."""
        for text in (
            "summary: 500000 60123 10 1 9\n",
            "summary: 500000 0 0 0 0\n",
            "no connection",
        ):
            self.assertRaisesRegex(RuntimeError, "wrk says", read_report, text, 0.5)


class BrowserTests(SynchronousTestCase):
    """Tables of docs/browsers.md."""

    def test_contents(self) -> None:
        """The page has each table, with a row for each format, and how each stream ends."""
        played = {"plays": True, "duration": 29.9, "seeks": [0.01, -0.04]}
        mute = {"plays": False, "duration": None, "seeks": [None]}
        variants: dict[str, Any] = {
            f"{token} {length}": {"held": played, "stored": mute, "length": 1_323_000}
            for token in browsers.AUDIO_FORMATS
            for length in browsers.SOURCES
        }
        variants["torn"] = {
            "torn": {"seconds": 30, "ended": True, "error": None, "requests": ["bytes=7-"]},
            "failed": {"seconds": 1, "ended": False, "error": 2, "requests": []},
            "again": {"seconds": 45, "ended": False, "error": None, "requests": ["", ""]},
        }
        found = browsers.contents({"webkit": {"version": "2.50.6", "variants": variants}})
        blocks = BLOCK.findall(browsers.PAGE.read_text())
        self.assertEqual(set(found), {name for _, name, *_ in blocks})
        self.assertIn("WebKitGTK 2.50 of Debian", found["run"])
        self.assertIn("0.04 seconds", found["run"])
        for token in browsers.AUDIO_FORMATS:
            self.assertIn(f"| {token} | 29.90; seeks | does not play |", found["known"])
            self.assertIn(f"| {token} | 1,323,000 |", found["decoded"])
        for end in (
            "plays to the end; a new request",
            "`error` 2 after 1 s; no request",
            "no event in 45 s; 2 new requests",
        ):
            self.assertIn(f"| {end} |", found["torn"])
