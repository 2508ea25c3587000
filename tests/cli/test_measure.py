"""`audioproxy measure` without ffmpeg: its plan, its order of results, and its reports."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.measure import MeasurePlan, MeasureProgress, Report, measure_all, write_report
from audioproxy.cli.output import Form, Output, progress_bar
from audioproxy.loudness import Measurement
from audioproxy.urls import Signer, Variant
from tests.cli.command import SECRETS, command
from tests.support.service import children

LOUD = Measurement((-20.0,) * 10, (-20.0,), 0.5)
QUIET = Measurement((-30.0,) * 10, (-30.0,), 0.1)
SILENT = Measurement((-90.0,) * 10, (), 0)


def read(text: str) -> list[dict[str, Any]]:
    """Return the objects of lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


class MeasureTests(SynchronousTestCase):
    """The command line, `measure_all` and `MeasureProgress`"""

    def test_refused(self) -> None:
        """Options in conflict are named, and a missing key where a URL needs it."""
        for status, words, environment, message in (
            (2, "--ceiling -1", SECRETS, "--ceiling goes with --target"),
            (2, "--target -16 -o gain:3", SECRETS, "gain is what --target computes"),
            (2, "-o f:peaks", SECRETS, "a waveform, which has no loudness"),
            (2, "--target 3", SECRETS, "a number from -70 to -5 is required"),
            (2, "--target -16 --ceiling x", SECRETS, "a number from -9 to 0 is required"),
            (1, "-o t:x", SECRETS, '"t:x" is not accepted'),
            (2, "--sign", {}, "AP_KEY: not set"),
            (2, "", {"AP_MAX_CONCURRENCY": "x"}, "AP_MAX_CONCURRENCY"),
        ):
            ended = command("measure", *words.split(), "local://a.wav", environment=environment)
            self.assertEqual(ended.status, status, words)
            self.assertIn(message, ended.err)

    def start(self, names: str) -> Deferred[None]:
        """Start to measure sources."""
        self.running: dict[str, Deferred[Any]] = {}
        self.cancelled: list[str] = []
        self.yielded: list[str] = []

        async def measure(source: str) -> Measurement | str:
            self.running[source] = Deferred(lambda _: self.cancelled.append(source))
            return await self.running[source]

        async def collect() -> None:
            async for source, _ in measure_all(list(names), measure):
                self.yielded.append(source)

        return Deferred.fromCoroutine(collect())

    def test_order(self) -> None:
        """Results come in the order of the sources."""
        collecting = self.start("abc")
        self.running["b"].callback("done")
        self.assertEqual(self.yielded, [])
        self.running["a"].callback("done")
        self.assertEqual(self.yielded, ["a", "b"])
        self.running["c"].callback("done")
        self.successResultOf(collecting)
        self.assertEqual(self.yielded, ["a", "b", "c"])

    def test_cancelled(self) -> None:
        """If the command is stopped, all measurements are stopped."""
        collecting = self.start("abcd")
        collecting.cancel()
        self.failureResultOf(collecting, CancelledError)
        self.assertEqual(sorted(self.cancelled), list("abcd"))
        self.assertEqual(self.yielded, [])

    def test_progress(self) -> None:
        """The bar shows the audio of all sources so far, and starts no process."""
        texts: list[str] = []
        bar = progress_bar("sources", quiet=True)
        bar.set_postfix_str = texts.append
        progress = MeasureProgress(bar, lambda work, *words: work(*words))
        one, other = progress.track(), progress.track()
        one(30)
        other(45)
        one(60)
        self.assertEqual(texts, ["0:30 of audio", "1:15 of audio", "1:45 of audio"])
        self.assertEqual([], children())


