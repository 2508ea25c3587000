"""The check of `audioproxy doctor` for variants of other builds of ffmpeg (D78)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.checks.builds import check_catalog, compare_builds, sample_builds
from audioproxy.cli.checks.results import Verdict
from audioproxy.variants.catalog import CatalogError, Entry, OnFailure, Page
from audioproxy.variants.record import VariantRecord
from tests.support.stores import RECORD

OWN, OTHER = "9.0.2-4:a186d3b2", "5.1.9-0+deb12u1:b6e71b83"


class FakeCatalog:
    """Catalog of variants that were made by given builds; None is a variant without a record.

    :ivar read: the number of records that were requested.
    :ivar error: raised by the listing, if set.
    :ivar unreadable: keys of variants that cannot be read.
    :ivar hangs_after: the number of records after which a request never ends, if set.
    """

    def __init__(self, builds: Sequence[str | None], page: int = 64) -> None:
        self._builds = builds
        self._page = page
        self.read = 0
        self.error: Exception | None = None
        self.unreadable: set[str] = set()
        self.hangs_after: int | None = None

    async def pages(self) -> AsyncGenerator[Page]:
        if self.error is not None:
            raise self.error
        for start in range(0, len(self._builds), self._page):
            numbers = range(start, min(start + self._page, len(self._builds)))
            yield Page([Entry(f"{number}", 1, 0.0) for number in numbers], 0.0)

    async def read_records(
        self, entries: Sequence[Entry], on_failure: OnFailure
    ) -> list[tuple[Entry, VariantRecord | None]]:
        if self.hangs_after is not None and self.read >= self.hangs_after:
            await Deferred()
        self.read += len(entries)
        found: list[tuple[Entry, VariantRecord | None]] = []
        for entry in entries:
            build = self._builds[int(entry.key)]
            if entry.key in self.unreadable:
                on_failure(entry, PermissionError(13, "Permission denied"))
            elif build != "gone":
                record = None if build is None else replace(RECORD, build=build)
                found.append((entry, record))
        return found


class CompareTests(SynchronousTestCase):
    """`compare_builds`"""

    def test_texts(self) -> None:
        """Builds are named with their numbers, the most frequent first; other ones are a note.

        Without ffmpeg, another check says so.
        """
        good, note, old = Verdict.GOOD, Verdict.NOTE, "7.1.5:0a0b0c0d"
        own = f"by the build of this machine, {OWN}"
        for this, builds, verdict, words in (
            (OWN, [], good, "the store has no variants yet"),
            (OWN, [OWN, OWN], good, f"of 2 stored variants, ffmpeg made 2 {own}"),
            (OWN, ["unknown", OWN, "unknown"], good, f"1 {own} and 2 by builds that were not rec"),
            ("", ["unknown"], good, "of 1 stored variant, ffmpeg made 1 by builds that were not"),
            ("", [OTHER], good, f"1 by {OTHER}"),
            (OWN, [OTHER, old, OTHER], note, f"2 by {OTHER} and 1 by {old}, and this machine has"),
            (OWN, [OTHER, "unknown", OWN], note, f"1 {own}, 1 by {OTHER} and 1 by builds that"),
        ):
            found = compare_builds(this, builds)
            self.assertEqual(("builds", verdict), (found.check, found.verdict), builds)
            self.assertIn(words, found.text)
            self.assertIs(verdict is note, "must not be resumed on another node" in found.text)


class SampleTests(SynchronousTestCase):
    """`sample_builds`, `check_catalog` and `check_builds`"""

    def text(self, catalog: FakeCatalog, verdict: Verdict, seconds: float = 0) -> str:
        """Return the text of the check of a store, after some seconds; require this verdict."""
        clock = Clock()
        checking = Deferred.fromCoroutine(check_catalog(cast(Any, catalog), clock, OWN))
        clock.advance(seconds)
        found = self.successResultOf(checking)
        self.assertEqual(verdict, found.verdict)
        return found.text

    def test_bounded(self) -> None:
        """At most a hundred variants are read, in any number of pages."""
        for count in (3, 100, 1000):
            for page in (1, 64, 1000):
                catalog, builds = FakeCatalog([OTHER] * count, page), list[str]()
                self.successResultOf(Deferred.fromCoroutine(sample_builds(catalog, builds)))
                self.assertEqual([OTHER] * min(count, 100), builds)
                self.assertEqual(len(builds), catalog.read)

    def test_found(self) -> None:
        """Variants without a record or a build are unknown; removed ones are not counted."""
        catalog = FakeCatalog([OWN, None, "", "gone", OTHER])
        self.assertIn("of 4 stored variants, ", self.text(catalog, Verdict.NOTE))
        self.assertIn("2 by builds that were not", self.text(catalog, Verdict.NOTE))

    def test_unreadable(self) -> None:
        """A variant that cannot be read is left out; a store that cannot be read is a note."""
        catalog = FakeCatalog([OWN, OTHER])
        catalog.unreadable = {"1"}
        self.assertIn("of 1 stored variant, ", self.text(catalog, Verdict.GOOD))
        catalog.unreadable = {"0", "1"}
        self.assertIn("not checked, since ", self.text(catalog, Verdict.NOTE))
        catalog.error = CatalogError("it cannot be listed")
        self.assertIn("it cannot be listed", self.text(catalog, Verdict.NOTE))

    def test_slow(self) -> None:
        """After ten seconds, the check ends with what was read until then."""
        catalog = FakeCatalog([OWN] * 100)
        catalog.hangs_after = 0
        text = "not checked, since variants cannot be read: the store did not respond within 10 s"
        self.assertIn(text, self.text(catalog, Verdict.NOTE, 10))
        catalog = FakeCatalog([OWN] * 100)
        catalog.hangs_after = 20
        self.assertIn("of 20 stored variants, ", self.text(catalog, Verdict.GOOD, 10))