class ReportTests(SynchronousTestCase):
    """`write_report`"""

    def report(
        self, form: str, results: dict[str, Measurement | str], **settings: Any
    ) -> tuple[str, int]:
        """Return a report as text, and the number of failures."""
        unset = {"variant": None, "target": None, "album": False, "sign": None}
        plan = MeasurePlan(**unset | settings, ceiling=Decimal(-1))
        output, errors = io.StringIO(), io.StringIO()

        async def measured() -> AsyncIterator[tuple[str, Measurement | str]]:
            for item in results.items():
                yield item

        with redirect_stdout(output), redirect_stderr(errors):
            out = Output(Form(form), progress_bar("sources", quiet=True))
            report = Report(out, plan.target is not None, plan.sign is not None)
            writing = write_report(plan, measured(), report)
            self.successResultOf(Deferred.fromCoroutine(writing))
        self.errors = errors.getvalue().replace("audioproxy: ", "").splitlines()
        return output.getvalue(), report.failures

    def test_table(self) -> None:
        """A table has a line for each source; a gain below the target is explained."""
        text, failures = self.report(
            "table",
            {"local://a": LOUD, "local://b": QUIET, "local://c": SILENT, "local://d": "no such"},
            target=Decimal(-16),
        )
        self.assertEqual(
            text.splitlines(),
            [
                "   LUFS     LU   dBTP     gain  source",
                "  -20.0    0.0   -6.0    +4.00  local://a",
                "  -30.0    0.0  -20.0   +14.00  local://b",
                "      -      -      -        -  local://c",
            ],
        )
        self.assertEqual((failures, self.errors), (1, ["local://d: no such"]))
        text, _ = self.report("table", {"local://a": LOUD}, target=Decimal(-10))
        self.assertIn("  +5.01  local://a  (the ceiling keeps it 5.0 LU below the target)", text)
        text, _ = self.report("table", {"local://a": LOUD})
        self.assertEqual(text.splitlines()[1], "  -20.0    0.0   -6.0  local://a")

    def test_documents(self) -> None:
        """JSON has a line for each source, with null for None; CSV has headings and quotes."""
        text, _ = self.report("json", {"local://a": SILENT, "local://b": "no"}, target=-16)
        nothing = dict.fromkeys(("integrated", "range", "true_peak", "gain", "shortfall"))
        expected = [
            {"source": "local://a", **nothing, "error": None},
            {"source": "local://b", **nothing, "error": "no"},
        ]
        self.assertEqual(read(text), expected)
        text, _ = self.report("csv", {'local://a,"b"': LOUD})
        headings, row = csv.reader(io.StringIO(text))
        self.assertEqual(headings, ["source", "integrated", "range", "true_peak", "error"])
        self.assertEqual(row, ['local://a,"b"', "-20.00", "0.00", "-6.02", ""])

    def test_album(self) -> None:
        """An album has one gain and a row of its own, unless one of its sources failed."""
        album: dict[str, Any] = {"target": Decimal(-23), "album": True}
        text, _ = self.report("json", {"local://a": LOUD, "local://b": QUIET}, **album)
        *rows, row = read(text)
        self.assertApproximates(row["integrated"], -22.6, 0.05)
        self.assertEqual([each["gain"] for each in rows], [row["gain"]] * 2)
        for form in ("table", "csv", "json"):
            text, _ = self.report(form, {"local://a": LOUD, "local://b": QUIET}, album=True)
            self.assertIn("album", text.splitlines()[-1])
        text, failures = self.report("json", {"local://a": LOUD, "local://b": "no"}, **album)
        self.assertEqual([row["gain"] for row in read(text)], [None, None])
        self.assertEqual(failures, 1)
        self.assertIn("the album has no loudness", self.errors[-1])

    def test_urls(self) -> None:
        """A URL contains the gain; a gain that no URL can have is a failure."""
        signer = Signer(bytes(32), b"s", "https://audio.example")
        text, failures = self.report(
            "table",
            {"local://a": LOUD, "local://b": Measurement((-69.0,) * 9, (), 0.0001)},
            variant=Variant(f="opus"),
            target=Decimal(-5),
            sign=signer.url,
        )
        url = signer.url("local://a", Variant(f="opus", gain="5.01"))
        self.assertEqual(text.splitlines()[2], f"    {url}")
        self.assertEqual(failures, 1)
        self.assertIn('"gain:64.00" is not accepted', self.errors[0])
        text, _ = self.report("json", {"local://a": "no"}, variant=Variant(), sign=signer.url)
        nothing = dict.fromkeys(("integrated", "range", "true_peak"))
        row = {"source": "local://a", **nothing, "url": signer.url("local://a", Variant())}
        self.assertEqual([{**row, "error": "no"}], read(text))
